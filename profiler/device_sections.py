"""What the device did, arranged for reading: ops by time, bytes and FLOP, programs, kernels, and what bounds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torchtpu.profiler import roofline
from torchtpu.profiler.figures import (
    NAME,
    NOTHING_RAN,
    at,
    compiled_label,
    device_label,
    figure,
    module,
    more,
    rate,
    share,
    short,
)
from torchtpu.profiler.rows import KernelTime, OpTime, ProgramTime
from torchtpu.report import units
from torchtpu.report.sections import Cell, Column, Fold, Section, one_line, place

if TYPE_CHECKING:
    from torchtpu.profiler.result import Profile

_OP = 26  # characters of an op
_LISTED = 300  # and of a list of them


def _ops(
    profile: Profile,
    rows: int,
    name: str,
    key: Callable[[OpTime], float],
    empty: str,
    figures: Sequence[tuple[str, Callable[[OpTime], str]]],
) -> Section:
    """A table of ops, those with the most of something first; figures: titles, and what to show under them."""
    ordered = sorted((o for o in profile.ops if key(o) > 0), key=lambda o: -key(o))
    modules = any(o.module for o in ordered[:rows])

    def row(o: OpTime) -> tuple[Cell, ...]:
        return (_op(o), at(o.line, o.backward), *((module(o.module),) if modules else ()), *(show(o) for _, show in figures))

    rest = ordered[rows:]
    return Section(
        f"Ops by {name}: {len(ordered):,}",
        f"each by the kernels that write its results; times {device_label(profile)}, FLOP and bytes {compiled_label(profile)}",
        (
            Column("op"),
            Column("line"),
            *((Column("module"),) if modules else ()),
            *(Column(title, True) for title, _ in figures),
        ),
        tuple(map(row, ordered[:rows])),
        (more(rest, "op") if ordered else empty if profile.ops else NOTHING_RAN),
    )


def by_time(profile: Profile, rows: int, wide: bool) -> Section:
    """The ops by their time."""
    whole = sum(o.seconds for o in profile.ops)
    amounts = (
        ("FLOP", lambda o: units.scaled(o.flops, "") if o.flops else ""),
        ("bytes", lambda o: units.nbytes(int(o.nbytes))),
    )
    return _ops(
        profile, rows, "time", lambda o: o.seconds, NOTHING_RAN,
        (
            ("calls", lambda o: f"{o.calls:,}"),
            ("time", lambda o: units.seconds(o.seconds)),
            ("share", lambda o: share(o.seconds, whole)),
            ("GFLOP/s", lambda o: rate(o.flops, o.seconds)),
            ("GB/s", lambda o: rate(o.nbytes, o.seconds)),
            *(amounts if wide else ()),
        ),
    )  # fmt: skip


def by_bytes(profile: Profile, rows: int) -> Section:
    """The ops by what they read and write."""
    whole = sum(o.nbytes for o in profile.ops)
    return _ops(
        profile, rows, "bytes", lambda o: o.nbytes, "The compiler does not say what these programs read and write.",
        (
            ("bytes", lambda o: units.nbytes(int(o.nbytes))),
            ("share", lambda o: share(o.nbytes, whole)),
            ("a call", lambda o: units.nbytes(int(o.nbytes / o.calls)) if o.calls else ""),
            ("GB/s", lambda o: rate(o.nbytes, o.seconds)),
            ("FLOP/byte", lambda o: figure(o.flops / o.nbytes)),
            ("time", lambda o: units.seconds(o.seconds)),
        ),
    )  # fmt: skip


def by_flops(profile: Profile, rows: int) -> Section:
    """The ops by what they compute."""
    whole, peak = sum(o.flops for o in profile.ops), profile.peak_flops
    of_peak = (("of peak", lambda o: share(o.flops / o.seconds, peak) if o.seconds else ""),) if peak else ()
    return _ops(
        profile, rows, "FLOP", lambda o: o.flops, "No op computes with floating-point numbers.",
        (
            ("FLOP", lambda o: units.scaled(o.flops, "")),
            ("share", lambda o: share(o.flops, whole)),
            ("a call", lambda o: units.scaled(o.flops / o.calls, "") if o.calls else ""),
            ("GFLOP/s", lambda o: rate(o.flops, o.seconds)),
            *of_peak,
            ("time", lambda o: units.seconds(o.seconds)),
        ),
    )  # fmt: skip


def programs(profile: Profile, rows: int) -> Section:
    """The programs by their time."""
    ordered = sorted(profile.programs, key=lambda p: -p.seconds)
    whole = sum(p.seconds for p in ordered)

    def row(p: ProgramTime) -> tuple[Cell, ...]:
        return (
            one_line(p.name, NAME),
            place(p.line),
            one_line(p.reason),
            f"{p.ops:,}",
            f"{p.runs:,}",
            units.seconds(p.seconds),
            share(p.seconds, whole),
            rate(p.flops, p.seconds),
            rate(p.nbytes, p.seconds),
            units.nbytes(p.temp_bytes),
        )

    figures = ("ops", "runs", "time", "share", "GFLOP/s", "GB/s", "temp")
    return Section(
        f"Programs: {len(ordered):,}",
        f"first kernel of each run to the end of its last; {device_label(profile)}, FLOP and bytes {compiled_label(profile)}",
        (Column("program"), Column("first line"), Column("why"), *(Column(title, True) for title in figures)),
        tuple(map(row, ordered[:rows])),
        more(ordered[rows:], "program") if ordered else NOTHING_RAN,
    )


def kernels(profile: Profile, rows: int) -> Section:
    """The kernels by their time."""
    ordered = sorted(profile.kernels, key=lambda k: -k.seconds)
    whole = sum(k.seconds for k in ordered)

    def row(k: KernelTime) -> tuple[Cell, ...]:
        return (
            _kernel(k),
            k.kind,
            at(k.line, k.backward),
            f"{k.count:,}",
            units.seconds(k.seconds),
            share(k.seconds, whole),
            rate(k.flops, k.seconds),
            rate(k.nbytes, k.seconds),
        )

    figures = ("runs", "time", "share", "GFLOP/s", "GB/s")
    return Section(
        f"Kernels: {len(ordered):,}",
        f"XLA's fusions and single instructions; times {device_label(profile)}, FLOP and bytes {compiled_label(profile)}",
        (Column("kernel"), Column("kind"), Column("line"), *(Column(title, True) for title in figures)),
        tuple(map(row, ordered[:rows])),
        more(ordered[rows:], "kernel") if ordered else NOTHING_RAN,
    )


def bounds(profile: Profile, rows: int) -> Section:
    """What bounds the kernels that take the most time."""
    found = roofline.points(profile)
    labels = f"times {device_label(profile)}, FLOP and bytes {compiled_label(profile)}"
    if not found:
        return Section("Roofline", labels, (), (), "No kernel computes or moves anything that the compiler counts.")

    def row(number: int, p: roofline.Point) -> tuple[Cell, ...]:
        k = p.kernel
        return (
            f"{number}",
            _kernel(k),
            at(k.line, k.backward),
            p.bound or "unknown",
            figure(p.intensity),
            rate(k.flops, k.seconds),
            rate(k.nbytes, k.seconds),
            share(p.of_roof, 1.0),
            units.seconds(k.seconds),
        )

    known = bool(profile.peak_flops and profile.peak_bandwidth)
    figures = ("FLOP/byte", "GFLOP/s", "GB/s", "of roof", "time")
    drawn = roofline.picture(profile, found)
    return Section(
        "Roofline: what bounds the kernels" if known else "Roofline: operations per byte",
        labels,
        (Column("#"), Column("kernel"), Column("line"), Column("bound by"), *(Column(title, True) for title in figures)),
        tuple(row(number, p) for number, p in enumerate(found[:rows], 1)),
        _sentence(found) if known else "What bounds a kernel cannot be said: the device's peaks are not known.",
        chart=drawn,
    )


def _sentence(found: Sequence[roofline.Point]) -> str:
    sentence = f"overhead: below {roofline.REACHED:.0%} of both roofs, as short kernels are."
    return f"{sentence} Above 100% of its roof: the bytes came from a cache." if any(p.of_roof > 1 for p in found) else sentence


def _op(row: OpTime) -> Cell:
    name = short(row.op)
    shown = one_line(name, _OP)
    details = [name] if shown != name else []
    if row.fused:
        shown += f" +{len(row.fused)}"
        details.append(f"its kernels compute too: {_listed(row.fused)}")
    return Fold(shown, tuple(details)) if details else shown


def _kernel(kernel: KernelTime) -> Cell:
    return Fold(one_line(kernel.name, NAME), (f"of {kernel.program}", f"computes {_listed(kernel.ops) or 'no op'}"))


def _listed(ops: Sequence[str]) -> str:
    return one_line(", ".join(map(short, ops)), _LISTED)
