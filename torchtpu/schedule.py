"""Schedules: a pending graph as the programs that run it.

Most graphs are one program. A large forward and backward pass becomes a few, cut before matrix products, into which XLA
fuses nothing anyway: what the backward pass has used up is freed between them, where one program would hold every
activation to its end. Parts that look alike, as a model's layers do, share a program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torchtpu.layout import Layout
from torchtpu.program import Node, Program, Wires, graph_function

# A graph with a backward pass is cut into about this many parts, if its results are larger than this.
_PARTS = 20
_MIN_BYTES = 32 << 20


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
        dead: slots that nothing needs after it (the donated ones among them).
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
    """The parts in order; `reused`: it has run more than once; `layouts`: of the slots that pass between parts."""

    parts: tuple[Part, ...]
    layouts: dict[int, Layout]
    reused: bool = False


# Programs by what they compute: ops, references inside the part, outputs, donated inputs.
programs: dict[tuple[Any, ...], Program] = {}


def build(
    nodes: Sequence[Node],
    kept: Sequence[int],
    donated: Sequence[int],
    inputs: Sequence[Layout],
    compiled: Callable[[Program], None],
) -> Schedule:
    """Compile the programs that a graph needs.

    Args:
        nodes: the graph's ops.
        kept: slots whose values are wanted.
        donated: positions of the inputs that nothing else holds.
        inputs: layouts of the graph's inputs.
        compiled: called with each program that had to be compiled.
    """
    slots, numbers = _positions(nodes)
    layouts = {
        s: layout for node, made in zip(nodes, slots, strict=True) for s, layout in zip(made, node.plan.outputs, strict=True)
    }
    wanted = _wanted(nodes, slots, kept)
    last_use = {r: k for k in wanted for r in nodes[k].refs}
    keep = set(kept)
    free_inputs = {-1 - k for k in donated}
    parts = []
    for members in _cut(nodes, wanted):
        end = members[-1]
        made = [s for k in members for s in slots[k]]
        outputs = tuple(s for s in made if s in keep or last_use.get(s, -1) > end)
        local = {s: i for i, s in enumerate(made)}
        refs = tuple(dict.fromkeys(r for k in members for r in nodes[k].refs if r not in local))
        local |= {r: -1 - i for i, r in enumerate(refs)}
        leaving = [r for r in refs if last_use[r] <= end and r not in keep]
        given = _donations(leaving, free_inputs, refs, outputs, layouts, inputs)
        part_nodes = tuple(Node(n.plan, tuple(local[r] for r in n.refs), n.backward) for n in (nodes[k] for k in members))
        key = (part_nodes, tuple(local[s] for s in outputs), tuple(given))
        program = programs.get(key)
        if program is None:
            program = programs[key] = _compile(key, [layouts[r] if r >= 0 else inputs[-1 - r] for r in refs])
            compiled(program)
        parts.append(
            Part(
                program,
                tuple(members),
                refs,
                outputs,
                tuple(n for k in members for n in numbers[k]),
                tuple(refs[i] for i in given),
                tuple(r for r in leaving if r >= 0),
            )
        )
    passing = {s: layouts[s] for p in parts for s in p.slots}
    return Schedule(tuple(parts), passing)


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


def _cut(nodes: Sequence[Node], wanted: Sequence[int]) -> list[list[int]]:
    """Split the wanted nodes, in order, into parts."""
    total = sum(nodes[k].plan.nbytes for k in wanted)
    if total < _MIN_BYTES or not any(nodes[k].backward for k in wanted):
        return [list(wanted)]
    parts: list[list[int]] = [[]]
    size = 0
    for k in wanted:
        if size >= total / _PARTS and nodes[k].plan.product:
            parts.append([])
            size = 0
        parts[-1].append(k)
        size += nodes[k].plan.nbytes
    return parts


def _donations(
    leaving: Sequence[int],
    free_inputs: set[int],
    refs: Sequence[int],
    outputs: Sequence[int],
    layouts: dict[int, Layout],
    inputs: Sequence[Layout],
) -> list[int]:
    """Return the positions in `refs` of arrays that end here and whose memory an output of the same layout can take."""
    room: dict[Layout, int] = {}
    for s in outputs:
        room[layouts[s]] = room.get(layouts[s], 0) + 1
    given = []
    for r in leaving:
        layout = layouts[r] if r >= 0 else inputs[-1 - r]
        if (r >= 0 or r in free_inputs) and room.get(layout, 0):
            room[layout] -= 1
            given.append(refs.index(r))
    return sorted(given)


def _compile(key: tuple[Any, ...], inputs: Sequence[Layout]) -> Program:
    nodes, outputs, donated = key
    wires = Wires([w for n in nodes for w in n.plan.wires])
    function = graph_function(nodes, outputs, wires, len(inputs))
    name = f"fused_{len(nodes)}_ops#{len(programs) + 1}"
    return Program(name, tuple(n.plan.info() for n in nodes), function, tuple(inputs), wires, donated)
