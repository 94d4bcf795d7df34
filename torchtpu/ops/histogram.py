"""Histograms: `histogram` and `histogramdd`. Bins are closed on the left; the last one also on the right."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

from torchtpu.ops.creation import linspace
from torchtpu.ops.registry import rule

Array = jax.Array
Range = Sequence[float] | None


def _into(results: Sequence[torch.Tensor], out: dict[str, torch.Tensor]) -> Sequence[torch.Tensor]:
    """Resize the meta tensors of an `out=` overload. torch has no meta kernels of these operators (2.13)."""
    for result, target in zip(results, out.values(), strict=False):
        target.resize_(result.shape)
    return results


def _check(name: str, x: torch.Tensor, bins: Sequence[Any], limits: Range) -> None:
    """Raise PyTorch's own errors."""
    if x.dim() == 0 or x.shape[-1] != len(bins):
        raise RuntimeError(f"{name}: The size of bins must be equal to the innermost dimension of the input.")
    if limits is not None:
        if len(limits) != 2 * len(bins):
            raise RuntimeError(f"{name}: for a {len(bins)}-dimensional histogram range should have {2 * len(bins)} elements")
        for low, high in zip(limits[::2], limits[1::2], strict=True):
            if not (math.isfinite(low) and math.isfinite(high)):
                raise RuntimeError(f"{name}: range [{low}, {high}] is not finite")
            if low > high:
                raise RuntimeError(f"{name}: min should not exceed max, but got min {low} max {high}")


def _counted_metadata(
    x: torch.Tensor, bins: int = 100, *, range: Range = None, weight: Any = None, density: bool = False, **out: torch.Tensor
) -> Sequence[torch.Tensor]:
    if bins <= 0:
        raise RuntimeError(f"histogram(): bins must be > 0, but got {bins} for dimension 0")
    _check("histogram()", x.reshape(-1, 1), [bins], range)
    return _into((x.new_empty(bins), x.new_empty(bins + 1)), out)


def _given_metadata(
    x: torch.Tensor, bins: torch.Tensor, *, weight: Any = None, density: bool = False, **out: torch.Tensor
) -> Sequence[torch.Tensor]:
    return _into((x.new_empty(bins.numel() - 1), x.new_empty(bins.numel())), out)


@rule("aten::histogram.bin_ct", metadata=_counted_metadata, meta=True)
def histogram(
    x: Array, bins: int, range: Range, weight: Array | None, density: bool, *, out: Sequence[torch.Tensor]
) -> tuple[Array, Array]:
    edges = _edges(x.reshape(-1), bins, range, out[1].dtype)
    return _count(x.reshape(-1, 1), [edges], weight, density), edges


@rule("aten::histogram.bins_tensor", metadata=_given_metadata)
def histogram_of_edges(x: Array, edges: Array, weight: Array | None, density: bool) -> tuple[Array, Array]:
    return _count(x.reshape(-1, 1), [edges], weight, density), edges


def _edges_metadata(x: torch.Tensor, bins: Sequence[int], *, range: Range = None, **options: Any) -> list[torch.Tensor]:
    _check("histogramdd", x, bins, range)
    return [x.new_empty(n + 1) for n in bins]


@rule("aten::_histogramdd_bin_edges", metadata=_edges_metadata, meta=True)
def bin_edges(
    x: Array, bins: Sequence[int], range: Range, weight: Any, density: bool, *, out: Sequence[torch.Tensor]
) -> list[Array]:
    columns = x.reshape(-1, x.shape[-1]).T
    limits = [None] * len(bins) if range is None else [range[2 * d : 2 * d + 2] for d, _ in enumerate(bins)]
    return [_edges(column, n, r, out[0].dtype) for column, n, r in zip(columns, bins, limits, strict=True)]


def _dd_counted_metadata(x: torch.Tensor, bins: Sequence[int], *, range: Range = None, **options: Any) -> torch.Tensor:
    _check("histogramdd", x, bins, range)
    return x.new_empty(tuple(bins))


def _dd_given_metadata(x: torch.Tensor, bins: Sequence[torch.Tensor], **options: Any) -> torch.Tensor:
    _check("histogramdd", x, bins, None)
    return x.new_empty(tuple(b.numel() - 1 for b in bins))


@rule("aten::_histogramdd_from_bin_cts", metadata=_dd_counted_metadata, meta=True)
def histogramdd(
    x: Array, bins: Sequence[int], range: Range, weight: Array | None, density: bool, *, out: Sequence[torch.Tensor]
) -> Array:
    edges = bin_edges(x, bins, range, weight, density, out=out)
    return _count(x.reshape(-1, x.shape[-1]), edges, weight, density)


@rule("aten::_histogramdd_from_bin_tensors", metadata=_dd_given_metadata)
def histogramdd_of_edges(x: Array, edges: Sequence[Array], weight: Array | None, density: bool) -> Array:
    return _count(x.reshape(-1, x.shape[-1]), edges, weight, density)


def _edges(x: Array, bins: int, limits: Range, dtype: torch.dtype) -> Array:
    """Return the edges of equal bins over the limits, or over all values."""
    if limits is not None:
        low, high = (jnp.asarray(limit, x.dtype) for limit in limits)
    elif x.size:
        low, high = jnp.min(x), jnp.max(x)
    else:
        low, high = jnp.zeros((), x.dtype), jnp.ones((), x.dtype)
    half = jnp.where(low == high, 0.5, 0).astype(x.dtype)
    return linspace(low - half, high + half, bins + 1, out=[torch.empty(0, dtype=dtype, device="meta")])


def _count(points: Array, edges: Sequence[Array], weight: Array | None, density: bool) -> Array:
    """Return the (weighted) number of points, one a row, in each box of the grid."""
    shape = tuple(e.size - 1 for e in edges)
    places, inside = [], jnp.ones(points.shape[0], bool)
    for column, e in zip(points.T, edges, strict=True):
        place = jnp.searchsorted(e, column, side="right") - 1
        places.append(jnp.clip(place, 0, e.size - 2))
        inside &= (column >= e[0]) & (column <= e[-1])
    weights = jnp.ones(points.shape[0], points.dtype) if weight is None else weight.reshape(-1).astype(points.dtype)
    counts = jnp.zeros(shape, points.dtype).at[tuple(places)].add(jnp.where(inside, weights, 0))
    if density:
        counts = counts / jnp.sum(counts)
        for d, e in enumerate(edges):
            counts = counts / jnp.expand_dims(jnp.diff(e), [k for k in range(len(shape)) if k != d])
    return counts
