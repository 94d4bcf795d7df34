"""Weight norm: a weight given by its direction `v` and the lengths `g` of its slices along one dimension."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch

from torchtpu.ops.registry import rule
from torchtpu.ops.softmax import wide


def _others(v: jax.Array, dim: int) -> tuple[int, ...]:
    return tuple(d for d in range(v.ndim) if d != dim % v.ndim)


@rule("aten::_weight_norm_interface")
def weight_norm(v: jax.Array, g: jax.Array, dim: int = 0) -> tuple[jax.Array, jax.Array]:
    """Return the weight `v * g / norms`, and the norms of v's slices."""
    v, g = wide(v), wide(g)
    norms = jnp.sqrt(jnp.sum(jnp.square(v), _others(v, dim), keepdims=True))
    return v * (g / norms), norms


@rule("aten::_weight_norm_interface_backward", metadata=lambda _, v, g, *rest: (torch.empty_like(v), torch.empty_like(g)))
def weight_norm_backward(
    grad: jax.Array, v: jax.Array, g: jax.Array, norms: jax.Array, dim: int
) -> tuple[jax.Array, jax.Array]:
    """Return the gradients of v and g."""
    grad, v, g, norms = wide(grad), wide(v), wide(g), wide(norms)
    along = jnp.sum(grad * v, _others(v, dim), keepdims=True) / norms
    return (g / norms) * (grad - v * (along / norms)), along
