"""Places for the boxes of a folded graph: layers from top to bottom, one inside the other.

Each open group is laid out by itself and is then one box of the group around it. An arrow that leaves a group does so
through a port on its border, where all arrows to the same box outside meet; so no arrow crosses a box, and a picture of a
hundred ops stays one that can be followed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from torchtpu.graph.layers import GAP, LANE, Spot, order, set_x, straighten

RISE = 20  # between layers
PAD = 10  # inside a frame
TITLE = 16  # the title of a frame
WIDTH = 1180  # of the whole picture: where a layer would be wider, boxes move to the next one

Key = str
Link = tuple[Key, Key]


@dataclass
class Box:
    """A box to be placed: `children` is None for one that is drawn as a tile, else what its frame holds.

    Attributes:
        key: names it; x, y: of its upper left corner, within the box around it until `place` has run.
        width, height: given for a tile, found for a frame.
        ports: x, within the box, where arrows meet its border: ("in" or "out", key of the box at the other end).
    """

    key: Key
    width: float = 0
    height: float = 0
    children: list[Box] | None = None
    titled: bool = True
    x: float = 0
    y: float = 0
    ports: dict[tuple[str, Key], float] = field(default_factory=dict)
    wires: list[Wire] = field(default_factory=list)

    def walk(self) -> Iterable[Box]:
        """This box and all inside, the outer ones first."""
        yield self
        for child in self.children or ():
            yield from child.walk()


@dataclass
class Wire:
    """A piece of arrows: points from top to bottom, the links that it belongs to, and whether it ends at a tile."""

    points: list[tuple[float, float]]
    links: frozenset[Link]
    arrow: bool


def place(root: Box, links: Iterable[Link]) -> list[Wire]:
    """Give every box in `root` its size and place, and return the wires of the links between tiles.

    Args:
        links: (key of a tile, key of a tile that comes after it in the order of the children).
    """
    chains: dict[Key, list[Key]] = {}
    _chains(root, [], chains)
    inner: dict[Key, dict[tuple[Key, Key], set[Link]]] = {}
    for link in dict.fromkeys(links):
        a, b = chains[link[0]], chains[link[1]]
        split = next(d for d, (p, q) in enumerate(zip(a, b, strict=False)) if p != q)
        inner.setdefault(a[split - 1], {}).setdefault((a[split], b[split]), set()).add(link)
        for outer, child in zip(a[split:], a[split + 1 :], strict=False):
            inner.setdefault(outer, {}).setdefault((child, f"out {b[split]}"), set()).add(link)
        for outer, child in zip(b[split:], b[split + 1 :], strict=False):
            inner.setdefault(outer, {}).setdefault((f"in {a[split]}", child), set()).add(link)
    _arrange(root, inner, WIDTH)
    wires: list[Wire] = []
    _settle(root, 0, 0, wires)
    return wires


def _chains(box: Box, above: list[Key], chains: dict[Key, list[Key]]) -> None:
    here = [*above, box.key]
    chains[box.key] = here
    for child in box.children or ():
        _chains(child, here, chains)


def _settle(box: Box, x: float, y: float, wires: list[Wire]) -> None:
    box.x, box.y = box.x + x, box.y + y
    for wire in box.wires:
        wires.append(Wire([(px + box.x, py + box.y) for px, py in wire.points], wire.links, wire.arrow))
    for child in box.children or ():
        _settle(child, box.x, box.y, wires)


@dataclass
class _Step:
    """An arrow from a spot to one in the next layer."""

    source: Spot
    target: Spot
    at_source: float
    at_target: float
    links: set[Link]


def _arrange(box: Box, inner: dict[Key, dict[tuple[Key, Key], set[Link]]], room: float) -> None:
    """Lay out the children of an open box, and find its size, ports and wires."""
    if box.children is None:
        return
    for child in box.children:
        _arrange(child, inner, room - 2 * PAD)
    links = inner.get(box.key, {})
    spots = _layered(box, links, room - 2 * PAD)
    layers, steps = _threaded(spots, links)
    order(layers)
    set_x(layers)
    straighten(layers)
    _finish(box, layers, steps)


def _layered(box: Box, links: dict[tuple[Key, Key], set[Link]], room: float) -> dict[Key, Spot]:
    """Give each child the layer below its sources, or a later one where that is full; ports are above and below all."""
    sources: dict[Key, list[Key]] = {}
    targets: dict[Key, list[Key]] = {}
    for a, b in links:
        sources.setdefault(b, []).append(a)
        targets.setdefault(a, []).append(b)
    spots: dict[Key, Spot] = {}
    used: list[float] = [0.0]

    def put(child: Box, layer: int) -> None:
        while len(used) <= layer:
            used.append(0.0)
        while used[layer] and used[layer] + child.width > room:
            layer += 1
            if layer == len(used):
                used.append(0.0)
        used[layer] += child.width + GAP
        spots[child.key] = Spot(child.key, child.width, child.height, layer, child)

    for child in box.children or ():
        put(child, max((spots[s].layer + 1 for s in sources.get(child.key, ()) if s in spots), default=1))
    # What nothing leads to comes right above what reads it.
    for child in box.children or ():
        above = [s for s in sources.get(child.key, ()) if s in spots]
        below = [spots[t].layer for t in targets.get(child.key, ()) if t in spots]
        spot = spots[child.key]
        if not above and below and min(below) - 1 > spot.layer and used[min(below) - 1] + child.width <= room:
            used[spot.layer] -= child.width + GAP
            spot.layer = min(below) - 1
            used[spot.layer] += child.width + GAP
    kept = sorted({s.layer for s in spots.values()})
    renumbered = {layer: n + 1 for n, layer in enumerate(kept)}
    for spot in spots.values():
        spot.layer = renumbered[spot.layer]
    for key in dict.fromkeys(k for link in links for k in link):
        if key.startswith("in "):
            spots[key] = Spot(key, LANE, 0, 0)
        elif key.startswith("out "):
            spots[key] = Spot(key, LANE, 0, len(kept) + 1)
    return spots


def _threaded(spots: dict[Key, Spot], links: dict[tuple[Key, Key], set[Link]]) -> tuple[list[list[Spot]], list[_Step]]:
    """Break arrows at each layer that they pass. Those that leave a spot at the same place share their way."""
    layers: list[list[Spot]] = [[] for _ in range(max(s.layer for s in spots.values()) + 1)]
    for spot in spots.values():
        layers[spot.layer].append(spot)
    steps: dict[tuple[int, int, float, float], _Step] = {}
    lanes: dict[tuple[Key, float, int], Spot] = {}

    def step(source: Spot, target: Spot, at_source: float, at_target: float, carried: set[Link]) -> None:
        known = steps.get((id(source), id(target), at_source, at_target))
        if known is not None:
            known.links |= carried
            return
        steps[id(source), id(target), at_source, at_target] = _Step(source, target, at_source, at_target, set(carried))
        source.down.append((target, at_source, at_target))
        target.up.append((source, at_target, at_source))

    for (a, b), carried in links.items():
        source, target = spots[a], spots[b]
        out = _port(source, "out", b)
        current, at = source, out
        for layer in range(source.layer + 1, target.layer):
            lane = lanes.get((a, out, layer))
            if lane is None:
                lane = lanes[a, out, layer] = Spot("", LANE, 0, layer)
                layers[layer].append(lane)
            step(current, lane, at, 0.0, carried)
            current, at = lane, 0.0
        step(current, target, at, _port(target, "in", a), carried)
    return layers, list(steps.values())


def _port(spot: Spot, side: str, other: Key) -> float:
    """Where an arrow to or from `other` meets a spot, from its centre."""
    if spot.box is None:
        return 0.0
    # Ports go by the box at the outermost level that the arrow crosses, under this one's or the frame's own name of it.
    name = other.removeprefix("out ").removeprefix("in ")
    x = spot.box.ports.get((side, name))
    return 0.0 if x is None else x - spot.width / 2


def _finish(box: Box, layers: Sequence[list[Spot]], steps: Sequence[_Step]) -> None:
    """Turn the spots' places into those of the children, the ports, the wires and the size of the box."""
    spots = [s for layer in layers for s in layer]
    left = min(s.x - s.width / 2 for s in spots)
    right = max(s.x + s.width / 2 for s in spots)
    shift = PAD - left
    y = TITLE + 4 if box.titled else PAD
    tops, bottoms = [], []
    filled = [layer for layer in layers if any(s.box is not None for s in layer)]
    for layer in layers:
        if layer not in filled:  # ports
            tops.append(0.0 if not tops else y - RISE + PAD)
            bottoms.append(tops[-1])
            continue
        height = max(s.height for s in layer)
        tops.append(y)
        bottoms.append(y + height)
        y += height + RISE
    height = y - RISE + PAD
    box.width, box.height = max(right - left + 2 * PAD, box.width), height
    shift += (box.width - (right - left + 2 * PAD)) / 2
    for n, layer in enumerate(layers):
        for spot in layer:
            spot.x += shift
            if spot.box is not None:
                spot.box.x = spot.x - spot.width / 2
                spot.box.y = tops[n] + (bottoms[n] - tops[n] - spot.height) / 2
            elif spot.key:
                side, _, other = spot.key.partition(" ")
                box.ports[side, other] = spot.x
                tops[n] = bottoms[n] = 0.0 if side == "in" else height
    for s in steps:
        x1, x2 = s.source.x + s.at_source, s.target.x + s.at_target
        y1 = s.source.box.y + s.source.height if s.source.box is not None else tops[s.source.layer]
        y2 = s.target.box.y if s.target.box is not None else tops[s.target.layer]
        points = [(x1, y1), (x1, bottoms[s.source.layer]), (x2, tops[s.target.layer]), (x2, y2)]
        arrow = s.target.box is not None and s.target.box.children is None
        box.wires.append(Wire(points, frozenset(s.links), arrow))
