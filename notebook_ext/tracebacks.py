"""Errors that torchtpu finds end at the user's line: below it, a traceback would show torch's and torchtpu's own frames.

`%debug` then opens at that line too.
"""

from __future__ import annotations

from types import TracebackType

from IPython.core.interactiveshell import InteractiveShell

from torchtpu import lines
from torchtpu.errors import TorchTPUError


def install(shell: InteractiveShell) -> None:
    """Shorten the tracebacks of torchtpu's own errors, unless the user's own handler is there."""
    if not shell.custom_exceptions:
        shell.set_custom_exc((TorchTPUError,), _show)


def uninstall(shell: InteractiveShell) -> None:
    """Leave tracebacks as they are."""
    if shell.custom_exceptions == (TorchTPUError,):
        shell.set_custom_exc((), None)


def _show(
    shell: InteractiveShell,
    kind: type[BaseException],
    error: BaseException,
    traceback: TracebackType | None,
    tb_offset: int | None = None,
) -> None:
    cut(traceback)
    shell.showtraceback((kind, error, traceback), tb_offset=tb_offset)


def cut(traceback: TracebackType | None) -> None:
    """Drop the frames below the last one of the user's, if there is one."""
    last = None
    while traceback is not None:
        if lines.is_users(traceback.tb_frame.f_code.co_filename):
            last = traceback
        traceback = traceback.tb_next
    if last is not None:
        last.tb_next = None
