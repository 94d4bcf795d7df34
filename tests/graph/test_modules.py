"""The nn.Module of each op: forward, backward, in every mode, and nothing while nobody watches."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.utils.checkpoint import checkpoint

import torchtpu
from tests.graph.conftest import watched
from torchtpu import modules


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.second(self.first(x).relu())


class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Inner(), Inner()])
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return self.head(x.tanh())


def ops(report):
    return [op for program in report.programs for op in program.ops]


def test_paths_of_forward_and_backward(mode):
    model, x = Outer().to("tpu"), torch.rand(3, 4, device="tpu")
    # Each op is a program of its own in strict and debug mode; those of one signature are one row, so count names.
    report = watched(lambda: model(x).square().sum().backward(), mode)
    found = {(op.op, op.module, op.backward) for op in ops(report)}
    assert ("aten::tanh", "Outer", False) in found
    assert ("aten::tanh_backward", "Outer", True) in found
    assert ("aten::pow.Tensor_Scalar", "", False) in found
    if mode == "defer_and_fuse":
        assert [o.module for o in ops(report) if o.op == "aten::addmm"] == [
            "Outer/layers.0/first", "Outer/layers.0/second", "Outer/layers.1/first", "Outer/layers.1/second", "Outer/head",
        ]  # fmt: skip
        assert ("aten::relu", "Outer/layers.0", False) in found
        assert ("aten::threshold_backward", "Outer/layers.1", True) in found
        backward = [o.module for o in ops(report) if o.op == "aten::mm"]
        assert backward[0] == backward[1] == "Outer/head"
        assert backward[-1] == "Outer/layers.0/first"
        assert all(o.line.backward for o in ops(report) if o.op == "aten::mm")


def test_checkpointed_ops_keep_their_module():
    model, x = Inner().to("tpu"), torch.rand(3, 4, device="tpu", requires_grad=True)
    report = watched(lambda: checkpoint(model, x, use_reentrant=False).sum().backward())
    again = [o for o in ops(report) if o.op == "aten::addmm"]
    assert [o.module for o in again] == ["Inner/first", "Inner/second", "Inner/first"][: len(again)]


def test_a_module_that_the_outermost_does_not_know_is_named_by_its_class():
    stranger = nn.Linear(4, 4).to("tpu")

    class Caller(nn.Module):
        def forward(self, x):
            return stranger(x)

    report = watched(lambda: Caller()(torch.rand(3, 4, device="tpu")))
    assert [o.module for o in ops(report) if o.op == "aten::addmm"] == ["Caller/Linear"]


def test_an_error_in_a_forward_ends_its_call():
    class Failing(nn.Module):
        def forward(self, x):
            raise ValueError

    def run():
        with pytest.raises(ValueError):
            Failing()(torch.rand(2))
        return torch.rand(2, device="tpu").exp()

    assert [o.module for o in ops(watched(run)) if o.op == "aten::exp"] == [""]


def test_hooks_are_there_only_while_somebody_watches():
    def installed():
        return len(hooks._global_forward_pre_hooks), len(hooks._global_forward_hooks)

    before = installed()
    with torchtpu.watch():
        with torchtpu.watch():
            assert installed() == (before[0] + 1, before[1] + 1)
        assert installed() == (before[0] + 1, before[1] + 1)
    assert installed() == before
    assert modules.path() == ""


def test_a_watch_keeps_no_module_alive():
    model = Inner().to("tpu")
    gone = weakref.ref(model)
    with torchtpu.watch():
        model(torch.rand(3, 4, device="tpu"))
        del model
        gc.collect()
        assert gone() is None
