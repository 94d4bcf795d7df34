"""Losses and their gradients: regression, binary, margin and negative log-likelihood (cross-entropy's last step)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torchtpu.ops.registry import elementwise, rule
from torchtpu.ops.softmax import wide

_NONE, _MEAN, _SUM = 0, 1, 2


def reduce(loss: jax.Array, reduction: int) -> jax.Array:
    """Apply a loss's reduction: none, mean or sum."""
    return jnp.mean(loss) if reduction == _MEAN else jnp.sum(loss) if reduction == _SUM else loss


def _share(g: jax.Array, reduction: int, count: int) -> jax.Array:
    """Return the part of a reduced loss's gradient that reaches each of `count` elements."""
    return g / max(count, 1) if reduction == _MEAN else g


# -- regression: functions of the distance between prediction and target


def _distance(name: str, value: Callable[..., jax.Array], slope: Callable[..., jax.Array]) -> None:
    """Register a loss that is `value(x - target, *numbers)`, with derivative `slope`."""

    def forward(x: jax.Array, target: jax.Array, reduction: int, *numbers: Any) -> jax.Array:
        return reduce(value(x - target, *numbers), reduction)

    def backward(g: jax.Array, x: jax.Array, target: jax.Array, reduction: int, *numbers: Any) -> jax.Array:
        d = x - target
        return slope(d, *numbers) * _share(g, reduction, d.size)

    elementwise(f"aten::{name}")(forward)
    elementwise(f"aten::{name}_backward")(backward)


def _smooth_l1(d: jax.Array, beta: jax.Array) -> jax.Array:
    z = jnp.abs(d)
    return jnp.where(z < beta, 0.5 * z * z / beta, z - 0.5 * beta)


def _smooth_l1_slope(d: jax.Array, beta: jax.Array) -> jax.Array:
    return jnp.where(d <= -beta, -jnp.ones_like(d), jnp.where(d >= beta, jnp.ones_like(d), d / beta))


def _huber(d: jax.Array, delta: jax.Array) -> jax.Array:
    z = jnp.abs(d)
    return jnp.where(z < delta, 0.5 * z * z, delta * (z - 0.5 * delta))


_distance("mse_loss", jnp.square, lambda d: 2 * d)
_distance("smooth_l1_loss", _smooth_l1, _smooth_l1_slope)
_distance("huber_loss", _huber, lambda d, delta: jnp.where(jnp.isnan(d), d, jnp.clip(d, -delta, delta)))


# -- binary


@elementwise("aten::binary_cross_entropy")
def _bce(x: jax.Array, target: jax.Array, weight: jax.Array | None, reduction: int) -> jax.Array:
    # PyTorch keeps logarithms above -100, so that the loss of a sure and wrong prediction is finite.
    loss = (target - 1) * jnp.maximum(jnp.log1p(-x), -100) - target * jnp.maximum(jnp.log(x), -100)
    return reduce(loss if weight is None else loss * weight, reduction)


@elementwise("aten::binary_cross_entropy_backward")
def _bce_backward(g: jax.Array, x: jax.Array, target: jax.Array, weight: jax.Array | None, reduction: int) -> jax.Array:
    slope = (x - target) / jnp.maximum((1 - x) * x, 1e-12)
    return _share(g, reduction, x.size) * (slope if weight is None else slope * weight)


@elementwise("aten::binary_cross_entropy_with_logits")
def _bce_with_logits(
    x: jax.Array, target: jax.Array, weight: jax.Array | None, pos_weight: jax.Array | None, reduction: int
) -> jax.Array:
    softplus = jnp.log1p(jnp.exp(-jnp.abs(x))) + jnp.maximum(-x, 0)
    loss = (1 - target) * x + (softplus if pos_weight is None else ((pos_weight - 1) * target + 1) * softplus)
    return reduce(loss if weight is None else loss * weight, reduction)


@elementwise("aten::soft_margin_loss")
def _soft_margin(x: jax.Array, target: jax.Array, reduction: int) -> jax.Array:
    return reduce(jnp.log1p(jnp.exp(-target * x)), reduction)


@elementwise("aten::soft_margin_loss_backward")
def _soft_margin_backward(g: jax.Array, x: jax.Array, target: jax.Array, reduction: int) -> jax.Array:
    z = jnp.exp(-target * x)
    return -target * z / (1 + z) * _share(g, reduction, x.size)


# -- negative log-likelihood


def _classes_at(x: jax.Array) -> int:
    return 0 if x.ndim == 1 else 1


def _is_class(x: jax.Array, target: jax.Array) -> jax.Array:
    """Return, in the shape of x, where the target names the class."""
    dim = _classes_at(x)
    return lax.broadcasted_iota(target.dtype, x.shape, dim) == jnp.expand_dims(target, dim)


def _class_weights(x: jax.Array, target: jax.Array, weight: jax.Array | None, ignore_index: int) -> jax.Array:
    """Return the weight of each target: 0 if it is to be ignored, NaN if it names no class."""
    classes = x.shape[_classes_at(x)]
    known = (target >= 0) & (target < classes)
    if weight is None:
        chosen = jnp.ones(target.shape, x.dtype)
    else:
        chosen = jnp.take(weight.astype(x.dtype), jnp.where(known, target, 0), axis=0)
    return jnp.where(target == ignore_index, jnp.zeros_like(chosen), jnp.where(known, chosen, jnp.full_like(chosen, jnp.nan)))


@rule("aten::nll_loss_forward", "aten::nll_loss2d_forward")
def _nll(
    x: jax.Array, target: jax.Array, weight: jax.Array | None, reduction: int, ignore_index: int
) -> tuple[jax.Array, jax.Array]:
    x, target = wide(x), target.astype(jnp.int64)
    weights = _class_weights(x, target, weight, ignore_index)
    # A sum with one term instead of a gather: it fuses with the log-softmax before it.
    picked = jnp.sum(jnp.where(_is_class(x, target), x, jnp.zeros_like(x)), axis=_classes_at(x))
    losses = jnp.where(weights == 0, jnp.zeros_like(picked), -picked * weights)
    if reduction == _NONE:
        return losses, jnp.zeros((), x.dtype)
    total = jnp.sum(weights)
    loss = jnp.sum(losses)
    return (loss / total if reduction == _MEAN else loss), total


@rule("aten::nll_loss_backward", "aten::nll_loss2d_backward")
def _nll_backward(
    g: jax.Array,
    x: jax.Array,
    target: jax.Array,
    weight: jax.Array | None,
    reduction: int,
    ignore_index: int,
    total_weight: jax.Array,
) -> jax.Array:
    g, wide_x, target = wide(g), wide(x), target.astype(jnp.int64)
    weights = _class_weights(wide_x, target, weight, ignore_index)
    if reduction == _MEAN:
        g = g / wide(total_weight)
    slopes = jnp.where(weights == 0, jnp.zeros_like(weights), -g * weights)
    return jnp.where(_is_class(wide_x, target), jnp.expand_dims(slopes, _classes_at(x)), jnp.zeros_like(wide_x))


# -- margins between classes


def _rows(x: jax.Array) -> jax.Array:
    return x.reshape(-1, x.shape[-1]) if x.ndim else x.reshape(1, 1)


def _margins(
    x: jax.Array, target: jax.Array, p: Any, margin: Any, weight: jax.Array | None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return per row and class: how far the class is inside the target's margin, whether it is the target, the weight."""
    x, target = _rows(x), target.reshape(-1)
    is_target = _is_class(x, target)
    own = jnp.sum(jnp.where(is_target, x, jnp.zeros_like(x)), axis=1, keepdims=True)
    inside = jnp.where(is_target, jnp.zeros_like(x), jnp.maximum(margin - own + x, 0))
    scale = jnp.ones((x.shape[0], 1), x.dtype) if weight is None else jnp.take(weight.astype(x.dtype), target)[:, None]
    return inside.astype(x.dtype), is_target, scale


@rule("aten::multi_margin_loss", dynamic="margin")
def _multi_margin(x: jax.Array, target: jax.Array, p: Any, margin: Any, weight: jax.Array | None, reduction: int) -> jax.Array:
    inside, _, scale = _margins(wide(x), target, p, margin, weight)
    losses = jnp.mean(scale * (inside if p == 1 else inside * inside), axis=1)
    return reduce(losses if x.ndim > 1 or reduction != _NONE else losses[0], reduction)


@rule("aten::multi_margin_loss_backward", dynamic="margin", metadata=lambda g, x, *rest: torch.empty_like(x))
def _multi_margin_backward(
    g: jax.Array, x: jax.Array, target: jax.Array, p: Any, margin: Any, weight: jax.Array | None, reduction: int
) -> jax.Array:
    inside, is_target, scale = _margins(wide(x), target, p, margin, weight)
    slope = scale * ((inside > 0).astype(inside.dtype) if p == 1 else 2 * inside) / inside.shape[1]
    slope = jnp.where(is_target, -jnp.sum(slope, axis=1, keepdims=True), slope)
    return (slope * _share(wide(g), reduction, slope.shape[0]).reshape(-1, 1)).reshape(x.shape)


def _multilabel(x: jax.Array, target: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return is_target (rows, classes), how far class j is inside the margin of listed label k (rows, k, j), the rows of x.

    Labels are listed up to the first negative one.
    """
    x, target = _rows(x), _rows(target)
    listed = jnp.cumsum(target < 0, axis=1) == 0
    names = (target[:, :, None] == jnp.arange(x.shape[1], dtype=target.dtype)) & listed[:, :, None]
    is_target = names.any(axis=1)
    own = jnp.sum(jnp.where(names, x[:, None, :], jnp.zeros((), x.dtype)), axis=2)
    inside = jnp.maximum(1 - own[:, :, None] + x[:, None, :], 0)
    return is_target, jnp.where(listed[:, :, None] & ~is_target[:, None, :], inside, jnp.zeros_like(inside)), names


@rule("aten::multilabel_margin_loss_forward")
def _multilabel_margin(x: jax.Array, target: jax.Array, reduction: int) -> tuple[jax.Array, jax.Array]:
    is_target, inside, _ = _multilabel(wide(x), target)
    losses = jnp.sum(inside, axis=(1, 2)) / inside.shape[2]
    return reduce(losses if x.ndim > 1 or reduction != _NONE else losses[0], reduction), is_target.reshape(target.shape)


@rule("aten::multilabel_margin_loss_backward", metadata=lambda g, x, *rest: torch.empty_like(x))
def _multilabel_margin_backward(
    g: jax.Array, x: jax.Array, target: jax.Array, reduction: int, is_target: jax.Array
) -> jax.Array:
    _, inside, names = _multilabel(wide(x), target)
    counts = (inside > 0).astype(inside.dtype) / inside.shape[2]
    # Each pair pushes the other class up and the label down.
    slope = jnp.sum(counts, axis=1) - jnp.einsum("nk,nkj->nj", jnp.sum(counts, axis=2), names.astype(counts.dtype))
    return (slope * _share(wide(g), reduction, slope.shape[0]).reshape(-1, 1)).reshape(x.shape)
