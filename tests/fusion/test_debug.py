"""Debug mode's checks stop at the op and the line that a person looks for."""

from __future__ import annotations

import pytest
import torch

import torchtpu
from torchtpu import config, errors, modes


@pytest.fixture(autouse=True)
def debug():
    with modes.scope("debug"):
        yield


def test_every_op_is_waited_for():
    x = torch.ones(4, device="tpu")
    with torchtpu.watch() as report:
        (x * 2 + 1).abs()
    assert sum(s.kind == "debug" for s in report.syncs) == report.runs == 3


def test_the_first_nan_is_found_with_its_op_and_inputs():
    with config.options(debug_nan=True):
        x = torch.tensor([1.0, -1.0], device="tpu")
        with pytest.raises(errors.NumericsError, match=r"aten::log made 1 NaN and 0 Inf .*\[-1, 1\].*y = x.log\(\)"):
            y = x.log()  # noqa: F841


def test_an_inf_that_was_asked_for_is_no_finding():
    with config.options(debug_nan=True):
        mask = torch.zeros(3, device="tpu").masked_fill(torch.tensor([True, False, True], device="tpu"), float("-inf"))
        assert torch.softmax(mask, 0).tolist() == [0, 1, 0]


def test_a_nan_in_backward_is_shown_at_the_forward_line():
    with config.options(debug_nan=True), torchtpu.watch():
        x = torch.zeros(3, device="tpu", requires_grad=True)
        y = x.sqrt().sum()  # the root of zero
        with pytest.raises(errors.NumericsError, match=r"backward of .*the root of zero"):
            y.backward()


@pytest.mark.parametrize("wrong", [7, -1])
def test_an_index_out_of_range_is_an_index_error(wrong):
    weight = torch.ones(5, 2, device="tpu")
    with pytest.raises(IndexError, match=f"index {wrong} is out of bounds for dimension with size 5"):
        torch.nn.functional.embedding(torch.tensor([0, wrong], device="tpu"), weight)


def test_ops_are_compared_with_the_cpu():
    with config.options(debug_compare_cpu=True):
        model = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU()).to("tpu")
        model(torch.randn(2, 1, 8, 8, device="tpu")).sum().backward()
        x = torch.arange(6.0, device="tpu")
        x[1::2].mul_(3)
        assert x.tolist() == [0, 3, 2, 9, 4, 15]


def test_a_disagreement_with_the_cpu_is_found(monkeypatch):
    from torchtpu import checks

    x = torch.ones(3, device="tpu")
    real = checks.as_host_view
    monkeypatch.setattr(checks, "as_host_view", lambda *a: real(*a) + 1)
    with config.options(debug_compare_cpu=True), pytest.raises(errors.NumericsError, match=r"aten::mul\.Tensor disagrees"):
        x.mul(2.0)
