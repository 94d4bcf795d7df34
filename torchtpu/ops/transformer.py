"""What `nn.MultiheadAttention` and `nn.TransformerEncoder` call in inference: fused ops in PyTorch, compositions here.

XLA fuses what these are made of, so they only have to stay on the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F

from torchtpu.ops.registry import entry, rule
from torchtpu.ops.softmax import softmax, softmax_backward, wide

_ATTENTION_MASK, _PADDING_MASK = 0, 1


def _hidden(mask: torch.Tensor, mask_type: int | None) -> torch.Tensor:
    """Return a mask, True where a key is hidden from a query, that broadcasts to (batch, heads, queries, keys)."""
    mask = mask if mask.dtype == torch.bool else mask.to(torch.bool)
    if mask_type == _PADDING_MASK:
        return mask[:, None, None, :]
    return mask[None, None] if mask_type == _ATTENTION_MASK else mask


@entry("aten::_native_multi_head_attention")
def multi_head_attention(
    kernel: None,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    embed_dim: int,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    mask: torch.Tensor | None = None,
    need_weights: bool = True,
    average_attn_weights: bool = True,
    mask_type: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Attend with several heads: inputs (batch, length, embed_dim), weights of the three projections stacked."""
    if query is key and key is value:
        projected: Sequence[torch.Tensor] = F.linear(query, qkv_weight, qkv_bias).chunk(3, -1)
    else:
        parts = zip((query, key, value), qkv_weight.chunk(3), qkv_bias.chunk(3), strict=True)
        projected = [F.linear(*part) for part in parts]
    q, k, v = (p.unflatten(-1, (heads, -1)).transpose(1, 2) for p in projected)
    hidden = None if mask is None else _hidden(mask, mask_type)
    weights = None
    if need_weights:
        scores = (q / math.sqrt(q.shape[-1])) @ k.mT
        weights = (scores if hidden is None else scores.masked_fill(hidden, -math.inf)).softmax(-1)
        attended = weights @ v
        weights = weights.mean(1) if average_attn_weights else weights
    else:
        attended = F.scaled_dot_product_attention(q, k, v, None if hidden is None else ~hidden)
    return F.linear(attended.transpose(1, 2).flatten(2), proj_weight, proj_bias), weights


@entry("aten::_transformer_encoder_layer_fwd")
def encoder_layer(
    kernel: None,
    src: torch.Tensor,
    embed_dim: int,
    heads: int,
    qkv_weight: torch.Tensor,
    qkv_bias: torch.Tensor,
    proj_weight: torch.Tensor,
    proj_bias: torch.Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    norm_weight_1: torch.Tensor,
    norm_bias_1: torch.Tensor,
    norm_weight_2: torch.Tensor,
    norm_bias_2: torch.Tensor,
    ffn_weight_1: torch.Tensor,
    ffn_bias_1: torch.Tensor,
    ffn_weight_2: torch.Tensor,
    ffn_bias_2: torch.Tensor,
    mask: torch.Tensor | None = None,
    mask_type: int | None = None,
) -> torch.Tensor:
    """Run one encoder layer: attention and a feed-forward network, each with a residual and a norm before or after."""

    def attend(x: torch.Tensor) -> torch.Tensor:
        projections = qkv_weight, qkv_bias, proj_weight, proj_bias
        return multi_head_attention(None, x, x, x, embed_dim, heads, *projections, mask, False, True, mask_type)[0]

    def feed_forward(x: torch.Tensor) -> torch.Tensor:
        x = F.linear(x, ffn_weight_1, ffn_bias_1)
        return F.linear(F.gelu(x) if use_gelu else F.relu(x), ffn_weight_2, ffn_bias_2)

    def norm_1(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_1, norm_bias_1, eps)

    def norm_2(x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (embed_dim,), norm_weight_2, norm_bias_2, eps)

    if norm_first:
        x = src + attend(norm_1(src))
        return x + feed_forward(norm_2(x))
    x = norm_1(src + attend(src))
    return norm_2(x + feed_forward(x))


@entry("aten::_nested_tensor_from_mask_left_aligned")
def _left_aligned(kernel: None, tensor: torch.Tensor, mask: torch.Tensor) -> bool:
    """Say no: `nn.TransformerEncoder` would go on with nested tensors, whose ragged sizes XLA cannot compile."""
    return False


@rule("aten::_masked_softmax", metadata=lambda x, *rest: torch.empty_like(x))
def _masked_softmax(x: jax.Array, mask: jax.Array, dim: int | None, mask_type: int | None) -> jax.Array:
    if mask_type == _PADDING_MASK and mask.shape != x.shape:
        mask = mask[:, None, None, :]
    return softmax(jnp.where(mask, -jnp.inf, wide(x)), -1 if dim is None else dim)


@rule("aten::_masked_softmax_backward", metadata=lambda g, *rest: torch.empty_like(g))
def _masked_softmax_backward(g: jax.Array, y: jax.Array, mask: jax.Array, dim: int | None) -> jax.Array:
    hidden = jnp.broadcast_to(mask, g.shape)
    slope = softmax_backward(jnp.where(hidden, jnp.zeros((), g.dtype), wide(g)), wide(y), -1 if dim is None else dim)
    return jnp.where(hidden, jnp.zeros_like(slope), slope)
