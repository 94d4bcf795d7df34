"""Steady-state steps: defer_and_fuse beside strict, torch on the CPU, torch.compile, and jax jitted by hand."""

from __future__ import annotations

import contextlib
import copy
import tempfile
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F

import torchtpu
from tests.bench.clock import Row, alternate, median, ratio
from tests.models import GPT, mlp

Step = Callable[[], object]


def in_mode(mode: str, step: Step) -> Step:
    """Run a step to its end in an eager mode."""

    def run() -> None:
        with torch.tpu.set_eager_mode(mode):
            kept = step()  # a result that nobody holds would not be computed
            torch.tpu.synchronize()
            del kept

    return run


def peak_bytes(step: Step) -> int:
    """HBM peak of a step above nothing: what was live before it, plus what it needed."""
    torch.tpu.synchronize()
    torch.accelerator.reset_peak_memory_stats()
    step()
    return torch.accelerator.max_memory_allocated()


def compare(name: str, make: Callable[[str], Step], rounds: int, bounds: dict[str, str], extra: dict[str, Step]) -> list[Row]:
    """Measure one step in every way. `make(device)` returns the step; each peer has its own state."""
    ours = make("tpu")
    theirs = make("cpu")
    peers: dict[str, Step] = {
        "fused": in_mode("defer_and_fuse", ours),
        "strict": in_mode("strict", ours),
        "torch CPU": theirs,
        **extra,
    }
    for step in peers.values():
        for _ in range(3):
            step()
    peak = {mode: peak_bytes(peers[mode]) for mode in ("strict", "fused")}
    t = alternate(peers, rounds)
    rows = [Row(f"{name}: fused step", median(t["fused"]) * 1e3, "ms")]
    rows.append(Row(f"{name}: strict / fused", ratio(t["strict"], t["fused"]), "x", bounds["strict"]))
    rows.append(Row(f"{name}: torch CPU eager / fused", ratio(t["torch CPU"], t["fused"]), "x", bounds.get("cpu", ">= 1")))
    rows += [Row(f"{name}: {peer} / fused", ratio(t[peer], t["fused"]), "x") for peer in extra]
    rows.append(Row(f"{name}: HBM peak, fused / strict", peak["fused"] / peak["strict"], "x", bounds["peak"]))
    return rows


def elementwise() -> list[Row]:
    """50 elementwise ops on 1024x1024 float32."""

    def chain(y: torch.Tensor) -> torch.Tensor:
        for _ in range(10):
            y = ((y * 1.01 + 0.5).tanh() - 0.1).abs()
        return y

    def make(device: str) -> Step:
        torch.manual_seed(0)
        x = torch.randn(1024, 1024).to(device)
        return lambda: chain(x)

    @jax.jit
    def jitted(y: jax.Array) -> jax.Array:
        for _ in range(10):
            y = jnp.abs(jnp.tanh(y * 1.01 + 0.5) - 0.1)
        return y

    a = jnp.ones((1024, 1024))
    compiled = torch.compile(chain)
    x = torch.randn(1024, 1024)
    extra: dict[str, Step] = {"inductor": lambda: compiled(x), "jax jitted": lambda: jitted(a).block_until_ready()}
    return compare("50 elementwise ops", make, 30, {"strict": ">= 1.5", "peak": "<= 0.7"}, extra)


def mlp_step() -> list[Row]:
    """A training step with AdamW of an MLP as people use for MNIST (784-512-512-10, batch 128), and of a tiny one.

    The tiny one (64-128-128-10, batch 64) has hardly any arithmetic: it is the time of Python, autograd and the launches.
    """
    typical, tiny = _mlp_step(784, 512, 128), _mlp_step(64, 128, 64)
    return [
        *compare("MLP training step", typical, 40, {"strict": ">= 1.5", "peak": ""}, {"inductor": typical("cpu", True)}),
        *compare(
            "tiny MLP training step", tiny, 60, {"strict": ">= 1.5", "cpu": "", "peak": ""}, {"inductor": tiny("cpu", True)}
        ),
    ]


def _mlp_step(inputs: int, width: int, batch: int) -> Callable[..., Step]:
    def make(device: str, compiled: bool = False) -> Step:
        torch.manual_seed(0)
        model = mlp(inputs, width).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        x, y = torch.randn(batch, inputs).to(device), torch.randint(0, 10, (batch,)).to(device)
        forward = torch.compile(model) if compiled else model

        def step() -> None:
            optimizer.zero_grad()
            F.cross_entropy(forward(x), y).backward()
            optimizer.step()

        return step

    return make


def gpt_step() -> list[Row]:
    """A training step of a 4-layer GPT (width 256, batch 8, 128 tokens) with AdamW; and what watching it costs."""
    torch.manual_seed(0)
    initial = GPT()
    ids = torch.randint(0, 256, (8, 129))

    def make(device: str, compiled: bool = False) -> Step:
        model = copy.deepcopy(initial).to(device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        x, y = ids[:, :-1].to(device), ids[:, 1:].to(device)
        forward = torch.compile(model) if compiled else model

        def step() -> None:
            optimizer.zero_grad()
            forward(x, y).backward()
            optimizer.step()

        return step

    rows = compare("GPT training step", make, 12, {"strict": ">= 1.3", "peak": "<= 1"}, {"inductor": make("cpu", True)})
    return rows + _watching(make("tpu")) + _profiling(make("tpu"))


def _watching(step: Step, steps: int = 4) -> list[Row]:
    """A cell of a few training steps with a report, beside the same without one."""

    def cell() -> None:
        for _ in range(steps):
            step()

    def watched() -> None:
        with torchtpu.watch():
            cell()

    rows = []
    for mode in ("defer_and_fuse", "strict"):
        peers = {"watched": in_mode(mode, watched), "not": in_mode(mode, cell)}
        for run in peers.values():
            run()
        t = alternate(peers, 8)
        rows.append(Row(f"GPT training cell, {mode}: watched / not watched", ratio(t["watched"], t["not"]), "x", "<= 1.1"))
    return rows


def _profiling(step: Step, steps: int = 4) -> list[Row]:
    """The steps of a cell that is profiled, beside the same steps without; writing the profile comes after them."""
    rows = []
    with tempfile.TemporaryDirectory() as logdir:
        for mode in ("defer_and_fuse", "strict"):
            one = in_mode(mode, step)
            seconds: dict[str, list[float]] = {"profiled": [], "not": []}
            for _ in range(8):
                for name, times in seconds.items():
                    with torchtpu.profile(logdir) if name == "profiled" else contextlib.nullcontext():
                        one()
                        start = time.perf_counter()
                        for _ in range(steps):
                            one()
                        times.append(time.perf_counter() - start)
            value = ratio(seconds["profiled"], seconds["not"])
            rows.append(Row(f"GPT training step, {mode}: profiled / not profiled", value, "x", "<= 1.15"))
    return rows
