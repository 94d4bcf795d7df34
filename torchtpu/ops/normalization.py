"""Normalisations over the batch, layer or group, and their gradients.

Statistics are taken in float32 for 16-bit floats, in two passes (the mean, then the mean of squared distances to it).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax
from torch import Tensor

from torchtpu.ops.registry import composite, entry, rule
from torchtpu.ops.softmax import wide

Mask = Sequence[bool]


def moments(x: jax.Array, axes: Sequence[int]) -> tuple[jax.Array, jax.Array]:
    """Return mean and biased variance over `axes`, which are kept with size 1."""
    mean = jnp.mean(x, axes, keepdims=True)
    return mean, jnp.mean(jnp.square(x - mean), axes, keepdims=True)


def _affine(x: jax.Array, weight: jax.Array | None, bias: jax.Array | None) -> jax.Array:
    """Return x * weight + bias for parameters that broadcast against x."""
    if weight is not None:
        x = x * weight.astype(x.dtype)
    return x if bias is None else x + bias.astype(x.dtype)


def _input_gradient(g: jax.Array, normal: jax.Array, rstd: jax.Array, axes: Sequence[int]) -> jax.Array:
    """Return the gradient of x from that of its normalised value, whose statistics were taken over `axes`."""
    return rstd * (g - jnp.mean(g, axes, keepdims=True) - normal * jnp.mean(g * normal, axes, keepdims=True))


def _saved(statistics: jax.Array, out: torch.Tensor) -> jax.Array:
    """Return statistics for the backward pass, or the empty result that PyTorch has where there is none."""
    return statistics if out.numel() == statistics.size else jnp.zeros(tuple(out.shape), statistics.dtype)


# -- batch


def _by_channel(values: jax.Array, x: jax.Array) -> jax.Array:
    return values.reshape(1, -1, *[1] * (x.ndim - 2)).astype(x.dtype)


def _not_channels(x: jax.Array) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _batch_norm(
    x: jax.Array,
    weight: jax.Array | None,
    bias: jax.Array | None,
    running_mean: jax.Array | None,
    running_var: jax.Array | None,
    training: bool,
    momentum: Any,
    eps: Any,
    *,
    out: Sequence[Any],
) -> tuple[jax.Array | None, ...]:
    """Return the result, the saved mean and 1/deviation, and the new running statistics (None where there are none)."""
    x = wide(x)
    if training:
        mean, var = moments(x, _not_channels(x))
        count = x.size // max(x.shape[1], 1)
        if running_mean is not None:
            running_mean = running_mean + momentum * (mean.ravel() - running_mean)
        if running_var is not None:
            running_var = running_var + momentum * (var.ravel() * (count / max(count - 1, 1)) - running_var)
    else:
        mean, var = _by_channel(running_mean, x), _by_channel(running_var, x)
    rstd = lax.rsqrt(var + eps)
    parameters = [None if p is None else _by_channel(p, x) for p in (weight, bias)]
    result = _affine((x - mean) * rstd, *parameters)
    saved = [_saved(s.ravel(), o) for s, o in zip((mean, rstd), out[1:3], strict=True)]
    return result, *saved, running_mean, running_var


_NUMBERS = ("momentum", "eps")
rule("aten::native_batch_norm", meta=True, dynamic=_NUMBERS, writes=("running_mean", "running_var"))(_batch_norm)
rule("aten::_native_batch_norm_legit", "aten::_native_batch_norm_legit_functional", meta=True, dynamic=_NUMBERS)(_batch_norm)


@entry("aten::_native_batch_norm_legit.out", "aten::_native_batch_norm_legit.no_stats_out")
def _batch_norm_out(_kernel: Any, *args: Any, out: Tensor, save_mean: Tensor, save_invstd: Tensor) -> tuple[Tensor, ...]:
    targets = out, save_mean, save_invstd
    for target, result in zip(targets, torch.ops.aten._native_batch_norm_legit(*args), strict=True):
        target.resize_(result.shape).copy_(result)
    return targets


@rule("aten::_native_batch_norm_legit.no_stats", meta=True, dynamic=_NUMBERS)
def _batch_norm_no_stats(
    x: jax.Array,
    weight: jax.Array | None,
    bias: jax.Array | None,
    training: bool,
    momentum: Any,
    eps: Any,
    *,
    out: Sequence[Any],
) -> tuple[jax.Array | None, ...]:
    return _batch_norm(x, weight, bias, None, None, True, momentum, eps, out=out)[:3]


@rule("aten::_native_batch_norm_legit_no_training", meta=True, dynamic=_NUMBERS)
def _batch_norm_no_training(*args: Any, out: Sequence[Any]) -> tuple[jax.Array | None, ...]:
    return _batch_norm(*args[:5], False, *args[5:], out=out)[:3]


@rule("aten::_batch_norm_with_update", meta=True, dynamic=_NUMBERS)
def _batch_norm_with_update(*args: Any, out: Sequence[Any]) -> tuple[jax.Array | None, ...]:
    result, mean, rstd, *running = _batch_norm(*args[:5], True, *args[5:], out=out)
    return result, mean, rstd, jnp.zeros(tuple(out[3].shape), jnp.uint8), *running


@rule("aten::_batch_norm_no_update", meta=True, dynamic=_NUMBERS)
def _batch_norm_no_update(*args: Any, out: Sequence[Any]) -> tuple[jax.Array | None, ...]:
    result, mean, rstd, *_ = _batch_norm(*args[:5], False, *args[5:], out=out)
    return result, mean, rstd, jnp.zeros(tuple(out[3].shape), jnp.uint8)


@rule("aten::native_batch_norm_backward", dynamic="eps")
def _batch_norm_backward(
    g: jax.Array,
    x: jax.Array,
    weight: jax.Array | None,
    running_mean: jax.Array | None,
    running_var: jax.Array | None,
    save_mean: jax.Array | None,
    save_rstd: jax.Array | None,
    training: bool,
    eps: Any,
    output_mask: Mask,
) -> tuple[jax.Array | None, ...]:
    g, x = wide(g), wide(x)
    if training:
        mean, rstd = _by_channel(save_mean, x), _by_channel(save_rstd, x)
    else:
        mean, rstd = _by_channel(running_mean, x), lax.rsqrt(_by_channel(running_var, x) + eps)
    axes = _not_channels(x)
    normal = (x - mean) * rstd
    gx = gw = gb = None
    if output_mask[0]:
        scaled = g if weight is None else g * _by_channel(weight, x)
        gx = _input_gradient(scaled, normal, rstd, axes) if training else scaled * rstd
    if output_mask[1]:
        gw = jnp.sum(g * normal, axes)
    if output_mask[2]:
        gb = jnp.sum(g, axes)
    return gx, gw, gb


@rule("aten::batch_norm_backward", dynamic="eps")
def _batch_norm_backward_reserved(g: jax.Array, x: jax.Array, weight: jax.Array, *args: Any) -> tuple[jax.Array | None, ...]:
    return _batch_norm_backward(g, x, weight, *args[:-1])


# -- layer


@rule("aten::native_layer_norm", meta=True, dynamic="eps")
def _layer_norm(
    x: jax.Array,
    normalized_shape: Sequence[int],
    weight: jax.Array | None,
    bias: jax.Array | None,
    eps: Any,
    *,
    out: Sequence[Any],
) -> tuple[jax.Array, ...]:
    x = wide(x)
    mean, var = moments(x, range(x.ndim - len(normalized_shape), x.ndim))
    rstd = lax.rsqrt(var + eps)
    return _affine((x - mean) * rstd, weight, bias), _saved(mean, out[1]), _saved(rstd, out[2])


@rule("aten::native_layer_norm_backward")
def _layer_norm_backward(
    g: jax.Array,
    x: jax.Array,
    normalized_shape: Sequence[int],
    mean: jax.Array,
    rstd: jax.Array,
    weight: jax.Array | None,
    bias: jax.Array | None,
    output_mask: Mask,
) -> tuple[jax.Array | None, ...]:
    g, x = wide(g), wide(x)
    split = x.ndim - len(normalized_shape)
    outer, inner = tuple(range(split)), tuple(range(split, x.ndim))
    normal = (x - mean.astype(x.dtype)) * rstd.astype(x.dtype)
    gx = gw = gb = None
    if output_mask[0]:
        gx = _input_gradient(_affine(g, weight, None), normal, rstd.astype(x.dtype), inner)
    if output_mask[1]:
        gw = jnp.sum(g * normal, outer)
    if output_mask[2]:
        gb = jnp.sum(g, outer)
    return gx, gw, gb


@composite("aten::rms_norm")
def _rms_norm(
    x: torch.Tensor, normalized_shape: Sequence[int], weight: torch.Tensor | None = None, eps: float | None = None
) -> torch.Tensor:
    sizes = tuple(normalized_shape)
    fits = sizes and tuple(x.shape[-len(sizes) :]) == sizes
    if not fits or (weight is not None and (weight.dtype != x.dtype or tuple(weight.shape) != sizes)):
        # PyTorch's own composition has a rule for mixed dtypes, and words for mistakes.
        return torch.ops.aten.rms_norm.default.decompose(x, normalized_shape, weight, eps)
    return torch.ops.aten._fused_rms_norm.default(x, normalized_shape, weight, eps)[0]


@rule("aten::_fused_rms_norm", meta=True, dynamic="eps")
def _fused_rms_norm(
    x: jax.Array, normalized_shape: Sequence[int], weight: jax.Array | None, eps: Any, *, out: Sequence[Any]
) -> tuple[jax.Array, jax.Array]:
    y = wide(x)
    # Without eps it is the distance from 1 to the next number of the input's dtype.
    eps = jnp.finfo(x.dtype).eps if eps is None else eps
    rstd = lax.rsqrt(jnp.mean(jnp.square(y), range(x.ndim - len(normalized_shape), x.ndim), keepdims=True) + eps)
    return _affine(y * rstd, weight, None), rstd.reshape(tuple(out[1].shape))


@rule("aten::_fused_rms_norm_backward")
def _rms_norm_backward(
    g: jax.Array, x: jax.Array, normalized_shape: Sequence[int], rstd: jax.Array, weight: jax.Array | None, output_mask: Mask
) -> tuple[jax.Array | None, ...]:
    g, x = wide(g), wide(x)
    split = x.ndim - len(normalized_shape)
    rstd = rstd.astype(x.dtype)
    normal = x * rstd
    gx = gw = None
    if output_mask[0]:
        scaled = _affine(g, weight, None)
        gx = rstd * (scaled - normal * jnp.mean(scaled * normal, range(split, x.ndim), keepdims=True))
    if output_mask[1]:
        gw = jnp.sum(g * normal, tuple(range(split)))
    return gx, gw


# -- group


@rule("aten::native_group_norm", meta=True, dynamic="eps")
def _group_norm(
    x: jax.Array,
    weight: jax.Array | None,
    bias: jax.Array | None,
    n: int,
    channels: int,
    size: int,
    groups: int,
    eps: Any,
    *,
    out: Sequence[Any],
) -> tuple[jax.Array, ...]:
    grouped = wide(x).reshape(n, groups, channels // groups, size)
    mean, var = moments(grouped, (2, 3))
    rstd = lax.rsqrt(var + eps)
    normal = ((grouped - mean) * rstd).reshape(n, channels, size)
    parameters = [None if p is None else _by_channel(p, normal) for p in (weight, bias)]
    return _affine(normal, *parameters).reshape(x.shape), mean.reshape(n, groups), rstd.reshape(n, groups)


@rule("aten::native_group_norm_backward")
def _group_norm_backward(
    g: jax.Array,
    x: jax.Array,
    mean: jax.Array,
    rstd: jax.Array,
    weight: jax.Array | None,
    n: int,
    channels: int,
    size: int,
    groups: int,
    output_mask: Mask,
) -> tuple[jax.Array | None, ...]:
    shape = x.shape
    split = (n, groups, channels // groups, size)
    g, x = wide(g).reshape(split), wide(x).reshape(split)
    mean, rstd = (s.astype(x.dtype).reshape(n, groups, 1, 1) for s in (mean, rstd))
    normal = (x - mean) * rstd
    gx = gw = gb = None
    if output_mask[0]:
        scaled = g if weight is None else g * weight.astype(x.dtype).reshape(1, groups, -1, 1)
        gx = _input_gradient(scaled, normal, rstd, (2, 3)).reshape(shape)
    if output_mask[1]:
        gw = jnp.sum(g * normal, (0, 3)).reshape(channels)
    if output_mask[2]:
        gb = jnp.sum(g, (0, 3)).reshape(channels)
    return gx, gw, gb
