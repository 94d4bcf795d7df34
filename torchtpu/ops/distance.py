"""Distances between rows: cdist and pdist in any norm, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torchtpu.ops.matmul import contract, sum_to
from torchtpu.ops.registry import rule


def norm(d: jax.Array, p: float) -> jax.Array:
    """Return the p-norm over the last axis; p = 0 counts what is not zero."""
    size = jnp.abs(d)
    if p == 0:
        return jnp.sum((d != 0).astype(d.dtype), axis=-1)
    if p == 1:
        return jnp.sum(size, axis=-1)
    if p == 2:
        return jnp.sqrt(jnp.sum(d * d, axis=-1))
    if p == math.inf:
        return jnp.max(size, axis=-1, initial=0)
    return jnp.sum(size**p, axis=-1) ** (1 / p)


def slope(d: jax.Array, distance: jax.Array, p: float) -> jax.Array:
    """Return the derivative of `distance = norm(d, p)` by d; 0 where the distance is 0."""
    distance = distance[..., None]
    size, sign = jnp.abs(d), jnp.sign(d)
    if p == 0:
        return jnp.zeros_like(d)
    if p == 1:
        return sign
    if p == math.inf:
        return sign * (size == distance)
    zero = (distance == 0) | ((size == 0) & (p < 2))
    safe = jnp.where(zero, jnp.ones_like(size), size)
    value = d / distance if p == 2 else sign * safe ** (p - 1) / distance ** (p - 1)
    return jnp.where(zero, jnp.zeros_like(d), value)


def _differences(a: jax.Array, b: jax.Array) -> jax.Array:
    return a[..., :, None, :] - b[..., None, :, :]


@rule("aten::_cdist_forward")
def _cdist(a: jax.Array, b: jax.Array, p: float, compute_mode: int | None) -> jax.Array:
    return norm(_differences(a, b), p)


@rule("aten::_euclidean_dist", precision=True)
def _euclidean(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return 2-norms from one product, as PyTorch does for many rows: |a - b|^2 = |a|^2 - 2 a.b + |b|^2, which cancels."""
    sizes = [jnp.sum(x * x, axis=-1, keepdims=True) for x in (a, b)]
    left = jnp.concatenate([-2 * a, sizes[0], jnp.ones_like(sizes[0])], axis=-1)
    right = jnp.concatenate([b, jnp.ones_like(sizes[1]), sizes[1]], axis=-1)
    batch = tuple(range(a.ndim - 2))
    squares = contract(left, right, (((a.ndim - 1,), (b.ndim - 1,)), (batch, batch)))
    return jnp.sqrt(jnp.maximum(squares, 0))


@rule("aten::_cdist_backward", meta=True)
def _cdist_backward(
    g: jax.Array, a: jax.Array, b: jax.Array, p: float, distance: jax.Array, *, out: Sequence[torch.Tensor]
) -> jax.Array:
    gradient = jnp.sum(g[..., None] * slope(_differences(a, b), distance, p), axis=-2)
    return sum_to(gradient, tuple(out[0].shape))


def _pairs(rows: int) -> tuple[np.ndarray, np.ndarray]:
    return np.triu_indices(rows, 1)


@rule("aten::_pdist_forward")
def _pdist(x: jax.Array, p: float) -> jax.Array:
    i, j = _pairs(x.shape[0])
    return norm(x[i] - x[j], p)


@rule("aten::_pdist_backward")
def _pdist_backward(g: jax.Array, x: jax.Array, p: float, distance: jax.Array) -> jax.Array:
    i, j = _pairs(x.shape[0])
    push = g[:, None] * slope(x[i] - x[j], distance, p)
    return jnp.zeros_like(x).at[i].add(push).at[j].add(-push)
