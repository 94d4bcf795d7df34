"""Pooling over windows: maximum (with positions), average, their adaptive forms, and gradients.

A maximum is found axis by axis, last axis first, which costs the sum of the window's sides and not their product. The rule
for ties is PyTorch's on the CPU: the first largest value in memory order, but the last NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu.ops.registry import rule
from torchtpu.ops.softmax import wide

Ints = Sequence[int]


def _per_axis(axes: int, values: Ints, default: Ints = ()) -> list[int]:
    values = list(values) or list(default)
    return values * axes if len(values) == 1 else values


def _along(values: np.ndarray, ndim: int, axis: int) -> np.ndarray:
    """Shape a vector to broadcast along one axis of `ndim`."""
    return values.reshape([-1 if d == axis else 1 for d in range(ndim)])


# -- maximum


class Windows:
    """The windows along one axis.

    Attributes:
        starts: the first position of each; may lie in the padding.
        taps: the positions of each window that are looked at, one array per step into the window.
        regular: whether the starts are evenly spaced, so that a tap is a strided slice.
    """

    def __init__(self, starts: np.ndarray, taps: list[np.ndarray], regular: bool) -> None:
        self.starts, self.taps, self.regular = starts, taps, regular

    @classmethod
    def sliding(cls, count: int, kernel: int, stride: int, padding: int, dilation: int) -> Windows:
        starts = np.arange(count) * stride - padding
        # The first position of each window that is not padding: the answer if nothing in the window exceeds -inf.
        valid = starts + -(np.minimum(starts, 0) // dilation) * dilation
        return cls(valid, [starts + k * dilation for k in range(kernel)], True)

    @classmethod
    def adaptive(cls, size: int, count: int) -> Windows:
        starts, ends = adaptive_bounds(size, count)
        longest = int((ends - starts).max(initial=0))
        if size % max(count, 1) == 0:
            return cls(starts, [starts + k for k in range(longest)], True)
        return cls(starts, [np.minimum(starts + k, ends - 1) for k in range(longest)], False)

    def values(self, x: jax.Array, axis: int, fills: Any) -> Iterator[jax.Array]:
        """Yield x at each tap, `fills` outside of it."""
        if not self.regular:
            yield from (jnp.take(x, tap, axis=axis) for tap in self.taps)
            return
        count, first, last = len(self.starts), int(self.taps[0][0]), int(self.taps[-1][-1])
        step = int(self.taps[0][1]) - first if count > 1 else 1
        before, after = max(-first, 0), max(last + 1 - x.shape[axis], 0)
        x = lax.pad(x, fills, [(before, after, 0) if d == axis else (0, 0, 0) for d in range(x.ndim)])
        for tap in self.taps:
            begin = int(tap[0]) + before
            yield lax.slice_in_dim(x, begin, begin + (count - 1) * step + 1, step, axis)


def adaptive_bounds(size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return starts and ends of the `count` windows into which adaptive pooling divides an axis."""
    k = np.arange(count)
    return k * size // max(count, 1), -((k + 1) * -size // max(count, 1))


def max_pool(x: jax.Array, windows: Sequence[Windows]) -> tuple[jax.Array, jax.Array]:
    """Return the largest value in each window over the last axes, and its position in their flattened space."""
    lowest = -jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min
    fill = jnp.asarray(lowest, x.dtype)
    space = x.shape[x.ndim - len(windows) :]
    value, position, initial = x, None, np.int32(0)
    stride = 1
    for k in range(len(windows) - 1, -1, -1):
        axis = x.ndim - len(windows) + k
        initial = initial + _along(windows[k].starts * stride, x.ndim, axis).astype(np.int32)
        shape = (*value.shape[:axis], len(windows[k].starts), *value.shape[axis + 1 :])
        best, best_position = jnp.full(shape, fill), jnp.broadcast_to(initial, shape)
        there = windows[k].values(position, axis, jnp.int32(0)) if position is not None else iter(lambda: 0, None)
        for tap, v, p in zip(windows[k].taps, windows[k].values(value, axis, fill), there, strict=False):
            better = (v > best) | (v != v)
            best = jnp.where(better, v, best)
            best_position = jnp.where(better, p + _along(tap * stride, x.ndim, axis).astype(np.int32), best_position)
        value, position = best, best_position
        stride *= space[k]
    assert position is not None
    return value, position.astype(jnp.int64)


def _max_pool(axes: int) -> Any:
    def pool(
        x: jax.Array, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil_mode: bool, *, out: Sequence[Any]
    ) -> Any:
        counts = out[0].shape[-axes:]
        kernel = _per_axis(axes, kernel)
        sides = zip(
            counts, kernel, _per_axis(axes, stride, kernel), _per_axis(axes, padding), _per_axis(axes, dilation), strict=True
        )
        return max_pool(x, [Windows.sliding(*side) for side in sides])

    return pool


def _scatter(g: jax.Array, x: jax.Array, indices: jax.Array, axes: int) -> jax.Array:
    """Add each gradient to the position that its maximum came from."""
    lead, space = x.shape[: x.ndim - axes], x.shape[x.ndim - axes :]
    rows, size = math.prod(lead), math.prod(space)
    row = lax.broadcasted_iota(jnp.int32, (rows, g.size // max(rows, 1)), 0)
    result = jnp.zeros((rows, size), wide(g).dtype).at[row, indices.reshape(row.shape)].add(wide(g).reshape(row.shape))
    return result.reshape(x.shape)


for _axes in (2, 3):
    rule(f"aten::max_pool{_axes}d_with_indices", meta=True)(_max_pool(_axes))
    rule(f"aten::max_pool{_axes}d_with_indices_backward")(
        lambda g, x, kernel, stride, padding, dilation, ceil_mode, indices, axes=_axes: _scatter(g, x, indices, axes)
    )
    rule(f"aten::adaptive_max_pool{_axes}d")(
        lambda x, size, axes=_axes: max_pool(
            x, [Windows.adaptive(n, count) for n, count in zip(x.shape[-axes:], _per_axis(axes, size), strict=True)]
        )
    )
    rule(f"aten::adaptive_max_pool{_axes}d_backward")(lambda g, x, indices, axes=_axes: _scatter(g, x, indices, axes))


def _unpool(axes: int) -> Any:
    def unpool(x: jax.Array, indices: jax.Array, size: Ints, *ignored: Ints) -> jax.Array:
        lead = x.shape[: x.ndim - axes]
        rows = math.prod(lead)
        row = lax.broadcasted_iota(jnp.int32, (rows, math.prod(x.shape[x.ndim - axes :])), 0)
        result = jnp.zeros((rows, math.prod(size)), x.dtype).at[row, indices.reshape(row.shape)].set(x.reshape(row.shape))
        return result.reshape(*lead, *size)

    return unpool


def _fractional_positions(samples: jax.Array, size: int, count: int, kernel: int) -> jax.Array:
    """Return, for each sample, the positions in each of `count` windows: (..., count, kernel)."""
    last = jnp.full((*samples.shape, 1), size - kernel, jnp.int32)
    step = np.array((size - kernel) / max(count - 1, 1), samples.dtype)
    k = np.arange(count - 1, dtype=samples.dtype)
    starts = ((k + samples[..., None]) * step).astype(jnp.int32) - (samples[..., None] * step).astype(jnp.int32)
    return jnp.concatenate([starts, last], axis=-1)[..., None] + np.arange(kernel, dtype=np.int32)


def _fractional_max_pool(axes: int) -> Any:
    def pool(x: jax.Array, kernel: Ints, counts: Ints, samples: jax.Array) -> tuple[jax.Array, jax.Array]:
        kernel, counts = _per_axis(axes, kernel), _per_axis(axes, counts)
        lead, space = x.shape[: x.ndim - axes], x.shape[x.ndim - axes :]
        samples = wide(samples if len(lead) > 1 else samples[0]).reshape(*lead, axes)
        order = (1, 0) if axes == 2 else (0, 1, 2)  # in two dimensions the first sample is for the width
        flat = jnp.zeros((*lead, *[1] * (2 * axes)), jnp.int32)
        for d in range(axes):
            there = _fractional_positions(samples[..., order[d]], space[d], counts[d], kernel[d])
            shape = [1] * (2 * axes)
            shape[d], shape[axes + d] = counts[d], kernel[d]
            flat = flat * space[d] + there.reshape(*lead, *shape)
        flat = flat.reshape(*lead, *counts, math.prod(kernel))
        pixels = x.reshape(*lead, math.prod(space))
        there = flat.reshape(*lead, math.prod(counts) * math.prod(kernel))
        values = jnp.take_along_axis(pixels, there, axis=-1).reshape(flat.shape)
        nan = values != values
        last_nan = values.shape[-1] - 1 - jnp.argmax(nan[..., ::-1], axis=-1)
        best = jnp.where(nan.any(axis=-1), last_nan, jnp.argmax(values, axis=-1))[..., None]
        return tuple(jnp.take_along_axis(y, best, axis=-1)[..., 0] for y in (values, flat.astype(jnp.int64)))

    return pool


for _axes in (2, 3):
    rule(f"aten::max_unpool{_axes}d")(_unpool(_axes))
    rule(f"aten::fractional_max_pool{_axes}d")(_fractional_max_pool(_axes))
    rule(f"aten::fractional_max_pool{_axes}d_backward", metadata=lambda g, x, *rest: torch.empty_like(x))(
        lambda g, x, kernel, size, indices, axes=_axes: _scatter(g, x, indices, axes)
    )


# -- average


def _divisors(size: int, count: int, kernel: int, stride: int, padding: int, count_include_pad: bool) -> np.ndarray:
    """Return how many positions each window along an axis averages over."""
    starts = np.arange(count) * stride - padding
    ends = np.minimum(starts + kernel, size + padding)
    return ends - starts if count_include_pad else np.minimum(ends, size) - np.maximum(starts, 0)


class _Average:
    """An average pooling of an input shape: its sums, its divisors, and the way back."""

    def __init__(
        self, shape: Ints, counts: Ints, kernel: Ints, stride: Ints, padding: Ints, count_include_pad: bool, divisor: int | None
    ) -> None:
        axes = len(counts)
        kernel = _per_axis(axes, kernel)
        sides = list(zip(shape[-axes:], counts, kernel, _per_axis(axes, stride, kernel), _per_axis(axes, padding), strict=True))
        lead = len(shape) - axes
        self.window = (1,) * lead + tuple(k for _, _, k, _, _ in sides)
        self.stride = (1,) * lead + tuple(s for _, _, _, s, _ in sides)
        self.padding = [(0, 0)] * lead + [(p, (c - 1) * s + k - p - n) for n, c, k, s, p in sides]
        self.divisor = np.array(divisor) if divisor is not None else np.ones(())
        if divisor is None:
            for d, side in enumerate(sides):
                self.divisor = self.divisor * _along(_divisors(*side, count_include_pad), axes, d)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = self._fit(x)
        padding = [(max(a, 0), max(b, 0)) for a, b in self.padding]
        total = lax.reduce_window(x, np.zeros((), x.dtype), lax.add, self.window, self.stride, padding)
        divisor = jnp.broadcast_to(self.divisor.astype(x.dtype), total.shape)
        return lax.div(total, divisor)  # integers are rounded towards zero

    def _fit(self, x: jax.Array) -> jax.Array:
        """Leave out what no window reaches."""
        return lax.slice(x, [0] * x.ndim, [n + min(b, 0) for n, (_, b) in zip(x.shape, self.padding, strict=True)])


def _avg_pool(axes: int) -> Any:
    def pool(
        x: jax.Array,
        kernel: Ints,
        stride: Ints,
        padding: Ints,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor: int | None,
        *,
        out: Sequence[Any],
    ) -> jax.Array:
        return _Average(x.shape, out[0].shape[-axes:], kernel, stride, padding, count_include_pad, divisor)(wide(x))

    return pool


def _avg_pool_backward(axes: int) -> Any:
    def backward(
        g: jax.Array,
        x: jax.Array,
        kernel: Ints,
        stride: Ints,
        padding: Ints,
        ceil_mode: bool,
        count_include_pad: bool,
        divisor: int | None,
    ) -> jax.Array:
        average = _Average(x.shape, g.shape[-axes:], kernel, stride, padding, count_include_pad, divisor)
        return jax.linear_transpose(average, jax.ShapeDtypeStruct(x.shape, wide(g).dtype))(wide(g))[0]

    return backward


for _axes in (2, 3):
    rule(f"aten::avg_pool{_axes}d", meta=True)(_avg_pool(_axes))
    rule(f"aten::avg_pool{_axes}d_backward")(_avg_pool_backward(_axes))


def range_sum(x: jax.Array, axis: int, starts: np.ndarray, ends: np.ndarray) -> jax.Array:
    """Sum each range of positions along an axis."""
    lengths = ends - starts
    longest = int(lengths.max(initial=0))
    taps = np.minimum(starts[:, None] + np.arange(longest), max(x.shape[axis] - 1, 0))
    values = jnp.take(x, taps, axis=axis)
    inside = (np.arange(longest) < lengths[:, None]).reshape(*taps.shape, *[1] * (x.ndim - axis - 1))
    return jnp.sum(jnp.where(inside, values, jnp.zeros((), x.dtype)), axis=axis + 1)


def _adaptive_average(x: jax.Array, axis: int, count: int) -> jax.Array:
    size = x.shape[axis]
    if count and size % count == 0:
        return jnp.mean(x.reshape(*x.shape[:axis], count, size // count, *x.shape[axis + 1 :]), axis=axis + 1)
    starts, ends = adaptive_bounds(size, count)
    return range_sum(x, axis, starts, ends) / _along(ends - starts, x.ndim, axis).astype(x.dtype)


def _adaptive_average_backward(g: jax.Array, axis: int, size: int) -> jax.Array:
    count = g.shape[axis]
    if count and size % count == 0:
        return jnp.repeat(g / np.array(size // count, g.dtype), size // count, axis=axis, total_repeat_length=size)
    starts, ends = adaptive_bounds(size, count)
    position = np.arange(size)
    # The windows over a position are consecutive, so the way back sums ranges too.
    first, last = np.searchsorted(ends, position, "right"), np.searchsorted(starts, position, "right")
    return range_sum(g / _along(ends - starts, g.ndim, axis).astype(g.dtype), axis, first, last)


def _adaptive_avg_pool(x: jax.Array, size: Ints) -> jax.Array:
    y = wide(x)
    for k, count in enumerate(reversed(size)):
        y = _adaptive_average(y, x.ndim - 1 - k, count)
    return y


def _adaptive_avg_pool_backward(axes: int) -> Any:
    def backward(g: jax.Array, x: jax.Array) -> jax.Array:
        g = wide(g)
        for axis in range(x.ndim - axes, x.ndim):
            g = _adaptive_average_backward(g, axis, x.shape[axis])
        return g

    return backward


def _resized_metadata(x: torch.Tensor, size: Ints, *, out: torch.Tensor) -> torch.Tensor:
    """torch has no meta kernels of the `out=` overloads (2.13)."""
    return out.resize_(*x.shape[: x.dim() - len(size)], *size)


for _axes in (2, 3):
    rule(f"aten::_adaptive_avg_pool{_axes}d")(_adaptive_avg_pool)
    rule(f"aten::adaptive_avg_pool{_axes}d.out", metadata=_resized_metadata)(_adaptive_avg_pool)
    rule(f"aten::_adaptive_avg_pool{_axes}d_backward")(_adaptive_avg_pool_backward(_axes))
rule("aten::adaptive_avg_pool3d_backward.grad_input", metadata=lambda g, x, *, grad_input: grad_input.resize_(x.shape))(
    _adaptive_avg_pool_backward(3)
)
