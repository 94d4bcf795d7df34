"""Interpolation to another size: nearest, linear in one to three dimensions, bicubic, antialiased; and gradients.

All are one linear map per axis, given by a table: which inputs an output is made of, and with what weights. PyTorch's
source positions are computed as its CPU kernels do, in the input's precision, so that rounding picks the same neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu.ops.registry import rule
from torchtpu.ops.softmax import wide

# Of the weights of 8-bit images.
_MAX_BITS = 22

# (inputs, weights), both of shape (outputs, taps); weights of None: the input itself.
Table = tuple[np.ndarray, np.ndarray | None]


def _ratio(size: int, count: int, align_corners: bool, scale: float | None, real: Any) -> Any:
    """Return how far apart the sources of neighbouring outputs are."""
    if align_corners:
        return real(size - 1) / real(count - 1) if count > 1 else real(0)
    return real(1.0 / scale) if scale is not None and scale > 0 else real(size) / real(count)


def nearest(size: int, count: int, scale: float | None, real: Any, *, exact: bool) -> Table:
    ratio = _ratio(size, count, False, scale, real)
    source = (np.arange(count, dtype=real) + real(0.5 if exact else 0)) * ratio
    return np.minimum(source.astype(np.int64), size - 1)[:, None], None


def _sources(size: int, count: int, align_corners: bool, scale: float | None, real: Any) -> np.ndarray:
    ratio = _ratio(size, count, align_corners, scale, real)
    k = np.arange(count, dtype=real)
    return k * ratio if align_corners else (k + real(0.5)) * ratio - real(0.5)


def linear(size: int, count: int, scale: float | None, real: Any, *, align_corners: bool) -> Table:
    source = np.maximum(_sources(size, count, align_corners, scale, real), 0)
    low = np.minimum(source.astype(np.int64), size - 1)
    part = np.clip(source - low, 0, 1)
    return np.stack([low, np.minimum(low + 1, size - 1)], 1), np.stack([1 - part, part], 1)


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """Keys' convolution kernel at distance x."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def cubic(size: int, count: int, scale: float | None, real: Any, *, align_corners: bool) -> Table:
    source = _sources(size, count, align_corners, scale, real)
    low = np.floor(source).astype(np.int64)
    taps = low[:, None] + np.arange(-1, 3)
    return np.clip(taps, 0, size - 1), _cubic(source[:, None] - taps, -0.75)


def _triangle(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(x), 0)


def _lanczos(x: np.ndarray) -> np.ndarray:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0)


def antialiased(
    size: int,
    count: int,
    scale: float | None,
    real: Any,
    *,
    align_corners: bool,
    kernel: Callable[[np.ndarray], np.ndarray],
    radius: float,
) -> Table:
    """Widen the kernel by the factor of a reduction, so that every input counts."""
    ratio = float(_ratio(size, count, align_corners, scale, real))
    stretch = max(ratio, 1.0)
    center = ratio * (np.arange(count) + 0.5)
    first = np.maximum((center - radius * stretch + 0.5).astype(np.int64), 0)
    last = np.minimum((center + radius * stretch + 0.5).astype(np.int64), size)
    taps = first[:, None] + np.arange(max(int((last - first).max(initial=1)), 1))
    weights = np.where(taps < last[:, None], kernel((taps - center[:, None] + 0.5) / stretch), 0)
    total = weights.sum(1, keepdims=True)
    return np.minimum(taps, size - 1), weights / np.where(total == 0, 1, total)


def transpose(table: Table, size: int) -> Table:
    """Return the table of the way back: for each of `size` inputs, the outputs that it reached."""
    inputs, weights = table
    weights = np.ones(inputs.shape) if weights is None else weights
    outputs = np.broadcast_to(np.arange(len(inputs))[:, None], inputs.shape)[weights != 0]
    reached, parts = inputs[weights != 0], weights[weights != 0]
    order = np.argsort(reached, kind="stable")
    reached = reached[order]
    tap = np.arange(len(reached)) - np.searchsorted(reached, reached)  # the how-manieth output of its input
    shape = (size, int(tap.max(initial=0)) + 1)
    back, back_weights = np.zeros(shape, np.int64), np.zeros(shape)
    back[reached, tap], back_weights[reached, tap] = outputs[order], parts[order]
    return back, back_weights


def _apply(x: jax.Array, axis: int, table: Table) -> jax.Array:
    inputs, weights = table
    if weights is None:
        size, count = x.shape[axis], len(inputs)
        if count % size == 0 and (inputs[:, 0] == np.arange(count) // (count // size)).all():
            repeated = jnp.broadcast_to(
                jnp.expand_dims(x, axis + 1), (*x.shape[: axis + 1], count // size, *x.shape[axis + 1 :])
            )
            return repeated.reshape(*x.shape[:axis], count, *x.shape[axis + 1 :])
        return jnp.take(x, inputs[:, 0], axis=axis)
    total = jnp.zeros((), x.dtype)
    for t in range(inputs.shape[1]):
        weight = weights[:, t].astype(x.dtype).reshape([-1 if d == axis else 1 for d in range(x.ndim)])
        term = jnp.take(x, inputs[:, t], axis=axis) * weight
        # Infinities do not spread through an absent tap.
        total = total + (term if weight.all() else jnp.where(weight != 0, term, jnp.zeros_like(term)))
    return total


def resize(x: jax.Array, tables: Sequence[Table | None]) -> jax.Array:
    """Interpolate the last axes by their tables; None leaves an axis as it is."""
    if x.dtype.kind in "iu" and any(t is not None and t[1] is not None for t in tables):
        limits = jnp.iinfo(x.dtype)
        return jnp.clip(jnp.round(resize(x.astype(jnp.float32), tables)), limits.min, limits.max)
    for k, table in enumerate(tables):
        if table is not None:
            x = _apply(x, x.ndim - len(tables) + k, table)
    return x


def _in_fixed_point(table: Table) -> tuple[Table, int]:
    """Return a table with whole weights, taps of the same input joined, and the power of 2 that they are multiplied by.

    Weights fit into 16 bits, with as many bits as the largest one leaves.
    """
    inputs, weights = table
    joined = np.zeros_like(weights)
    first = (inputs[:, :, None] == inputs[:, None, :]).argmax(2)  # the first tap of the same input
    np.add.at(joined, (np.arange(len(inputs))[:, None], first), weights)
    bits = next(b for b in range(_MAX_BITS + 1) if b == _MAX_BITS or int(0.5 + joined.max() * 2 ** (b + 1)) >= 2**15)
    return (inputs, np.trunc(joined * 2**bits + np.copysign(0.5, joined)).astype(np.int32)), bits


def resize_bytes(x: jax.Array, tables: Sequence[Table | None]) -> jax.Array:
    """Interpolate 8-bit images as PyTorch's CPU kernels do: the last axis first, each rounded to 8 bits."""
    x = x.astype(np.int32)
    for k in reversed(range(len(tables))):
        if tables[k] is not None:
            table, bits = _in_fixed_point(tables[k])
            x = _apply(x, x.ndim - len(tables) + k, table) + (1 << (bits - 1))
            x = jnp.clip(lax.shift_right_arithmetic(x, jnp.full_like(x, bits)), 0, 255)
    return x


def _register(name: str, table: Callable[..., Table], aligned: bool) -> None:
    """Register an interpolation and its gradient: `table` takes `align_corners` if `aligned`."""

    def tables(dtype: Any, shape: Sequence[int], size: Sequence[int], options: Sequence[Any]) -> list[Table | None]:
        make, scales = (partial(table, align_corners=options[0]), options[1:]) if aligned else (table, options)
        real = np.float64 if dtype == np.float64 else np.float32
        sides = zip(shape[-len(size) :], size, scales, strict=True)
        # An axis of the same size is copied, except that a given scale may still shift it.
        return [None if n == count and scale in (None, 1.0) else make(n, count, scale, real) for n, count, scale in sides]

    def forward(x: jax.Array, size: Sequence[int], *options: Any) -> jax.Array:
        if aligned and len(size) == 2 and x.dtype == np.uint8:
            return resize_bytes(x, tables(np.float64, x.shape, size, options))
        x = wide(x)
        return resize(x, tables(x.dtype, x.shape, size, options))

    def backward(g: jax.Array, size: Sequence[int], shape: Sequence[int], *options: Any) -> jax.Array:
        g = wide(g)
        there = tables(g.dtype, shape, size, options)
        return resize(g, [t and transpose(t, n) for t, n in zip(there, shape[-len(size) :], strict=True)])

    rule(f"aten::{name}")(forward)
    rule(f"aten::{name}_backward")(backward)


for _axes in (1, 2, 3):
    _register(f"upsample_nearest{_axes}d", partial(nearest, exact=False), False)
    _register(f"_upsample_nearest_exact{_axes}d", partial(nearest, exact=True), False)
for _name, _table in (
    ("upsample_linear1d", linear),
    ("upsample_bilinear2d", linear),
    ("upsample_trilinear3d", linear),
    ("upsample_bicubic2d", cubic),
    ("_upsample_bilinear2d_aa", partial(antialiased, kernel=_triangle, radius=1)),
    ("_upsample_bicubic2d_aa", partial(antialiased, kernel=partial(_cubic, a=-0.5), radius=2)),
    ("_upsample_lanczos2d_aa", partial(antialiased, kernel=_lanczos, radius=3)),
):
    _register(_name, _table, True)
