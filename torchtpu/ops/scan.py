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

Combine = Callable[[jax.Array, jax.Array], jax.Array]

# Longer scans are made of scans of blocks: XLA for TPU takes minutes to compile one of a million elements.
_BLOCK = 1024


def scan(x: jax.Array, axis: int, combine: Combine) -> jax.Array:
    """Return the running reduction of `x` by an associative function (add, multiply, maximum, minimum, logaddexp)."""
    size = x.shape[axis]
    if size <= _BLOCK:
        short = _SHORT.get(combine)
        return short(x, axis=axis) if short else lax.associative_scan(combine, x, axis=axis)
    blocks = -(-size // _BLOCK)
    padding = [(0, blocks * _BLOCK - size if d == axis else 0, 0) for d in range(x.ndim)]
    x = lax.pad(x, jnp.zeros((), x.dtype), padding)
    x = scan(x.reshape(*x.shape[:axis], blocks, _BLOCK, *x.shape[axis + 1 :]), axis + 1, combine)
    totals = scan(lax.index_in_dim(x, _BLOCK - 1, axis + 1, keepdims=False), axis, combine)
    before = jnp.expand_dims(lax.slice_in_dim(totals, 0, blocks - 1, axis=axis), axis + 1)
    later = combine(before, lax.slice_in_dim(x, 1, blocks, axis=axis))
    x = lax.concatenate([lax.slice_in_dim(x, 0, 1, axis=axis), later], axis)
    x = x.reshape(*x.shape[:axis], blocks * _BLOCK, *x.shape[axis + 2 :])
    return lax.slice_in_dim(x, 0, size, axis=axis)


_SHORT = {lax.add: lax.cumsum, lax.mul: lax.cumprod, lax.max: lax.cummax, lax.min: lax.cummin}


def _running(combine: Combine, name: str) -> None:
    def check(x: torch.Tensor, _dim: int, dtype: torch.dtype | None, out: torch.Tensor | None = None) -> None:
        if x.numel() and torch.bool in (dtype, out.dtype if out is not None else None):
            raise NotImplementedError(f"{name.removeprefix('aten::')} into bool is not implemented")

    @rule(name, meta=True, check=check)
    def running(x: jax.Array, dim: int, _dtype: torch.dtype | None, *, out: Sequence[torch.Tensor]) -> jax.Array:
        x = accumulated(x, out)
        return scan(x, dim % x.ndim, combine) if x.ndim and x.size else x


_running(lax.add, "aten::cumsum")
_running(lax.mul, "aten::cumprod")


def _running_extremum(combine: Combine, name: str) -> None:
    @rule(name)
    def running(x: jax.Array, dim: int) -> tuple[jax.Array, jax.Array]:
        if not x.ndim or not x.size:
            return x, jnp.zeros(x.shape, np.int64)
        dim %= x.ndim
        values = scan(x.astype(np.int8) if x.dtype == np.bool_ else x, dim, combine)
        # Of equal elements the latest counts; from the first NaN on, the latest NaN.
        place = lax.broadcasted_iota(np.int32 if x.shape[dim] < 2**31 else np.int64, x.shape, dim)
        return values, scan(jnp.where((x == values) | (x != x), place, 0), dim, lax.max).astype(np.int64)

    @rule(f"{name.replace('::', '::_')}_helper", ignores=("values", "indices"), metadata=lambda *_: None)
    def into(x: jax.Array, _values: None, _indices: None, dim: int) -> tuple[jax.Array, jax.Array]:
        return running(x, dim)


_running_extremum(lax.max, "aten::cummax")
_running_extremum(lax.min, "aten::cummin")


def logaddexp(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return log(exp(a) + exp(b)). Of complex numbers: the branch next to the one with the greater real part."""
    if a.dtype.kind != "c":
        return jnp.logaddexp(a, b)
    low, high = jnp.where(a.real < b.real, a, b), jnp.where(a.real < b.real, b, a)
    return jnp.where(jnp.isinf(high.real), high, high + jnp.log1p(jnp.exp(low - high)))


@rule("aten::logcumsumexp", "aten::_logcumsumexp")
def logcumsumexp(x: jax.Array, dim: int) -> jax.Array:
    return scan(wide(x), dim % x.ndim, logaddexp) if x.ndim else x
