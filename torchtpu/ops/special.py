"""Special functions: the gamma and error functions and their kin. Bessel functions are in `bessel`."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.scipy import special

from torchtpu.ops.registry import Promotion, elementwise


def digamma(x: Array) -> Array:
    """A pole at 0 has the sign of the side that it is approached from."""
    return jnp.where(x == 0, jnp.copysign(np.inf, -x), lax.digamma(x))


def entr(x: Array) -> Array:
    """-x log x."""
    return jnp.where(x == 0, 0, jnp.where(x < 0, -np.inf, -x * jnp.log(x)))


def erfinv(y: Array) -> Array:
    """XLA's, good to 6e-6 in float32, and a Newton step from the side where erf or erfc is not close to 1."""
    x = lax.erf_inv(y)
    size, target = jnp.abs(x), jnp.abs(y)
    excess = jnp.where(size > 0.5, (1 - target) - lax.erfc(size), lax.erf(size) - target)
    slope = 2 / math.sqrt(math.pi) * jnp.exp(-x * x)
    return jnp.where(target < 1, jnp.copysign(size - excess / slope, x), x)


def igamma(a: Array, x: Array) -> Array:
    """Lower regularized incomplete gamma function, with PyTorch's limits."""
    a, x = jnp.broadcast_arrays(a, x)
    return jnp.where((a == 0) & (x > 0), 1, jnp.where(jnp.isinf(a) & (x >= 0) & ~jnp.isinf(x), 0, lax.igamma(a, x)))


def igammac(a: Array, x: Array) -> Array:
    """Upper regularized incomplete gamma function."""
    a, x = jnp.broadcast_arrays(a, x)
    return jnp.where((a == 0) & (x > 0), 0, jnp.where(jnp.isinf(a) & (x >= 0) & ~jnp.isinf(x), 1, lax.igammac(a, x)))


def log_ndtr(x: Array) -> Array:
    """Logarithm of the normal distribution function, by the scaled erfc in the left tail."""
    t = x * math.sqrt(0.5)
    tail = jnp.log(special.erfcx(-t) / 2) - t * t
    return jnp.where(x < -1, tail, jnp.log1p(-lax.erfc(t) / 2))


def ndtri(p: Array) -> Array:
    """Inverse of the normal distribution function."""
    return jnp.where((p < 0) | (p > 1), np.nan, special.ndtri(p))


for _name, _fn in {
    "digamma": digamma,
    "erf": lax.erf,
    "erfc": lax.erfc,
    "erfinv": erfinv,
    "igamma": igamma,
    "igammac": igammac,
    "lgamma": lax.lgamma,
    "special_entr": entr,
    "special_erfcx": special.erfcx,
    "special_log_ndtr": log_ndtr,
    "special_ndtri": ndtri,
}.items():
    elementwise(f"aten::{_name}", promotion=Promotion.INT_TO_FLOAT)(_fn)

_PAIR = ("aten::special_{}", "aten::special_{}.self_scalar", "aten::special_{}.other_scalar")


@elementwise(*(o.format("xlog1py") for o in _PAIR), promotion=Promotion.INT_TO_FLOAT)
def xlog1py(x: Array, y: Array) -> Array:
    """0 where x is 0, but a NaN in y stays."""
    return jnp.where((x == 0) & ~jnp.isnan(y), 0, x * jnp.log1p(y))


@elementwise(*(o.format("zeta") for o in _PAIR), promotion=Promotion.INT_TO_FLOAT)
def zeta(x: Array, q: Array) -> Array:
    """Hurwitz zeta function. XLA's is wrong far left of 0: terms are taken off until q is positive."""
    x, q = jnp.broadcast_arrays(x, q)
    whole = q == jnp.floor(q)
    steps = jnp.where((q < 0) & ~whole, jnp.ceil(-q), 0)

    def add(state: tuple[Array, Array]) -> tuple[Array, Array]:
        k, total = state
        return k + 1, jnp.where(k < steps, total + jnp.power(q + k, -x), total)

    start = jnp.zeros((), q.dtype), jnp.zeros_like(q)
    _, head = lax.while_loop(lambda state: jnp.any(state[0] < steps), add, start)
    value = head + lax.zeta(x, q + steps)
    value = jnp.where(q <= 0, jnp.where(whole, np.inf, jnp.where(x == jnp.floor(x), value, np.nan)), value)
    return jnp.where(x == 1, np.inf, jnp.where(x < 1, np.nan, value))


@elementwise("aten::mvlgamma", promotion=Promotion.INT_TO_FLOAT)
def mvlgamma(x: Array, p: int) -> Array:
    """Logarithm of the p-variate gamma function."""
    return p * (p - 1) / 4 * math.log(math.pi) + sum(lax.lgamma(x - j / 2) for j in range(p))


@elementwise("aten::polygamma", promotion=Promotion.INT_TO_FLOAT)
def polygamma(n: int, x: Array) -> Array:
    """The n-th derivative of digamma."""
    if n == 0:
        return digamma(x)
    if n == 1:
        return trigamma(x)
    return (1 if n % 2 else -1) * math.gamma(n + 1) * zeta(jnp.full_like(x, n + 1), x)


def trigamma(x: Array) -> Array:
    """By recurrence to an asymptotic series; left of 1/2 by reflection."""
    reflected = x < 0.5
    sine = jnp.sin(np.pi * x)
    y = jnp.where(reflected, 1 - x, x)
    total = jnp.zeros_like(y)
    for _ in range(6):
        total = total + 1 / (y * y)
        y = y + 1
    inverse = 1 / (y * y)
    series = 1 + 1 / (2 * y) + inverse * (1 / 6 - inverse * (1 / 30 - inverse / 42))
    total = total + series / y
    return jnp.where(reflected, np.pi**2 / (sine * sine) - total, total)
