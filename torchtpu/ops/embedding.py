"""Rows of a table chosen by index: embedding, embedding_bag, and their gradients. Gradients sum up in float32 at least."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu.ops.indexing import index_select, rows
from torchtpu.ops.reduction import wide
from torchtpu.ops.registry import rule
from torchtpu.ops.sorting import count_before

_SUM, _MEAN, _MAX = 0, 1, 2


def _indexed(weight: torch.Tensor, index: torch.Tensor, *_: Any) -> list[tuple[torch.Tensor, int, bool]]:
    return [(index, weight.shape[0], False)]


def _check_weight(weight: torch.Tensor, *_: Any) -> None:
    if weight.dim() != 2:
        raise RuntimeError("'weight' must be 2-D")


@rule("aten::embedding", indexed=_indexed, check=_check_weight)
def embedding(weight: jax.Array, index: jax.Array, _padding_idx: int, _scale_grad_by_freq: bool, _sparse: bool) -> jax.Array:
    return index_select(weight, 0, index).reshape(*index.shape, weight.shape[1])


def _row_sums(grad: jax.Array, index: jax.Array, count: int, padding_idx: int, scale_grad_by_freq: bool) -> jax.Array:
    """Return the sum of the rows of `grad` that belong to each of `count` indices."""
    index = rows(index, count)
    if padding_idx >= 0:
        index = jnp.where(index == padding_idx, count, index)
    if scale_grad_by_freq:
        frequency = jnp.zeros(count, grad.dtype).at[index].add(1, mode="drop")
        grad = grad / frequency.at[index].get(mode="fill", fill_value=1)[:, None]
    return jnp.zeros((count, grad.shape[1]), grad.dtype).at[index].add(grad, mode="drop")


@rule("aten::embedding_dense_backward")
def embedding_dense_backward(
    grad: jax.Array, index: jax.Array, count: int, padding_idx: int, scale_grad_by_freq: bool
) -> jax.Array:
    grad = wide(grad.reshape(index.size, grad.shape[-1]))
    return _row_sums(grad, index.reshape(-1), count, padding_idx, scale_grad_by_freq)


@rule("aten::embedding_renorm_", dynamic="max_norm", indexed=_indexed)
def embedding_renorm(weight: jax.Array, index: jax.Array, max_norm: Any, norm_type: float) -> jax.Array:
    wider = wide(weight)
    norm = jnp.sum(jnp.abs(wider) ** norm_type, 1, keepdims=True) ** (1 / norm_type)
    used = jnp.zeros((weight.shape[0], 1), bool).at[rows(index.reshape(-1), weight.shape[0])].set(True, mode="drop")
    return jnp.where(used & (norm > max_norm), wider * (max_norm / (norm + 1e-7)), wider)


# -- bags


@rule("aten::_embedding_bag", "aten::_embedding_bag_forward_only", meta=True, indexed=_indexed)
def embedding_bag(
    weight: jax.Array,
    index: jax.Array,
    offsets: jax.Array,
    _scale_grad_by_freq: bool,
    mode: int,
    _sparse: bool,
    per_sample_weights: jax.Array | None,
    include_last_offset: bool,
    padding_idx: int,
    *,
    out: Sequence[torch.Tensor],
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Returns (reduced rows, the bag of each index, how many each bag holds, which row was the greatest)."""
    count, width = out[0].shape
    bag = count_before(offsets[:count], jnp.arange(index.size, dtype=offsets.dtype), right=True) - 1
    target = jnp.where(index == padding_idx, count, bag) if padding_idx >= 0 else bag
    size = jnp.zeros(count, np.int32).at[target].add(1, mode="drop")
    values = wide(index_select(weight, 0, index))
    if per_sample_weights is not None:
        values = values * wide(per_sample_weights)[:, None]
    start = jnp.full((count, width), -np.inf if mode == _MAX else 0, values.dtype).at[target]
    chosen = jnp.zeros(out[3].shape, np.int64)
    if mode == _MAX:
        reduced = start.max(values, mode="drop")
        place = lax.broadcasted_iota(np.int32, values.shape, 0)
        greatest = jnp.where(values == reduced.at[target].get(mode="fill"), place, index.size)
        first = jnp.full((count, width), index.size, np.int32).at[target].min(greatest, mode="drop")
        chosen = index.at[first].get(mode="fill", fill_value=0)
        reduced = jnp.where(size[:, None] > 0, reduced, 0)
    else:
        reduced = start.add(values, mode="drop")
        reduced = reduced / jnp.maximum(size, 1)[:, None] if mode == _MEAN else reduced
    return reduced, bag, jnp.pad(size, (0, out[2].shape[0] - count)), chosen


def _check_dense(*args: Any) -> None:
    if args[9]:
        raise NotImplementedError("sparse gradients do not exist on tpu")


def _embedding_bag_grad(
    grad: jax.Array,
    index: jax.Array,
    bag: jax.Array,
    size: jax.Array,
    chosen: jax.Array,
    count: int,
    scale_grad_by_freq: bool,
    mode: int,
    per_sample_weights: jax.Array | None,
    padding_idx: int,
) -> jax.Array:
    grad = wide(grad)
    size = size[: grad.shape[0], None]
    if mode == _MAX:
        columns = lax.broadcasted_iota(np.int32, grad.shape, 1)
        target = rows(jnp.where(size > 0, chosen, count), count)
        return jnp.zeros((count, grad.shape[1]), grad.dtype).at[target, columns].add(grad, mode="drop")
    each = (grad / jnp.maximum(size, 1) if mode == _MEAN else grad)[bag]
    if per_sample_weights is not None:
        each = each * wide(per_sample_weights)[:, None]
    return _row_sums(each, index, count, padding_idx, scale_grad_by_freq)


rule("aten::_embedding_bag_dense_backward")(_embedding_bag_grad)


@rule(
    "aten::_embedding_bag_backward",
    check=_check_dense,
    metadata=lambda grad, *args: grad.new_empty(args[5], grad.shape[1]),
)
def embedding_bag_backward(grad: jax.Array, index: jax.Array, _offsets: jax.Array, *args: Any) -> jax.Array:
    *args, mode, _sparse, per_sample_weights, padding_idx = args
    return _embedding_bag_grad(grad, index, *args, mode, per_sample_weights, padding_idx)


@rule("aten::_embedding_bag_per_sample_weights_backward")
def embedding_bag_per_sample_weights_backward(
    grad: jax.Array, weight: jax.Array, index: jax.Array, _offsets: jax.Array, bag: jax.Array, _mode: int, padding_idx: int
) -> jax.Array:
    each = jnp.sum(wide(grad)[bag] * wide(index_select(weight, 0, index)), 1)
    return jnp.where(index == padding_idx, 0, each) if padding_idx >= 0 else each
