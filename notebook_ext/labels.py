"""Names of a notebook's lines: `In[7], line 3` for what Python calls `/tmp/ipykernel_41/1967.py:3`."""

from __future__ import annotations

import os

import IPython
from IPython.core.interactiveshell import InteractiveShell

from torchtpu import lines

_TIMED = ("<timed exec>", "<timed eval>")  # what %time and %%time call the code they run


def install(shell: InteractiveShell) -> None:
    """Let torchtpu name the lines of a shell's cells."""

    def label(filename: str) -> str | None:
        if filename in _TIMED:
            return f"{running(shell)} under %%time"
        name = shell.compile.format_code_name(filename)
        return name[1] if name is not None else None

    lines.label_of_file = label
    # A value shown by IPython is read by IPython's code: the user's line is the one that had it shown.
    for package in (os.path.dirname(IPython.__file__), os.path.dirname(__file__)):
        lines.skip(package)


def uninstall(shell: InteractiveShell) -> None:
    """Let lines of cells have Python's names again."""
    lines.label_of_file = lines.no_label


def running(shell: InteractiveShell) -> str:
    """Name the cell that runs, or has just ended."""
    # IPython counts a cell when it starts, unless the cell is kept out of the history.
    return f"In[{max(1, shell.execution_count - 1)}]"
