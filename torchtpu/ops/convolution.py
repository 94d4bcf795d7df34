"""Convolutions in one, two and three dimensions, plain and transposed, and their gradients.

All four are the same XLA convolution: the input's gradient is the transposed convolution, the weight's one a convolution
of the input with the output's gradient whose batch and channels have changed places.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax
from torch._prims_common import suggest_memory_format

from torchtpu.ops.products import accumulator_of, product
from torchtpu.ops.registry import rule


def correlate(
    x: jax.Array,
    w: jax.Array,
    size: Sequence[int],
    *,
    layout: tuple[str, str, str] = ("NC", "OI", "NC"),
    stride: Sequence[int],
    before: Sequence[int],
    spread: Sequence[int],
    dilation: Sequence[int],
    groups: int = 1,
) -> jax.Array:
    """Slide `w` over `x`.

    Args:
        x, w: input and window, named by `layout`; `w` is not flipped.
        size: spatial size of the result; the padding after `x` follows from it (negative: the rest is not read).
        layout: the two leading letters of `lax.conv_dimension_numbers` for x, w and the result.
        stride, dilation: steps of the window, and inside it.
        before: padding before x (negative crops).
        spread: x[i] is taken to sit at i * spread, with zeros between.
        groups: into which the channels of x and of the result are divided.
    """
    axes = "DHW"[3 - len(size) :]
    padding = []
    for k, n in enumerate(size):
        there = (x.shape[2 + k] - 1) * spread[k] + 1
        wanted = (n - 1) * stride[k] + (w.shape[2 + k] - 1) * dilation[k] + 1
        padding.append((before[k], wanted - there - before[k]))
    multiply = partial(
        lax.conv_general_dilated,
        window_strides=stride,
        padding=padding,
        lhs_dilation=spread,
        rhs_dilation=dilation,
        dimension_numbers=tuple(name + axes for name in layout),
        feature_group_count=groups,
        preferred_element_type=accumulator_of(x.dtype),
    )
    return product(multiply, x, w)


def transposed(
    x: jax.Array,
    w: jax.Array,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> jax.Array:
    """Convolve backwards: `w` is (channels of x, channels of the result / groups, ...), `size` the result's."""
    w = _grouped_transpose(w, groups)
    w = lax.rev(w, range(2, w.ndim))
    before = [d * (k - 1) - p for k, p, d in zip(w.shape[2:], padding, dilation, strict=True)]
    return correlate(x, w, size, stride=[1] * len(size), before=before, spread=stride, dilation=dilation, groups=groups)


def _grouped_transpose(w: jax.Array, groups: int) -> jax.Array:
    """Exchange the two channel dimensions inside each group: (g * a, b, ...) becomes (g * b, a, ...)."""
    if groups == 1:
        return jnp.swapaxes(w, 0, 1)
    first, second, *window = w.shape
    w = jnp.swapaxes(w.reshape(groups, first // groups, second, *window), 1, 2)
    return w.reshape(groups * second, first // groups, *window)


def weight_gradient(
    x: jax.Array,
    g: jax.Array,
    window: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
) -> jax.Array:
    """Return the gradient of a plain convolution's weight: (channels of g, channels of x / groups, *window)."""
    n, channels, *space = x.shape
    if groups > 1:  # the groups join the batch, which is summed over; XLA's batch_group_count computes all pairs of groups
        x = jnp.swapaxes(x.reshape(n, groups, channels // groups, *space), 0, 1)
        x = x.reshape(groups * n, channels // groups, *space)
    gradient = correlate(
        x,
        g,
        window,
        layout=("CN", "IO", "NC"),
        stride=dilation,
        before=padding,
        spread=[1] * len(window),
        dilation=stride,
        groups=groups,
    )
    return jnp.swapaxes(gradient, 0, 1)


def _per_dimension(count: int, *lists: Sequence[int]) -> list[list[int]]:
    """Expand lists of length one, as PyTorch does."""
    return [list(values) * count if len(values) == 1 else list(values) for values in lists]


def _metadata(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None, *rest: Any) -> torch.Tensor:
    """Check what PyTorch's CPU kernels check, and keep channels_last as they do: its meta kernel cannot know the device."""
    if min(rest[1], default=0) < 0:
        raise RuntimeError("negative padding is not supported")
    if min(rest[2], default=1) <= 0:
        raise RuntimeError("dilation should be greater than zero")
    result = torch.ops.aten.convolution.default(x, w, bias, *rest)
    chosen = {suggest_memory_format(t) for t in (x, w)} - {torch.contiguous_format}
    return result.contiguous(memory_format=chosen.pop()) if chosen else result


@rule("aten::convolution", meta=True, precision=True, metadata=_metadata)
def convolution(
    x: jax.Array,
    w: jax.Array,
    bias: jax.Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    is_transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *,
    out: Sequence[Any],
) -> jax.Array:
    shape = tuple(out[0].shape)
    size = shape[2:]
    stride, padding, dilation = _per_dimension(len(size), stride, padding, dilation)
    if 0 in shape or 0 in x.shape:
        result = jnp.zeros(shape, x.dtype)
    elif is_transposed:
        result = transposed(x, w, size, stride, padding, dilation, groups)
    else:
        result = correlate(x, w, size, stride=stride, before=padding, spread=[1] * len(size), dilation=dilation, groups=groups)
    return result if bias is None else result + bias.astype(result.dtype).reshape(-1, *[1] * len(size))


@rule("aten::convolution_backward", precision=True)
def convolution_backward(
    g: jax.Array,
    x: jax.Array,
    w: jax.Array,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    is_transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[jax.Array | None, ...]:
    size, window = x.shape[2:], w.shape[2:]
    stride, padding, dilation = _per_dimension(len(size), stride, padding, dilation)
    gx = gw = gb = None
    if output_mask[0]:
        if 0 in x.shape or 0 in g.shape:
            gx = jnp.zeros_like(x)
        elif is_transposed:
            gx = correlate(g, w, size, stride=stride, before=padding, spread=[1] * len(size), dilation=dilation, groups=groups)
        else:
            gx = transposed(g, w, size, stride, padding, dilation, groups)
    if output_mask[1]:
        if 0 in x.shape or 0 in g.shape:
            gw = jnp.zeros_like(w)
        elif is_transposed:
            gw = weight_gradient(g, x, window, stride, padding, dilation, groups)
        else:
            gw = weight_gradient(x, g, window, stride, padding, dilation, groups)
    if output_mask[2]:
        gb = jnp.sum(g, axis=(0, *range(2, g.ndim)), dtype=accumulator_of(g.dtype) or g.dtype)
    return gx, gw, gb
