"""Running reductions along one dimension: cumsum, cumprod, cummax, cummin, logcumsumexp."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu.ops.reduction import accumulated, wide
from torchtpu.ops.registry import rule


def _running(scan: Callable[..., jax.Array], name: str) -> None:
    @rule(name, meta=True)
    def running(x: jax.Array, dim: int, _dtype: torch.dtype | None, *, out: Sequence[torch.Tensor]) -> jax.Array:
        x = accumulated(x, out)
        return scan(x, axis=dim % x.ndim) if x.ndim else x


_running(lax.cumsum, "aten::cumsum")
_running(lax.cumprod, "aten::cumprod")


def _running_extremum(scan: Callable[..., jax.Array], name: str) -> None:
    @rule(name)
    def running(x: jax.Array, dim: int) -> tuple[jax.Array, jax.Array]:
        if not x.ndim or not x.size:
            return x, jnp.zeros(x.shape, np.int64)
        dim %= x.ndim
        values = scan(x.astype(np.int8) if x.dtype == np.bool_ else x, axis=dim)
        # Of equal elements the latest counts; from the first NaN on, the latest NaN.
        place = lax.broadcasted_iota(np.int32 if x.shape[dim] < 2**31 else np.int64, x.shape, dim)
        return values, lax.cummax(jnp.where((x == values) | (x != x), place, 0), axis=dim).astype(np.int64)


_running_extremum(lax.cummax, "aten::cummax")
_running_extremum(lax.cummin, "aten::cummin")


def logaddexp(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return log(exp(a) + exp(b)). Of complex numbers: the branch next to the one with the greater real part."""
    if a.dtype.kind != "c":
        return jnp.logaddexp(a, b)
    low, high = jnp.where(a.real < b.real, a, b), jnp.where(a.real < b.real, b, a)
    return jnp.where(jnp.isinf(high.real), high, high + jnp.log1p(jnp.exp(low - high)))


@rule("aten::logcumsumexp", "aten::_logcumsumexp")
def logcumsumexp(x: jax.Array, dim: int) -> jax.Array:
    return lax.associative_scan(logaddexp, wide(x), axis=dim % x.ndim) if x.ndim else x
