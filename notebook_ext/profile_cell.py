"""`%%tpu_profile`: profile a cell, write it where TensorBoard finds it, and show below it where the time went."""

from __future__ import annotations

import contextlib
import shutil
import sys
from dataclasses import dataclass
from html import escape
from types import EllipsisType
from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import ExecutionInfo, ExecutionResult, InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from torchtpu.errors import TorchTPUError
from torchtpu.notebook_ext import first_line, labels
from torchtpu.notebook_ext.cells import Cells
from torchtpu.notebook_ext.live import Live, Now
from torchtpu.report.table import QUIET


@dataclass(frozen=True, slots=True)
class Profiled:
    """A cell that is being profiled (a `cells.Guest`).

    Attributes:
        owner: IPython's record of the cell.
        capture: open until the cell ends.
        scopes: the mode of the cell.
        live: the line that is shown while it runs.
        open: show it in TensorBoard too.
        line: what the user typed.
    """

    shell: InteractiveShell
    owner: ExecutionInfo | None
    capture: Any
    scopes: contextlib.ExitStack
    live: Live
    open: bool
    line: str

    def now(self) -> Now | None:
        """Look at it, from any thread."""
        return self.live.now()

    def close(self, result: ExecutionResult | None) -> BaseException | None:
        """End the profile, write it and show it."""
        from torchtpu.profiler import capture

        error = (result.error_before_exec or result.error_in_exec) if result is not None else None
        failed: BaseException | None = None
        try:
            capture.stop(self.capture, error)
        except (Exception, KeyboardInterrupt) as raised:
            failed = raised
        try:
            self.scopes.close()
        except (Exception, KeyboardInterrupt) as raised:
            failed = failed or raised
        if not self.capture.finished:
            self.live.finish(None)
            if failed is None and error is not None:  # it could not be written, and the error with that note is shown already
                failed = TorchTPUError(error.__notes__[-1])
            return failed
        self.live.finish(shown(self.capture))
        for modelled in self.capture.targets:
            data = {"text/html": modelled.to_html(), "text/plain": modelled.to_text()}
            self.shell.display_pub.publish(data=data, metadata={})
        if self.open and failed is None:
            failed = self._show_tensorboard()
        return failed

    def _show_tensorboard(self) -> BaseException | None:
        from torchtpu.notebook_ext.profile_view import bundle
        from torchtpu.profiler import last_logdir, tensorboard

        try:
            server = tensorboard.start(last_logdir())
        except (tensorboard.TensorBoardError, tensorboard.NoProfileError, ValueError) as error:
            return UsageError(str(error))
        self.shell.display_pub.publish(data=bundle(server, self.capture.run), metadata={})
        return None


def shown(capture: Any) -> dict[str, str]:
    """Return what shows a capture that has ended: its profile, and what TensorBoard will show of it."""
    profile, check = capture.profile, capture.check.to_text()
    text = profile.to_text(shutil.get_terminal_size().columns) if sys.stdout.isatty() else profile.to_text()
    small = f'<div style="{QUIET};white-space:pre-wrap;overflow-wrap:anywhere;margin:4px 0">{escape(check)}</div>'
    return {"text/html": profile.to_html() + small, "text/plain": f"{text}\n{check}"}


class _Progress:
    """Says once for each chip that compiling takes a while."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def __call__(self, what: str) -> None:
        chip = what.rpartition(" ")[2]
        if chip not in self._said:
            self._said.add(chip)
            print(f"compiling for {chip}: {what}")


@magics_class
class ProfileCellMagics(Magics):
    """`%%tpu_profile`."""

    def __init__(self, shell: InteractiveShell, cells: Cells) -> None:
        super().__init__(shell)
        self._cells = cells

    @magic_arguments()
    @argument("--logdir", metavar="D", help="Where to write it; tpu_profiles if left out.")
    @argument("--steps", type=int, help="Stop after so many steps; the cell goes on unprofiled.")
    @argument("--mode", help="strict, debug or defer_and_fuse; the mode that is set if left out.")
    @argument("--python", action="store_true", help="Trace Python's calls too: slower, and a much larger trace.")
    @argument(
        "--target",
        metavar="CHIPS",
        default="",
        help="v6e, or v5e,v6e, or all: compile what ran for these chips, and write a run more for each, with the times that "
        "the TPU compiler expects.",
    )
    @argument("--open", action="store_true", help="Show it in TensorBoard below the cell.")
    @line_cell_magic
    def tpu_profile(self, line: str, cell: str | EllipsisType | None = None) -> None:
        """Profile a cell, for TensorBoard and below the cell: steps, ops and their lines, kernels, compiles, waits, memory."""
        from torchtpu import modes
        from torchtpu.profiler import capture

        arguments = parse_argstring(self.tpu_profile, line)
        if cell is None:
            raise UsageError("%tpu_profile is for a whole cell: write %%tpu_profile on its first line")
        if cell is ...:  # the first line of a cell, as `first_line` rewrote it
            first_line.show_as_typed()
        known = self._cells.guest(Profiled)
        if known is not None:
            if known.line == line:  # the same line again: %%timeit runs it in each of its loops
                return
            raise UsageError("a cell can have one %%tpu_profile")
        with contextlib.ExitStack() as scopes:
            try:
                if arguments.mode:
                    scopes.enter_context(modes.scope(arguments.mode))
                made = capture.start(
                    arguments.logdir.strip("'\"") if arguments.logdir else capture.DEFAULT_LOGDIR,  # IPython keeps quotes
                    name=labels.running(self.shell),
                    steps=arguments.steps,
                    levels=capture.Levels(python=int(arguments.python)),
                    target=arguments.target,
                    progress=_Progress(),
                )
            except (ValueError, OSError, TorchTPUError) as error:
                raise UsageError(str(error)) from None
            live = Live(self.shell, f"profile, {modes.current().label}", made.log, True)
            owner = self._cells.running
            self._cells.enter(Profiled(self.shell, owner, made, scopes.pop_all(), live, arguments.open, line))
        if isinstance(cell, str):  # called by code, with a body that nobody has run
            self.shell.run_cell(cell).raise_error()
