"""The debugging options of a `%%tpu_mode` cell: what they mean, and which go together."""

from __future__ import annotations

import contextlib
import sys
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass

from IPython import get_ipython
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from torchtpu import config, lines, reads


@dataclass(frozen=True, slots=True)
class Debugging:
    """What a cell was asked to check.

    Attributes:
        nan: stop at the first op that makes a NaN or Inf.
        check: stop at the first op that differs from the CPU.
        trace: keep each op in the report.
        break_at: open a debugger before each op of this name, or at this line (`mm`, `/tmp/ipykernel_1/2.py:5`).
        typed: `break_at` as the user wrote it.
        no_sync: refuse reads that wait for the device.
    """

    nan: bool = False
    check: bool = False
    trace: bool = False
    break_at: str = ""
    typed: str = ""
    no_sync: bool = False

    @classmethod
    def of(cls, arguments: Namespace, mode: str, body: bool) -> Debugging:
        """Read what the magic's parser found.

        Args:
            mode: the cell's mode.
            body: there is a cell below; else the mode is set for the session.

        Raises:
            UsageError: options that do not go together, in a sentence that says what to do.
        """
        needs = {"--nan": arguments.nan, "--check": arguments.check, "--trace": arguments.trace, "--break": arguments.break_at}
        given = [name for name, value in needs.items() if value]
        if not body and (given or arguments.no_sync):
            first = given[0] if given else "--no-sync"
            raise UsageError(f"{first} is for one cell: use it with %%tpu_mode (for longer, see torchtpu.config and torch.tpu)")
        if given and mode != "debug":
            raise UsageError(
                f"{given[0]} looks at each op when it has run, which only debug mode waits for; this cell's mode is {mode}: "
                f"use %%tpu_mode debug {given[0]}"
            )
        if arguments.quiet and not arguments.save and (arguments.trace or arguments.check):
            added = "--trace" if arguments.trace else "--check"
            raise UsageError(f"{added} adds to the report, which --quiet hides: leave out one of them, or --save the report")
        typed = arguments.break_at or ""
        return cls(arguments.nan, bool(arguments.check), arguments.trace, _place(typed), typed, arguments.no_sync)

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Check what was asked for inside a `with` block."""
        with contextlib.ExitStack() as scopes:
            scopes.enter_context(config.options(**self._knobs()))
            if self.no_sync:
                scopes.enter_context(reads.forbidden())
            if self.check:
                scopes.callback(_forget)
            if self.break_at:
                scopes.enter_context(self._noting_whether_it_stops())
            yield

    @contextlib.contextmanager
    def _noting_whether_it_stops(self) -> Iterator[None]:
        from torchtpu.checks import breakpoints

        before = breakpoints.stops
        with _debugger_of(get_ipython()):
            yield
        if breakpoints.stops == before:
            if self.typed.isdigit():
                why = f"no op ran on line {self.typed}"
            else:
                why = f"no op named {self.typed} ran; some ops (linear, matmul) run as others, which --trace lists"
            print(f"--break {self.typed} never stopped: {why}", file=sys.stderr)

    def _knobs(self) -> dict[str, object]:
        knobs = {"debug_nan": self.nan, "debug_compare_cpu": self.check, "debug_break": self.break_at}
        return {name: value for name, value in knobs.items() if value}  # what the session has set stays


@contextlib.contextmanager
def _debugger_of(shell: InteractiveShell | None) -> Iterator[None]:
    """Let a shell's own debugger open inside a `with` block."""
    from torchtpu.checks import breakpoints

    before = breakpoints.debugger
    if shell is not None:
        breakpoints.debugger = shell.debugger_cls
    try:
        yield
    finally:
        breakpoints.debugger = before


def _place(typed: str) -> str:
    """Complete a line of the cell to `FILE:LINE`, and check that an op exists."""
    if not typed:
        return ""
    from torchtpu.checks.breakpoints import Breakpoint  # here: it imports jax

    if typed.isdigit():
        frame = lines.frame()
        if frame is None:
            raise UsageError(f"--break {typed}: no cell is running; give an op's name, or FILE:LINE")
        typed = f"{frame.f_code.co_filename}:{typed}"
    try:
        Breakpoint.parse(typed)
    except ValueError as error:
        raise UsageError(f"--break: {error}") from None
    return typed


def _forget() -> None:
    from torchtpu.checks import cpu

    cpu.forget()
