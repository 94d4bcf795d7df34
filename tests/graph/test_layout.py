"""Places: boxes do not overlap, frames hold what is in them, and wires go around boxes."""

from hypothesis import given, settings

from tests.graph.conftest import made_up
from tests.graph.test_tree import programs
from torchtpu.graph.scene import Drawer
from torchtpu.graph.tree import tree


def scene_of(graph, limit=300):
    return Drawer(graph).scene(tree(graph), limit)


def inside(a, b):
    return b.x <= a.x and b.y <= a.y and a.x + a.width <= b.x + b.width and a.y + a.height <= b.y + b.height


def overlap(a, b):
    return a.x < b.x + b.width and b.x < a.x + a.width and a.y < b.y + b.height and b.y < a.y + a.height


def crosses(wire, tile):
    """Whether a wire goes through a tile: it goes straight down beside a layer, and bends only between layers."""
    (x1, y1), (_, low), (x2, high), (_, y2) = wire.points
    upright = ((x1, y1, low), (x2, high, y2))
    return any(tile.x < x < tile.x + tile.width and a < tile.y + tile.height and tile.y < b for x, a, b in upright)


def check(scene):
    for k, a in enumerate(scene.tiles):
        assert a.x >= 0 and a.y >= 0
        assert a.x + a.width <= scene.width and a.y + a.height <= scene.height
        assert not any(overlap(a, b) for b in scene.tiles[k + 1 :])
    for k, a in enumerate(scene.frames):
        for b in (*scene.frames[k + 1 :], *scene.tiles):
            assert inside(b, a) or not overlap(a, b), (a, b)
    for wire in scene.wires:
        assert not any(crosses(wire, tile) for tile in scene.tiles)
        ys = [y for _, y in wire.points]
        assert ys == sorted(ys)


@settings(max_examples=60, deadline=None)
@given(programs())
def test_nothing_overlaps(graph):
    check(scene_of(graph))


@settings(max_examples=40, deadline=None)
@given(programs())
def test_each_tensor_between_tiles_has_a_way_from_one_to_the_other(graph):
    scene = scene_of(graph)
    tiles = {t.key: t for t in scene.tiles}
    links = {link for wire in scene.wires for link in wire.links}
    assert links == {(f"n{e.source}", f"n{e.target}") for e in graph.edges}
    for a, b in links:
        pieces = [w.points for w in scene.wires if (a, b) in w.links]
        starts, ends = {p[0] for p in pieces}, {p[-1] for p in pieces}
        first, last = tiles[a], tiles[b]
        assert any(abs(y - first.y - first.height) < 1 and first.x <= x <= first.x + first.width for x, y in starts)
        assert any(abs(y - last.y) < 1 and last.x <= x <= last.x + last.width for x, y in ends)
        # Every other piece begins where one ends.
        first_of_all = [(x, y) for x, y in starts if not any(abs(x - a) < 0.1 and abs(y - b) < 0.1 for a, b in ends)]
        assert len({(round(x, 3), round(y, 3)) for x, y in first_of_all}) == 1


def test_wide_layers_are_broken():
    scene = scene_of(made_up([[] for _ in range(50)]))
    assert len({t.y for t in scene.tiles}) > 1
    assert scene.width <= 1240


def test_a_chain_is_a_straight_line():
    scene = scene_of(made_up([[k - 1] if k else [] for k in range(10)]))
    assert len({round(t.x) for t in scene.tiles}) == 1
    assert all(abs(w.points[0][0] - w.points[-1][0]) < 1 for w in scene.wires)
