"""The magics: they read their arguments and leave the work to others."""

from __future__ import annotations

from types import EllipsisType

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from torchtpu.notebook_ext import first_line
from torchtpu.notebook_ext.cells import Cells, Options
from torchtpu.notebook_ext.dashboard import Dashboard
from torchtpu.notebook_ext.debugging import Debugging
from torchtpu.notebook_ext.status import status
from torchtpu.notebook_ext.targets import EFFORTS, Target
from torchtpu.report.report import check_path


@magics_class
class TPUMagics(Magics):
    """`%tpu`, `%tpu_mode` and `%%tpu_mode`."""

    def __init__(self, shell: InteractiveShell, cells: Cells, dashboard: Dashboard) -> None:
        super().__init__(shell)
        self._cells = cells
        self._dashboard = dashboard

    @line_magic
    def tpu(self, line: str) -> None:
        """Show the state of the device: platform, mode, HBM in use, peak and limit, and programs cached.

        It starts no device. `%tpu dashboard` opens a panel on the whole session: what its %%tpu_mode cells did, and what the
        running one does. `%tpu doctor` looks for what keeps a profile from being seen in TensorBoard: versions, plugin, log
        directory (that of the last profile, or the one named after it), port, address.
        """
        match line.split(maxsplit=1):
            case []:
                print(status())
            case ["dashboard"]:
                self._dashboard.open()
            case ["doctor", *logdir]:
                self._doctor(*logdir)
            case _:
                raise UsageError(
                    "%tpu takes no arguments, `dashboard`, or `doctor` and a log directory; the mode is set with %tpu_mode"
                )

    def _doctor(self, logdir: str | None = None) -> None:
        from torchtpu.profiler.diagnosis import doctor

        found = doctor(logdir.strip().strip("'\"") if logdir else None)
        self.shell.display_pub.publish(data={"text/html": found.to_html(), "text/plain": found.to_text()}, metadata={})

    @magic_arguments()
    @argument(
        "mode",
        nargs="?",
        help="strict, debug or defer_and_fuse (or an EagerMode's name); case and - or _ do not matter. "
        "Left out: the mode that is set.",
    )
    @argument("--quiet", action="store_true", help="%%%%tpu_mode: show no report.")
    @argument("--save", metavar="PATH", help="%%%%tpu_mode: save the report too, as .json, .html or .txt.")
    @argument("--graph", action="store_true", help="%%%%tpu_mode: show the programs as graphs below the report.")
    @argument(
        "--numerics",
        metavar="native|tpu",
        help="How a CPU multiplies float32: as it does (native), or in bfloat16 passes, as a TPU does (tpu). "
        "How many passes says torch.tpu.precision or torch.set_float32_matmul_precision.",
    )
    @argument(
        "--target",
        metavar="CHIPS",
        help="%%%%tpu_mode: compile what the cell ran for TPU chips: v6e, v5e,v6e, all; off: not for those of %%tpu_target.",
    )
    @argument("--effort", choices=EFFORTS, help="--target: memory, a fast compile with right memory figures, or full.")
    @argument("--nan", action="store_true", help="%%%%tpu_mode debug: stop at the first op that makes a NaN or an Inf.")
    @argument(
        "--check", choices=["cpu"], metavar="cpu", help="%%%%tpu_mode debug: stop at the first op that differs from the CPU."
    )
    @argument("--trace", action="store_true", help="%%%%tpu_mode debug: report each op: line, shapes, time, bytes.")
    @argument(
        "--break",
        dest="break_at",
        metavar="OP|LINE",
        help="%%%%tpu_mode debug: open a debugger before each op of this name (mm), or at this line of the cell.",
    )
    @argument("--no-sync", action="store_true", help="%%%%tpu_mode: a read that waits for the device is an error.")
    @line_cell_magic
    def tpu_mode(self, line: str, cell: str | EllipsisType | None = None) -> None:
        """Choose when ops run: for this cell (%%tpu_mode, with a report below it) or from now on (%tpu_mode)."""
        from torchtpu import config, modes

        arguments = parse_argstring(self.tpu_mode, line)
        try:
            mode = modes.EagerMode.parse(arguments.mode) if arguments.mode else modes.current()
            numerics = config.check("numerics", arguments.numerics) if arguments.numerics else None
            save = check_path(arguments.save.strip("'\"")) if arguments.save else None  # IPython keeps quotes
        except ValueError as error:
            raise UsageError(str(error)) from None
        target = Target.parse(arguments.target, arguments.effort) if arguments.target else None
        if arguments.effort and target is None:
            raise UsageError("--effort says how hard to compile for --target: name a chip too, as in --target v6e")
        debugging = Debugging.of(arguments, mode.label, cell is not None)
        if cell is None:
            if arguments.quiet or save or arguments.graph:
                raise UsageError("--quiet, --save and --graph belong to a report: use them with %%tpu_mode")
            if target is not None:
                raise UsageError("--target is for one cell: use it with %%tpu_mode, or %tpu_target for all that follow")
            if numerics:
                config.numerics = numerics
            if arguments.mode:
                modes.set(mode)
            elif not numerics:
                print(mode.label)
            return
        if cell is ...:  # the first line of a cell, as `first_line` rewrote it
            first_line.show_as_typed()
        if target is not None and target.chips and arguments.quiet and not save:
            raise UsageError("--target adds to the report, which --quiet hides: leave out one of them, or --save the report")
        self._cells.open(Options(mode.label, arguments.quiet, save, debugging, arguments.graph, numerics, target))
        if isinstance(cell, str):  # called by code, with a body that nobody has run
            self.shell.run_cell(cell).raise_error()
