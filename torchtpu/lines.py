"""Which line of the user's code made an op: cheap to note, resolved only when somebody looks.

An *origin* is `(code object, instruction offset)` of the nearest frame outside torch and torchtpu. Turning it into
`In[7], line 3` needs the line table and the notebook's cell names, so that is left to `resolve`.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FrameType

import torch

from torchtpu import modules

# While somebody watches, the path of the nn.Module that made the op follows; a fourth element marks an op of a backward
# pass, shown at the line and module of its forward op.
Origin = tuple[CodeType, int] | tuple[CodeType, int, str] | tuple[CodeType, int, str, str]

_INSIDE = [os.path.dirname(__file__) + os.sep, os.path.dirname(torch.__file__) + os.sep]
_SKIPPED = ("contextlib.py", "functools.py")


def no_label(filename: str) -> str | None:
    """Leave a file its name."""
    return None


# A notebook gives its cells' file names a label ("In[7]"); scripts keep the file name.
label_of_file: Callable[[str], str | None] = no_label

_user_file: dict[str, bool] = {}
_nobody = False


def skip(directory: str) -> None:
    """Never take code under `directory` for the user's own."""
    if directory + os.sep not in _INSIDE:
        _INSIDE.append(directory + os.sep)
        _user_file.clear()


@contextlib.contextmanager
def nobodys() -> Iterator[None]:
    """Do work inside the block for no line of the user's: at the end of a cell, say, below which is only Jupyter's code."""
    global _nobody
    before, _nobody = _nobody, True
    try:
        yield
    finally:
        _nobody = before


def _is_user_file(filename: str) -> bool:
    if filename.startswith("<frozen") or (filename.startswith("<") and filename.endswith(">") and "ipython" not in filename):
        # "<stdin>", "<string>" and what %%time runs are the user's own; frozen modules and generated code are not.
        user = filename in ("<stdin>", "<string>", "<console>", "<timed exec>", "<timed eval>")
    else:
        inside = any(filename.startswith(root) for root in _INSIDE)
        user = not inside and not (filename.endswith(_SKIPPED) and os.sep + "lib" + os.sep in filename)
    _user_file[filename] = user
    return user


def is_users(filename: str) -> bool:
    """Whether a file holds the user's code, not torch's, torchtpu's or Python's own."""
    known = _user_file.get(filename)
    return _is_user_file(filename) if known is None else known


def here() -> Origin | None:
    """Return the origin of the nearest user frame; in autograd's own thread, of the main thread's `.backward()`."""
    if _nobody:
        return None
    origin = _nearest_user(sys._getframe(1))
    if origin is None and threading.get_ident() != _MAIN:
        origin = _nearest_user(sys._current_frames().get(_MAIN))
    return origin


def frame() -> FrameType | None:
    """Return the nearest user frame itself, as `here` finds it: for a debugger."""
    found = sys._getframe(1)
    for start in (found, sys._current_frames().get(_MAIN)):
        frame: FrameType | None = start
        while frame is not None:
            if is_users(frame.f_code.co_filename):
                return frame
            frame = frame.f_back
    return None


_MAIN = threading.main_thread().ident


def _nearest_user(frame: FrameType | None) -> Origin | None:
    known = _user_file
    while frame is not None:
        code = frame.f_code
        user = known.get(code.co_filename)
        if user is None:
            user = _is_user_file(code.co_filename)
        if user:
            return code, frame.f_lasti
        frame = frame.f_back
    return None


@dataclass(frozen=True, slots=True)
class Line:
    """A resolved line of user code.

    Attributes:
        file: file name as Python knows it.
        number: line, from 1.
        where: what to show: `In[7], line 3` in a notebook, `train.py:12` elsewhere.
        source: the text of the line, stripped; empty where the source is gone.
        function: name of the enclosing function, `<module>` at top level.
        backward: the line is that of the forward op whose gradient was being computed.
    """

    file: str
    number: int
    where: str
    source: str
    function: str
    backward: bool = False

    def __str__(self) -> str:
        return self.where


def resolve(origin: Origin | None) -> Line | None:
    """Turn an origin into a `Line`."""
    if origin is None:
        return None
    code, lasti = origin[0], origin[1]
    number = line_of(code, lasti)
    file = code.co_filename
    label = label_of_file(file)
    where = f"{label}, line {number}" if label else f"{os.path.basename(file)}:{number}"
    source = linecache.getline(file, number).strip()
    return Line(file, number, where, source, code.co_name, len(origin) > 3)


def line_of(code: CodeType, lasti: int) -> int:
    for start, end, line in code.co_lines():
        if start <= lasti < end and line is not None:
            return line
    return code.co_firstlineno


# Lines of forward ops by autograd's sequence number, so that a backward op can be shown at the line that made it.
_forward: dict[int, Origin] = {}
_MAX_FORWARD = 100_000
_sequence_number = torch._C._autograd._get_sequence_nr
_graph_task = torch._C._current_graph_task_id
_node = torch._C._current_autograd_node


def note() -> Origin | None:
    """Return the line and module of the op being dispatched: the user's, or in a backward pass those of the forward op."""
    if _graph_task() == -1:
        origin = here()
        if origin is not None:
            origin = (*origin, modules.path())
            if torch.is_grad_enabled():
                if len(_forward) >= _MAX_FORWARD:
                    _forward.clear()
                _forward[_sequence_number() - 1] = origin
        return origin
    node = _node()
    origin = _forward.get(node._sequence_nr()) if node is not None else None
    if origin is None:
        origin = here()
        return (*origin, modules.path()) if origin is not None else None
    # Where a checkpoint computes its forward ops again, their modules are called again.
    return (*origin[:2], modules.path() or origin[2], "backward")


def module_of(origin: Origin | None) -> str:
    """Return the path of the module that made an op (`GPT/blocks.0/mlp`), empty outside of any or if nobody watched."""
    return origin[2] if origin is not None and len(origin) > 2 else ""
