"""Softmax and log-softmax, their gradients, and the variants that forgive fully masked rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch

from torchtpu.ops.products import accumulator_of
from torchtpu.ops.registry import rule


def wide(x: jax.Array) -> jax.Array:
    """Return halves as float32, the dtype in which PyTorch sums them."""
    dtype = accumulator_of(x.dtype)
    return x if dtype is None else x.astype(dtype)


def _shifted(x: jax.Array, dim: int) -> jax.Array:
    return x - jnp.max(x, axis=dim, keepdims=True)


def softmax(x: jax.Array, dim: int) -> jax.Array:
    """Return exp(x) / sum(exp(x)); rows of -inf give NaN, as in PyTorch."""
    if x.ndim == 0 or x.size == 0:
        return jnp.exp(x - x)
    e = jnp.exp(_shifted(x, dim))
    return e / jnp.sum(e, axis=dim, keepdims=True)


def log_softmax(x: jax.Array, dim: int) -> jax.Array:
    """Return x - log(sum(exp(x)))."""
    if x.ndim == 0 or x.size == 0:
        return x - x
    shifted = _shifted(x, dim)
    return shifted - jnp.log(jnp.sum(jnp.exp(shifted), axis=dim, keepdims=True))


def softmax_backward(g: jax.Array, y: jax.Array, dim: int) -> jax.Array:
    """Return the gradient of softmax from that of its result `y`."""
    gy = g * y
    return gy - y * (gy if g.ndim == 0 else jnp.sum(gy, axis=dim, keepdims=True))


rule("aten::_softmax")(lambda x, dim, half_to_float: softmax(wide(x), dim))
rule("aten::_log_softmax")(lambda x, dim, half_to_float: log_softmax(wide(x), dim))
rule("aten::_softmax_backward_data")(lambda g, y, dim, input_dtype: softmax_backward(wide(g), wide(y), dim))


@rule("aten::_log_softmax_backward_data")
def _log_softmax_backward(g: jax.Array, y: jax.Array, dim: int, input_dtype: torch.dtype) -> jax.Array:
    g, y = wide(g), wide(y)
    return g - jnp.exp(y) * (g if g.ndim == 0 else jnp.sum(g, axis=dim, keepdims=True))


@rule("aten::_safe_softmax")
def _safe_softmax(x: jax.Array, dim: int, dtype: torch.dtype | None) -> jax.Array:
    x = wide(x)
    masked = jnp.all(x == -jnp.inf, axis=dim, keepdims=True) if x.ndim else x == -jnp.inf
    return jnp.where(masked, jnp.zeros_like(x), softmax(x, dim))
