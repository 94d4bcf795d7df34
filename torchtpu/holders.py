"""Who holds a device buffer: a parameter, a gradient, an optimizer's state, a variable, `Out[7]`, a traceback, autograd.

The answer comes from a walk (`reach`) that starts at everything with a name: the variables of the notebook or `__main__`,
of the modules and functions that run, the notebook's outputs, the last traceback, the pending graph. It keeps nothing
alive afterwards, starts no device and runs no code of the user's.
"""

from __future__ import annotations

import gc
import re
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import torch

from torchtpu import hbm, lines, reach

if TYPE_CHECKING:
    from torchtpu.buffer import Buffer

PARAMETER, GRADIENT, STATE, VARIABLE, OUTPUT, TRACEBACK, PENDING, AUTOGRAD = KINDS = (
    "parameter", "gradient", "optimizer state", "variable", "output", "traceback", "pending graph", "autograd",
)  # fmt: skip

LAST = "last traceback"
_BUDGET = 50_000  # objects that one question may look at
_HOSTS = frozenset({"IPython", "ipykernel", "_pytest", "pluggy", "unittest", "runpy", "asyncio", "tornado", "threading"})
UNDERSCORES = ("_", "__", "___")  # a notebook's latest outputs
_OUTPUT_NAMES = re.compile(r"_{1,3}|_\d+|_i+\d*|_[oid]h|In|Out")
_CODE = re.compile(r"[\w.]+(\[[^\[\]]*\])*(\.[\w.]+)?( = |\()")
_ITEM = re.compile(r"[\w.]+(\[[^\[\]]*\])?(\.[\w.]+)?")


@dataclass(frozen=True, slots=True)
class Holder:
    """What keeps a buffer alive.

    Attributes:
        name: `model.fc1.weight`, `optimizer.state[fc1.weight].exp_avg`, `losses[3]`, `Out[7]`, `last traceback: boom() -> x`.
        kind: one of `KINDS`.
        root: what the name starts from: `model`, `losses`, `Out[7]`.
        free: what to type, or do, to let go of it.
    """

    name: str
    kind: str
    root: str
    free: str


@dataclass(frozen=True, slots=True)
class Session:
    """What a notebook knows: its variables, and its outputs by number."""

    variables: Mapping[str, Any]
    outputs: Mapping[int, Any]


def no_session() -> Session | None:
    """Answer for a process without a notebook."""
    return None


# A notebook sets it; called for each question, so that nothing is held between them.
session: Callable[[], Session | None] = no_session


@dataclass(frozen=True, slots=True)
class _Root:
    """Something with a name.

    Attributes:
        kind: as of a `Holder`.
        free: what lets go of all of it; empty for a variable, where that is `del`.
        place: what follows the names that begin here (` in step()`).
        whole: the `root` of its holders, where that is not the name itself.
    """

    name: str
    value: Any
    kind: str
    free: str = ""
    place: str = ""
    whole: str = ""


def names(buffers: Sequence[Buffer]) -> list[str | None]:
    """Return the best name of each buffer's holder; None where nothing with a name leads to it."""
    return [found[0].name if found else None for found in holders(buffers)]


def holders(buffers: Iterable[Buffer]) -> list[list[Holder]]:
    """Return what holds each buffer, the best name first: all of it has to let go before the memory is free."""
    wanted = [id(b) for b in buffers]
    found = _find(set(wanted)) if wanted else {}
    return [found[key][1] if key in found else [] for key in wanted]


def everything() -> list[tuple[Buffer, list[Holder]]]:
    """Return every buffer that has memory, with what holds it. Let go of the buffers at once: here they are kept alive."""
    found = _find(None)
    if sum(b.nbytes for b, _ in found.values()) < hbm.usage.live:  # some are held by nothing with a name
        from torchtpu.buffer import Buffer

        for b in gc.get_objects():
            if type(b) is Buffer and b.nbytes:
                found.setdefault(id(b), (b, []))
    return [entry for entry in found.values() if entry[0].nbytes]


def _find(wanted: set[int] | None) -> dict[int, tuple[Buffer, list[Holder]]]:
    """Return the holders, in order, of the buffers with these ids, or of all that are reached."""
    found: dict[int, tuple[Buffer, dict[str, tuple[tuple[int, ...], Holder]]]] = {}
    walk = reach.Walk(_BUDGET)
    for rank, root in enumerate(_roots()):
        for reached in walk.run(root.value, root.name):
            key = id(reached.buffer)
            if wanted is None or key in wanted:
                _, ways = found.setdefault(key, (reached.buffer, {}))
                if reached.name not in ways:
                    holder = _holder(root, reached)
                    order = (KINDS.index(holder.kind), reached.depth, len(holder.name), rank)
                    ways[reached.name] = order, holder
    for buffer in _pending():
        if wanted is None or id(buffer) in wanted:
            holder = Holder(PENDING, PENDING, PENDING, "torch.tpu.synchronize()")
            found.setdefault(id(buffer), (buffer, {}))[1][PENDING] = (KINDS.index(PENDING), 0, 0, 0), holder
    return {
        key: (buffer, [holder for _, holder in sorted(ways.values(), key=lambda way: way[0])])
        for key, (buffer, ways) in found.items()
    }


def _holder(root: _Root, reached: reach.Reached) -> Holder:
    kind, name, free = root.kind, reached.name, root.free or f"del {root.name}"
    match reached.role:
        case reach.PARAMETER:
            kind = PARAMETER
        case reach.GRADIENT:
            kind = GRADIENT
            free = f"{reached.owner}.zero_grad()" if reached.owner else f"{name} = None"
            free = free if _CODE.match(free) else f"del {root.name}"
        case reach.STATE:
            kind = STATE
        case reach.SAVED:
            kind, name = AUTOGRAD, f"saved for backward of {name}"
        case _ if not root.free and _ITEM.fullmatch(name):
            free = f"del {name}"
    return Holder(name + root.place, kind, root.whole or root.name + root.place, free + root.place)


def _roots() -> Iterator[_Root]:
    """Everything with a name, the best names first."""
    notebook = session()
    outputs = dict(notebook.outputs) if notebook is not None else {}
    frames = list(_user_frames())
    spaces: dict[int, tuple[Mapping[str, Any], str]] = {}
    main = notebook.variables if notebook is not None else vars(sys.modules["__main__"])
    spaces[id(main)] = main, ""
    for frame in frames:
        spaces.setdefault(id(frame.f_globals), (frame.f_globals, f"{frame.f_globals.get('__name__')}."))
    variables = [root for space, prefix in spaces.values() for root in _variables(space, prefix, notebook is not None)]
    for frame in frames:
        code = frame.f_code
        for name, value in reach.variables(frame).items():
            # A function defined in the running one shares its variables, and goes with it.
            if not (type(value) is FunctionType and value.__qualname__.startswith(f"{code.co_qualname}.<locals>.")):
                variables.append(_Root(name, value, VARIABLE, place=f" in {code.co_name}()"))
    yield from sorted(variables, key=_order)
    for number, value in outputs.items():
        yield _Root(f"Out[{number}]", value, OUTPUT, "%tpu_free Out")
    if notebook is not None:
        known = {id(value) for value in outputs.values()}
        for name in UNDERSCORES:
            if id(main.get(name)) not in known:
                yield _Root(name, main.get(name), OUTPUT, "%tpu_free Out")
    for error in dict.fromkeys((sys.exc_info()[1], getattr(sys, "last_exc", None) or getattr(sys, "last_value", None))):
        yield from _traceback(error, notebook is not None)


def _order(root: _Root) -> int:
    """Modules first: they name the parameters that optimizers, last, have state for."""
    cls = type(root.value)
    return 0 if issubclass(cls, torch.nn.Module) else 2 if issubclass(cls, torch.optim.Optimizer) else 1


def _variables(space: Mapping[str, Any], prefix: str, notebook: bool) -> Iterator[_Root]:
    for name, value in list(space.items()):
        if type(name) is not str or (name.startswith("__") and name.endswith("__")) or issubclass(type(value), ModuleType):
            continue
        if notebook and not prefix and _OUTPUT_NAMES.fullmatch(name):
            continue
        yield _Root(prefix + name, value, VARIABLE)


def _traceback(error: BaseException | None, notebook: bool) -> Iterator[_Root]:
    free = "%tpu_free traceback" if notebook else "traceback.clear_frames(sys.last_traceback)"
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        users = False
        for frame in reach.frames_of(error.__traceback__):
            users = users or lines.is_users(frame.f_code.co_filename)  # what is above ran the cell
            if users:
                ours = str(frame.f_globals.get("__name__")).startswith("torchtpu.")
                for name, value in reach.variables(frame).items():
                    called = LAST if ours else f"{LAST}: {frame.f_code.co_name}() -> {name}"
                    yield _Root(called, value, TRACEBACK, free, whole=LAST)
        error = error.__cause__ or error.__context__


def _user_frames() -> Iterator[FrameType]:
    """The running functions, innermost first, down to what runs the user's code.

    Of this thread, and of the main one: a backward pass has a thread of its own.
    """
    starts = [sys._getframe(1)]
    if threading.get_ident() != threading.main_thread().ident:
        starts.append(sys._current_frames().get(threading.main_thread().ident or 0))
    for start in starts:
        frame: FrameType | None = start
        while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] not in _HOSTS:
            if lines.is_users(frame.f_code.co_filename):
                yield frame
            frame = frame.f_back


def _pending() -> list[Buffer]:
    """What the pending graph holds: its inputs."""
    deferred: Any = sys.modules.get("torchtpu.modes.deferred")  # not loaded: nothing is pending
    return list(deferred.graph().inputs) if deferred is not None else []
