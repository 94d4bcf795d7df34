"""Profiles as collapsed stacks, for speedscope and flamegraph.pl: device time by line, module, op and kernel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchtpu.profiler.figures import at
from torchtpu.report.sections import one_line

if TYPE_CHECKING:
    from torchtpu.profiler.result import Profile
    from torchtpu.profiler.rows import KernelTime

_OPS = 3  # that a frame names


def to_stacks(profile: Profile) -> str:
    """Write a line of text for each kernel: its frames with `;` between them, and its time in whole microseconds.

    The numbers add up to the time of all kernels: what rounding takes from one, the next one gets.
    """
    return "".join(f"{';'.join(frames)} {number}\n" for frames, number in _stacks(profile))


def _stacks(profile: Profile) -> Iterator[tuple[list[str], int]]:
    seconds: dict[tuple[str, ...], float] = {}
    for kernel in profile.kernels:
        frames = tuple(map(_frame, _frames(kernel)))
        seconds[frames] = seconds.get(frames, 0.0) + kernel.seconds
    total, written = 0.0, 0
    for frames, own in seconds.items():
        total += own
        number = round(total * 1e6) - written
        written += number
        if number:
            yield list(frames), number


def _frames(kernel: KernelTime) -> Iterator[str]:
    place = at(kernel.line, kernel.backward)
    yield f"{place.where}: {place.source}" if place.source else place.where or "no line"
    yield from kernel.module.split("/") if kernel.module else ()
    first, more = kernel.ops[:_OPS], kernel.ops[_OPS:]
    ops = ", ".join(op.removeprefix("aten::") for op in first) or "no op"
    yield f"{ops} and {len(more)} more" if more else ops
    yield f"{kernel.name} ({kernel.kind})" if kernel.kind else kernel.name


def _frame(text: str) -> str:
    return one_line(text).replace(";", ",")
