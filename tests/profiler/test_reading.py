"""What profiles are read and written with: the wire format, sets of time, costs of kernels, runs and their launches."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings, strategies as st
from jax.profiler import ProfileData

import torchtpu
from torchtpu.profiler import cost, runs, trace, wire, xspace
from torchtpu.profiler.intervals import Intervals
from torchtpu.profiler.timeline import Launch

# --- wire and XSpace ---


@given(st.integers(-(2**63), 2**64 - 1))
def test_numbers_come_back(value):
    ((field, read),) = wire.fields(wire.number(7, value))
    assert field == 7
    assert read == value & 0xFFFF_FFFF_FFFF_FFFF


def test_messages_come_back_and_join():
    inner = wire.text(2, "größe") + wire.double(3, 0.5)
    data = wire.message(1, inner) + wire.number(5, 300)
    assert wire.first(data, 1) == inner
    assert wire.first(data, 5) == 300
    assert wire.first(data, 9) is None
    assert [f for f, _ in wire.fields(data + data)] == [1, 5, 1, 5]


@pytest.mark.parametrize("cut", [1, 3, 8])
def test_what_is_cut_off_is_an_error(cut):
    data = wire.message(1, b"0123456789")
    with pytest.raises(ValueError):
        list(wire.fields(data[:-cut]))


def test_jax_reads_a_plane():
    plane = xspace.Plane("/device:TPU:0", 3)
    made = plane.metadata("a", "%dot.1 = f32[]", "dot.1", [("flops", 12)])
    assert plane.metadata("a") == made
    event = xspace.Event(made, 1.5, 0.25, (("line", "In[3], line 4"), ("count", 7), ("share", 0.5)))
    plane.line(1, "XLA Ops", [event, xspace.Event(made, 2.0, 0.0)])
    (read,) = ProfileData.from_serialized_xspace(xspace.join(b"", [plane])).planes
    (line,) = read.lines
    first, second = line.events
    assert (read.name, line.name, first.name) == ("/device:TPU:0", "XLA Ops", "%dot.1 = f32[]")
    assert (first.start_ns, first.duration_ns, second.start_ns) == (1.5e9, 0.25e9, 2e9)
    assert dict(first.stats) == {"line": "In[3], line 4", "count": 7, "share": 0.5}


def test_a_plane_is_joined_to_the_one_of_its_name():
    theirs = xspace.Plane("/host:CPU", 1)
    theirs.line(1, "python", [xspace.Event(theirs.metadata("theirs"), 0.0, 1.0, (("x", 1),))])
    ours = xspace.Plane("/host:CPU", 0, joined=True)
    ours.line(1, "torchtpu ops", [xspace.Event(ours.metadata("ours"), 0.5, 1.0, (("y", 2),))])
    (plane,) = ProfileData.from_serialized_xspace(xspace.join(xspace.join(b"", [theirs]), [ours])).planes
    found = {line.name: [(e.name, dict(e.stats)) for e in line.events] for line in plane.lines}
    assert found == {"python": [("theirs", {"x": 1})], "torchtpu ops": [("ours", {"y": 2})]}


# --- sets of time ---

spans = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)


def covered(pairs) -> set[int]:
    return {k for start, end in pairs for k in range(int(start), int(end))}


@settings(max_examples=300)
@given(spans, spans, st.integers(0, 30), st.integers(0, 30))
def test_intervals_are_sets(first, second, start, end):
    a, b = Intervals(first), Intervals(second)
    assert covered(a) == covered(first)
    assert list(a) == sorted(a) and all(s < e for s, e in a)
    assert a.seconds == len(covered(first))
    assert a.within(start, end) == len(covered(first) & covered([(start, end)]))
    assert covered(a.without(b)) == covered(first) - covered(second)
    assert covered(a.gaps(start, end)) == covered([(start, end)]) - covered(first)


# --- costs ---


def test_costs_of_kernels_add_up_to_the_programs(mode):
    x = torch.randn(64, 64, device="tpu")
    with torchtpu.watch() as report:
        y = torch.softmax(torch.relu(x @ x) + 1, 1).sum(0)
        (y * 2).sum().item()
    for program in report.live_programs():
        whole = program.compiled.cost_analysis()
        kernels = cost.kernels(program).values()
        assert sum(k.flops for k in kernels) == pytest.approx(whole.get("flops", 0.0), abs=8)
        assert sum(k.nbytes for k in kernels) == pytest.approx(whole["bytes accessed"], abs=64)


def test_a_product_costs_two_operations_an_element():
    x = torch.randn(64, 32, device="tpu")
    with torchtpu.watch() as report:
        (x @ x.T).sum().item()
    (mm,) = (p for p in report.live_programs() if p.name == "aten_mm")
    assert sum(k.flops for k in cost.kernels(mm).values()) == 2 * 64 * 64 * 32


# --- runs and launches ---


class Program:
    """As much of a program as matching needs; `kernels` are the names in its HLO."""

    def __init__(self, name: str, kernels: set[str]) -> None:
        self.name, self.kernels, self.nodes = name, kernels, ()


@pytest.fixture
def known(monkeypatch):
    """Programs are known by their kernels' names."""

    def make(program: Program, number: int) -> runs.Known:
        return runs.Known(program.name, number, program, "jit_f", kernels=dict.fromkeys(program.kernels))

    monkeypatch.setattr(runs, "_known", make)


def launch(program: Program, at: float) -> Launch:
    return Launch(program, "item", (), at, 0.1)


def a_run(number: int, at: float, *names: str) -> trace.Run:
    return trace.Run("jit_f", number, [trace.Kernel(n, 1, at, at + 0.5, 0.5) for n in names])


def matched(found: list[runs.Ran]) -> list[tuple[str, float | None]]:
    return [(r.known.name, r.launch.start if r.launch else None) for r in found]


def test_programs_of_one_name_are_told_apart_by_their_kernels(known):
    a, b = Program("a", {"dot", "add"}), Program("b", {"dot", "sub"})
    launches = [launch(a, 1.0), launch(b, 2.0), launch(a, 3.0)]
    _, found = runs.match([a_run(1, 1.5, "dot", "add"), a_run(2, 2.5, "sub"), a_run(1, 3.5, "dot", "add")], launches)
    assert matched(found) == [("a", 1.0), ("b", 2.0), ("a", 3.0)]


def test_programs_with_the_same_kernels_that_began_in_another_order(known):
    a, b = Program("a", {"dot"}), Program("b", {"dot"})
    launches = [launch(a, 1.0), launch(b, 2.0), launch(a, 3.0), launch(b, 3.1), launch(a, 5.0), launch(b, 6.0)]
    order = [(1, 1.5), (2, 2.5), (2, 3.5), (1, 3.6), (1, 5.5), (2, 6.5)]  # the second time, b began before a
    _, found = runs.match([a_run(number, at, "dot") for number, at in order], launches)
    assert matched(found) == [("a", 1.0), ("b", 2.0), ("b", 3.1), ("a", 3.0), ("a", 5.0), ("b", 6.0)]


def test_a_run_without_a_launch_is_somebody_elses(known):
    a = Program("a", {"dot"})
    programs, found = runs.match([a_run(1, 0.2, "dot"), a_run(1, 1.5, "dot"), a_run(1, 9.0, "dot")], [launch(a, 1.0)])
    assert matched(found) == [("jit_f", None), ("a", 1.0), ("jit_f", None)]
    assert [p.number for p in programs] == [1, 2]


def test_kernels_inside_others_are_not_counted_twice():
    found = [(0.0, 10.0, "while", {}), (1.0, 2.0, "dot", {}), (4.0, 3.0, "add", {}), (20.0, 1.0, "copy", {})]
    kernels = [kernel for kernel, _ in trace._nested(found, 1)]
    assert [(k.name, k.own, k.leaf) for k in kernels] == [
        ("while", 5.0, False),
        ("dot", 2.0, True),
        ("add", 3.0, True),
        ("copy", 1.0, True),
    ]


def test_the_clocks_are_set_by_the_closest_marks():
    # Between the two clocks lie 100 s; a mark that lost the CPU in between is later on XLA's.
    start = [(100.0 + k * 1e-5, k * 1e-5 + late) for k, late in enumerate((0.004, 1e-6, 0.002))]
    end = [(160.0006 + k * 1e-5, 60.0 + k * 1e-5 + late) for k, late in enumerate((0.003, 0.01, 1e-6))]
    offset, rate = trace._clock(start + end)
    assert offset == pytest.approx(100.0, abs=5e-6)
    assert rate == pytest.approx(1.00001, abs=1e-6)
    offset, rate = trace._clock(start)
    assert (offset, rate) == (pytest.approx(100.0, abs=5e-6), 1.0)
    assert trace._clock([]) == (0.0, 1.0)
