"""Cells of recurrent networks: what `nn.LSTM`, `nn.GRU` and their cells call at each step, after the matrix products."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import torch

from torchtpu.ops.registry import rule

Array = jax.Array


def _wide(x: Array) -> Array:
    """Compute in float32 at least: the results are rounded once, to torch's dtype."""
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def _add(*terms: Array | None) -> Array:
    first, *rest = (_wide(t) for t in terms if t is not None)
    return sum(rest, start=first)


def _lstm_metadata(x_gates: torch.Tensor, h_gates: torch.Tensor, cx: torch.Tensor, *_: Any) -> tuple[torch.Tensor, ...]:
    """torch's own meta kernel fails without a bias (2.13)."""
    return *(torch.empty_like(cx, memory_format=torch.contiguous_format) for _ in range(2)), x_gates.new_empty(x_gates.shape)


@rule("aten::_thnn_fused_lstm_cell", metadata=_lstm_metadata)
def lstm_cell(x_gates: Array, h_gates: Array, cx: Array, x_bias: Array | None, h_bias: Array | None) -> tuple[Array, ...]:
    """Return the new hidden and cell state, and the four gates, for the backward pass."""
    i, f, g, o = jnp.split(_add(x_gates, h_gates, x_bias, h_bias), 4, axis=1)
    i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
    cy = f * _wide(cx) + i * g
    return o * jnp.tanh(cy), cy, jnp.concatenate([i, f, g, o], axis=1)


@rule("aten::_thnn_fused_lstm_cell_backward_impl")
def lstm_cell_backward(
    grad_hy: Array | None, grad_cy: Array | None, cx: Array, cy: Array, gates: Array, has_bias: bool
) -> tuple[Array | None, ...]:
    """Return the gradients of the gates, of the old cell state and of a bias."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    i, f, g, o = jnp.split(_wide(gates), 4, axis=1)
    tanh_cy = jnp.tanh(_wide(cy))
    grad_o = 0.0 if grad_hy is None else _wide(grad_hy) * tanh_cy
    grad_c = 0.0 if grad_hy is None else _wide(grad_hy) * o * (1 - tanh_cy * tanh_cy)
    if grad_cy is not None:
        grad_c = grad_c + _wide(grad_cy)
    parts = (
        grad_c * g * i * (1 - i),
        grad_c * _wide(cx) * f * (1 - f),
        grad_c * i * (1 - g * g),
        grad_o * o * (1 - o),
    )
    grad_gates = jnp.concatenate(parts, axis=1)
    return grad_gates, grad_c * f, grad_gates.sum(0) if has_bias else None


def _gru_metadata(x_gates: torch.Tensor, h_gates: torch.Tensor, hx: torch.Tensor, *_: Any) -> tuple[torch.Tensor, ...]:
    return torch.empty_like(hx, memory_format=torch.contiguous_format), hx.new_empty(hx.shape[0], 5 * hx.shape[1])


@rule("aten::_thnn_fused_gru_cell", metadata=_gru_metadata)
def gru_cell(x_gates: Array, h_gates: Array, hx: Array, x_bias: Array | None, h_bias: Array | None) -> tuple[Array, Array]:
    """Return the new hidden state, and what the backward pass needs."""
    xr, xz, xn = jnp.split(_add(x_gates, x_bias), 3, axis=1)
    hr, hz, hn = jnp.split(_add(h_gates, h_bias), 3, axis=1)
    r, z = jax.nn.sigmoid(xr + hr), jax.nn.sigmoid(xz + hz)
    n = jnp.tanh(xn + r * hn)
    h = _wide(hx)
    return n + z * (h - n), jnp.concatenate([r, z, n, h, hn], axis=1)


def _gru_backward_metadata(grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool) -> tuple[torch.Tensor | None, ...]:
    batch, width = grad_hy.shape
    gates = [workspace.new_empty(batch, 3 * width) for _ in range(2)]
    biases = [workspace.new_empty(3 * width) if has_bias else None for _ in range(2)]
    return (*gates, torch.empty_like(grad_hy, memory_format=torch.contiguous_format), *biases)


@rule("aten::_thnn_fused_gru_cell_backward", metadata=_gru_backward_metadata)
def gru_cell_backward(grad_hy: Array, workspace: Array, has_bias: bool) -> tuple[Array | None, ...]:
    """Return the gradients of both gate inputs, of the old hidden state, and of both biases."""
    r, z, n, h, hn = jnp.split(_wide(workspace), 5, axis=1)
    grad = _wide(grad_hy)
    grad_n = grad * (1 - z) * (1 - n * n)
    grad_r, grad_z = grad_n * hn * r * (1 - r), grad * (h - n) * z * (1 - z)
    grad_x = jnp.concatenate([grad_r, grad_z, grad_n], axis=1)
    grad_h = jnp.concatenate([grad_r, grad_z, grad_n * r], axis=1)
    return grad_x, grad_h, grad * z, *((grad_x.sum(0), grad_h.sum(0)) if has_bias else (None, None))
