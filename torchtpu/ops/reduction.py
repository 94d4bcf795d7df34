"""Reductions: sum, mean, prod, extrema and their positions, any/all, variance, norms, logsumexp.

bfloat16 and float16 accumulate in float32 and are rounded once. NaN and tie rules are those of PyTorch on the CPU: a
NaN wins every extremum, and of equal elements the first is taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu.dtypes import xla_dtype
from torchtpu.evaluate import cast
from torchtpu.ops.registry import rule

Dims = Sequence[int] | int | None
Meta = Sequence[torch.Tensor]


def accumulation_dtype(dtype: Any) -> np.dtype:
    """Return the dtype in which values of `dtype` are summed: float32 for the 16-bit floats."""
    dtype = np.dtype(dtype)
    return np.dtype(np.float32) if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4 else dtype


def axes_of(x: jax.Array, dim: Dims) -> tuple[int, ...]:
    """Return the axes that `dim` names: all for None and for an empty list, none for a 0-d array."""
    if x.ndim == 0:
        return ()
    if isinstance(dim, int):
        return (dim % x.ndim,)
    return tuple(d % x.ndim for d in dim) if dim else tuple(range(x.ndim))


def accumulated(x: jax.Array, out: Meta) -> jax.Array:
    """Cast to the dtype in which a sum with result `out[0]` is computed."""
    return cast(x, accumulation_dtype(xla_dtype(out[0].dtype)))


def wide(x: jax.Array) -> jax.Array:
    """Cast 16-bit floats to float32."""
    return x.astype(accumulation_dtype(x.dtype))


# -- sums and products


def _nansum(x: jax.Array, axis: tuple[int, ...], keepdims: bool) -> jax.Array:
    return jnp.sum(jnp.where(jnp.isnan(x), 0, x) if jnp.issubdtype(x.dtype, jnp.inexact) else x, axis, keepdims=keepdims)


def _summing(reduce: Callable[..., jax.Array], whole: str | None, part: str) -> None:
    if whole is not None:

        @rule(whole, meta=True)
        def over_all(x: jax.Array, _dtype: torch.dtype | None, *, out: Meta) -> jax.Array:
            return reduce(accumulated(x, out))

    @rule(part, meta=True)
    def over_dims(x: jax.Array, dim: Dims, keepdim: bool, _dtype: torch.dtype | None, *, out: Meta) -> jax.Array:
        return reduce(accumulated(x, out), axis=axes_of(x, dim), keepdims=keepdim)


_summing(jnp.sum, "aten::sum", "aten::sum.dim_IntList")
_summing(jnp.mean, "aten::mean", "aten::mean.dim")
_summing(jnp.prod, "aten::prod", "aten::prod.dim_int")
_summing(_nansum, None, "aten::nansum")


@rule("aten::count_nonzero", "aten::count_nonzero.dim_IntList")
def count_nonzero(x: jax.Array, dim: Dims) -> jax.Array:
    return jnp.sum(x != 0, axes_of(x, dim), dtype=np.int64)


# -- truth


def _truth(reduce: Callable[..., jax.Array], name: str) -> None:
    @rule(name, f"{name}.dim", f"{name}.dims")
    def truth(x: jax.Array, dim: Dims = None, keepdim: bool = False) -> jax.Array:
        # `.dims` alone takes an empty list as it stands: no dimension is reduced.
        axes = () if isinstance(dim, (list, tuple)) and not dim else axes_of(x, dim)
        return reduce(x != 0, axes, keepdims=keepdim)


_truth(jnp.any, "aten::any")
_truth(jnp.all, "aten::all")


# -- extrema


def extremum(reduce: Callable[..., jax.Array], x: jax.Array, dim: int | None, keepdim: bool) -> tuple[jax.Array, jax.Array]:
    """Return the extreme values (`jnp.max`, `jnp.min`) and the int64 position of the first element that equals each."""
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    if dim is None:
        shape = (1,) * x.ndim if keepdim else ()
        return tuple(a.reshape(shape) for a in extremum(reduce, x.reshape(-1), 0, False))
    # Two plain reductions: XLA:CPU is several times slower at one that carries a position along.
    value = reduce(x, dim, keepdims=True)
    size = x.shape[dim]
    place = lax.broadcasted_iota(np.int32 if size < 2**31 else np.int64, x.shape, dim % x.ndim)
    first = jnp.min(jnp.where((x == value) | (x != x), place, size), dim, keepdims=keepdim)  # x != x: the first NaN
    return value if keepdim else jnp.squeeze(value, dim), first.astype(np.int64)


def _extremum(reduce: Callable[..., jax.Array], name: str) -> None:
    def check(x: torch.Tensor, dim: Dims = (), *_: Any) -> None:
        dims = [dim] if isinstance(dim, int) else dim
        if not x.numel() and not dims:
            raise RuntimeError(
                f"a{name}(): Expected reduction dim to be specified for input.numel() == 0. "
                "Specify the reduction dim with the 'dim' argument."
            )
        for d in dims:
            if x.dim() and -x.dim() <= d < x.dim() and x.shape[d] == 0:
                raise IndexError(f"a{name}(): Expected reduction dim {d} to have non-zero size.")

    @rule(f"aten::{name}")
    def over_all(x: jax.Array) -> jax.Array:
        return reduce(x)

    @rule(f"aten::a{name}", check=check)
    def over_dims(x: jax.Array, dim: Dims, keepdim: bool) -> jax.Array:
        return reduce(x, axes_of(x, dim), keepdims=keepdim)

    @rule(f"aten::{name}.dim")
    def with_position(x: jax.Array, dim: int, keepdim: bool) -> tuple[jax.Array, jax.Array]:
        return extremum(reduce, x, dim, keepdim)

    @rule(f"aten::arg{name}")
    def only_position(x: jax.Array, dim: int | None, keepdim: bool) -> jax.Array:
        return extremum(reduce, x, dim, keepdim)[1]


_extremum(jnp.max, "max")
_extremum(jnp.min, "min")


def _check_aminmax(x: torch.Tensor, dim: int | None, _keepdim: bool, *outs: torch.Tensor) -> None:
    if dim is not None and x.dim() and -x.dim() <= dim < x.dim() and x.shape[dim] == 0:
        raise IndexError(f"aminmax: Expected reduction dim {dim} to have non-zero size.")
    for out in outs:
        if out.dtype != x.dtype:
            raise RuntimeError(f"Expected out tensor to have dtype {x.dtype}, but got {out.dtype} instead")


@rule("aten::aminmax", check=_check_aminmax)
def aminmax(x: jax.Array, dim: int | None, keepdim: bool) -> tuple[jax.Array, jax.Array]:
    axes = axes_of(x, dim)
    return jnp.min(x, axes, keepdims=keepdim), jnp.max(x, axes, keepdims=keepdim)


# -- variance


def moments(x: jax.Array, dim: Dims, correction: float | None, keepdim: bool) -> tuple[jax.Array, jax.Array]:
    """Return (variance, mean) of `x`, in two passes."""
    x, axes = wide(x), axes_of(x, dim)
    mean = jnp.mean(x, axes, keepdims=True)
    away = x - mean
    squares = away.real**2 + away.imag**2 if x.dtype.kind == "c" else away * away
    freedom = max(math.prod(x.shape[a] for a in axes) - (1 if correction is None else correction), 0)
    variance = jnp.sum(squares, axes, keepdims=keepdim) / jnp.asarray(freedom, squares.dtype)
    return variance, mean if keepdim else jnp.squeeze(mean, axes)


@rule("aten::var.correction")
def var(x: jax.Array, dim: Dims, correction: float | None, keepdim: bool) -> jax.Array:
    return moments(x, dim, correction, keepdim)[0]


@rule("aten::std.correction")
def std(x: jax.Array, dim: Dims, correction: float | None, keepdim: bool) -> jax.Array:
    return jnp.sqrt(moments(x, dim, correction, keepdim)[0])


@rule("aten::var_mean.correction")
def var_mean(x: jax.Array, dim: Dims, correction: float | None, keepdim: bool) -> tuple[jax.Array, jax.Array]:
    return moments(x, dim, correction, keepdim)


@rule("aten::std_mean.correction")
def std_mean(x: jax.Array, dim: Dims, correction: float | None, keepdim: bool) -> tuple[jax.Array, jax.Array]:
    variance, mean = moments(x, dim, correction, keepdim)
    return jnp.sqrt(variance), mean


# -- norms


@rule("aten::linalg_vector_norm", meta=True)
def vector_norm(x: jax.Array, p: float, dim: Dims, keepdim: bool, _dtype: torch.dtype | None, *, out: Meta) -> jax.Array:
    # The result is real, also for complex x.
    return norm_over(x, p, axes_of(x, dim), keepdim, accumulation_dtype(xla_dtype(out[0].dtype)))


def norm_over(x: jax.Array, p: float, axes: tuple[int, ...], keepdim: bool, dtype: Any) -> jax.Array:
    """Return the p-norm over `axes`, computed in the real `dtype`."""
    if x.dtype.kind == "c" and p == 2:
        return jnp.sqrt(jnp.sum(x.real.astype(dtype) ** 2 + x.imag.astype(dtype) ** 2, axes, keepdims=keepdim))
    size = jnp.abs(x if x.dtype.kind == "c" else x.astype(dtype)).astype(dtype)
    if p == math.inf:
        return jnp.max(size, axes, keepdims=keepdim, initial=0)
    if p == -math.inf:
        return jnp.min(size, axes, keepdims=keepdim, initial=math.inf)
    if p == 0:
        return jnp.sum(size != 0, axes, keepdims=keepdim, dtype=dtype)
    if p == 1:
        return jnp.sum(size, axes, keepdims=keepdim)
    if p == 2:
        return jnp.sqrt(jnp.sum(size * size, axes, keepdims=keepdim))
    return jnp.sum(size ** jnp.asarray(p, dtype), axes, keepdims=keepdim) ** jnp.asarray(1 / p, dtype)


@rule("aten::norm.Scalar", "aten::norm.ScalarOpt_dtype", meta=True)
def norm_all(x: jax.Array, p: float | None, dtype: torch.dtype | None = None, *, out: Meta) -> jax.Array:
    return vector_norm(x, 2 if p is None else p, None, False, dtype, out=out)


@rule("aten::norm.ScalarOpt_dim", "aten::norm.ScalarOpt_dim_dtype", meta=True)
def norm(x: jax.Array, p: float | None, dim: Dims, keepdim: bool, dtype: torch.dtype | None = None, *, out: Meta) -> jax.Array:
    return vector_norm(x, 2 if p is None else p, dim, keepdim, dtype, out=out)


def _native_norm_metadata(
    x: torch.Tensor, p: Any = 2, dim: Sequence[int] = (), keepdim: bool = False, dtype: torch.dtype | None = None
) -> torch.Tensor:
    return torch.linalg.vector_norm(x, 2 if p is None else p, dim or None, keepdim, dtype=dtype)


@rule("aten::native_norm", "aten::native_norm.ScalarOpt_dim_dtype", meta=True, metadata=_native_norm_metadata)
def native_norm(
    x: jax.Array, p: float | None, dim: Dims = None, keepdim: bool = False, dtype: torch.dtype | None = None, *, out: Meta
) -> jax.Array:
    return norm(x, p, dim, keepdim, dtype, out=out)


@rule("aten::renorm", dynamic="maxnorm")
def renorm(x: jax.Array, p: float, dim: int, maxnorm: Any) -> jax.Array:
    """The factor is rounded to the dtype of `x` before the product, as PyTorch does."""
    rest = tuple(d for d in range(x.ndim) if d != dim % x.ndim)
    norms = norm_over(x, p, rest, True, accumulation_dtype(x.real.dtype))
    factor = jnp.where(norms > maxnorm, maxnorm / (norms + 1e-7), 1)
    return wide(x) * wide(factor.astype(x.dtype))


@rule("aten::logsumexp", meta=True)
def logsumexp(x: jax.Array, dim: Dims, keepdim: bool, *, out: Meta) -> jax.Array:
    x, axes = accumulated(x, out), axes_of(x, dim)
    top = jnp.max(x.real, axes, keepdims=True, initial=-math.inf)
    top = jnp.where(jnp.isinf(top), 0, top)  # inf - inf would be NaN
    total = jnp.log(jnp.sum(jnp.exp(x - top), axes, keepdims=True)) + top
    return total if keepdim else jnp.squeeze(total, axes)


# -- counts and checksums


@rule("aten::hash_tensor")
def hash_tensor(x: jax.Array, dim: Dims, keepdim: bool, _mode: int) -> jax.Array:
    """Exclusive or of all bits: floats as float64, integers as int64."""
    if jnp.issubdtype(x.dtype, jnp.floating):
        words = lax.bitcast_convert_type(x.astype(np.float64), np.uint64)
    else:
        words = x.astype(np.int64).astype(np.uint64)
    axes = axes_of(x, dim)
    result = lax.reduce(words, np.uint64(0), lax.bitwise_xor, axes)
    return jnp.expand_dims(result, axes) if keepdim else result


@rule("aten::histc")
def histc(x: jax.Array, bins: int, low: float, high: float) -> jax.Array:
    x = x.reshape(-1)
    if low == high:
        low = jnp.min(x, initial=math.inf) if x.size else jnp.zeros((), x.dtype)
        high = jnp.max(x, initial=-math.inf) if x.size else jnp.zeros((), x.dtype)
        low, high = jnp.where(low == high, low - 1, low), jnp.where(low == high, high + 1, high)
    low, high = jnp.asarray(low, x.dtype), jnp.asarray(high, x.dtype)
    inside = (x >= low) & (x <= high)
    place = jnp.where(inside, (x - low) * jnp.asarray(bins, x.dtype) / (high - low), 0).astype(np.int32)
    place = jnp.where(inside, jnp.minimum(place, bins - 1), bins)  # the last bin is closed on the right
    return jnp.zeros(bins, x.dtype).at[place].add(jnp.ones((), x.dtype), mode="drop")
