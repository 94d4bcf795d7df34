"""Sampling an image or a volume at the points of a grid, and its gradients."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu.ops.registry import rule
from torchtpu.ops.softmax import wide

_BILINEAR, _NEAREST, _BICUBIC = 0, 1, 2
_ZEROS, _BORDER, _REFLECTION = 0, 1, 2


def _clip(x: jax.Array, size: int) -> jax.Array:
    """Move positions into the image; where that happens, also at its very edge, no gradient flows back."""
    return jnp.where(x <= 0, jnp.zeros_like(x), jnp.where(x >= size - 1, jnp.full_like(x, size - 1), x))


def _reflect(x: jax.Array, low: float, high: float) -> jax.Array:
    """Fold positions between two mirrors."""
    span = high - low
    if span == 0:
        return jnp.zeros_like(x)
    x = jnp.where(x < low, low - x, x - low)
    flips = lax.stop_gradient(jnp.floor(x / span))
    rest = x - flips * span
    return jnp.where(flips % 2 == 0, rest + low, high - rest)


def _pad(x: jax.Array, size: int, padding: int, align_corners: bool) -> jax.Array:
    if padding == _REFLECTION:
        x = _reflect(x, 0, size - 1) if align_corners else _reflect(x, -0.5, size - 0.5)
    return x if padding == _ZEROS else _clip(x, size)


def _pixels(x: jax.Array, positions: Sequence[jax.Array]) -> jax.Array:
    """Return x (batch, channels, *space) at whole positions (batch, *points), zero outside."""
    space = x.shape[2:]
    inside = jnp.ones(positions[0].shape, bool)
    flat = jnp.zeros(positions[0].shape, jnp.int32)
    for p, size in zip(positions, space, strict=True):
        inside &= (p >= 0) & (p < size)
        flat = flat * size + jnp.clip(p, 0, size - 1).astype(jnp.int32)
    flat = jnp.where(inside, flat, 0)
    values = jnp.take_along_axis(x.reshape(*x.shape[:2], -1), flat.reshape(flat.shape[0], 1, -1), axis=2)
    return jnp.where(inside[:, None], values.reshape(*x.shape[:2], *flat.shape[1:]), jnp.zeros((), x.dtype))


def _cubic(t: jax.Array) -> list[jax.Array]:
    """Return the weights of the four pixels around a position that is t beyond the second."""
    a = -0.75

    def near(t: jax.Array) -> jax.Array:
        return ((a + 2) * t - (a + 3)) * t * t + 1

    def far(t: jax.Array) -> jax.Array:
        return ((a * t - 5 * a) * t + 8 * a) * t - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def sample(x: jax.Array, grid: jax.Array, mode: int, padding: int, align_corners: bool) -> jax.Array:
    """Return x (batch, channels, *space) at grid's points (batch, *points, axis); grid's first axis is x's last."""
    space = x.shape[2:]
    axes = range(len(space))
    positions = []
    for k, size in zip(reversed(axes), space, strict=True):
        c = grid[..., k]
        positions.append((c + 1) / 2 * (size - 1) if align_corners else ((c + 1) * size - 1) / 2)
    if mode != _BICUBIC:
        positions = [_pad(p, size, padding, align_corners) for p, size in zip(positions, space, strict=True)]
    if mode == _NEAREST:
        return _pixels(x, [jnp.round(p) for p in positions])
    lows = [lax.stop_gradient(jnp.floor(p)) for p in positions]
    parts = [p - low for p, low in zip(positions, lows, strict=True)]
    if mode == _BILINEAR:
        steps, weights = (0, 1), [[1 - t, t] for t in parts]
    else:
        steps, weights = (-1, 0, 1, 2), [_cubic(t) for t in parts]
    total = jnp.zeros((), x.dtype)
    for corner in itertools.product(range(len(steps)), repeat=len(space)):
        there = [lows[d] + steps[corner[d]] for d in axes]
        if mode == _BICUBIC:
            there = [lax.stop_gradient(_pad(p, n, padding, align_corners)) for p, n in zip(there, space, strict=True)]
        weight = weights[0][corner[0]]
        for d in axes[1:]:
            weight = weight * weights[d][corner[d]]
        total = total + _pixels(x, there) * weight[:, None]
    return total


@rule("aten::grid_sampler_2d", "aten::grid_sampler_3d")
def _grid_sampler(x: jax.Array, grid: jax.Array, mode: int, padding: int, align_corners: bool) -> jax.Array:
    return sample(wide(x), wide(grid), mode, padding, align_corners)


@rule("aten::grid_sampler_2d_backward", "aten::grid_sampler_3d_backward")
def _grid_sampler_backward(
    g: jax.Array, x: jax.Array, grid: jax.Array, mode: int, padding: int, align_corners: bool, output_mask: Sequence[bool]
) -> tuple[jax.Array | None, ...]:
    _, pull = jax.vjp(lambda x, grid: sample(x, grid, mode, padding, align_corners), wide(x), wide(grid))
    gx, grid_gradient = pull(wide(g))
    return (gx if output_mask[0] else None), grid_gradient
