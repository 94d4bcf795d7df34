"""Scaled dot-product attention as one op forward and one backward, where PyTorch would otherwise run a dozen.

Forward saves the logarithm of each row's sum of exponentials, backward computes the weights again from it: between the two
only queries, keys, values and the result stay in memory, not the (queries x keys) matrix of weights. Scores, softmax and
sums are float32 for 16-bit inputs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torchtpu.ops.matmul import sum_to
from torchtpu.ops.products import accumulator_of, product
from torchtpu.ops.registry import composite, rule
from torchtpu.ops.softmax import wide


def _product(equation: str, a: jax.Array, b: jax.Array) -> jax.Array:
    dtype = accumulator_of(a.dtype) or a.dtype
    return product(partial(jnp.einsum, equation, preferred_element_type=dtype), a, b)


def _grouped(x: jax.Array, heads: int) -> jax.Array:
    """Split the heads of queries by the key head that they share: (batch, heads, group, length, ...)."""
    return x.reshape(x.shape[0], heads, x.shape[1] // heads, *x.shape[2:])


@dataclass(frozen=True, slots=True)
class _Block:
    """Queries `start:stop` and the keys before `end`, the only ones they attend to. `causal`: not to those after themselves."""

    start: int
    stop: int
    end: int
    causal: bool

    def scores(self, q: jax.Array, k: jax.Array, bias: jax.Array | None, scale: float) -> jax.Array:
        """Return scaled and masked scores: (batch, key heads, group, queries, keys)."""
        scores = _product("bhgqd,bhkd->bhgqk", q, k) * jnp.asarray(scale, accumulator_of(q.dtype) or q.dtype)
        if bias is not None:
            bias = bias[..., self.start : self.stop, : self.end]
            scores = jnp.where(bias, scores, -jnp.inf) if bias.dtype == bool else scores + bias.astype(scores.dtype)
        if self.causal:
            query, key = (lax.broadcasted_iota(jnp.int32, scores.shape[3:], d) for d in (0, 1))
            scores = jnp.where(query + self.start >= key, scores, -jnp.inf)
        return scores


_MAX_BLOCKS = 4
_MIN_QUERIES = 64


def _blocks(queries: int, keys: int, is_causal: bool) -> list[_Block]:
    """Cut a causal product into blocks of queries: 4 of them do 5/8 of the work, in a quarter of the memory."""
    if not is_causal:
        return [_Block(0, queries, keys, False)]
    count = max(1, min(_MAX_BLOCKS, queries // _MIN_QUERIES))
    cuts = [queries * k // count for k in range(count + 1)]
    return [_Block(start, stop, min(stop, keys), True) for start, stop in itertools.pairwise(cuts)]


def _full(bias: jax.Array | None, q: jax.Array, k: jax.Array) -> jax.Array | None:
    """Broadcast a bias to (batch, key heads, group, queries, keys)."""
    if bias is None:
        return None
    return _grouped(jnp.broadcast_to(bias, (*q.shape[:3], k.shape[2])), k.shape[1])


def _scale(q: jax.Array, scale: float | None) -> float:
    return 1 / math.sqrt(q.shape[-1]) if scale is None else scale


@rule("aten::_scaled_dot_product_fused_attention_overrideable", precision=True)
def _attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    bias: jax.Array | None,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    scale: float | None,
) -> tuple[jax.Array | None, ...]:
    if dropout_p:
        raise NotImplementedError("fused attention has no dropout")
    shape, bias, queries = q.shape, _full(bias, q, k), _grouped(q, k.shape[1])
    results, logsumexps = [], []
    for block in _blocks(shape[2], k.shape[2], is_causal):
        scores = block.scores(queries[..., block.start : block.stop, :], k[:, :, : block.end], bias, _scale(q, scale))
        top = jnp.max(scores, axis=-1, keepdims=True, initial=-jnp.inf)
        top = jnp.where(top == -jnp.inf, jnp.zeros_like(top), top)
        weights = jnp.exp(scores - top)
        total = jnp.sum(weights, axis=-1, keepdims=True)
        weighted = _product("bhgqk,bhkd->bhgqd", weights.astype(v.dtype), v[:, :, : block.end])
        # A query whose keys are all masked attends to nothing: zeros, as in PyTorch.
        results.append(weighted / jnp.where(total == 0, jnp.ones_like(total), total))
        logsumexps.append(jnp.log(total) + top)
    result = jnp.concatenate(results, axis=3).reshape(*shape[:-1], v.shape[-1])
    logsumexp = jnp.concatenate(logsumexps, axis=3).reshape(shape[:-1])
    unused = jnp.zeros((), jnp.int64)
    return result, logsumexp, None, None, None, None, unused, unused, None


@rule("aten::_scaled_dot_product_fused_attention_overrideable_backward", precision=True)
def _attention_backward(
    g: jax.Array,
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    bias: jax.Array | None,
    grad_input_mask: Sequence[bool],
    result: jax.Array,
    logsumexp: jax.Array,
    *rest: Any,
) -> tuple[jax.Array | None, ...]:
    is_causal, scale = rest[5], _scale(q, rest[8])
    shape, heads, bias_shape = q.shape, k.shape[1], None if bias is None else bias.shape
    dots = _grouped(jnp.sum(wide(g) * wide(result), axis=-1, keepdims=True), heads)
    full, queries, gs, sums = _full(bias, q, k), _grouped(q, heads), _grouped(g, heads), _grouped(logsumexp, heads)[..., None]
    gqs, gbs = [], []
    gk = gv = None
    for block in _blocks(shape[2], k.shape[2], is_causal):
        rows, keys = (..., slice(block.start, block.stop), slice(None)), (..., slice(0, block.end), slice(None))
        scores = block.scores(queries[rows], k[keys], full, scale)
        shift = jnp.where(jnp.isneginf(sums[rows]), jnp.zeros_like(sums[rows]), sums[rows])
        weights = jnp.exp(scores - shift)
        slope = weights * (_product("bhgqd,bhkd->bhgqk", gs[rows], v[keys]) - dots[rows])
        narrow = (slope * jnp.asarray(scale, slope.dtype)).astype(q.dtype)
        gqs.append(_product("bhgqk,bhkd->bhgqd", narrow, k[keys]))
        gk = _accumulated(gk, _product("bhgqk,bhgqd->bhkd", narrow, queries[rows]), k.shape[2])
        gv = _accumulated(gv, _product("bhgqk,bhgqd->bhkd", weights.astype(g.dtype), gs[rows]), k.shape[2])
        gbs.append(slope)
    gb = None if bias_shape is None else jnp.zeros(bias_shape, bias.dtype)
    if bias_shape is not None and grad_input_mask[3]:
        slopes = jnp.concatenate([_longer(s, k.shape[2], -1) for s in gbs], axis=3)
        gb = sum_to(slopes.reshape(*shape[:3], k.shape[2]), bias_shape)
    return jnp.concatenate(gqs, axis=3).reshape(shape), gk, gv, gb


def _longer(x: jax.Array, size: int, axis: int) -> jax.Array:
    """Append zeros."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, size - x.shape[axis])
    return jnp.pad(x, widths)


def _accumulated(total: jax.Array | None, part: jax.Array, keys: int) -> jax.Array:
    """Add to the gradient of all keys that of the first ones."""
    part = _longer(part, keys, 2)
    return part if total is None else total + part


@composite("aten::scaled_dot_product_attention")
def _choose(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Take the fused op where it applies and the user allows it, else PyTorch's composition of plain ops."""
    if fits(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa):
        fused = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default
        return fused(query, key, value, attn_mask, 0.0, is_causal, False, scale=scale)[0]
    composed = torch.ops.aten.scaled_dot_product_attention.default.decompose
    return composed(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)


def fits(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    dropout_p: float,
    is_causal: bool,
    grouped: bool,
) -> bool:
    """Whether the fused op computes this attention. The rest, and every mistake, is for PyTorch's own composition."""
    return (
        torch._C._get_overrideable_sdp_enabled()
        and dropout_p == 0
        and q.dim() == k.dim() == v.dim() == 4
        and q.dtype == k.dtype == v.dtype
        and q.dtype in (torch.float32, torch.bfloat16, torch.float16)  # `logsumexp` is float32
        and q.shape[0] == k.shape[0] == v.shape[0]
        and k.shape[1:3] == v.shape[1:3]
        and q.shape[3] == k.shape[3]
        and (q.shape[1] == k.shape[1] or (grouped and k.shape[1] > 0 and q.shape[1] % k.shape[1] == 0))
        and 0 not in q.shape
        and 0 not in v.shape
        and not (is_causal and mask is not None)
        and (mask is None or (mask.dtype in (torch.bool, q.dtype) and mask.device == q.device and _broadcasts(mask, q, k)))
    )


def _broadcasts(mask: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> bool:
    full = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    return mask.dim() <= 4 and all(m in (1, n) for m, n in zip(reversed(mask.shape), reversed(full), strict=False))
