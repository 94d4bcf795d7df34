"""Schedules: a pending graph as the programs that run it.

Most graphs are one program. A large backward pass becomes some tens, cut beside matrix products, into which XLA fuses
nothing anyway: what it has used up is freed between them, where one program would hold every activation to its end.
Parts that look alike, as a model's layers do, share a program.

A graph whose shapes change from run to run is cut where ops that the run before had too meet new ones: the former find their
programs, and of the latter layers share a program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torchtpu.layout import Layout
from torchtpu.program import Node, Program, Wires, graph_function

# A graph whose results are larger than this runs apart from the backward pass that follows it; with a backward pass in
# it, it is cut into about so many parts.
LARGE = 32 << 20
_PARTS = 40


@dataclass(frozen=True, slots=True)
class Part:
    """A program of a schedule. Arrays are named as in the graph: `>= 0` a result's slot, `< 0` input `-1 - ref`.

    Attributes:
        program: what runs; several parts may share it.
        nodes: positions of its ops in the graph.
        refs: its inputs.
        slots: its outputs.
        numbers: positions, among the graph's, of the numbers that it takes.
        donated: refs whose memory it may reuse, and which are gone after it.
        dead: refs that the graph does not need after it (the donated ones among them).
    """

    program: Program
    nodes: tuple[int, ...]
    refs: tuple[int, ...]
    slots: tuple[int, ...]
    numbers: tuple[int, ...]
    donated: tuple[int, ...]
    dead: tuple[int, ...]


@dataclass(slots=True)
class Schedule:
    """A graph as programs.

    Attributes:
        parts: in order.
        layouts: of the slots that pass between parts.
        whole: it was not cut because its shapes keep changing.
        reused: it has run more than once.
    """

    parts: tuple[Part, ...]
    layouts: dict[int, Layout]
    whole: bool = True
    reused: bool = False


# Programs by what they compute: ops, references inside the part, outputs, donated inputs.
programs: dict[tuple[Any, ...], Program] = {}


def build(
    nodes: Sequence[Node],
    kept: Sequence[int],
    donated: Sequence[int],
    inputs: Sequence[Layout],
    compiled: Callable[[Program], None],
    known: Sequence[bool] | None = None,
) -> Schedule:
    """Compile the programs that a graph needs.

    Args:
        nodes: the graph's ops.
        kept: slots whose values are wanted.
        donated: positions of the inputs that nothing else holds.
        inputs: layouts of the graph's inputs.
        compiled: called with each program that had to be compiled.
        known: where shapes keep changing: for each op, whether the graph of the run before had it too.
    """
    graph = _Graph(nodes, kept, donated, inputs)
    parts = []
    cut = _cut(nodes, graph.wanted, graph.slots, graph.last_use, lambda r: graph.layout(r).nbytes)
    if known is not None:
        cut = [piece for members in cut for piece in _pieces(nodes, members, known)]
    for members in cut:
        made = graph.arrange(members)
        program = programs.get(made.key)
        if program is None:
            program = programs[made.key] = _compile(made.key, [graph.layout(r) for r in made.refs])
            compiled(program)
        parts.append(
            Part(
                program,
                tuple(members),
                made.refs,
                made.outputs,
                tuple(n for k in members for n in graph.numbers[k]),
                made.refs[: made.donated],
                made.leaving,
            )
        )
    passing = {s: graph.layout(s) for p in parts for s in p.slots}
    return Schedule(tuple(parts), passing, whole=known is None)


@dataclass(frozen=True, slots=True)
class Arranged:
    """Ops of a graph, in order, as one program.

    Attributes:
        key: the ops with references inside the program, its outputs as slots, positions of the inputs that it may reuse.
        members: positions of the ops in the graph.
        refs: its inputs; the first `donated` of them are given to the first outputs.
        outputs: slots.
        leaving: inputs that the graph does not need after it.
    """

    key: tuple[tuple[Node, ...], tuple[int, ...], tuple[int, ...]]
    members: tuple[int, ...]
    refs: tuple[int, ...]
    outputs: tuple[int, ...]
    donated: int
    leaving: tuple[int, ...]


def arrange(nodes: Sequence[Node], kept: Sequence[int], donated: Sequence[int], inputs: Sequence[Layout]) -> Arranged:
    """Arrange all of a graph that is wanted as one program, and compile nothing. Arguments as in `build`."""
    graph = _Graph(nodes, kept, donated, inputs)
    return graph.arrange(graph.wanted)


class _Graph:
    """What a graph's parts are cut from: which ops are wanted, where their results are used last."""

    def __init__(self, nodes: Sequence[Node], kept: Sequence[int], donated: Sequence[int], inputs: Sequence[Layout]) -> None:
        self.nodes, self.inputs = nodes, inputs
        self.slots, self.numbers = _positions(nodes)
        self.layouts = [layout for node in nodes for layout in node.plan.outputs]
        self.wanted = _wanted(nodes, self.slots, kept)
        self.last_use = {r: k for k in self.wanted for r in nodes[k].refs}
        self.keep = set(kept)
        self.free_inputs = {-1 - k for k in donated}

    def layout(self, r: int) -> Layout:
        return self.layouts[r] if r >= 0 else self.inputs[-1 - r]

    def arrange(self, members: Sequence[int]) -> Arranged:
        """Arrange these ops, by position, as one program."""
        nodes, keep, last_use = self.nodes, self.keep, self.last_use
        end = members[-1]
        made = [s for k in members for s in self.slots[k]]
        inside = set(made)
        outputs = [s for s in made if s in keep or last_use.get(s, -1) > end]
        refs = list(dict.fromkeys(r for k in members for r in nodes[k].refs if r not in inside))
        leaving = [r for r in refs if last_use[r] <= end and r not in keep]
        dying = {r: self.layout(r) for r in leaving if r >= 0 or r in self.free_inputs}
        given = _donations(nodes, members, self.slots, outputs, dying)
        # A donated input is given to the first output of its layout that has none, in order: so both come first, in pairs.
        outputs.sort(key=lambda s: s not in given)
        refs = [*(given[s] for s in outputs if s in given), *(r for r in refs if r not in given.values())]
        local = {s: i for i, s in enumerate(made)} | {r: -1 - i for i, r in enumerate(refs)}
        part = tuple(Node(n.plan, tuple(local[r] for r in n.refs), n.backward) for n in (nodes[k] for k in members))
        key = (part, tuple(local[s] for s in outputs), tuple(range(len(given))))
        return Arranged(key, tuple(members), tuple(refs), tuple(outputs), len(given), tuple(leaving))


def _positions(nodes: Sequence[Node]) -> tuple[list[range], list[range]]:
    """Return, for each node, the slots of its results and the positions of its numbers."""
    slots, numbers = [], []
    slot = number = 0
    for node in nodes:
        slots.append(range(slot, slot := slot + len(node.plan.outputs)))
        numbers.append(range(number, number := number + len(node.plan.wires)))
    return slots, numbers


def _wanted(nodes: Sequence[Node], slots: Sequence[range], kept: Sequence[int]) -> list[int]:
    """Return the positions of the nodes that the kept slots depend on."""
    needed = set(kept)
    wanted = []
    for k in range(len(nodes) - 1, -1, -1):
        if not needed.isdisjoint(slots[k]):
            wanted.append(k)
            needed.update(nodes[k].refs)
    return wanted[::-1]


def _cut(
    nodes: Sequence[Node], wanted: Sequence[int], slots: Sequence[range], last_use: dict[int, int], nbytes: Callable[[int], int]
) -> list[list[int]]:
    """Split the wanted nodes, in order, into parts: beside a product, once enough was made or can be freed."""
    total = sum(nodes[k].plan.nbytes for k in wanted)
    if total < LARGE or not any(nodes[k].backward for k in wanted):
        return [list(wanted)]
    parts: list[list[int]] = []
    size = total
    beside = True
    for k in wanted:
        plan = nodes[k].plan
        if size >= total / _PARTS and (beside or plan.product):
            parts.append([])
            size, first = 0, slots[k].start
        parts[-1].append(k)
        size += plan.nbytes + sum(nbytes(r) for r in set(nodes[k].refs) if r < first and last_use[r] == k)
        beside = plan.product
    return parts


def _pieces(nodes: Sequence[Node], members: Sequence[int], known: Sequence[bool]) -> list[list[int]]:
    """Split nodes, in order, where known ones meet new ones, and the new ones so that each piece has one product at most."""
    pieces: list[list[int]] = []
    full = False
    for k in members:
        product = nodes[k].plan.product and not known[k]
        if not pieces or known[k] != known[pieces[-1][-1]] or (full and product):
            pieces.append([])
            full = False
        pieces[-1].append(k)
        full = full or product
    return pieces


def _donations(
    nodes: Sequence[Node], members: Sequence[int], slots: Sequence[range], outputs: Sequence[int], dying: dict[int, Layout]
) -> dict[int, int]:
    """Return for which outputs there is an input of the same layout whose memory they take without a copy.

    XLA takes donation as an order and copies where it can't otherwise keep it. So every op that reads such an input must
    come before the one that makes the output, or be that one, writing each element where it read it.

    Args:
        nodes: the graph's ops.
        members: positions of a part's ops.
        slots: of each op's results.
        outputs: the part's results that are wanted.
        dying: layouts of the inputs that nothing needs after the part, by reference.
    """
    readers: dict[int, list[int]] = {}
    maker: dict[int, int] = {}
    before: dict[int, int] = {}  # per op, the set of those in the part that it depends on, as bits
    layouts: dict[int, Layout] = {}
    for bit, k in enumerate(members):
        ancestors = 0
        for r in nodes[k].refs:
            if r in dying:
                readers.setdefault(r, []).append(bit)
            elif r in maker:
                ancestors |= before[maker[r]] | 1 << maker[r]
        before[bit] = ancestors
        for s, layout in zip(slots[k], nodes[k].plan.outputs, strict=True):
            layouts[s], maker[s] = layout, bit
    given: dict[int, int] = {}
    for s in outputs:
        bit = maker[s]
        for r, layout in dying.items():
            if layout == layouts[s] and all(
                before[bit] >> q & 1 or (q == bit and _in_place(nodes[members[bit]], r)) for q in readers[r]
            ):
                given[s] = r
                del dying[r]
                break
    return given


def _in_place(node: Node, ref: int) -> bool:
    """Whether an op can write its result over an input."""
    plan = node.plan
    return all(
        p in plan.donatable or (plan.pointwise and plan.views[plan.needs[p]].covers)
        for p, r in enumerate(node.refs)
        if r == ref
    )


def _compile(key: tuple[Any, ...], inputs: Sequence[Layout]) -> Program:
    nodes, outputs, donated = key
    wires = Wires([w for n in nodes for w in n.plan.wires])
    function = graph_function(nodes, outputs, wires, len(inputs))
    name = f"fused_{len(nodes)}_ops#{len(programs) + 1}"
    return Program(name, tuple(n.plan.info() for n in nodes), function, tuple(inputs), wires, donated, nodes, outputs)
