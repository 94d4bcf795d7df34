"""Functions of one number: exponentials, logarithms, trigonometry, signs, rounding, parts of complex numbers."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from torchtpu.ops.arithmetic import integral
from torchtpu.ops.registry import Promotion, elementwise


def exp2(x: Array) -> Array:
    """XLA's exp2 is not exact at whole numbers; its power is."""
    return jnp.exp2(x) if jnp.iscomplexobj(x) else jnp.power(np.asarray(2, x.dtype), x)


for _name, _fn in {
    "acos": jnp.arccos,
    "acosh": jnp.arccosh,
    "asin": jnp.arcsin,
    "asinh": jnp.arcsinh,
    "atan": jnp.arctan,
    "atanh": jnp.arctanh,
    "cos": jnp.cos,
    "cosh": jnp.cosh,
    "exp": jnp.exp,
    "exp2": exp2,
    "expm1": jnp.expm1,
    "log": jnp.log,
    "log10": jnp.log10,
    "log1p": jnp.log1p,
    "log2": jnp.log2,
    "reciprocal": lambda x: 1 / x,
    "rsqrt": lax.rsqrt,
    "sigmoid": lax.logistic,
    "sin": jnp.sin,
    "sinc": jnp.sinc,
    "sinh": jnp.sinh,
    "sqrt": jnp.sqrt,
    "tan": jnp.tan,
    "tanh": jnp.tanh,
}.items():
    elementwise(f"aten::{_name}", promotion=Promotion.INT_TO_FLOAT)(_fn)


# Signs and parts.


@elementwise("aten::sign")
def sign(x: Array) -> Array:
    """0 for NaN, unlike jnp.sign."""
    return x if x.dtype == np.bool_ else (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)


@elementwise("aten::sgn")
def sgn(x: Array) -> Array:
    return jnp.sign(x) if np.iscomplexobj(x) else sign(x)


@elementwise("aten::signbit", promotion=Promotion.NO_OPMATH)
def signbit(x: Array) -> Array:
    return x < 0 if integral(x) else jnp.signbit(x)


@elementwise("aten::angle", promotion=Promotion.INT_TO_FLOAT)
def angle(x: Array) -> Array:
    if jnp.iscomplexobj(x):
        return jnp.arctan2(x.imag, x.real)
    return jnp.where(jnp.isnan(x), x, jnp.where(x < 0, np.pi, 0).astype(x.dtype))


# Rounding. Integers are whole already.

for _name, _fn in {"ceil": jnp.ceil, "floor": jnp.floor, "round": jnp.round, "trunc": jnp.trunc}.items():
    elementwise(f"aten::{_name}")(lambda x, fn=_fn: x if integral(x) else fn(x))

elementwise("aten::frac")(lambda x: x - jnp.trunc(x))


@elementwise("aten::round.decimals")
def round_decimals(x: Array, decimals: int) -> Array:
    """Half to even, of the scaled number."""
    if integral(x) or decimals == 0:
        return x if integral(x) else jnp.round(x)
    scale = np.asarray(10.0 ** abs(decimals), x.dtype)
    return jnp.round(x * scale) / scale if decimals > 0 else jnp.round(x / scale) * scale


elementwise("aten::frexp.Tensor")(jnp.frexp)


# Numbers that are not finite.

for _name, _infinity in {"isneginf": -np.inf, "isposinf": np.inf}.items():
    elementwise(f"aten::{_name}", promotion=Promotion.NO_OPMATH)(
        lambda x, infinity=_infinity: jnp.zeros(x.shape, bool) if integral(x) else x == infinity
    )
elementwise("aten::isinf", promotion=Promotion.NO_OPMATH)(jnp.isinf)
elementwise("aten::isnan", promotion=Promotion.NO_OPMATH)(jnp.isnan)


@elementwise("aten::nan_to_num", promotion=Promotion.NO_OPMATH)
def nan_to_num(x: Array, nan: Any, posinf: Any, neginf: Any) -> Array:
    """Defaults: 0 and the largest finite numbers of the tensor's own dtype."""
    if integral(x):
        return x
    if jnp.iscomplexobj(x):
        real = [a if a is None else a.real for a in (nan, posinf, neginf)]
        return lax.complex(nan_to_num(x.real, *real), nan_to_num(x.imag, *real))
    largest = jnp.finfo(x.dtype).max
    x = jnp.where(jnp.isnan(x), 0 if nan is None else nan, x)
    x = jnp.where(x == np.inf, largest if posinf is None else posinf, x)
    return jnp.where(x == -np.inf, -largest if neginf is None else neginf, x)


# Log odds. `eps` clips the argument to [eps, 1 - eps]; without it, an argument outside [0, 1] gives NaN.


@elementwise("aten::logit", promotion=Promotion.INT_TO_FLOAT)
def logit(x: Array, eps: Any) -> Array:
    if eps is not None:
        x = jnp.minimum(jnp.maximum(x, eps), 1 - eps)
    return jnp.log(x / (1 - x))


@elementwise("aten::logit_backward")
def logit_backward(grad: Array, x: Array, eps: Any) -> Array:
    low, outside = (0, np.nan) if eps is None else (eps, 0)
    return jnp.where((x < low) | (x > 1 - low), outside, grad / (x * (1 - x)))
