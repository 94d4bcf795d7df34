"""What is drawn of a graph: tiles for ops and folded groups, frames for open ones, wires for tensors, each with its place."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from torchtpu.graph import layout, shapes
from torchtpu.graph.layout import Wire
from torchtpu.graph.model import ProgramGraph
from torchtpu.graph.tree import Group, unfolded
from torchtpu.report import units

LIMIT = 300  # tiles in any drawing
DRAWN = 100  # tiles in a picture: more can be drawn, but not be taken in

LEVELS = 6  # of the colour scale
_OCTAVES = 9  # that it spans, at most

FONT = 11  # of names; the rest is set one smaller
_ADVANCE = 0.602  # of a monospaced letter, in ems
_TILE = 34  # height
_NARROWEST = 56
_LONGEST = 26  # letters of a name on a tile


@dataclass(frozen=True)
class Tile:
    """An op, or a folded group. `level` of the colour scale, -1 for none; `lines` of text."""

    key: str
    x: float
    y: float
    width: float
    height: float
    lines: tuple[str, str]
    level: int
    folded: bool


@dataclass(frozen=True)
class Frame:
    """An open group: of a module, a line, a kernel or a run of ops."""

    key: str
    x: float
    y: float
    width: float
    height: float
    title: str
    kind: str
    level: int


@dataclass(frozen=True)
class Scene:
    """A drawing, in pixels.

    Attributes:
        title: of the group drawn.
        frames: the outer ones first.
        scale: weight at the lower end of each level of the colour scale.
    """

    key: str
    title: str
    width: float
    height: float
    tiles: tuple[Tile, ...]
    frames: tuple[Frame, ...]
    wires: tuple[Wire, ...]
    scale: tuple[float, ...]


def op_key(op: int) -> str:
    """Name the tile of an op."""
    return f"n{op}"


def group_key(group: Group) -> str:
    """Name the tile or frame of a group."""
    return f"g{group.key}"


class Drawer:
    """Makes the scenes of one graph; sizes and colours agree between them."""

    def __init__(self, graph: ProgramGraph) -> None:
        self.graph = graph
        self.scale = _scale(graph.weights)

    def scene(self, root: Group, limit: int = DRAWN) -> Scene:
        """Draw a group with at most `limit` tiles."""
        outline = _Outline(self, unfolded(root, min(limit, LIMIT)))
        top = outline.box(root, ())
        top.titled = False
        tile_of = outline.tile_of
        links = [
            (tile_of[e.source], tile_of[e.target]) for e in self.graph.edges if e.source in tile_of and e.target in tile_of
        ]
        wires = layout.place(top, (link for link in links if link[0] != link[1]))
        tiles, frames = [], []
        for box in top.walk():
            place = (box.key, box.x, box.y, box.width, box.height)
            group = outline.groups.get(box.key)
            if box.children is None:
                tiles.append(Tile(*place, *outline.faces[box.key], group is not None))
            elif box is not top:
                level = self.level(self.weight(group.ops)) if group.kind == "kernel" else -1
                frames.append(Frame(*place, self.title(group), group.kind, level))
        title = self.graph.name if root.key == "" else self.title(root)
        return Scene(group_key(root), title, top.width, top.height, tuple(tiles), tuple(frames), tuple(wires), self.scale)

    def title(self, group: Group) -> str:
        """Say what a group is: `blocks.0`, `In[3], line 5`, `loop fusion, 24.1 KiB`, `40 ops`."""
        if group.kind == "kernel":
            box = self.graph.box_of[next(iter(group.ops))]
            kind = box.kernels[-1].kind if len(box.kernels) == 1 else units.count(len(box.kernels), "kernel")
            return f"{kind}, {units.nbytes(box.nbytes)}"
        return group.title or units.count(len(tuple(group.ops)), "op")

    def weight(self, ops: Iterable[int]) -> float:
        """What these ops weigh together."""
        return sum(self.graph.weights[k] for k in ops)

    def level(self, weight: float) -> int:
        """The level of the colour scale for a weight, -1 for none."""
        # A little below the limit, since a power of a logarithm is not exactly the number.
        return max((n for n, low in enumerate(self.scale) if weight >= 0.999 * low), default=0) if weight > 0 else -1


class _Outline:
    """The boxes of a scene before they have places.

    Attributes:
        tile_of: the key of the tile in which each op is drawn.
        groups: the groups of the frames, and of the tiles that are folded ones.
        faces: the lines of text and the colour level of each tile.
    """

    def __init__(self, drawer: Drawer, opened: frozenset[str]) -> None:
        self._drawer, self._opened = drawer, opened
        self.tile_of: dict[int, str] = {}
        self.groups: dict[str, Group] = {}
        self.faces: dict[str, tuple[tuple[str, str], int]] = {}

    def box(self, group: Group, modules: tuple[str, ...]) -> layout.Box:
        """Return the box of a group inside the frames of these modules."""
        key = group_key(group)
        self.groups[key] = group
        if group.key not in self._opened:
            self.tile_of.update(dict.fromkeys(group.ops, key))
            return self._tile(key, self._group_face(group))
        if group.kind == "module":
            modules += tuple(group.title.split("/"))
        children = [self.box(c, modules) if isinstance(c, Group) else self._op(c, modules) for c in group.children]
        return layout.Box(key, _text_width(self._drawer.title(group), FONT - 1) + 2 * layout.PAD, children=children)

    def _op(self, op: int, modules: tuple[str, ...]) -> layout.Box:
        self.tile_of[op] = op_key(op)
        return self._tile(op_key(op), self._op_face(op, modules))

    def _tile(self, key: str, face: tuple[tuple[str, str], int]) -> layout.Box:
        (name, below), level = face
        self.faces[key] = (_cut(name), _cut(below)), level
        width = max(_text_width(_cut(name), FONT), _text_width(_cut(below), FONT - 1)) + 16
        return layout.Box(key, max(_NARROWEST, width), _TILE)

    def _op_face(self, op: int, modules: tuple[str, ...]) -> tuple[tuple[str, str], int]:
        graph = self._drawer.graph
        row = graph.ops[op]
        shape = shapes.short(row.outputs[0]) if row.outputs else ""
        more = f" +{len(row.outputs) - 1}" if len(row.outputs) > 1 else ""
        module = ".".join(row.module.split("/")[len(modules) :])  # what the frames do not say
        below = f"{module} \u00b7 {shape}{more}" if module else shape + more
        box = graph.box_of.get(op)
        shared = box is not None and len(box.ops) > 1  # the kernel's frame has the colour
        return (op_name(row.op), below), -1 if shared else self._drawer.level(graph.weights[op])

    def _group_face(self, group: Group) -> tuple[tuple[str, str], int]:
        drawer = self._drawer
        ops = tuple(group.ops)
        weight = drawer.weight(ops)
        count, amount = units.count(len(ops), "op"), drawer.graph.amount(weight) if weight else ""
        if not group.title:
            return (count, amount), drawer.level(weight)
        return (drawer.title(group), f"{count}, {amount}" if amount else count), drawer.level(weight)


def op_name(op: str) -> str:
    """Return an op's name as it stands on a tile: `add` for `aten::add.Tensor`."""
    return op.removeprefix("aten::").partition(".")[0]


def _scale(weights: Iterable[float]) -> tuple[float, ...]:
    """Divide the range of the weights into steps of equal ratio; all that is much less than the largest is the first."""
    logs = [math.log2(w) for w in weights if w > 0]
    if not logs:
        return ()
    low = max(min(logs), max(logs) - _OCTAVES)
    step = max((max(logs) - low) / LEVELS, 1 / 3)
    return tuple(2 ** (low + n * step) for n in range(LEVELS))


def _text_width(text: str, size: float) -> float:
    return len(text) * size * _ADVANCE


def _cut(text: str) -> str:
    return units.cut(text, _LONGEST)
