"""Why the programs of a pending graph were compiled."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchtpu import holders
from torchtpu.causes import cause, names, ops
from torchtpu.causes.cause import Cause, Kind
from torchtpu.causes.differences import differences, input_of
from torchtpu.lines import Origin

if TYPE_CHECKING:
    from torchtpu.buffer import Buffer
    from torchtpu.modes.deferred import Graph
    from torchtpu.plan import Plan

# What tells a schedule: the graph's plans and references in one row, the slots that are kept, the inputs that are donated.
Key = tuple[tuple[Any, ...], tuple[int, ...], tuple[int, ...]]
Op = tuple["Plan", tuple[int, ...]]
# Why a graph was run, and the line of that, where it was noted.
Cut = tuple[str, Origin | None]


@dataclass(frozen=True, slots=True)
class _Known:
    """A graph that was compiled.

    Attributes:
        key: as the schedules have it, which keep it anyway.
        cut: what ended it; `after`: what ended the graph before it.
        origins: the lines of its ops; equal ones are one object.
        places: hashes of those lines, which a cell that is run again has in common with its earlier run.
    """

    key: Key
    cut: Cut
    after: Cut
    origins: tuple[Origin | None, ...]
    places: frozenset[int]


@dataclass(frozen=True, slots=True)
class _New:
    """The graph to explain, with `live`: its results that somebody holds, and `row`: its ops."""

    graph: Graph
    key: Key
    cut: Cut
    live: Sequence[Buffer]
    row: list[Op]


_MAX_KNOWN = 32  # the latest are compared with
_ALIKE = 0.5  # share of ops in common from which on two graphs are called relatives
_TOLD = 3
_CASTS = frozenset({"aten::_to_copy", "aten::copy_"})
_FILLS = frozenset({"aten::zero_", "aten::fill_.Scalar", "aten::zeros_like", "aten::clone", "aten::copy_"})
_known: deque[_Known] = deque(maxlen=_MAX_KNOWN)


def remember(graph: Graph, key: Key, reason: str, line: Origin | None) -> None:
    """Remember a graph that was compiled, as a whole or op by op; `reason`, `line`: what ended it."""
    same: dict[Any, Origin] = {}
    origins = tuple(o and same.setdefault((id(o[0]), *o[1:]), o) for o in graph.origins)
    _known.append(_Known(key, (reason, line), graph.after, origins, _places(origins)))
    ops.in_graphs.update(id(node.plan) for node in graph.nodes)


def explain(graph: Graph, key: Key, live: Sequence[Buffer], reason: str, line: Origin | None) -> Cause:
    """Say why a graph is compiled.

    Args:
        graph: what is pending; `key`: its schedule's.
        live: its results that somebody holds.
        reason, line: what ends it.
    """
    new = _New(graph, key, (reason, line), live, [(n.plan, n.refs) for n in graph.nodes])
    places = _places(graph.origins)
    best: tuple[tuple[int, int], _Known, list[Op]] | None = None
    for known in reversed(_known):
        if places.isdisjoint(known.places) or known.key == key:  # it was run op by op when it came first
            continue
        theirs = _row(known.key[0])
        rank = _rank(new, known, theirs)
        if rank is not None and (best is None or rank < best[0]):
            best = rank, known, theirs
    if best is None:
        if all(plan.program is not None or plan.donating is not None for plan, _ in new.row):
            return Cause(Kind.MODE, "strict -> defer_and_fuse: these ops ran one by one before", cause.MODE)
        return Cause(Kind.FIRST)
    (form, distance), known, theirs = best
    if form == _SAME_OPS:
        return _inside(new, known, theirs)
    return _cut(new, known, theirs, distance % 2 == 0) if form == _CUT else _other_ops(new, known, theirs)


_SAME_OPS, _CUT, _OTHER_OPS = range(3)


def _rank(new: _New, known: _Known, theirs: list[Op]) -> tuple[int, int] | None:
    """Say in which form two graphs are relatives, and how distant ones; None if they are not.

    The distance of graphs that are cut elsewhere is even if they begin alike, odd if they end alike.
    """
    row = new.row
    if len(row) == len(theirs) and all(a[0].name == b[0].name for a, b in zip(row, theirs, strict=True)):
        plans = sum(a[0] is not b[0] or a[1] != b[1] for a, b in zip(row, theirs, strict=True))
        ends = sum(len(set(a) ^ set(b)) for a, b in zip(new.key[1:], known.key[1:], strict=True))
        return _SAME_OPS, 1000 * plans + ends
    shorter, further = min(len(row), len(theirs)), abs(len(row) - len(theirs))
    if not _same_cut(new.cut, known.cut):
        begin = _common(row, theirs)
        # What is read may take a few ops more than were there.
        if begin == shorter or (len(row) < len(theirs) and begin >= _ALIKE * len(row)):
            return _CUT, 2 * further
    if not _same_cut(new.graph.after, known.after) and _common(row[::-1], theirs[::-1]) == shorter:
        return _CUT, 2 * further + 1
    more, fewer = _beside(row, theirs)
    apart = more.total() + fewer.total()
    return (_OTHER_OPS, apart) if 1 - apart / (len(row) + len(theirs)) >= _ALIKE else None


def _common(row: list[Op], theirs: list[Op]) -> int:
    """Return how many plans two graphs have in common from the beginning."""
    pairs = enumerate(zip(row, theirs, strict=False))
    return next((k for k, (a, b) in pairs if a[0] is not b[0]), min(len(row), len(theirs)))


def _same_cut(a: Cut, b: Cut) -> bool:
    """Whether two flushes are at the same place; where a line was not noted, whether they are of the same kind."""
    return a[0] == b[0] and (a[1] is None or b[1] is None or _places([a[1]]) == _places([b[1]]))


def _beside(row: list[Op], theirs: list[Op]) -> tuple[Counter[str], Counter[str]]:
    """Count the ops that one graph has beside those of the other, and the other way about."""
    ours, others = Counter(op[0].name for op in row), Counter(op[0].name for op in theirs)
    return ours - others, others - ours


def _inside(new: _New, known: _Known, theirs: list[Op]) -> Cause:
    """Explain a graph whose ops are those of a known one."""
    for k, ((plan, refs), (other, other_refs)) in enumerate(zip(new.row, theirs, strict=True)):
        if plan is other and refs == other_refs:
            continue
        at = names.where(new.graph.origins[k])
        at = "" if at == names.where(new.cut[1]) else at
        found = differences(plan, other)
        if found:
            return names.changed(plan.name, found, lambda p, k=k: _buffer(new, k, p), known.cut[1], at)
        detail = f"{names.short(plan.name)} takes other values{f' ({at})' if at else ''}"
        return Cause(Kind.OPS, detail, cause.OPS, known.cut[1])
    kept, others = set(new.key[1]), set(known.key[1])
    if kept != others:
        return _kept(new, [b for b in new.live if b.ref in kept - others], sorted(others - kept), known)
    return _donated(new, known)


def _buffer(new: _New, k: int, position: int) -> Buffer | None:
    """Return the buffer of a tensor argument of the k-th op, if a variable can hold it: an input, or a result that lives."""
    nodes = new.graph.nodes
    plan, refs = new.row[k]
    n = input_of(plan, position)
    if n is not None and refs[n] < 0:
        return new.graph.inputs[-1 - refs[n]]
    if n is not None:
        slot = refs[n]
    elif position in plan.writes:
        slot = sum(len(node.plan.outputs) for node in nodes[:k]) + len(plan.specs) + plan.writes.index(position)
    else:
        return None
    return next((b for b in new.live if b.ref == slot), None)


def _kept(new: _New, more: list[Buffer], fewer: list[int], known: _Known) -> Cause:
    makers = [(plan, o) for (plan, _), o in zip(new.row, new.graph.origins, strict=True) for _ in plan.outputs]

    def told(slot: int) -> str:
        plan, origin = makers[slot]
        return f"the result of {_by(names.short(plan.name), origin)}"

    if not more:
        return Cause(Kind.KEPT, f"no longer {_listed([told(s) for s in fewer])}", cause.KEPT, known.cut[1])
    held = [found[0] if found else None for found in holders.holders(more)]
    named = [h for h in held if h is not None and h.kind != holders.AUTOGRAD]
    remedy = f"{named[0].free}, before {new.cut[0]}; or keep it on every pass" if named else cause.KEPT
    listed = _listed([h.name if h is not None else told(b.ref) for h, b in zip(held, more, strict=True)])
    return Cause(Kind.KEPT, listed, remedy, known.cut[1])


def _donated(new: _New, known: _Known) -> Cause:
    given, others = set(new.key[2]), set(known.key[2])
    inputs = new.graph.inputs
    told, remedy = [], cause.DONATION
    held = sorted(others - given)
    if held:
        found = [found[0] if found else None for found in holders.holders(inputs[p] for p in held)]
        kept = [h.name if h is not None else f"an input {inputs[p].layout}" for h, p in zip(found, held, strict=True)]
        told.append(f"{_listed(kept)} is still held after its last use")
        free = next((h.free for h in found if h is not None), "")
        remedy = f"{free}, before its last use: then its memory is reused" if free else remedy
    if given - others:
        freed = [f"an input {inputs[p].layout}" for p in sorted(given - others)]
        told.append(f"{_listed(freed)} is held by nothing else: its memory is reused")
    return Cause(Kind.DONATION, ", ".join(told), remedy, known.cut[1])


def _cut(new: _New, known: _Known, theirs: list[Op], begin_alike: bool) -> Cause:
    """Explain a graph that is the beginning or the end of a known one, or the other way about."""
    ours, others = len(new.row), len(theirs)
    longer = f"{ours} ops instead of {others}"
    if begin_alike and ours < others:
        detail, by = f"cut by {_by(*new.cut)} after {_common(new.row, theirs)} of {others} ops", new.cut
    elif begin_alike:
        detail, by = f"no longer cut by {_by(*known.cut)}: {longer}", known.cut
    elif ours < others:
        detail, by = f"begins after {_by(*new.graph.after)}, with the last {ours} of {others} ops", new.graph.after
    else:
        detail, by = f"no longer begins after {_by(*known.after)}: {longer}", known.after
    return Cause(Kind.CUT, detail, cause.of_cut(by[0]), known.cut[1])


def _other_ops(new: _New, known: _Known, theirs: list[Op]) -> Cause:
    more, fewer = _beside(new.row, theirs)
    if not more and not fewer:
        return Cause(Kind.OPS, "the same ops in another order", cause.OPS, known.cut[1])
    ours, others = _listed_ops(more, new.row, new.graph.origins), _listed_ops(fewer, theirs, known.origins)
    if not fewer and set(more) <= _CASTS:
        dtypes = {str(plan.views[0].dtype).removeprefix("torch.") for plan, _ in new.row if plan.name in _CASTS}
        return Cause(Kind.DTYPE, f"with casts to {' and '.join(sorted(dtypes))}: {ours}", cause.ONE_DTYPE, known.cut[1])
    detail = f"{ours} instead of {others}" if more and fewer else f"with {ours}" if more else f"without {others}"
    if not more and set(fewer) <= _FILLS:
        return Cause(Kind.OPS, detail, cause.FIRST_PASS, known.cut[1])
    training = all("dropout" in name or "bernoulli" in name for name in more | fewer)
    return Cause(Kind.OPS, detail, cause.TRAINING if training else cause.OPS, known.cut[1])


def _listed_ops(counts: Counter[str], row: list[Op], origins: Sequence[Origin | None]) -> str:
    """List ops with the line of the first."""
    first = next((o for op, o in zip(row, origins, strict=True) if op[0].name in counts), None)
    return _by(_listed([f"{names.short(name)} x{n}" if n > 1 else names.short(name) for name, n in counts.items()]), first)


def _by(text: str, origin: Origin | None) -> str:
    at = names.where(origin)
    return f"{text} ({at})" if at else text


def _listed(items: list[str]) -> str:
    items = list(dict.fromkeys(items))
    more = len(items) - _TOLD
    return ", ".join(items[:_TOLD]) + (f" and {more} more" if more > 0 else "")


def _row(key: tuple[Any, ...]) -> list[Op]:
    """Return the ops of a graph's key: plans, each followed by its references, and flags at the ends of a backward pass."""
    row: list[tuple[Plan, list[int]]] = []
    for part in key:
        if type(part) is int:
            row[-1][1].append(part)
        elif type(part) is not bool:
            row.append((part, []))
    return [(plan, tuple(refs)) for plan, refs in row]


def _places(origins: Sequence[Origin | None]) -> frozenset[int]:
    distinct = {(id(o[0]), o[1]): o for o in origins if o is not None}
    return frozenset(ops.place(o[0], o[1]) for o in distinct.values())
