"""segment_reduce: reductions over consecutive pieces of one axis, given by their lengths or offsets."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu.ops.reduction import wide
from torchtpu.ops.registry import rule
from torchtpu.ops.scan import scan
from torchtpu.ops.sorting import count_before

_START = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}
_COMBINE = {"sum": "add", "mean": "add", "prod": "multiply", "max": "max", "min": "min"}


def _pieces(lengths: jax.Array | None, offsets: jax.Array | None, size: int) -> tuple[jax.Array, jax.Array]:
    """Return (lengths, the segment of each of `size` positions), each with one row per batch."""
    if lengths is None:
        lengths = jnp.diff(offsets, axis=-1)
    lengths = lengths.reshape(-1, lengths.shape[-1])
    places = jnp.broadcast_to(jnp.arange(size, dtype=lengths.dtype), (lengths.shape[0], size))
    return lengths, count_before(scan(lengths, 1, lax.add), places, right=True)


def _metadata(
    data: torch.Tensor,
    _reduce: str,
    *,
    lengths: torch.Tensor | None = None,
    indices: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None,
    axis: int = 0,
    **_: Any,
) -> torch.Tensor:
    if lengths is None and offsets is None:
        raise RuntimeError("segment_reduce(): Either lengths or offsets must be defined.")
    count = lengths.shape[-1] if lengths is not None else offsets.shape[-1] - 1
    return data.new_empty((*data.shape[:axis], count, *data.shape[axis + 1 :]))


@rule("aten::segment_reduce", metadata=_metadata)
def segment_reduce(
    data: jax.Array,
    reduce: str,
    lengths: jax.Array | None,
    _indices: jax.Array | None,
    offsets: jax.Array | None,
    axis: int,
    _unsafe: bool,
    initial: float | None,
) -> jax.Array:
    size, rest = data.shape[axis], data.shape[axis + 1 :]
    lengths, segment = _pieces(lengths, offsets, size)
    batches, count = lengths.shape
    x = wide(data).reshape(batches, size, math.prod(rest))
    start = jnp.full((batches, count, x.shape[2]), _START[reduce] if initial is None else initial, x.dtype)
    where = jnp.arange(batches)[:, None], segment
    total = getattr(start.at[where], _COMBINE[reduce])(x, mode="drop")
    if reduce == "mean":
        total = jnp.where(lengths[..., None] == 0, np.nan if initial is None else initial, total / lengths[..., None])
    return total.reshape(*data.shape[:axis], count, *rest)


@rule("aten::_segment_reduce_backward", metadata=lambda grad, output, data, *_, **__: torch.empty_like(data))
def segment_reduce_backward(
    grad: jax.Array,
    output: jax.Array,
    data: jax.Array,
    reduce: str,
    lengths: jax.Array | None,
    offsets: jax.Array | None,
    axis: int,
    initial: float | None,
) -> jax.Array:
    size, width = data.shape[axis], math.prod(data.shape[axis + 1 :])
    lengths, segment = _pieces(lengths, offsets, size)
    batches, count = lengths.shape
    where = jnp.arange(batches)[:, None], segment
    x = wide(data).reshape(batches, size, width)

    def spread(a: jax.Array) -> jax.Array:
        """Bring a value of each segment to its elements; 0 for elements in none."""
        return a.reshape(batches, count, width).at[where].get(mode="fill", fill_value=0)

    def summed(a: jax.Array) -> jax.Array:
        return spread(jnp.zeros((batches, count, width), x.dtype).at[where].add(a.astype(x.dtype), mode="drop"))

    grad, output = wide(grad).reshape(batches, count, width), wide(output)
    each = spread(grad / jnp.maximum(lengths, 1)[..., None] if reduce == "mean" else grad)
    if reduce in ("max", "min"):  # shared among equals
        hit = (x == spread(output)) | jnp.isnan(x)
        each = jnp.where(hit, each / jnp.maximum(summed(hit), 1), 0)
    elif reduce == "prod":  # of the others: output / x, except where that is 0 / 0 or NaN / NaN
        nan = jnp.isnan(x)
        odd = nan | (x == 0)
        product = jnp.full((batches, count, width), 1.0 if initial is None else initial, x.dtype)
        others = spread(product.at[where].multiply(jnp.where(odd, 1, x), mode="drop"))
        others = jnp.where(summed(odd) > 1, jnp.where(summed(nan) - nan > 0, np.nan, 0), others)
        each = each * jnp.where(odd, others, spread(output) / x)
    return each.reshape(data.shape)
