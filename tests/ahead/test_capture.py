"""Recording a function: nothing is computed, nothing of the user's changes, and what needs a value is named by its line."""

from __future__ import annotations

import random as python_random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchtpu
from torchtpu import ahead, events, hbm, modes
from torchtpu.errors import ValueUnknownError


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.last = nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.dropout(torch.relu(self.norm(self.first(x))), 0.1, self.training))


def training(device: str, optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW) -> tuple[nn.Module, Any, Callable]:
    torch.manual_seed(0)
    with torch.device("meta" if device == "meta" else "cpu"):
        model = Net()
    model = model.to(device)
    optim = optimizer(model.parameters(), lr=0.01)
    x, y = torch.ones(32, 8, device=device), torch.zeros(32, dtype=torch.long, device=device)

    def step() -> torch.Tensor:
        optim.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optim.step()
        return loss

    return model, optim, step


def snapshot(model: nn.Module, optim: torch.optim.Optimizer) -> list[Any]:
    """Everything of a training that a step changes, as values."""
    tensors = [*model.parameters(), *model.buffers()]
    states = [v for p in model.parameters() for v in optim.state.get(p, {}).values()]
    values = [t.detach().cpu().tolist() if t.device.type != "meta" else None for t in [*tensors, *states]]
    grads = [None if p.grad is None else p.grad.cpu().tolist() for p in model.parameters()]
    return [values, grads, [t._version for t in tensors], [t.device for t in tensors], torch.tpu.get_rng_state().tolist(),
            torch.get_rng_state().tolist(), python_random.getstate()]  # fmt: skip


def test_nothing_runs_or_is_allocated(mode: str) -> None:
    _, _, step = training("tpu")
    x = torch.ones(4, device="tpu")
    torch.tpu.synchronize()
    live, allocations = hbm.usage.live, hbm.usage.allocations
    with torchtpu.watch() as report:
        captured = ahead.capture(step)
    assert len(captured.ops) > 20
    assert (report.runs, report.compiles, report.fallbacks) == (0, 0, ())
    assert (hbm.usage.live, hbm.usage.allocations) == (live, allocations)
    assert not events.logs
    assert modes.state.recorder is None
    assert (x + 1).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize("device", ["tpu", "cpu", "meta"])
@pytest.mark.parametrize("steps", [0, 2])
def test_a_training_is_as_it_was(device: str, steps: int) -> None:
    model, optim, step = training(device)
    for _ in range(steps if device != "meta" else 0):
        step()
    before = snapshot(model, optim)
    objects = [*map(id, model.parameters()), *map(id, model.buffers())]
    captured = ahead.capture(step)
    same = snapshot(model, optim) == before
    assert same
    assert [*map(id, model.parameters()), *map(id, model.buffers())] == objects
    assert len(optim.state) == (6 if steps and device != "meta" else 0)
    assert captured.donated >= 6 * 3  # parameters and two moments each: the step that is repeated


def test_a_training_goes_on_as_if_nothing_had_been(mode: str) -> None:
    _, _, step = training("tpu")
    expected = [step().item() for _ in range(3)]
    _, _, step = training("tpu")
    losses = [step().item()]
    ahead.capture(step)
    losses += [step().item() for _ in range(2)]
    assert losses == expected


def test_the_graph_of_a_loss_survives() -> None:
    weight = torch.ones(3, requires_grad=True)
    loss = (weight * weight).sum()
    ahead.capture(lambda: weight.sin().sum())
    loss.backward()
    assert weight.grad.tolist() == [2, 2, 2]
    on_device = torch.ones(3, device="tpu", requires_grad=True)
    loss = (on_device * on_device).sum()

    def scale() -> None:
        with torch.no_grad():
            on_device.mul_(2)

    ahead.capture(scale)
    loss.backward()  # its version is the old one
    assert on_device.grad.tolist() == [2, 2, 2]


@pytest.mark.parametrize("device", ["tpu", "cpu", "meta"])
def test_the_same_program_wherever_the_tensors_are(device: str) -> None:
    _, _, step = training(device)
    captured = ahead.capture(step)
    _, _, reference = training("tpu")
    expected = ahead.capture(reference)
    assert [op.op for op in captured.ops] == [op.op for op in expected.ops]
    assert (captured.inputs, captured.outputs, captured.donated) == (expected.inputs, expected.outputs, expected.donated)


def test_what_a_function_returns_and_keeps_is_its_output() -> None:
    x = torch.ones(4, 4, device="tpu", requires_grad=True)
    forward = ahead.capture(lambda: x.exp().sin().sum())
    assert [str(o) for o in forward.outputs] == ["float32[]"]  # what autograd saved goes with the graph
    assert forward.donated == 0

    def with_gradient() -> None:
        x.sin().sum().backward()

    assert [str(o) for o in ahead.capture(with_gradient).outputs] == ["float32[4,4]"]
    assert x.grad is None


def test_ops_know_their_lines_and_modules() -> None:
    _, _, step = training("tpu")
    ops = ahead.capture(step).ops
    product = next(op for op in ops if op.op == "aten::addmm")
    assert "self.first(x)" in product.line.source
    assert product.module == "Net/first"
    backward = next(op for op in ops if op.op == "aten::mm")
    assert backward.backward
    assert backward.line.where.startswith("test_capture.py:")


def reads(x: torch.Tensor) -> float:
    return x.sum().item()


def branches(x: torch.Tensor) -> torch.Tensor:
    return x if x.sum() > 0 else -x


def shapes(x: torch.Tensor) -> torch.Tensor:
    return x[x > 0]


def prints(x: torch.Tensor) -> None:
    print(x + 1)


@pytest.mark.parametrize("function", [reads, branches, shapes, prints])
@pytest.mark.parametrize("device", ["tpu", "meta"])
def test_what_needs_a_value_is_an_error_with_its_line(function: Callable, device: str, mode: str) -> None:
    x = torch.ones(4, device=device)
    with pytest.raises(ValueUnknownError, match=r"needs the value of a tensor.*\(test_capture\.py:\d+: ") as caught:
        ahead.capture(function, x)
    assert function.__code__.co_firstlineno + 1 == int(str(caught.value).rpartition("test_capture.py:")[2].partition(":")[0])
    assert (torch.ones(2, device="tpu") + 1).tolist() == [2, 2]


def test_an_op_without_a_lowering_is_an_error() -> None:
    x = torch.ones(4, 4, device="tpu")
    with pytest.raises(ValueUnknownError, match="aten::linalg_eig runs on the CPU"):
        ahead.capture(torch.linalg.eig, x)


def test_results_that_leak_out_have_no_value() -> None:
    x = torch.ones(4, device="tpu")
    seen = []
    ahead.capture(lambda: seen.append(x + 1))
    with pytest.raises(ValueUnknownError):
        seen[0].tolist()
    with pytest.raises(ValueUnknownError):
        (seen[0] + 1).tolist()


def test_a_users_error_is_the_users() -> None:
    x, y = torch.ones(4, 3, device="meta"), torch.ones(4, 4, device="meta")
    with pytest.raises(RuntimeError, match="must match the size"):
        ahead.capture(lambda: x + y)
    assert x.device.type == "meta"
    with pytest.raises(ValueError, match="computes nothing on the device"):
        ahead.capture(lambda: 3)


def test_views_and_tied_weights_share_their_stand_in() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(32, 8)
            self.head = nn.Linear(8, 32, bias=False)
            self.head.weight = self.embed.weight
            self.register_buffer("table", torch.zeros(16))
            self.half = self.table[8:]

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            self.table.add_(1)
            return self.head(self.embed(ids)) + self.half.sum()

    captured = ahead.capture(Tied(), torch.zeros(4, dtype=torch.long))
    assert sorted(map(str, captured.inputs)) == ["float32[16]", "float32[32,8]", "int64[4]"]
    assert captured.donated == 1


def test_larger_than_the_machine() -> None:
    x = torch.empty(1 << 40, device="meta")
    captured = ahead.capture(lambda: x + 1)
    assert captured.outputs[0].nbytes == 4 << 40
