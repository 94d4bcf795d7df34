"""Sorting, selection by rank, and binary search. NaN is greater than every number; sorts are always stable."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu.ops.registry import rule


def sort(x: jax.Array, dim: int, descending: bool = False) -> tuple[jax.Array, jax.Array]:
    """Return sorted values and their int64 positions; equal elements keep their order."""
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    dim %= x.ndim
    place = lax.broadcasted_iota(np.int32 if x.shape[dim] < 2**31 else np.int64, x.shape, dim)
    if descending:  # turned around before and after, so that equal elements keep their order
        x, place = lax.rev(x, (dim,)), lax.rev(place, (dim,))
    values, place = lax.sort((x, place), dimension=dim, is_stable=True, num_keys=1)
    if descending:
        values, place = lax.rev(values, (dim,)), lax.rev(place, (dim,))
    return values, place.astype(np.int64)


rule("aten::sort")(sort)


@rule("aten::sort.stable")
def sort_stable(x: jax.Array, _stable: bool | None, dim: int, descending: bool) -> tuple[jax.Array, jax.Array]:
    return sort(x, dim, descending)


@rule("aten::argsort.stable")
def argsort_stable(x: jax.Array, _stable: bool, dim: int, descending: bool) -> jax.Array:
    return sort(x, dim, descending)[1]


@rule("aten::topk")
def topk(x: jax.Array, k: int, dim: int, largest: bool, _sorted: bool) -> tuple[jax.Array, jax.Array]:
    if x.ndim == 0:
        return x, jnp.zeros((), np.int64)
    key = x = jnp.moveaxis(x, dim, -1)
    if jnp.issubdtype(x.dtype, jnp.floating):
        # XLA orders NaN by its sign: plus is above infinity, minus is below.
        key = jnp.where(jnp.isnan(x), jnp.asarray(np.nan, x.dtype), x)
        key = key if largest else -key
    elif not largest:
        key = ~x
    place = lax.top_k(key, k)[1]
    values = jnp.take_along_axis(x, place, -1)
    return jnp.moveaxis(values, -1, dim), jnp.moveaxis(place, -1, dim).astype(np.int64)


# -- selection by rank


def _pick(values: jax.Array, place: jax.Array, rank: Any, dim: int, keepdim: bool) -> tuple[jax.Array, jax.Array]:
    """Return the sorted values and positions at `rank` (a number, or an array with one for each slice)."""
    if values.ndim == 0:
        return values, place
    if isinstance(rank, int):
        chosen = [lax.index_in_dim(a, rank, dim % a.ndim) for a in (values, place)]
    else:
        chosen = [jnp.take_along_axis(a, rank, dim) for a in (values, place)]
    return tuple(chosen) if keepdim else tuple(jnp.squeeze(a, dim) for a in chosen)


@rule("aten::kthvalue")
def kthvalue(x: jax.Array, k: int, dim: int, keepdim: bool) -> tuple[jax.Array, jax.Array]:
    return _pick(*sort(x, dim), k - 1, dim, keepdim)


def _median(x: jax.Array, dim: int, keepdim: bool, skip_nan: bool) -> tuple[jax.Array, jax.Array]:
    """Return the lower median; with a NaN in the slice that NaN, unless they are skipped."""
    values, place = sort(x, dim)
    if x.ndim == 0 or not jnp.issubdtype(x.dtype, jnp.floating):
        return _pick(values, place, (x.shape[dim] - 1) // 2 if x.ndim else 0, dim, keepdim)
    count = jnp.sum(~jnp.isnan(x), dim, keepdims=True, dtype=np.int32)
    rank = jnp.maximum(count - 1, 0) // 2
    if not skip_nan:
        rank = jnp.where(count < x.shape[dim], count, rank)
    return _pick(values, place, rank, dim, keepdim)


def _medians(name: str, skip_nan: bool) -> None:
    @rule(name)
    def of_all(x: jax.Array) -> jax.Array:
        if not x.size:
            return jnp.full((), np.nan if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min, x.dtype)
        return _median(x.reshape(-1), 0, False, skip_nan)[0]

    @rule(f"{name}.dim")
    def of_dim(x: jax.Array, dim: int, keepdim: bool) -> tuple[jax.Array, jax.Array]:
        return _median(x, dim, keepdim, skip_nan)


_medians("aten::median", skip_nan=False)
_medians("aten::nanmedian", skip_nan=True)


@rule("aten::mode")
def mode(x: jax.Array, dim: int, keepdim: bool) -> tuple[jax.Array, jax.Array]:
    """The most frequent value, of several the smallest, and where it stands last."""
    values, place = sort(x, dim)
    if x.ndim == 0:
        return values, place
    dim %= x.ndim
    step = lax.broadcasted_iota(np.int32, x.shape, dim)
    before = jnp.roll(values, 1, dim)
    starts = jnp.where((values != before) | (step == 0), step, 0)
    run = step - lax.cummax(starts, dim)  # how many equal values stand before, in sorted order
    return _pick(values, place, jnp.argmax(run, dim, keepdims=True), dim, keepdim)


# -- binary search


def count_before(ordered: jax.Array, x: jax.Array, right: bool) -> jax.Array:
    """Return how many elements of each row of `ordered` come before each of `x` (with `right`: or are equal to it).

    NaN in `x` comes after everything, as PyTorch's comparisons have it.
    """
    size = ordered.shape[-1]
    low, high = jnp.zeros(x.shape, np.int32), jnp.full(x.shape, size, np.int32)

    def halve(_: Any, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = (low + high) // 2
        index = jnp.minimum(middle, size - 1)
        found = ordered.at[index].get(mode="clip") if ordered.ndim == 1 else jnp.take_along_axis(ordered, index, -1)
        go = (low < high) & ~((found > x) if right else (found >= x))
        return jnp.where(go, middle + 1, low), jnp.where(go, high, middle)

    return lax.fori_loop(0, size.bit_length(), halve, (low, high))[0] if size and x.size else low


@rule("aten::searchsorted.Tensor", "aten::searchsorted.Scalar", dynamic="self")
def searchsorted(
    ordered: jax.Array, x: Any, out_int32: bool, right: bool, side: str | None, sorter: jax.Array | None
) -> jax.Array:
    if sorter is not None:
        ordered = jnp.take_along_axis(ordered, sorter, -1)
    x = jnp.asarray(x)
    if ordered.dtype != x.dtype:
        common = jnp.promote_types(ordered.dtype, x.dtype)
        ordered, x = ordered.astype(common), x.astype(common)
    return count_before(ordered, x, right or side == "right")


def _check_boundaries(_x: Any, boundaries: torch.Tensor, *_: Any) -> None:
    if boundaries.dim() != 1:
        raise RuntimeError(f"boundaries tensor must be 1 dimension, but got dim({boundaries.dim()})")


@rule("aten::bucketize.Tensor", "aten::bucketize.Scalar", dynamic="self", check=_check_boundaries)
def bucketize(x: Any, boundaries: jax.Array, out_int32: bool, right: bool) -> jax.Array:
    return searchsorted(boundaries, x, out_int32, right, None, None)
