"""Ops that move elements without changing them: joining, repeating, turning, padding, patches, and gradients of views."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu.dtypes import spoken, xla_dtype
from torchtpu.evaluate import cast
from torchtpu.ops.reduction import wide
from torchtpu.ops.registry import overload, rule
from torchtpu.ops.views import windows

Meta = Sequence[torch.Tensor]

# -- joining


def _check_cat(tensors: Sequence[torch.Tensor], _dim: int = 0, out: torch.Tensor | None = None) -> None:
    if out is not None and not all(torch.can_cast(t.dtype, out.dtype) for t in tensors):
        raise TypeError(f"torch.cat(): input types can't be cast to the desired output type {spoken(out.dtype)}")
    for position, tensor in enumerate(tensors):
        if tensor.dim() == 0:
            raise RuntimeError(f"zero-dimensional tensor (at position {position}) cannot be concatenated")


@rule("aten::cat", meta=True, check=_check_cat)
def cat(tensors: Sequence[jax.Array], dim: int, *, out: Meta) -> jax.Array:
    # torch lets 1-d tensors without elements pass, whatever the shape of the others.
    dtype = xla_dtype(out[0].dtype)
    parts = [cast(t, dtype) for t in tensors if t.shape != (0,)]
    return jnp.concatenate(parts, dim) if parts else jnp.zeros((0,), dtype)


@rule("aten::stack", "aten::_stack", meta=True)
def stack(tensors: Sequence[jax.Array], dim: int, *, out: Meta) -> jax.Array:
    dtype = xla_dtype(out[0].dtype)
    return jnp.stack([cast(t, dtype) for t in tensors], dim)


@rule("aten::block_diag", meta=True)
def block_diag(tensors: Sequence[jax.Array], *, out: Meta) -> jax.Array:
    total = jnp.zeros(out[0].shape, xla_dtype(out[0].dtype))
    row = column = 0
    for t in (jnp.atleast_2d(t) for t in tensors):
        total = lax.dynamic_update_slice(total, cast(t, total.dtype), (row, column))
        row, column = row + t.shape[0], column + t.shape[1]
    return total


# -- repeating and turning


@rule("aten::repeat")
def repeat(x: jax.Array, repeats: Sequence[int]) -> jax.Array:
    return jnp.tile(x, tuple(repeats)) if 0 not in repeats else jnp.zeros(_repeated(x, repeats), x.dtype)


def _repeated(x: jax.Array, repeats: Sequence[int]) -> tuple[int, ...]:
    shape = (1,) * (len(repeats) - x.ndim) + x.shape
    return tuple(n * r for n, r in zip(shape, repeats, strict=True))


@rule("aten::flip")
def flip(x: jax.Array, dims: Sequence[int]) -> jax.Array:
    return lax.rev(x, [d % x.ndim for d in dims]) if x.ndim else x


@rule("aten::roll")
def roll(x: jax.Array, shifts: Sequence[int], dims: Sequence[int]) -> jax.Array:
    shifts = [shifts] if isinstance(shifts, int) else shifts
    if not x.size:
        return x
    return jnp.roll(x, tuple(shifts), tuple(dims)) if dims else jnp.roll(x.reshape(-1), shifts[0]).reshape(x.shape)


@rule("aten::rot90")
def rot90(x: jax.Array, k: int, dims: Sequence[int]) -> jax.Array:
    return jnp.rot90(x, k, tuple(dims))


@rule("aten::pixel_shuffle")
def pixel_shuffle(x: jax.Array, factor: int) -> jax.Array:
    *batch, c, h, w = x.shape
    n, r = len(batch), factor
    x = x.reshape(*batch, c // (r * r), r, r, h, w)
    x = jnp.transpose(x, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return x.reshape(*batch, c // (r * r), h * r, w * r)


@rule("aten::pixel_unshuffle")
def pixel_unshuffle(x: jax.Array, factor: int) -> jax.Array:
    *batch, c, h, w = x.shape
    n, r = len(batch), factor
    x = x.reshape(*batch, c, h // r, r, w // r, r)
    x = jnp.transpose(x, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return x.reshape(*batch, c * r * r, h // r, w // r)


@rule("aten::channel_shuffle", "aten::native_channel_shuffle")
def channel_shuffle(x: jax.Array, groups: int) -> jax.Array:
    n, c, *rest = x.shape
    return jnp.swapaxes(x.reshape(n, groups, c // groups, *rest), 1, 2).reshape(x.shape)


@rule("aten::diag_embed", meta=True)
def diag_embed(x: jax.Array, offset: int, dim1: int, dim2: int, *, out: Meta) -> jax.Array:
    return _write("aten::diagonal", jnp.zeros(out[0].shape, x.dtype), x, offset, dim1, dim2)


# -- padding


def pairs(x: jax.Array, pad: Sequence[int]) -> list[tuple[int, int]]:
    """Return PyTorch's flat padding (last dimension first) as (before, after) per dimension."""
    given = [(pad[k], pad[k + 1]) for k in range(0, len(pad), 2)][::-1]
    return [(0, 0)] * (x.ndim - len(given)) + given


@rule("aten::constant_pad_nd", dynamic="value")
def constant_pad_nd(x: jax.Array, pad: Sequence[int], value: Any) -> jax.Array:
    return lax.pad(x, jnp.asarray(value).astype(x.dtype), [(low, high, 0) for low, high in pairs(x, pad)])


def transposed(linear: Callable[..., jax.Array], shape: Sequence[int], grad: jax.Array) -> jax.Array:
    """Return the gradient of the argument of a linear function, of `shape`. 16-bit floats sum up in float32."""
    grad = wide(grad)
    (result,) = jax.linear_transpose(linear, jax.ShapeDtypeStruct(tuple(shape), grad.dtype))(grad)
    return result


def _padding(kind: str, mode: str, dimensions: int) -> None:
    def pad(x: jax.Array, padding: Sequence[int]) -> jax.Array:
        both = pairs(x, padding)
        x = jnp.pad(x, [(max(low, 0), max(high, 0)) for low, high in both], mode=mode)
        cut = [slice(max(-low, 0), n - max(-high, 0)) for (low, high), n in zip(both, x.shape, strict=True)]
        return x[tuple(cut)]

    @rule(f"aten::{kind}_pad{dimensions}d_backward")
    def backward(grad: jax.Array, x: jax.Array, padding: Sequence[int]) -> jax.Array:
        return transposed(lambda x: pad(x, padding), x.shape, grad) if grad.size else jnp.zeros_like(x)

    rule(f"aten::{kind}_pad{dimensions}d")(pad)


for _dimensions in (1, 2, 3):
    _padding("reflection", "reflect", _dimensions)
    _padding("replication", "edge", _dimensions)


# -- patches


def patches(
    x: jax.Array, kernel: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> jax.Array:
    """Return the sliding blocks of (N, C, H, W), flattened to (N, C * kernel height * kernel width, blocks)."""
    n, c = x.shape[:2]
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), (0, 0, 0), *((p, p, 0) for p in padding)])
    span = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    count = [(size - e) // s + 1 for size, e, s in zip(x.shape[2:], span, stride, strict=True)]
    blocks = []
    for offset in np.ndindex(*kernel):
        start = [o * d for o, d in zip(offset, dilation, strict=True)]
        stop = [a + (m - 1) * s + 1 for a, m, s in zip(start, count, stride, strict=True)]
        blocks.append(lax.slice(x, (0, 0, *start), (n, c, *stop), (1, 1, *stride)))
    return jnp.stack(blocks, 2).reshape(n, c * math.prod(kernel), math.prod(count))


def _batched(x: jax.Array, ndim: int) -> jax.Array:
    return x[None] if x.ndim < ndim else x


@rule("aten::im2col", meta=True)
def im2col(x: jax.Array, *window: Sequence[int], out: Meta) -> jax.Array:
    return patches(_batched(x, 4), *window).reshape(out[0].shape)


@rule("aten::col2im", meta=True)
def col2im(x: jax.Array, size: Sequence[int], kernel: Sequence[int], *window: Sequence[int], out: Meta) -> jax.Array:
    x = _batched(x, 3)
    shape = (x.shape[0], x.shape[1] // math.prod(kernel), *size)
    return transposed(lambda image: patches(image, kernel, *window), shape, x).reshape(out[0].shape)


# -- a view replaced, and gradients of views


def placed(grad: jax.Array, size: Sequence[int], dim: int, start: int, step: int) -> jax.Array:
    """Return zeros of `size` with `grad` at `start`, `start + step`, ... of `dim` (the transpose of a slice)."""
    dim %= len(size)
    if 0 in grad.shape:
        return jnp.zeros(size, grad.dtype)
    extent = (grad.shape[dim] - 1) * step + 1
    config = [(0, 0, 0)] * len(size)
    config[dim] = (start, size[dim] - start - extent, step - 1)
    return lax.pad(grad, jnp.zeros((), grad.dtype), config)


@rule("aten::slice_backward")
def slice_backward(grad: jax.Array, sizes: Sequence[int], dim: int, start: int, end: int, step: int) -> jax.Array:
    return placed(grad, sizes, dim, slice(start, end, step).indices(sizes[dim])[0], step)


@rule("aten::select_backward")
def select_backward(grad: jax.Array, sizes: Sequence[int], dim: int, index: int) -> jax.Array:
    dim %= len(sizes)
    return placed(jnp.expand_dims(grad, dim), sizes, dim, index % sizes[dim], 1)


def _write(view: str, x: jax.Array, source: jax.Array, *args: Any) -> jax.Array:
    """Return `x` with what a view op sees replaced by `source`."""
    (window,) = windows(overload(view), x, *args)
    return window.write(x, source.astype(x.dtype)) if source.size else x


@rule("aten::diagonal_backward")
def diagonal_backward(grad: jax.Array, sizes: Sequence[int], offset: int, dim1: int, dim2: int) -> jax.Array:
    return _write("aten::diagonal", jnp.zeros(sizes, grad.dtype), grad, offset, dim1, dim2)


@rule("aten::unfold_backward")
def unfold_backward(grad: jax.Array, sizes: Sequence[int], dim: int, size: int, step: int) -> jax.Array:
    return transposed(lambda x: windows(overload("aten::unfold"), x, dim, size, step)[0].read(x), sizes, grad)


def _scatter(name: str, view: str) -> None:
    def check(x: torch.Tensor, source: torch.Tensor, *args: Any) -> None:
        seen = overload(f"aten::{view}")(x, *args[: len(overload(f"aten::{view}")._schema.arguments) - 1])
        if seen.shape != source.shape:
            raise RuntimeError(
                f"expected src to have a size equal to the {name} of self. src size = {list(source.shape)}, "
                f"{name} size = {list(seen.shape)}"
            )

    # as_strided is of a storage, which only PyTorch's own kernel sees.
    @rule(f"aten::{name}_scatter", check=check, inner=name == "as_strided")
    def scatter(x: jax.Array, source: jax.Array, *args: Any) -> jax.Array:
        return _write(f"aten::{view}", x, source, *args)


for _name, _view in {
    "as_strided": "as_strided",
    "diagonal": "diagonal",
    "select": "select.int",
    "slice": "slice.Tensor",
}.items():
    _scatter(_name, _view)
