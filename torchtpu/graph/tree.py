"""The nesting of a graph: modules, in them kernels, in them ops; and how much of it is open.

Each group is a run of ops that follow one another in a topological order, so that an arrow never points back into a group
that it has left: a drawing can always go downwards.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from torchtpu.graph.model import ProgramGraph

# A group with more children than this is divided into runs: nobody can take in a level of 1,000 boxes.
_CHILDREN = 60
_RUN = 40
_FEW = 12  # boxes and ops: a drawing with fewer is opened further, even if not evenly

Path = tuple[tuple[str, str], ...]  # the groups that something is in, from the outside in, as (kind, title)


@dataclass(frozen=True)
class Group:
    """Ops that belong together.

    Attributes:
        key: names it within the graph; the root's is empty.
        kind: `program`, `module`, `line` (of ops that no module made), `kernel` or `run`.
        title: `blocks.0`, `In[3], line 5`, ...
        children: groups and ops (positions), in order.
    """

    key: str
    kind: str
    title: str
    children: tuple[Group | int, ...]

    @property
    def ops(self) -> Iterator[int]:
        """All ops inside."""
        for child in self.children:
            if isinstance(child, Group):
                yield from child.ops
            else:
                yield child


@dataclass(frozen=True)
class _Unit:
    """What is not divided: the ops of one kernel, or one op; and the groups that it is in."""

    ops: tuple[int, ...]
    path: Path


def tree(graph: ProgramGraph) -> Group:
    """Nest a graph's ops by module call, or by line where no module was called, and by kernel."""
    return _keyed(Group("", "program", graph.name, _divided(_nest(_ordered(graph), 0))), "")


def unfolded(root: Group, limit: int) -> frozenset[str]:
    """Return the keys of the groups that are open when at most `limit` boxes and ops are drawn; the root is open.

    A level is opened as a whole or not at all, so that a model's layers look alike; in part only where little else is
    drawn. Kernels are opened wherever they fit.
    """
    opened = {root.key}
    drawn = len(root.children)
    level = [root]
    while level:
        inside = [c for group in level for c in group.children if isinstance(c, Group)]
        kernels, others = ([c for c in inside if (c.kind == "kernel") == wanted] for wanted in (True, False))
        whole = drawn + sum(len(c.children) - 1 for c in others) <= limit
        level = []
        for group in others if whole or drawn < _FEW else ():
            if drawn + len(group.children) - 1 <= limit:
                level.append(group)
                drawn += len(group.children) - 1
        for group in kernels:
            if drawn + len(group.children) - 1 <= limit:
                opened.add(group.key)
                drawn += len(group.children) - 1
        opened |= {group.key for group in level}
    return frozenset(opened)


def _ordered(graph: ProgramGraph) -> list[_Unit]:
    """Put the units in a topological order that stays in a module, and among ops that are connected, as long as it can.

    Kernels that compute an op again may depend on each other both ways. Such a kernel's ops are then units of their own.
    """
    unit_of = {op: box.root for op, box in graph.box_of.items()} | {
        k: k for k in range(len(graph.ops)) if k not in graph.box_of
    }
    members: dict[int, list[int]] = {}
    for op in sorted(unit_of):
        members.setdefault(unit_of[op], []).append(op)
    readers: dict[int, list[int]] = {}
    missing = dict.fromkeys(members, 0)
    for e in graph.edges:
        readers.setdefault(e.source, []).append(e.target)
        missing[unit_of[e.target]] += unit_of[e.source] != unit_of[e.target]
    paths = {unit: _path(graph, ops) for unit, ops in members.items()}
    connected = _connected(graph)
    ready = _Ready(lambda unit: (paths[unit], connected[members[unit][0]]))
    for unit, count in missing.items():
        if not count:
            ready.add(members[unit][0], unit)
    order: list[_Unit] = []
    left = list(range(len(graph.ops) - 1, -1, -1))
    done: set[int] = set()
    while len(done) < len(graph.ops):
        unit = ready.pop()
        if unit is not None:
            ops = tuple(members.pop(unit))
        else:  # each kernel waits for another: take its first op alone
            while left[-1] in done:
                left.pop()
            ops = (left[-1],)
            unit = unit_of[ops[0]]
            members[unit].remove(ops[0])
        order.append(_Unit(ops, _path(graph, ops)))
        done.update(ops)
        for op in ops:
            for reader in readers.get(op, ()):
                target = unit_of[reader]
                if target != unit:
                    missing[target] -= 1
                    if not missing[target] and members.get(target):
                        ready.add(members[target][0], target)
        if members.get(unit) and not missing[unit]:  # what is left of a divided kernel
            ready.add(members[unit][0], unit)
    return order


def _connected(graph: ProgramGraph) -> list[int]:
    """For each op, the first of those that tensors connect it with, through whatever others."""
    first = list(range(len(graph.ops)))

    def find(op: int) -> int:
        while first[op] != op:
            first[op] = first[first[op]]
            op = first[op]
        return op

    for e in graph.edges:
        a, b = find(e.source), find(e.target)
        first[max(a, b)] = min(a, b)
    return [find(op) for op in first]


class _Ready:
    """Units whose inputs are there; taken by position, but first from the place of the unit taken last.

    A place is a path and, in it, ops that are connected.
    """

    def __init__(self, place_of: Callable[[int], tuple[Path, int]]) -> None:
        self._place_of = place_of
        self._all: list[tuple[int, int]] = []
        self._by_place: dict[Path | tuple[Path, int], list[tuple[int, int]]] = {}
        self._taken: set[int] = set()
        self._place: tuple[Path, int] = ((), -1)

    def add(self, position: int, unit: int) -> None:
        place = self._place_of(unit)
        for heap in (self._all, self._by_place.setdefault(place, []), self._by_place.setdefault(place[0], [])):
            heapq.heappush(heap, (position, unit))

    def pop(self) -> int | None:
        for heap in (self._by_place.get(self._place, []), self._by_place.get(self._place[0], []), self._all):
            while heap:
                _, unit = heapq.heappop(heap)
                if unit not in self._taken:
                    self._taken.add(unit)
                    self._place = self._place_of(unit)
                    return unit
        return None


def _path(graph: ProgramGraph, ops: Sequence[int]) -> Path:
    """Return the groups that all of these ops are in, from the outside in."""
    return _common(_path_of_op(graph, k) for k in ops)


def _path_of_op(graph: ProgramGraph, op: int) -> Path:
    row = graph.ops[op]
    phase = " (backward)" if row.backward else ""
    if row.module:
        outermost, *inner = row.module.split("/")
        return (("module", outermost + phase), *(("module", name) for name in inner))
    if row.backward and not (row.line is not None and row.line.backward):
        # The backward of a view, whose forward op never reached the device: it goes where its neighbours are.
        near = [_path_of_op(graph, k) for k in graph.neighbours[op] if graph.ops[k].module]
        return _common(near) if near else ()
    return (("line", f"{row.line.where}{phase}"),) if row.line is not None else ()


def _common(paths: Iterable[Path]) -> Path:
    first, *rest = paths
    for other in rest:
        same = next((d for d, (a, b) in enumerate(zip(first, other, strict=False)) if a != b), min(len(first), len(other)))
        first = first[:same]
    return first


def _nest(units: Iterable[_Unit], depth: int) -> list[Group | int]:
    children: list[Group | int] = []
    for group, run in groupby(units, lambda u: u.path[depth] if depth < len(u.path) else None):
        if group is None:
            children += [u.ops[0] if len(u.ops) == 1 else Group("", "kernel", "", tuple(u.ops)) for u in run]
            continue
        inside = _nest(run, depth + 1)
        kind, title = group
        if len(inside) > 1:
            children.append(Group("", kind, title, _divided(inside)))
        elif isinstance(inside[0], Group) and inside[0].kind == "module":
            children.append(Group("", kind, f"{title}/{inside[0].title}", inside[0].children))
        else:  # a frame around one op or kernel says nothing: the op itself names its module
            children.append(inside[0])
    return children


def _divided(children: list[Group | int]) -> tuple[Group | int, ...]:
    """Put a long level into runs."""
    while len(children) > _CHILDREN:
        runs = [tuple(children[k : k + _RUN]) for k in range(0, len(children), _RUN)]
        children = [Group("", "run", "", run) if len(run) > 1 else run[0] for run in runs]
    return tuple(children)


def _keyed(group: Group, key: str) -> Group:
    inside = tuple(
        _keyed(c, f"{key}.{n}" if key else str(n)) if isinstance(c, Group) else c for n, c in enumerate(group.children)
    )
    return Group(key, group.kind, group.title, inside)
