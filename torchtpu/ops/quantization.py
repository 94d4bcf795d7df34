"""Quantized arithmetic on plain tensors: fake quantization, and products of scaled float8 matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import torch

from torchtpu.dtypes import xla_dtype
from torchtpu.ops.registry import entry, rule

Array = jax.Array


def _metadata(x: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(x), torch.empty_like(x, dtype=torch.bool)


def _fake_quantize(x: Array, scale: Array, zero_point: Array, low: int, high: int) -> tuple[Array, Array]:
    """Round to the quantized grid and back; also return where the grid did not saturate."""
    scale = scale.astype(jnp.float32)
    level = (zero_point + jnp.round(x.astype(jnp.float32) * (1 / scale))).astype(jnp.int64)
    nearest = (jnp.clip(level, low, high) - zero_point).astype(jnp.float32) * scale
    return nearest.astype(x.dtype), (level >= low) & (level <= high)


@rule("aten::fake_quantize_per_tensor_affine_cachemask", dynamic="scale", metadata=_metadata)
def fake_quantize_per_tensor(x: Array, scale: Any, zero_point: int, low: int, high: int) -> tuple[Array, Array]:
    return _fake_quantize(x, jnp.asarray(scale), jnp.asarray(zero_point), low, high)


@rule("aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", metadata=_metadata)
def fake_quantize_if(x: Array, scale: Array, zero_point: Array, enabled: Array, low: int, high: int) -> tuple[Array, Array]:
    nearest, inside = _fake_quantize(x, scale.reshape(()), zero_point.reshape(()), low, high)
    on = enabled.reshape(()) != 0
    return jnp.where(on, nearest, x), inside | ~on


@rule("aten::fake_quantize_per_channel_affine_cachemask", metadata=_metadata)
def fake_quantize_per_channel(x: Array, scale: Array, zero_point: Array, axis: int, low: int, high: int) -> tuple[Array, Array]:
    along = [1] * x.ndim
    along[axis] = x.shape[axis]
    return _fake_quantize(x, scale.reshape(along), zero_point.reshape(along), low, high)


def _scaled_metadata(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, *rest: Any, out: torch.Tensor | None = None
) -> torch.Tensor:
    whole = scale_a.numel() == scale_b.numel() == 1
    if not whole and (scale_a.shape != (a.shape[0], 1) or scale_b.shape != (1, b.shape[1])):
        raise NotImplementedError("scales of blocks")
    result = torch.ops.aten._scaled_mm(a, b, scale_a, scale_b, *rest)
    return result if out is None else out.resize_(result.shape)


@rule("aten::_scaled_mm", meta=True, metadata=_scaled_metadata)
def scaled_mm(
    a: Array,
    b: Array,
    scale_a: Array,
    scale_b: Array,
    bias: Array | None,
    scale_result: Array | None,
    _out_dtype: torch.dtype | None,
    _fast: bool,
    *,
    out: Sequence[torch.Tensor],
) -> Array:
    """Multiply matrices whose scales are one for each, or one for each row of `a` and column of `b`."""
    product = jnp.matmul(a.astype(jnp.float32), b.astype(jnp.float32), precision=jax.lax.Precision.HIGHEST)
    product = product * scale_a * scale_b
    if bias is not None:
        product = product + bias.astype(jnp.float32)
    if scale_result is not None and out[0].dtype.itemsize == 1:
        product = product * scale_result
    dtype = xla_dtype(out[0].dtype)
    if dtype in _WITHOUT_INFINITY:
        limit = jnp.finfo(dtype).max.astype(jnp.float32)
        product = jnp.clip(product, -limit, limit)
    return product.astype(dtype)


_WITHOUT_INFINITY = (jnp.float8_e4m3fn, jnp.float8_e4m3fnuz, jnp.float8_e5m2fnuz)
_WHOLE, _ROWS = 0, 1  # ATen's ScalingType


@entry("aten::_scaled_mm_v2", "aten::_scaled_mm_v2.out")
def scaled_mm_by_recipe(
    kernel: Callable[..., Any],
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: list[torch.Tensor],
    recipe_a: list[int],
    swizzle_a: list[int],
    scale_b: list[torch.Tensor],
    recipe_b: list[int],
    swizzle_b: list[int],
    bias: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    *rest: Any,
    **out: torch.Tensor,
) -> torch.Tensor:
    if recipe_a == recipe_b and recipe_a in ([_WHOLE], [_ROWS]) and not any(swizzle_a) and not any(swizzle_b):
        return torch._scaled_mm(a, b, scale_a[0], scale_b[0], bias, None, out_dtype, **out)
    recipes = (scale_a, recipe_a, swizzle_a, scale_b, recipe_b, swizzle_b)
    return kernel(a, b, *recipes, bias, out_dtype, *rest, **out)
