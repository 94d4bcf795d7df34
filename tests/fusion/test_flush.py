"""defer_and_fuse: when pending work runs, as how many programs, and what it computes."""

from __future__ import annotations

import gc

import pytest
import torch

import torchtpu
from torchtpu import config, modes


@pytest.fixture(autouse=True)
def deferred():
    with modes.scope("defer_and_fuse"):
        yield


def reasons(report: torchtpu.Report) -> list[str]:
    return [f.reason for f in report.flushes]


def test_a_chain_is_one_program_and_runs_at_the_read():
    x = torch.ones(8, device="tpu")
    with torchtpu.watch() as report:
        y = x
        for _ in range(50):
            y = y * 1.5 - 0.5
        assert modes.pending() == 100
        y.cpu()
    assert report.runs == 1
    assert len(report.programs) == 1
    assert reasons(report) == ["to_host"]


def test_a_second_pass_compiles_nothing():
    x = torch.ones(8, device="tpu")
    modes.flush("the ones")

    def work(scale: float) -> torch.Tensor:
        return ((x * scale).tanh() + scale).cpu()

    work(2.0)
    with torchtpu.watch() as report:
        torch.testing.assert_close(work(3.0), torch.full((8,), 3.0).tanh() + 3.0)
    assert (len(report.compile_events), report.cache_hits) == (0, 1)


def test_dead_values_are_not_computed():
    x = torch.ones(8, device="tpu")
    with torchtpu.watch() as report:
        x * 2
        (x + 1).exp()
        modes.flush("test")
    assert report.runs == 0
    y = x * 2
    dead = y + 1
    kept = y - 1
    del y, dead
    with torchtpu.watch() as report:
        kept.cpu()
    assert [len(p.outputs) for p in report.programs] in ([1], [])


def test_in_place_updates_reuse_memory():
    x = torch.zeros(1024, device="tpu")
    x.add_(1)
    modes.flush("warm up")
    gc.collect()
    before = torch.accelerator.memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    for _ in range(3):
        x.add_(1)
        modes.flush("test")
    assert torch.accelerator.memory_allocated() == before
    assert torch.accelerator.max_memory_allocated() == before
    assert x[0].item() == 4


def test_a_tensor_that_is_read_later_is_never_donated():
    x = torch.arange(4.0, device="tpu")
    y = x.detach().clone()
    modes.flush("test")
    old = x.clone()
    x.mul_(10)
    x.mul_(10)
    modes.flush("test")
    assert old.tolist() == [0, 1, 2, 3]
    assert y.tolist() == [0, 1, 2, 3]
    assert x.tolist() == [0, 100, 200, 300]


def test_backward_ends_with_a_flush():
    w = torch.ones(4, device="tpu", requires_grad=True)
    with torchtpu.watch() as report:
        (w * w).sum().backward()
        assert modes.pending() == 0
    assert reasons(report) == ["end of backward"]
    assert w.grad.tolist() == [2, 2, 2, 2]


def test_an_optimizer_step_ends_with_a_flush():
    w = torch.ones(4, device="tpu", requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=0.5)
    with torchtpu.watch() as report:
        (w * w).sum().backward()
        optimizer.step()
    assert reasons(report) == ["end of backward", "end of optimizer step"]


def test_flush_points_have_reasons():
    x = torch.ones(2, device="tpu")
    with torchtpu.watch() as report:
        a = x + 1
        torch.tpu.synchronize()
        b = x + 2
        str(b)
        c = x + 3
        with modes.scope("strict"):
            pass
        del a, b, c
    assert reasons(report)[0] == "synchronize"
    assert reasons(report)[2] == "mode change"
    assert len(reasons(report)) == 3


def test_the_cap_on_pending_ops_cuts_at_the_same_place_every_time():
    x = torch.full((128,), 3.0, device="tpu")
    with config.options(max_pending_ops=100), torchtpu.watch() as report:
        for _ in range(500):
            x = x * 0.999 + 0.001
        total = x.sum().item()
    assert total == pytest.approx(128 * (2.0 * 0.999**500 + 1.0), rel=1e-4)
    assert len(report.compile_events) <= 3
    assert reasons(report).count("cap on pending ops") == 10


def test_the_cap_on_pending_bytes():
    x = torch.ones(1024, device="tpu")
    with config.options(max_pending_bytes=40_960), torchtpu.watch() as report:
        for _ in range(25):
            x = x + 1
        x.cpu()
    assert reasons(report)[:2] == ["cap on pending bytes"] * 2


def test_a_long_loop_without_a_read_keeps_memory_flat():
    x = torch.full((128,), 3.0, device="tpu")
    held = []
    with config.options(max_pending_ops=200):
        for i in range(4000):
            x = x * 0.999 + 0.001
            if i % 1000 == 500:
                held.append(torch.accelerator.memory_allocated())
    assert max(held) - min(held) <= 2 * 512


def test_large_training_graphs_are_cut_where_layers_share_programs():
    torch.manual_seed(0)
    layers = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU()) for _ in range(8)]).to("tpu")
    x = torch.randn(512, 512, device="tpu")
    modes.flush("the input")

    def step() -> None:
        layers.zero_grad()
        layers(x).square().mean().backward()

    step()
    with torchtpu.watch() as report:
        step()
    assert report.compile_events == ()
    assert report.runs > len(report.programs), "no two layers shared a program"
    with modes.scope("strict"):
        step()
        torch.accelerator.reset_peak_memory_stats()
        step()
        strict_peak = torch.accelerator.max_memory_allocated()
    step()
    torch.accelerator.reset_peak_memory_stats()
    step()
    assert torch.accelerator.max_memory_allocated() <= 1.15 * strict_peak


def test_the_flush_at_the_end_of_backward_is_shown_at_the_call_of_backward():
    w = torch.ones(3, device="tpu", requires_grad=True)
    loss = (w * w).sum()
    with torchtpu.watch() as report:
        loss.backward()
    assert [f.line.source for f in report.flushes] == ["loss.backward()"]
