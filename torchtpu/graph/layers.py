"""Layers of a drawing: in which order spots stand, and where, so that arrows are short, straight and rarely cross."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchtpu.graph.layout import Box

GAP = 14  # between boxes of a layer
LANE = 7  # between arrows that pass through a layer
_TURNS = 20  # at most, of bringing boxes under each other


class Spot:
    """Something in a layer: a box, a port of the frame, or an arrow passing through."""

    __slots__ = ("box", "key", "width", "height", "layer", "x", "up", "down")

    def __init__(self, key: str, width: float, height: float, layer: int, box: Box | None = None) -> None:
        self.key, self.width, self.height, self.layer, self.box = key, width, height, layer, box
        self.x = 0.0  # of its centre
        # Neighbours in the layers above and below, with where the arrow meets this spot and the other, from the centres.
        self.up: list[tuple[Spot, float, float]] = []
        self.down: list[tuple[Spot, float, float]] = []


def order(layers: Sequence[list[Spot]]) -> None:
    """Order each layer by the middle of its neighbours, down and up in turns, so that few arrows cross."""
    for layer in layers:
        for n, spot in enumerate(layer):
            spot.x = float(n)
    for turn in range(8):
        down = turn % 2 == 0
        for layer in layers if down else reversed(layers):
            key = {}
            for spot in layer:
                near = spot.up if down else spot.down
                key[id(spot)] = sum(o.x + at / 1000 for o, _, at in near) / len(near) if near else spot.x
            layer.sort(key=lambda s: key[id(s)])
            for n, spot in enumerate(layer):
                spot.x = float(n)


def set_x(layers: Sequence[list[Spot]]) -> None:
    """Bring each spot under and above its neighbours as far as the order and the gaps allow."""
    for layer in layers:
        x = 0.0
        for spot in layer:
            spot.x = x + spot.width / 2
            x += spot.width + _gap(spot)
    for turn in range(_TURNS):
        moved = 0.0
        down = turn % 2 == 0
        for layer in layers if down else reversed(layers):
            wanted, weights = [], []
            for spot in layer:
                # The last turns look both ways, so that what hangs on one side only does not drift.
                near = (spot.up if down else spot.down) if turn <= _TURNS // 2 else spot.up + spot.down
                near = near or spot.up or spot.down
                # Long arrows are kept straight first, then chains of single boxes.
                weight = [8.0 if spot.box is None and o.box is None else 1.0 for o, _, _ in near]
                total = sum(weight)
                at = [(o.x + there - here) * w for (o, here, there), w in zip(near, weight, strict=True)]
                wanted.append(sum(at) / total if total else spot.x)
                weights.append(total or 0.1)
            moved = max(moved, _spread(layer, wanted, weights))
        if moved < 0.5 and turn > _TURNS // 2:
            break


def _spread(layer: Sequence[Spot], wanted: Sequence[float], weights: Sequence[float]) -> float:
    """Place spots as near as possible to where they want to be (least squares), in order and without overlap.

    Returns:
        by how far one of them moved at most.
    """
    offset, offsets = 0.0, []
    for k, spot in enumerate(layer):
        if k:
            before = layer[k - 1]
            offset += (before.width + spot.width) / 2 + max(_gap(before), _gap(spot))
        offsets.append(offset)
    blocks: list[list[float]] = []  # mean, weight, count: the pool-adjacent-violators method
    for want, weight, off in zip(wanted, weights, offsets, strict=True):
        blocks.append([want - off, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            mean, total, count = blocks.pop()
            last = blocks[-1]
            last[0] = (last[0] * last[1] + mean * total) / (last[1] + total)
            last[1] += total
            last[2] += count
    means = [mean for mean, _, count in blocks for _ in range(int(count))]
    moved = 0.0
    for spot, mean, offset in zip(layer, means, offsets, strict=True):
        moved = max(moved, abs(spot.x - mean - offset))
        spot.x = mean + offset
    return moved


def straighten(layers: Sequence[list[Spot]]) -> None:
    """Make arrows that pass through several layers as straight as their neighbours let them."""
    left = min(s.x - s.width / 2 for layer in layers for s in layer)
    right = max(s.x + s.width / 2 for layer in layers for s in layer)
    beside: dict[int, tuple[Spot | None, Spot | None]] = {}
    for layer in layers:
        around = [None, *layer, None]
        beside |= {id(s): (around[k], around[k + 2]) for k, s in enumerate(layer)}

    def room(lane: Spot) -> tuple[float, float]:
        before, after = beside[id(lane)]
        low = left if before is None else before.x + (before.width + lane.width) / 2 + _gap(before)
        high = right if after is None else after.x - (after.width + lane.width) / 2 - _gap(after)
        return min(low, lane.x), max(high, lane.x)

    def settle(lanes: list[Spot], low: float, high: float) -> None:
        x = min(high, max(low, sum(lane.x for lane in lanes) / len(lanes)))
        for lane in lanes:
            lane.x = x

    for _ in range(2):
        for first in (s for layer in layers for s in layer if _is_lane(s) and not any(_is_lane(o) for o, _, _ in s.up)):
            run, low, high = [], left, right
            lane: Spot | None = first
            while lane is not None:
                a, b = room(lane)
                if run and max(low, a) > min(high, b):
                    settle(run, low, high)
                    run, low, high = [], left, right
                run.append(lane)
                low, high = max(low, a), min(high, b)
                lane = next((o for o, _, _ in lane.down if _is_lane(o)), None)
            settle(run, low, high)


def _is_lane(spot: Spot) -> bool:
    return spot.box is None and not spot.key


def _gap(spot: Spot) -> float:
    return GAP if spot.box is not None else LANE
