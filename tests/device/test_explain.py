"""`torchtpu.explain`: how a tensor came to be, without running anything."""

from __future__ import annotations

import gc

import pytest
import torch

import torchtpu
from torchtpu import modes, provenance
from torchtpu.buffer import buffer_of


def ops(steps):
    return [s.op.removeprefix("aten::") for s in steps]


def test_a_pending_tensor_stays_pending():
    x = torch.ones(4, device="tpu")
    with modes.scope("defer_and_fuse"):
        doubled = x * 2  # twice
        y = doubled.sin() + doubled
        said = torchtpu.explain(y)
        assert modes.pending() == said.waiting == 3
    assert said.state == "pending"
    assert ops(said.steps) == ["add.Tensor", "sin", "mul.Tensor"]
    assert [s.inputs for s in said.steps] == [(1, 2), (2,), ()]
    assert [s.unknown for s in said.steps] == [0, 0, 1]
    assert all(s.pending for s in said.steps)
    assert said.steps[2].line.source == "doubled = x * 2  # twice"
    assert said.steps[2].result == "float32[4]"
    assert "pending, one of 3 ops that run at the next flush" in said.to_text()


def test_what_was_watched_is_remembered(mode):
    with torchtpu.watch():
        x = torch.tensor([1.0, 2.0], device="tpu")
        y = (x + 1).exp()  # grown
    said = torchtpu.explain(y)
    assert said.state == "ready"
    assert ops(said.steps) == ["exp", "add.Tensor", "copy from the host"]
    assert said.steps[0].line.source == "y = (x + 1).exp()  # grown"
    assert said.program == ("aten_exp" if mode != "defer_and_fuse" else said.steps[0].program)
    assert said.program.startswith("aten_exp" if mode != "defer_and_fuse" else "fused_2_ops")
    assert (said.array, said.nbytes) == ("float32[2]", 8)


def test_a_chain_goes_on_from_pending_ops_to_those_that_ran():
    with modes.scope("defer_and_fuse"):
        with torchtpu.watch():
            x = torch.ones(3, device="tpu") * 2
        y = x - 1
        said = torchtpu.explain(y)
        assert ops(said.steps)[:2] == ["sub.Tensor", "mul.Tensor"]
        assert [s.pending for s in said.steps[:2]] == [True, False]


def test_unwatched_it_says_what_it_does_not_know():
    x = torch.ones(3, device="tpu") * 3
    said = torchtpu.explain(x)
    assert said.steps == ()
    assert "Which op made it is not known: nobody watched" in said.to_text()


def test_a_backward_op_has_its_forward_line():
    with torchtpu.watch():
        x = torch.ones(3, device="tpu", requires_grad=True)
        x.square().sum().backward()  # the loss
    (first, *_) = torchtpu.explain(x.grad).steps
    assert first.line.backward
    assert "backward of test_explain.py:" in torchtpu.explain(x.grad).to_text()


def test_views_gradients_and_holders():
    x = torch.arange(12.0, device="tpu").view(3, 4).requires_grad_()
    row = x[1:].t()
    said = torchtpu.explain(row)
    assert said.tensor == "float32[4,2]"
    assert (said.stride, said.offset) == ((1, 4), 4)
    assert said.window == "a view of float32[12], elements 4 on, strides (1, 4)"
    assert said.gradient == "TBackward0"
    assert torchtpu.explain(x).gradient == "leaf that requires grad"
    assert torchtpu.explain(x).window == "a view of float32[12]"
    names = " ".join(said.holders)
    assert "row in test_views_gradients_and_holders()" in names
    assert "x in test_views_gradients_and_holders()" in names
    whole = torch.ones(2, 3, device="tpu").t()
    assert torchtpu.explain(whole).window == "a view of float32[2,3], all of the storage, transposed: strides (1, 3)"


def test_states_without_a_value():
    empty = torch.empty(3, device="tpu")
    assert torchtpu.explain(empty).state == "unfilled"
    assert "memory that nobody has written to" in str(torchtpu.explain(empty))
    buffer_of(empty).error = RuntimeError("<it> broke")
    assert "failed: <it> broke" in torchtpu.explain(empty).to_text()
    assert "failed: &lt;it&gt; broke" in torchtpu.explain(empty)._repr_html_()


def test_it_needs_a_tensor_on_the_device():
    with pytest.raises(TypeError, match="explain takes a tensor on tpu, got list"):
        torchtpu.explain([1])
    with pytest.raises(ValueError, match="got one on cpu"):
        torchtpu.explain(torch.ones(2))


def test_the_record_keeps_no_buffer_and_does_not_grow():
    x = torch.ones(8, device="tpu")
    with torchtpu.watch():
        for _ in range(3):
            x = x + 1
        number = provenance.number_of(buffer_of(x))
        live = torch.tpu.memory_allocated()
        del x
        gc.collect()
        assert torch.tpu.memory_allocated() == live - 32
        assert len(provenance._ring) == provenance.KEPT
        assert provenance._ring[number % provenance.KEPT].number == number


def test_long_histories_are_cut():
    with torchtpu.watch():
        x = torch.ones(2, device="tpu")
        for _ in range(50):
            x = x * 1.01
    said = torchtpu.explain(x)
    assert len(said.steps) == 20
    assert "The latest 20 ops that its value came from:" in said.to_text()
    assert len(said._repr_html_()) < 12_000
