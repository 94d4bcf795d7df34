"""Cells that run under `%%tpu_mode` or `%%tpu_profile`: opened by their first line, closed and shown when the cell ends."""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from IPython.core.error import UsageError
from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult, InteractiveShell

from torchtpu import compiler, config, lines
from torchtpu.notebook_ext import graph_view, labels
from torchtpu.notebook_ext.debugging import Debugging
from torchtpu.notebook_ext.history import CellFigures, History
from torchtpu.notebook_ext.live import Live, Now
from torchtpu.notebook_ext.targets import Target, Targets
from torchtpu.report import Report


@dataclass(frozen=True, slots=True)
class Options:
    """What the user asked for.

    Attributes:
        mode: its label.
        quiet: show no report.
        save: where to save the report.
        debugging: what debug mode checks.
        graph: show the graphs.
        numerics: how XLA:CPU multiplies float32 numbers, as in `config.numerics`; None: as the session has it.
        target: chips to compile for what the cell ran; None: those of the session.
    """

    mode: str
    quiet: bool = False
    save: Path | None = None
    debugging: Debugging = field(default_factory=Debugging)
    graph: bool = False
    numerics: str | None = None
    target: Target | None = None


@dataclass(frozen=True, slots=True)
class _Open:
    """A cell under way. `owner`: IPython's record of it; None for a silent one."""

    owner: ExecutionInfo | None
    options: Options
    scopes: contextlib.ExitStack
    report: Report
    live: Live


class Guest(Protocol):
    """Something else that is open until its cell ends: a profile."""

    @property
    def owner(self) -> ExecutionInfo | None:
        """IPython's record of the cell."""

    def close(self, result: ExecutionResult | None) -> BaseException | None:
        """End it and show what it found. Returns the error with which that failed, if it did."""

    def now(self) -> Now | None:
        """Look at it, from any thread."""


_G = TypeVar("_G", bound=Guest)


class Cells:
    """The cells of one shell: which run, and which of them are watched.

    Cells nest (`%run`, `%%capture`, ...): each is known by IPython's own record of it, which is the same object when it
    starts and when it ends.
    """

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._running: list[ExecutionInfo] = []
        self._open: list[_Open | Guest] = []
        self.history = History()
        self.targets = Targets(shell)
        self.callbacks: dict[str, Callable[..., None]] = {
            "pre_run_cell": self._started,
            "post_execute": self._silent_ended,
            "post_run_cell": self._ended,
        }

    def open(self, options: Options) -> None:
        """Enter a mode and begin a report, until the running cell ends.

        Raises:
            UsageError: the cell has another `%%tpu_mode` already.
        """
        from torchtpu import events, modes
        from torchtpu.watch import watch

        owner = self.running
        for cell in self._open:
            if cell.owner is owner and isinstance(cell, _Open):
                if cell.options == options:  # the same line again: %%timeit runs it in each of its loops
                    return
                raise UsageError("a cell can have one %%tpu_mode")
        with contextlib.ExitStack() as scopes:
            scopes.enter_context(modes.scope(options.mode))
            if options.numerics is not None:
                scopes.enter_context(config.options(numerics=options.numerics))
            scopes.enter_context(options.debugging.scope())
            report = scopes.enter_context(watch(trace=options.debugging.trace))
            live = Live(self._shell, options.mode, events.logs[-1], not options.quiet)
            self._open.append(_Open(owner, options, scopes.pop_all(), report, live))

    @property
    def running(self) -> ExecutionInfo | None:
        """IPython's record of the innermost cell that runs; None for a silent one."""
        return self._running[-1] if self._running else None

    def guest(self, kind: type[_G]) -> _G | None:
        """Return the guest of a kind that the running cell has open, if it has one."""
        owner = self.running
        return next((cell for cell in self._open if isinstance(cell, kind) and cell.owner is owner), None)

    def enter(self, guest: Guest) -> None:
        """Keep a guest open until its cell ends."""
        self._open.append(guest)

    def now(self) -> Now | None:
        """Look at the innermost open cell, from any thread; None between cells."""
        cells = self._open[:]
        if not cells:
            return None
        return cells[-1].live.now() if isinstance(cells[-1], _Open) else cells[-1].now()

    def close_all(self) -> None:
        """End every open cell, innermost first."""
        while self._open:
            self._close(self._open.pop(), None)
        self.targets.stop()
        compiler.interrupts.stop()  # the running cell's own end is no longer heard of

    def _started(self, info: ExecutionInfo) -> None:
        if not self._running:
            compiler.interrupts.listen()
        self._running.append(info)

    def _silent_ended(self) -> None:
        # IPython announces the end of a silent execution only here, and not its start.
        if not self._running:
            self._end(None, None)

    def _ended(self, result: ExecutionResult | None) -> None:
        if result is None:  # ipykernel, where the cell's own task was cancelled
            owners = self._running[::-1]
        elif result.info in self._running:
            owners = self._running[self._running.index(result.info) :][::-1]
        else:  # the cell that loaded this extension, or an empty one
            owners = [None]
        self.targets.cell_ended()
        for owner in owners:
            if owner is not None:
                self._running.remove(owner)
            self._end(owner, result)
        if not self._running:
            compiler.interrupts.stop()

    def _end(self, owner: ExecutionInfo | None, result: ExecutionResult | None) -> None:
        """Run what the cell left pending, then close it if it is watched."""
        modes: Any = sys.modules.get("torchtpu.modes")  # not loaded: nothing can be pending, and jax need not be loaded
        with lines.nobodys():
            try:
                if modes is not None:
                    modes.flush("end of cell")
            except (Exception, KeyboardInterrupt) as error:
                self._fail(result, error)
            while self._open and self._open[-1].owner is owner:
                self._close(self._open.pop(), result)

    def _close(self, cell: _Open | Guest, result: ExecutionResult | None) -> None:
        if not isinstance(cell, _Open):
            failed = cell.close(result)
            if failed is not None:
                self._fail(result, failed)
            return
        error = (result.error_before_exec or result.error_in_exec) if result is not None else None
        try:
            if error is None:
                cell.scopes.close()
            else:
                cell.scopes.__exit__(type(error), error, error.__traceback__)
        except (Exception, KeyboardInterrupt) as raised:
            if raised is not error:
                self._fail(result, raised)
        if not cell.report.finished:  # the watch itself was interrupted
            cell.live.finish(None)
            return
        self.history.add(CellFigures.of(labels.running(self._shell), cell.report))
        if not cell.options.quiet:
            text = cell.report.to_text(shutil.get_terminal_size().columns) if sys.stdout.isatty() else cell.report.to_text()
            cell.live.finish({"text/html": cell.report.to_html(), "text/plain": text})
        if cell.options.graph:
            graphs = graph_view.bundle(cell.report)
            if graphs:
                self._shell.display_pub.publish(data=graphs, metadata={})
        if cell.options.save is not None:
            try:
                cell.report.save(cell.options.save)
            except OSError as raised:
                self._fail(result, raised)
        target = cell.options.target or self.targets.target
        if target.chips and not (cell.options.quiet and cell.options.save is None):
            self.targets.compile(cell.report, target, cell.options.save, not cell.options.quiet)

    def _fail(self, result: ExecutionResult | None, error: BaseException) -> None:
        """Show an error that came up when the cell had ended, and let it count as the cell's: Run All stops there."""
        self._shell.showtraceback((type(error), error, error.__traceback__), exception_only=True)
        if result is not None and result.success:
            result.error_in_exec = error
            self._shell.last_execution_succeeded = False
