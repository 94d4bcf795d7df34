"""Nesting and folding: nothing is lost, nothing points backwards, and a drawing stays small."""

import pytest
from hypothesis import given, settings, strategies as st

from tests.graph.conftest import made_up
from torchtpu.graph.scene import DRAWN, LIMIT, Drawer
from torchtpu.graph.tree import Group, tree, unfolded


def groups(group):
    yield group
    for child in group.children:
        if isinstance(child, Group):
            yield from groups(child)


def titles(group):
    return [(c.kind, c.title, titles(c)) if isinstance(c, Group) else c for c in group.children]


def test_modules_hold_kernels_and_kernels_hold_ops():
    graph = made_up(
        [[], [0], [1], [2], [3], [4]],
        ["Net/a", "Net/a", "Net/a", "Net/b", "Net/b", ""],
        [[0, 1], [2], [3, 4], [5]],
    )
    kernel = ("kernel", "", [0, 1])
    # A frame around the one kernel of module b would say nothing more.
    assert titles(tree(graph)) == [("module", "Net", [("module", "a", [kernel, 2]), ("kernel", "", [3, 4])]), 5]


def test_a_kernel_across_modules_is_where_both_are():
    graph = made_up([[], [0], [1], [2]], ["Net/a", "Net/a", "Net/b", "Net/b"], [[0], [1, 2], [3]])
    assert titles(tree(graph)) == [("module", "Net", [0, ("kernel", "", [1, 2]), 3])]


def test_forward_and_backward_of_a_module_are_apart():
    graph = made_up([[], [0], [1], [2, 0], [3]], ["Net", "Net", "", "Net", "Net"], backward=3)
    assert titles(tree(graph)) == [("module", "Net", [0, 1]), 2, ("module", "Net (backward)", [3, 4])]


def test_a_backward_whose_forward_was_a_view_is_where_its_neighbours_are():
    graph = made_up([[], [0], [1], [2]], ["Net", "Net/a", "", "Net/b"], backward=1)
    assert titles(tree(graph)) == [0, ("module", "Net (backward)", [1, 2, 3])]


def test_kernels_that_need_each_other_are_taken_apart():
    # Kernel A computes 0 and 3, kernel B computes 1 and 2; B reads 0, A reads 2.
    graph = made_up([[], [0], [1], [2]], fusions=[[0, 3], [1, 2]])
    assert sorted(tree(graph).ops) == [0, 1, 2, 3]
    assert list(tree(graph).ops) == [0, 1, 2, 3]


@st.composite
def programs(draw):
    size = draw(st.integers(1, 40))
    inputs = [draw(st.lists(st.integers(0, k - 1), max_size=3, unique=True)) if k else [] for k in range(size)]
    modules = draw(st.lists(st.sampled_from(["", "A", "A/b", "A/b/c", "A/d", "E"]), min_size=size, max_size=size))
    parts = draw(st.lists(st.integers(0, 9), min_size=size, max_size=size))
    fusions = [[k for k in range(size) if parts[k] == p] for p in range(8)]
    return made_up(inputs, modules, [f for f in fusions if f], draw(st.integers(0, size)))


@settings(max_examples=60, deadline=None)
@given(programs())
def test_every_op_is_there_once_and_after_what_it_reads(graph):
    order = list(tree(graph).ops)
    assert sorted(order) == list(range(len(graph.ops)))
    place = {op: n for n, op in enumerate(order)}
    assert all(place[e.source] < place[e.target] for e in graph.edges)
    assert len({g.key for g in groups(tree(graph))}) == sum(1 for _ in groups(tree(graph)))


DEEP = [f"Net/blocks.{k // 100}/{'attention' if k % 100 < 40 else 'mlp'}" for k in range(5000)]


@pytest.mark.parametrize("modules", [DEEP, [""] * 5000], ids=["modules", "flat"])
@pytest.mark.parametrize("limit", [LIMIT, DRAWN])
def test_five_thousand_ops_fold(modules, limit):
    graph = made_up([[k - 1] if k else [] for k in range(5000)], modules)
    root = tree(graph)
    assert sorted(root.ops) == list(range(5000))
    assert max(len(g.children) for g in groups(root)) <= 60
    scene = Drawer(graph).scene(root, limit)
    assert 10 < len(scene.tiles) <= limit
    assert "" in unfolded(root, limit)


def test_layers_that_look_alike_are_open_or_folded_alike():
    modules = [f"Net/blocks.{k // 20}/{'attention' if k % 20 < 10 else 'mlp'}" for k in range(240)]
    root = tree(made_up([[k - 1] if k else [] for k in range(240)], modules))
    (net,) = root.children
    for limit in (30, 100, 200):
        opened = unfolded(root, limit)
        assert len({block.key in opened for block in net.children}) == 1
        assert len({part.key in opened for block in net.children for part in block.children}) == 1


def test_chains_that_nothing_connects_stay_together():
    # Three parameters, updated op by op in turns, as an optimizer does.
    graph = made_up([[k - 3] if k > 2 else [] for k in range(12)])
    assert list(tree(graph).ops) == [0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11]


def test_a_limit_above_the_cap_is_the_cap():
    graph = made_up([[] for _ in range(3000)], [f"Net/{k // 30}/x{k % 30 // 3}" for k in range(3000)])
    assert len(Drawer(graph).scene(tree(graph), 10_000).tiles) <= LIMIT
