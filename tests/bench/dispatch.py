"""What one cached op costs on the host, and what `import torchtpu` costs."""

from __future__ import annotations

import subprocess
import sys

import jax.numpy as jnp
import torch

import torchtpu
from tests.bench.clock import Row, alternate, median, ratio


def cached_multiply() -> list[Row]:
    """One `mul` of two 4x4 float32 tensors, launched (strict) or recorded (defer_and_fuse), beside `jnp.multiply`."""
    a, b = jnp.ones((4, 4)), jnp.ones((4, 4))
    x = torch.ones(4, 4, device="tpu")
    y = torch.ones(4, 4, device="tpu")

    def strict() -> None:
        torch.mul(x, y)

    def peer() -> None:
        jnp.multiply(a, b)

    with torch.tpu.set_eager_mode("strict"):
        strict()
        eager = alternate({"strict": strict, "jax": peer}, rounds=60, number=1000)
    recorded: dict[str, list[float]] = {"record": [], "jax": []}
    with torch.tpu.set_eager_mode("defer_and_fuse"):
        for _ in range(60):
            for name, seconds in alternate({"record": strict, "jax": peer}, rounds=1, number=1000).items():
                recorded[name] += seconds
            torchtpu.modes.flush("bench")  # nothing is live: drops the pending ops, outside the clock
    return [
        Row("jnp.multiply, 4x4 float32", median(eager["jax"]) * 1e6, "us"),
        Row("strict mul / jnp.multiply", ratio(eager["strict"], eager["jax"]), "x", "<= 3"),
        Row("recording a mul / jnp.multiply", ratio(recorded["record"], recorded["jax"]), "x", "<= 2"),
    ]


def import_time() -> list[Row]:
    """What `import torchtpu` adds to `import torch`, in fresh processes."""

    def run(statement: str) -> float:
        code = f"import time; s = time.perf_counter(); {statement}; print(time.perf_counter() - s)"
        return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)

    added = [run("import torch, torchtpu") - run("import torch") for _ in range(7)]
    return [Row("import torchtpu after import torch", median(added), "s", "<= 0.3")]
