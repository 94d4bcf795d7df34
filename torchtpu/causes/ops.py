"""Why a program of one op was compiled."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from types import CodeType, FrameType
from typing import TYPE_CHECKING

import torch

from torchtpu import events, lines, modes, reach
from torchtpu.causes import cause, names
from torchtpu.causes.cause import Cause, Kind
from torchtpu.causes.differences import argument, differences, distance, input_of
from torchtpu.lines import Origin

if TYPE_CHECKING:
    from torchtpu.buffer import Buffer
    from torchtpu.plan import Plan


@dataclass(frozen=True, slots=True)
class _Known:
    """A compiled plan.

    Attributes:
        site: a hash of the place in the user's code, with the way from there down to the op.
        during: the backward pass or optimizer's step that compiled it, else `_NO_PASS`.
    """

    plan: Plan
    site: int
    origin: Origin | None
    during: int


_MAX_KNOWN = 256  # of one op; the latest are compared with
_known: dict[str, deque[_Known]] = {}

# Plans that are part of a compiled graph, by identity: the kernels keep plans for ever.
in_graphs: set[int] = set()

_NO_PASS = -1
_steps = 0

_graph_task = torch._C._current_graph_task_id
_node = torch._C._current_autograd_node
_MODULE_CALL = torch.nn.Module._call_impl.__code__
# Files whose frames depend on hooks, or on how an op came to be called.
_PASSING = frozenset({_MODULE_CALL.co_filename, torch._ops.__file__})
_OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_OPTIMIZERS = os.path.dirname(torch.optim.__file__) + os.sep


def compiled(
    plan: Plan,
    donate: Sequence[int],
    inputs: Sequence[Buffer],
    origin: Origin | None,
    recorded: bool = False,
    because: Cause | None = None,
) -> Cause | None:
    """Remember that a plan was compiled alone.

    Args:
        plan: what was compiled; its other variant may exist already.
        donate: positions among the inputs whose memory the program may reuse.
        inputs: the arrays that it is going to run on, where they are known.
        origin: the line of the op.
        recorded: it was recorded in a graph, which is now run op by op: this is not the op's own place on the stack.
        because: what would have made that graph compile.

    Returns:
        the cause, if somebody watches.
    """
    site, during = (_place(origin), _NO_PASS) if recorded else _site(origin)
    found = _explain(plan, donate, inputs, site, during, recorded, because) if events.logs else None
    _known.setdefault(plan.name, deque(maxlen=_MAX_KNOWN)).append(_Known(plan, site, origin, during))
    return found


def step_ended() -> None:
    """An optimizer's step is over: what it compiled is known to the next one."""
    global _steps
    _steps += 1


def _explain(
    plan: Plan,
    donate: Sequence[int],
    inputs: Sequence[Buffer],
    site: int,
    during: int,
    recorded: bool,
    because: Cause | None,
) -> Cause:
    if because is not None and because.kind is not Kind.FIRST:
        return replace(because, detail=f"{because.detail}; run op by op, since XLA refused the graph")
    if plan.program is not None or plan.donating is not None:
        return _donation(plan, bool(donate))
    # What this very backward pass or step compiled, for another tensor, is not an earlier pass through the same code.
    known = [k for k in list(_known.get(plan.name, ())) if during == _NO_PASS or k.during != during]
    closest = _closest(plan, (k for k in known if k.site == site))
    if closest is not None:
        found = differences(plan, closest.plan)
        if found:
            return names.changed(plan.name, found, lambda p: _buffer(plan, inputs, p), closest.origin)
    if recorded:
        return Cause(Kind.MODE, "run op by op, since XLA refused the graph", "mend the op that the error names")
    if id(plan) in in_graphs:
        return Cause(Kind.MODE, f"defer_and_fuse -> {modes.current().label}: it was part of a graph before", cause.MODE)
    closest = _closest(plan, known)
    found = differences(plan, closest.plan) if closest is not None else []
    if closest is None or not found:
        return Cause(Kind.FIRST)
    nearest = names.changed(plan.name, found, lambda p: None, closest.origin).detail
    at = names.where(closest.origin)
    return Cause(Kind.FIRST, f"at this place; the closest{f' is at {at}' if at else ''}: {nearest}", "", closest.origin)


def _donation(plan: Plan, donated: bool) -> Cause:
    written = ", ".join(argument(plan, plan.needs[p]) for p in plan.donatable)
    reused = f"nothing else holds the old {written} now: its memory is reused"
    return Cause(Kind.DONATION, reused if donated else f"the old {written} is still held", cause.DONATION)


def _closest(plan: Plan, known: Iterable[_Known]) -> _Known | None:
    """Return the closest known plan, of several the latest."""
    return min(reversed(list(known)), key=lambda k: distance(plan, k.plan), default=None)


def _buffer(plan: Plan, inputs: Sequence[Buffer], position: int) -> Buffer | None:
    """Return the buffer of the tensor argument at a position, if it is among the inputs."""
    k = input_of(plan, position)
    return inputs[k] if k is not None and k < len(inputs) else None


def place(code: CodeType, lasti: int) -> int:
    """Return a hash of an instruction: the same for a cell that is run again, whose code is new."""
    return hash((code.co_filename, code.co_qualname, code.co_firstlineno, lasti))


def _place(origin: Origin | None) -> int:
    return place(origin[0], origin[1]) if origin is not None else 0


def _site(origin: Origin | None) -> tuple[int, int]:
    """Tell this place from others, and this pass through it from earlier ones.

    Returns:
        a hash of the calls from the user's line down to the op and of the way through the modules;
        the backward pass or the optimizer's step under way, else `_NO_PASS`.
    """
    task = _graph_task()
    if task != -1:
        node = _node()
        return hash(("backward", node.name() if node is not None else "", _place(lines.here()))), task
    calls: list[int] = []
    modules: list[torch.nn.Module] = []
    current, below = _NO_PASS, True  # the user's line
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code is _MODULE_CALL:
            modules.append(reach.variables(frame)["self"])
        if below and code.co_filename not in _PASSING and not code.co_filename.startswith(_OURS):
            calls.append(place(code, frame.f_lasti))
            if code.co_filename.startswith(_OPTIMIZERS):
                current = -2 - _steps
        below = below and origin is not None and code is not origin[0]
        frame = frame.f_back
    return hash((tuple(calls), tuple(_way(modules)))), current


def _way(modules: Sequence[torch.nn.Module]) -> Iterator[str]:
    """Yield the name of each module in the one that called it, from the innermost out: the same after a model is rebuilt."""
    for child, parent in pairwise(modules):
        yield next((name for name, m in parent.named_modules() if m is child), type(child).__name__)
    if modules:
        yield type(modules[-1]).__name__
