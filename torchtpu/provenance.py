"""Where values came from: the latest ops, what each one read, and the line that called it.

Kept in debug mode and while somebody watches. A buffer carries the number of the op that made it; the ops themselves are
in a ring of fixed size that holds no buffer, so that neither memory nor time grows with what has happened. What is pending
needs no such record: the graph knows it.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtpu import lines
from torchtpu.lines import Line, Origin

if TYPE_CHECKING:
    from torchtpu.buffer import Buffer
    from torchtpu.layout import Layout
    from torchtpu.modes.deferred import Graph
    from torchtpu.plan import Plan

KEPT = 10_000  # ops


class Made:
    """An op that made buffers.

    Attributes:
        number: of the op, from 1 on in the order in which they were called.
        plan: what it did; None for a copy from the host.
        layout: of the copy, or of the op's first result.
        origin: the line that called it.
        inputs: for each array that it read, the number of the op that made that; None where it is not known.
        program: the program that computed it; None while it is pending, and for what never left a fused program.
        meant: its NaNs were asked for (`x.fill_(nan)`), or come from such.
    """

    __slots__ = ("number", "plan", "layout", "origin", "inputs", "program", "meant")

    def __init__(
        self,
        number: int,
        plan: Plan | None,
        layout: Layout | None,
        origin: Origin | None,
        inputs: tuple[int | None, ...],
        program: str | None,
    ) -> None:
        self.number, self.plan, self.layout, self.origin, self.inputs = number, plan, layout, origin, inputs
        self.program = program
        self.meant = False


_ring: list[Made | None] = [None] * KEPT
_latest = 0


def record(
    plan: Plan, origin: Origin | None, inputs: Sequence[Buffer], outputs: Sequence[Buffer], program: str | None = None
) -> None:
    """Remember an op by its outputs, with the program that has computed them if one has."""
    layout = plan.outputs[0] if plan.outputs else None
    number = _add(plan, layout, origin, tuple([number_of(b) for b in inputs]), program)
    for b in outputs:
        b.made = number


def copied(buffer: Buffer, origin: Origin | None) -> None:
    """Remember that a buffer's values came from the host."""
    buffer.made = _add(None, buffer.layout, origin, (), None)


def _add(
    plan: Plan | None, layout: Layout | None, origin: Origin | None, inputs: tuple[int | None, ...], program: str | None
) -> int:
    global _latest
    _latest = number = _latest + 1
    _ring[number % KEPT] = Made(number, plan, layout, origin, inputs, program)
    return number


def computed(buffers: Iterable[Buffer], program: str) -> None:
    """Remember which program kept the promise of these buffers."""
    for b in buffers:
        made = maker(b)
        if made is not None:
            made.program = program


def latest() -> int:
    """Return the number of the latest op."""
    return _latest


def among(numbers: Iterable[int]) -> Iterator[Made]:
    """Yield those of the ops with these numbers that are still kept."""
    return (made for n in numbers if (made := _of(n)) is not None)


def number_of(buffer: Buffer) -> int | None:
    """Return the number of the op that made a buffer, None where nobody watched."""
    return getattr(buffer, "made", None)  # a slot that is filled only here


def maker(buffer: Buffer) -> Made | None:
    """Return the op that made a buffer, None if nobody watched or it is no longer kept."""
    number = number_of(buffer)
    return _of(number) if number is not None else None


def _of(number: int) -> Made | None:
    made = _ring[number % KEPT]
    return made if made is not None and made.number == number else None


@dataclass(frozen=True, slots=True)
class Step:
    """An op on the way to a value.

    Attributes:
        op: its ATen name, or `copy from the host`.
        result: its (first) result's array: `float32[8,128]`.
        line: the line that called it; for a backward op that of the forward op.
        inputs: positions, in the same history, of the ops that made what it read, as far as they are known.
        unknown: how many of its inputs were made before anybody watched, or too long ago.
        program: the program that computed it, where that is known.
        pending: it has not run yet.
    """

    op: str
    result: str
    line: Line | None
    inputs: tuple[int, ...]
    unknown: int
    program: str
    pending: bool


COPY = "copy from the host"


def history(buffer: Buffer, limit: int = 20) -> tuple[Step, ...]:
    """Return the op that made a buffer and those that its value came from, the latest first. Runs nothing.

    Args:
        limit: how many ops to go back.
    """
    pending = _Pending()
    start = pending.place(buffer)
    found: list[tuple[int, Made, bool, list[int | None]]] = []
    heap = [-start] if start is not None else []
    seen = {start}
    while heap and len(found) < limit:
        place = -heapq.heappop(heap)
        made, waits = (pending.at(place), True) if place > _PENDING else (_of(place), False)
        if made is None:
            continue
        inputs = list(made.inputs)
        found.append((place, made, waits, inputs))
        for p in inputs:
            if p is not None and p not in seen:
                seen.add(p)
                heapq.heappush(heap, -p)
    position = {place: k for k, (place, *_) in enumerate(found)}
    return tuple(
        Step(
            op=made.plan.name if made.plan is not None else COPY,
            result=str(made.layout) if made.layout is not None else "",
            line=lines.resolve(made.origin),
            inputs=tuple(dict.fromkeys(position[p] for p in inputs if p in position)),
            unknown=sum(p is None or (p <= _PENDING and _of(p) is None) for p in inputs),
            program=made.program or "",
            pending=waits,
        )
        for _, made, waits, inputs in found
    )


_PENDING = 1 << 60  # places beyond it are those of nodes of the pending graph, later than any number


class _Pending:
    """The pending graph, seen as ops that made buffers."""

    def __init__(self) -> None:
        from torchtpu.modes import deferred  # here: it imports this module

        self._graph: Graph = deferred.graph()
        self._node_of_slot = [k for k, node in enumerate(self._graph.nodes) for _ in node.plan.outputs]

    def place(self, buffer: Buffer) -> int | None:
        """Return where a buffer's maker is found: a node of the graph, or a number in the ring."""
        if buffer.array is None and buffer.epoch == self._graph.epoch and buffer.ref >= 0:
            return self._of_slot(buffer.ref)
        return number_of(buffer)

    def at(self, place: int) -> Made:
        """Return the node at a place."""
        k = place - _PENDING - 1
        node = self._graph.nodes[k]
        inputs = tuple(self._of_slot(r) if r >= 0 else number_of(self._graph.inputs[-1 - r]) for r in node.refs)
        layout = node.plan.outputs[0] if node.plan.outputs else None
        return Made(place, node.plan, layout, self._graph.origins[k], inputs, None)

    def _of_slot(self, slot: int) -> int:
        return _PENDING + 1 + self._node_of_slot[slot]
