"""`%%tpu_mode` or `%%tpu_profile` on the first line of a cell, with the rest of the cell left as it is.

A cell magic gets the rest of the cell as text, and can only run it as a cell of its own: strings that hold `%` change,
`Out[]` is lost, or errors no longer stop Run All. So the first line is turned into a call instead, before IPython sees a
cell magic in it. The call opens the mode and the report, or the profile; the end of the cell closes them
(`cells.Cells`). Everything below is an ordinary cell, with its own line numbers.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys

from IPython.core.inputtransformer2 import cell_magic

_MAGIC = re.compile(r"%%(tpu_mode|tpu_profile)(?:[ \t]+(.*?))?[ \t]*$")


def first_line(lines: list[str]) -> list[str]:
    """Turn a leading `%%tpu_mode ARGUMENTS` (or `%%tpu_profile`) into a call of the magic whose body is `...`.

    Another cell magic right below it gets the rest of the cell, as if it stood there alone.
    """
    match = _MAGIC.match(lines[0]) if lines else None
    if match is None:
        return lines
    start = next((k for k, line in enumerate(lines[1:], 1) if line.strip()), len(lines))
    return [_call(match[1], match[2] or ""), *lines[1:start], *cell_magic(first_line(lines[start:]))]


# IPython asks its transformers whether a cell is complete while it is typed. Without the `%%` it would run the first
# line alone in a terminal.
first_line.has_side_effects = True


def _call(magic: str, arguments: str) -> str:
    return f"get_ipython().run_cell_magic({magic!r}, {arguments!r}, ...)\n"


_CALL = re.compile(r"get_ipython\(\)\.run_cell_magic\('(\w+)', (.*), \.\.\.\)\n")


def show_as_typed() -> None:
    """Let tracebacks of the running cell show its first line as a comment with what the user typed.

    A comment, because tracebacks parse the source to mark the expression that failed.
    """
    frame = sys._getframe(1)
    while frame is not None:
        source = linecache.cache.get(frame.f_code.co_filename)
        if source is not None and len(source) == 4:  # else a file that has not been read yet
            call = _CALL.fullmatch(source[2][0]) if source[2] else None
            if call is not None:
                source[2][0] = f"# %%{call[1]} {ast.literal_eval(call[2])}".rstrip() + "\n"
                return
        frame = frame.f_back
