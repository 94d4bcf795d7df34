"""What the device can do at most, for the roofline: published for a chip, measured on a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from torchtpu import client

# What PJRT calls a chip.
_KINDS = {
    "TPU v4": "v4",
    "TPU v5 lite": "v5e",
    "TPU v5": "v5p",
    "TPU v5p": "v5p",
    "TPU v6 lite": "v6e",
    "TPU7x": "tpu7x",
}

_SIDE = 1024  # of the product: 2.1 GFLOP
_COPIED = 64 << 20  # bytes


@dataclass(frozen=True, slots=True)
class Peaks:
    """Floating-point operations and bytes moved per second, and how they are known."""

    flops: float
    bandwidth: float
    source: str


@cache
def of_device() -> Peaks:
    """Return the device's peaks. On a CPU that takes some tenths of a second, once in a process."""
    device = client.device()
    if device.platform == "cpu":
        return _measured()
    name = _KINDS.get(device.device_kind)
    if name is None:
        return Peaks(0.0, 0.0, f"not known for {device.device_kind}")
    from torchtpu.ahead.chips import chip

    known = chip(name)
    return Peaks(known.peak_flops, known.peak_bandwidth, f"published for {name}, in bfloat16 ({known.source})")


def _measured() -> Peaks:
    import jax
    import jax.numpy as jnp

    where = client.sharding()
    square = jax.device_put(jnp.ones((_SIDE, _SIDE), jnp.float32), where)
    many = jax.device_put(jnp.ones(_COPIED // 4, jnp.float32), where)
    product = jax.jit(lambda x: jnp.matmul(x, x, precision="highest"))
    copy = jax.jit(lambda x: x + 1.0)
    flops = 2.0 * _SIDE**3 / _fastest(product, square)
    bandwidth = 2.0 * _COPIED / _fastest(copy, many)
    return Peaks(flops, bandwidth, f"measured here: a float32 product of {_SIDE}, and {_COPIED >> 20} MiB read and written")


def _fastest(function: Callable[[Any], Any], argument: Any) -> float:
    times = []
    for _ in range(4):  # the first one compiles
        start = time.perf_counter()
        function(argument).block_until_ready()
        times.append(time.perf_counter() - start)
    return min(times[1:])
