"""Comparisons, logic and bits, and what chooses by them: maximum, clamp, where, masked_fill, isin."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import torch
from jax import Array, lax

from torchtpu.dtypes import xla_dtype
from torchtpu.ops.registry import Promotion, elementwise, rule
from torchtpu.ops.unary import exp2

# `isin` compares with every test element up to this many; beyond, it searches in the sorted ones.
_MAX_COMPARISONS = 64

# Operands are compared in their common dtype, not in float32: a number is rounded to bfloat16 first, as PyTorch does.

for _name, _fn in {
    "eq": jnp.equal,
    "ge": jnp.greater_equal,
    "gt": jnp.greater,
    "le": jnp.less_equal,
    "lt": jnp.less,
    "ne": jnp.not_equal,
}.items():
    elementwise(f"aten::{_name}.Tensor", f"aten::{_name}.Scalar", promotion=Promotion.NO_OPMATH)(_fn)

for _name, _fn in {
    "fmax": jnp.fmax,
    "fmin": jnp.fmin,
    "logical_and": jnp.logical_and,
    "logical_not": jnp.logical_not,
    "logical_or": jnp.logical_or,
    "logical_xor": jnp.logical_xor,
    "maximum": jnp.maximum,
    "minimum": jnp.minimum,
}.items():
    elementwise(f"aten::{_name}", promotion=Promotion.NO_OPMATH)(_fn)


# Bits.


def _check_bits(*operands: Any) -> None:
    for operand in operands:
        dtype = operand.dtype if isinstance(operand, torch.Tensor) else type(operand)
        if dtype in (float, complex) or (isinstance(operand, torch.Tensor) and (dtype.is_floating_point or dtype.is_complex)):
            raise RuntimeError(f"bitwise operators take integers and booleans, not {dtype}")


for _name, _fn in {"and": jnp.bitwise_and, "or": jnp.bitwise_or, "xor": jnp.bitwise_xor}.items():
    _overloads = (f"aten::bitwise_{_name}.{kind}" for kind in ("Tensor", "Scalar", "Scalar_Tensor"))
    elementwise(*_overloads, check=_check_bits)(_fn)
elementwise("aten::bitwise_not", check=_check_bits)(jnp.bitwise_not)


def _shift_overloads(side: str) -> list[str]:
    operators = [f"aten::__{i}{side[0]}shift__.{kind}" for i in ("", "i") for kind in ("Tensor", "Scalar")]
    return operators + [f"aten::bitwise_{side}_shift.{kind}" for kind in ("Tensor", "Tensor_Scalar", "Scalar_Tensor")]


@elementwise(*_shift_overloads("left"))
def left_shift(x: Array, count: Array) -> Array:
    """0 for a count that is negative or too large."""
    if x.dtype.kind == "f":  # `x << n` is defined for floats
        return x * exp2(count)
    return lax.shift_left(*jnp.broadcast_arrays(x, count))


@elementwise(*_shift_overloads("right"))
def right_shift(x: Array, count: Array) -> Array:
    """The sign in every bit for a count that is negative or too large."""
    if x.dtype.kind == "f":
        return x / exp2(count)
    shift = lax.shift_right_logical if x.dtype.kind == "u" else lax.shift_right_arithmetic
    return shift(*jnp.broadcast_arrays(x, count))


# Bounds and choices. A NaN in any operand of clamp is a NaN in the result.


def _check_ordered(x: torch.Tensor, *_: Any) -> None:
    if x.is_complex():
        raise NotImplementedError("clamp is not supported for complex types")


@elementwise("aten::clamp", "aten::clamp.Tensor", promotion=Promotion.NO_OPMATH, check=_check_ordered)
def clamp(x: Array, low: Array | None, high: Array | None) -> Array:
    """The upper bound wins where they cross."""
    x = x if low is None else jnp.maximum(x, low)
    return x if high is None else jnp.minimum(x, high)


_bound = {"promotion": Promotion.NO_OPMATH, "check": _check_ordered}
elementwise("aten::clamp_min", "aten::clamp_min.Tensor", **_bound)(jnp.maximum)
elementwise("aten::clamp_max", "aten::clamp_max.Tensor", **_bound)(jnp.minimum)


def _check_condition(condition: torch.Tensor, *_: Any) -> None:
    if condition.dtype not in (torch.bool, torch.uint8):
        name = str(condition.dtype).removeprefix("torch.")
        raise RuntimeError(f"where expected condition to be a boolean tensor, but got a tensor with dtype {name}")


def _check_mask(_x: torch.Tensor, mask: torch.Tensor, *_: Any) -> None:
    if mask.dtype is not torch.bool:
        name = str(mask.dtype).removeprefix("torch.")
        raise RuntimeError(f"masked_fill_ only supports boolean masks, but got mask with dtype {name}")


@rule("aten::where.self", dynamic=("self", "other"), meta=True, check=_check_condition)
def where(condition: Array, x: Any, y: Any, *, out: list[Any]) -> Array:
    """The condition takes no part in type promotion."""
    dtype = xla_dtype(out[0].dtype)
    return jnp.where(condition, jnp.asarray(x).astype(dtype), jnp.asarray(y).astype(dtype))


@rule("aten::masked_fill.Scalar", "aten::masked_fill.Tensor", dynamic="value", check=_check_mask)
def masked_fill(x: Array, mask: Array, value: Any) -> Array:
    return jnp.where(mask, jnp.asarray(value).astype(x.dtype), x)


@rule("aten::isin.Tensor_Tensor")
def isin(elements: Array, tested: Array, assume_unique: bool, invert: bool) -> Array:
    common = jnp.promote_types(elements.dtype, tested.dtype)
    elements, tested = elements.astype(common), tested.astype(common).reshape(-1)
    if tested.size <= _MAX_COMPARISONS:
        found = jnp.any(elements[..., None] == tested, axis=-1)
    else:
        ordered = jnp.sort(tested)
        place = jnp.minimum(jnp.searchsorted(ordered, elements), tested.size - 1)
        found = ordered[place] == elements  # a NaN is nowhere
    return ~found if invert else found


@rule("aten::isin.Tensor_Scalar", "aten::isin.Scalar_Tensor", dynamic=("element", "elements", "test_element", "test_elements"))
def isin_number(element: Any, tested: Any, assume_unique: bool, invert: bool) -> Array:
    found = jnp.any(jnp.asarray(element)[..., None] == jnp.reshape(tested, -1), axis=-1)
    return ~found if invert else found
