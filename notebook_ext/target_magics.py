"""`%tpu_target`: the chips that the cells of a session are compiled for."""

from __future__ import annotations

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from torchtpu.errors import CompilerMissingError
from torchtpu.notebook_ext.targets import EFFORTS, Target, Targets


@magics_class
class TargetMagics(Magics):
    """`%tpu_target`."""

    def __init__(self, shell: InteractiveShell, targets: Targets) -> None:
        super().__init__(shell)
        self._targets = targets

    @magic_arguments()
    @argument(
        "chips",
        nargs="*",
        help="v6e, or v5e,v6e, or all: compile what every following %%%%tpu_mode cell runs for these chips. off: do not. "
        "wait: wait for what is being compiled. stop: compile no more of it. Left out: show the chips, and what is under way.",
    )
    @argument("--effort", choices=EFFORTS, help="memory (default), a fast compile with right memory figures, or full.")
    @line_magic
    def tpu_target(self, line: str) -> None:
        """Compile cells for TPU chips that need not be there: does it fit, what is the HBM peak, what would bound it?"""
        arguments = parse_argstring(self.tpu_target, line)
        names = ",".join(name.strip(",") for name in arguments.chips)
        match names:
            case "":
                if arguments.effort:
                    raise UsageError("--effort goes with chips: %tpu_target v6e --effort full")
                self._show()
            case "wait":
                self._targets.wait()
            case "stop":
                self._targets.stop()
            case _:
                target = Target.parse(names, arguments.effort)
                if target.chips:
                    self._check()
                self._targets.target = target

    def _check(self) -> None:
        from torchtpu.ahead import process

        try:
            process.version()
        except CompilerMissingError as error:
            raise UsageError(str(error)) from None

    def _show(self) -> None:
        print(f"target: {self._targets.target}")
        for bundle in self._targets.last():
            self.shell.display_pub.publish(data=bundle, metadata={})
