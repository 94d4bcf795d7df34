"""Arithmetic: sums, products, quotients, remainders, powers, and fused forms such as `addcmul` and `lerp`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from torchtpu import modes
from torchtpu.dtypes import xla_dtype
from torchtpu.ops.registry import Promotion, elementwise, entry

# Integer exponents up to this are products of x with itself; above, the products would round more often than `pow`.
_MAX_PRODUCT_EXPONENT = 8


def scaled(x: Array, factor: Any) -> Array:
    """Multiply, unless the factor is known to be 1 (the default of `alpha` and `value`)."""
    return x if isinstance(factor, (int, float)) and factor == 1 else x * factor


def integral(x: Any) -> bool:
    return np.dtype(x.dtype).kind in "iub"


elementwise("aten::abs", promotion=Promotion.COMPLEX_TO_FLOAT)(jnp.abs)
elementwise("aten::add.Tensor", "aten::add.Scalar", unit="alpha")(lambda x, y, alpha: jnp.add(x, scaled(y, alpha)))
elementwise("aten::mul.Tensor", "aten::mul.Scalar")(jnp.multiply)
elementwise("aten::neg")(jnp.negative)


def _check_difference(x: torch.Tensor, y: Any, *_: Any) -> None:
    masks = [(v.dtype if isinstance(v, torch.Tensor) else type(v)) in (torch.bool, bool) for v in (x, y)]
    if all(masks):
        raise RuntimeError(
            "Subtraction, the `-` operator, with two bool tensors is not supported. Use the `^` or `logical_xor()` operator "
            "instead."
        )
    if any(masks):
        raise RuntimeError(
            "Subtraction, the `-` operator, with a bool tensor is not supported. If you are trying to invert a mask, use the "
            "`~` or `logical_not()` operator instead."
        )


_difference = {"unit": "alpha", "check": _check_difference}
elementwise("aten::sub.Tensor", "aten::sub.Scalar", **_difference)(lambda x, y, alpha: jnp.subtract(x, scaled(y, alpha)))
elementwise("aten::rsub.Tensor", "aten::rsub.Scalar", **_difference)(lambda x, y, alpha: jnp.subtract(y, scaled(x, alpha)))

elementwise("aten::addcmul", unit="value")(lambda x, a, b, value: x + scaled(a, value) * b)
elementwise("aten::addcdiv", unit="value")(lambda x, a, b, value: x + scaled(a, value) / b)


def _check_lerp(x: torch.Tensor, *_: Any) -> None:
    if not (x.is_floating_point() or x.is_complex()):
        raise NotImplementedError(f"lerp takes floating-point and complex tensors, not {x.dtype}")


@elementwise("aten::lerp.Tensor", "aten::lerp.Scalar", check=_check_lerp)
def lerp(start: Array, end: Array, weight: Array) -> Array:
    """Start from the nearer end, as PyTorch does."""
    span = end - start
    return jnp.where(jnp.abs(weight) < 0.5, start + weight * span, end - span * (1 - weight))


# Quotients and remainders.


def _refuse_zero(kernel: Callable[..., Any], x: Any, y: Any, *args: Any, **kwargs: Any) -> Any:
    """Raise for an integer divided by zero, as the CPU does, where the divisor is known: an accelerator cannot.

    Outside of debug mode, which waits for each op anyway, that is a number; a zero in a tensor gives an unspecified value.
    """
    if kwargs.get("rounding_mode", "floor") is not None and _is_integer(x) and _is_integer(y) and _has_zero(y):
        raise RuntimeError("ZeroDivisionError: an integer is divided by zero")
    return kernel(x, y, *args, **kwargs)


def _is_integer(value: Any) -> bool:
    return not (value.is_floating_point() or value.is_complex()) if isinstance(value, torch.Tensor) else isinstance(value, int)


def _has_zero(divisor: Any) -> bool:
    if isinstance(divisor, torch.Tensor) and divisor.device.type != "cpu":
        return modes.state.mode is modes.EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING and bool((divisor == 0).any())
    return bool(divisor == 0)


for _name, _out in (("floor_divide", "out"), ("fmod", "Tensor_out"), ("remainder", "Tensor_out")):
    _plain = f"aten::{_name}" if _name == "floor_divide" else f"aten::{_name}.Tensor"
    _overloads = (f"{_name}.Scalar", f"{_name}.{_out}", f"{_name}.Scalar_out", f"{_name}_.Tensor", f"{_name}_.Scalar")
    entry(_plain, *(f"aten::{o}" for o in _overloads))(_refuse_zero)
entry("aten::remainder.Scalar_Tensor")(_refuse_zero)
entry(*(f"aten::{o}_mode" for o in ("div.Tensor", "div.Scalar", "div.out", "div_.Tensor", "div_.Scalar")))(_refuse_zero)

elementwise("aten::div.Tensor", "aten::div.Scalar", promotion=Promotion.INT_TO_FLOAT)(jnp.true_divide)


@elementwise("aten::div.Tensor_mode", "aten::div.Scalar_mode", meta=True)
def div_mode(x: Array, y: Array, rounding_mode: str | None, *, out: list[Any]) -> Array:
    """Integers stay integers under a rounding mode, and become floats without."""
    dtype = xla_dtype(out[0].dtype)
    if rounding_mode == "floor":
        return floor_divide(x, y)
    if rounding_mode == "trunc":
        # The quotient is rounded to bfloat16 before it is truncated.
        return lax.div(*jnp.broadcast_arrays(x, y)) if integral(x) else jnp.trunc((x / y).astype(dtype))
    return x.astype(dtype) / y.astype(dtype) if integral(x) else x / y


@elementwise("aten::floor_divide", "aten::floor_divide.Scalar")
def floor_divide(x: Array, y: Array) -> Array:
    """The exact quotient rounded down, as `c10::div_floor_floating` has it: `floor(x / y)` may be one too large."""
    if integral(x):
        return jnp.floor_divide(x, y)
    quotient = x / y
    rest = jnp.fmod(x, y)
    exact = (x - rest) / y - jnp.where((rest != 0) & ((y < 0) != (rest < 0)), 1, 0).astype(x.dtype)
    floor = jnp.floor(exact)
    floor = jnp.where(exact - floor > 0.5, floor + 1, floor)
    floor = jnp.where(exact == 0, jnp.copysign(jnp.zeros_like(floor), quotient), floor)
    return jnp.where(y == 0, quotient, floor)


elementwise("aten::fmod.Tensor", "aten::fmod.Scalar")(jnp.fmod)
elementwise("aten::remainder.Tensor", "aten::remainder.Scalar", "aten::remainder.Scalar_Tensor")(jnp.remainder)


@elementwise("aten::gcd")
def gcd(x: Array, y: Array) -> Array:
    """Euclid's. (jnp's does not end for the smallest negative number, which has no absolute value.)"""

    def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
        a, b = state
        zero = a == 0
        return jnp.where(zero, a, lax.rem(b, jnp.where(zero, 1, a))), jnp.where(zero, b, a)

    start = jnp.broadcast_arrays(jnp.abs(x), jnp.abs(y))
    return jnp.abs(lax.while_loop(lambda state: jnp.any(state[0] != 0), step, tuple(start))[1])


@elementwise("aten::lcm")
def lcm(x: Array, y: Array) -> Array:
    """Narrow integers are multiplied as int32, as in C."""
    if x.dtype.itemsize < 4:
        x, y = x.astype(np.int32), y.astype(np.int32)
    divisor = gcd(x, y)
    return jnp.abs(jnp.where(divisor == 0, 0, lax.div(jnp.broadcast_to(x, divisor.shape), jnp.maximum(divisor, 1)) * y))


# Powers.


def _check_power(x: torch.Tensor, exponent: complex, *_out: torch.Tensor) -> None:
    if isinstance(exponent, int) and exponent < 0 and not (x.is_floating_point() or x.is_complex()):
        raise RuntimeError("Integers to negative integer powers are not allowed.")


@elementwise("aten::pow.Tensor_Scalar", static="exponent", check=_check_power)
def pow_scalar(x: Array, exponent: complex) -> Array:
    """The exponent is part of the program: squares and roots are not worth a general power."""
    if exponent == 0.5 and not integral(x):
        return jnp.sqrt(x)
    if exponent == -0.5 and not integral(x):
        return lax.rsqrt(x)
    if _is_whole(exponent) and (integral(x) or abs(exponent) <= _MAX_PRODUCT_EXPONENT):
        return lax.integer_pow(x, int(exponent))
    return power(x, jnp.asarray(exponent, x.dtype))


def _is_whole(number: complex) -> bool:
    return not isinstance(number, complex) and bool(np.isfinite(number)) and number == int(number)


@elementwise("aten::pow.Tensor_Tensor", "aten::pow.Scalar")
def power(x: Array, y: Array) -> Array:
    return _integer_power(*jnp.broadcast_arrays(x, y)) if integral(x) else jnp.power(x, y)


def _integer_power(x: Array, exponent: Array) -> Array:
    """Power by squaring, wrapping as PyTorch's does; a negative power of 1 or -1 is 1 or -1, of others 0."""

    def multiply(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        result, square, left = state
        return jnp.where(left % 2 == 1, result * square, result), square * square, left // 2

    start = jnp.ones_like(x), x, jnp.maximum(exponent, 0)
    result, _, _ = lax.while_loop(lambda state: jnp.any(state[2] > 0), multiply, start)
    unit = jnp.where(x == 1, 1, jnp.where(x + 1 == 0, 1 - 2 * (exponent % 2), 0))
    return jnp.where(exponent < 0, unit.astype(x.dtype), result)


# Two numbers to one.

for _name, _fn in {
    "atan2": jnp.arctan2,
    "hypot": jnp.hypot,
    "logaddexp2": jnp.logaddexp2,
}.items():
    elementwise(f"aten::{_name}", promotion=Promotion.INT_TO_FLOAT)(_fn)


@elementwise("aten::logaddexp", promotion=Promotion.INT_TO_FLOAT)
def logaddexp(x: Array, y: Array) -> Array:
    """The imaginary part is not wrapped to (-pi, pi], unlike jnp's."""
    if not jnp.iscomplexobj(x):
        return jnp.logaddexp(x, y)
    x, y = jnp.where(x.real < y.real, x, y), jnp.where(x.real < y.real, y, x)
    infinite = jnp.isinf(x.real) & (x.real == y.real)
    at_infinity = jnp.where(x.real < 0, x, jnp.log(jnp.exp(x) + jnp.exp(y)))
    return jnp.where(infinite, at_infinity, y + jnp.log1p(jnp.exp(x - y)))


elementwise("aten::copysign.Tensor", "aten::copysign.Scalar", promotion=Promotion.INT_TO_FLOAT)(jnp.copysign)
elementwise("aten::nextafter", promotion=Promotion.NO_OPMATH)(jnp.nextafter)
elementwise("aten::heaviside")(lambda x, values: jnp.where(x == 0, values, (x > 0).astype(values.dtype)))


@elementwise("aten::xlogy.Tensor", "aten::xlogy.Scalar_Self", "aten::xlogy.Scalar_Other", promotion=Promotion.INT_TO_FLOAT)
def xlogy(x: Array, y: Array) -> Array:
    """0 where x is 0, but a NaN in y stays."""
    return jnp.where((x == 0) & ~jnp.isnan(y), 0, x * jnp.log(y))
