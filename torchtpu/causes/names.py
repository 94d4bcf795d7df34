"""What the user calls a value, for the sentence that explains a compile."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING

import torch

from torchtpu import lines, reach
from torchtpu.causes.cause import Cause, Kind

if TYPE_CHECKING:
    from torchtpu.buffer import Buffer
    from torchtpu.causes.differences import Difference

_MAIN = threading.main_thread().ident
_TOLD = 3  # differences of one op that are told


def variable(buffer: Buffer | None) -> str | None:
    """Return the variable that holds a buffer, in the outermost of the user's frames that has one."""
    if buffer is None:
        return None
    found = None
    for frame in _frames():
        if lines.is_users(frame.f_code.co_filename):
            local = bool(frame.f_code.co_flags & inspect.CO_OPTIMIZED)
            names = reach.variables(frame) if local else frame.f_globals
            found = next((name for name, v in list(names.items()) if not name.startswith("_") and _holds(v, buffer)), found)
    return found


def _frames() -> Iterator[FrameType]:
    """Yield the frames of this thread, the innermost first; in autograd's own thread, then those of the main thread."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back
    if threading.get_ident() != _MAIN:
        frame = sys._current_frames().get(_MAIN)
        while frame is not None:
            yield frame
            frame = frame.f_back


def _holds(value: object, buffer: Buffer) -> bool:
    if not issubclass(type(value), torch.Tensor):
        return False
    try:
        return getattr(torch._C.TensorBase.untyped_storage(value), "buffer", None) is buffer
    except (RuntimeError, NotImplementedError):  # a tensor without a storage
        return False


def changed(
    op: str, found: Sequence[Difference], buffer_of: Callable[[int], Buffer | None], closest: lines.Origin | None, at: str = ""
) -> Cause:
    """Return the cause that the differences of an op from its closest relative make.

    Args:
        op: its ATen name.
        found: the differences, the most telling first.
        buffer_of: the buffer of a tensor argument that exists already, by position.
        closest: the relative's line.
        at: the op's line, where it has to be told.
    """
    first = found[0]
    alike = [d for d in found if (d.kind, d.change) == (first.kind, first.change)]
    name = next((n for d in alike if d.position is not None and (n := variable(buffer_of(d.position)))), None)
    if name and first.whole is not None:
        return Cause(first.kind, f"{name} {first.whole.change}{f' ({at})' if at else ''}", first.whole.remedy, closest)
    told = [f"{name or _argument(op, first)} {first.change}".strip()]
    others = [d for d in found if d.change != first.change]
    told += [f"{d.subject} {d.change}".strip() for d in others[: _TOLD - 1]]
    if len(others) >= _TOLD:
        told.append(f"{len(others) - _TOLD + 1} more")
    return Cause(first.kind, ", ".join(told) + (f" ({at})" if at else ""), first.remedy, closest)


def _argument(op: str, difference: Difference) -> str:
    if difference.kind is Kind.PRECISION:
        return difference.subject
    return f"{short(op)} {difference.subject}".strip()


def short(op: str) -> str:
    """Return an op's name as a sentence has it: `sum` for `aten::sum.dim_IntList`."""
    return op.removeprefix("aten::").partition(".")[0]


def where(origin: lines.Origin | None) -> str:
    """Return a line as a sentence names it; empty where there is none."""
    line = lines.resolve(origin)
    return line.where if line is not None else ""
