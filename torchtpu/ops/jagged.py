"""Jagged batches, the memory of nested tensors: rows one after the other, and the offsets at which each item starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import torch

from torchtpu.ops.registry import entry, rule


@rule("aten::_jagged_to_padded_dense_forward", dynamic="padding_value")
def to_padded(values: jax.Array, offsets: Sequence[jax.Array], max_lengths: Sequence[int], padding_value: float) -> jax.Array:
    (offset,) = offsets
    rows = offset[:-1, None] + jnp.arange(max_lengths[0], dtype=offset.dtype)
    inside = rows < offset[1:, None]
    if values.shape[0] == 0:
        return jnp.broadcast_to(jnp.asarray(padding_value).astype(values.dtype), (*rows.shape, *values.shape[1:]))
    padded = values[jnp.where(inside, rows, 0)]
    inside = inside.reshape(*inside.shape, *[1] * (values.ndim - 1))
    return jnp.where(inside, padded, jnp.asarray(padding_value).astype(values.dtype))


def _from_padded_metadata(dense: torch.Tensor, offsets: Sequence[torch.Tensor], total: int) -> torch.Tensor:
    return dense.new_empty(total, *dense.shape[2:])


@entry("aten::_padded_dense_to_jagged_forward")
def _with_total(
    kernel: Callable[..., torch.Tensor], dense: torch.Tensor, offsets: list[torch.Tensor], total_L: int | None = None
) -> torch.Tensor:
    """The size of the result may be known on the device only."""
    if len(offsets) != 1:
        raise NotImplementedError("tensors with several jagged dimensions")
    return kernel(dense, offsets, int(offsets[0][-1]) if total_L is None else total_L)


@rule("aten::_padded_dense_to_jagged_forward", metadata=_from_padded_metadata)
def from_padded(dense: jax.Array, offsets: Sequence[jax.Array], total: int) -> jax.Array:
    (offset,) = offsets
    places = jnp.arange(total, dtype=offset.dtype)
    item = jnp.searchsorted(offset, places, side="right") - 1
    return dense[item, places - offset[item]]
