"""Products of arrays in the precision that their op was called with, for matrix products, convolutions and attention.

bfloat16 is multiplied in one pass, which is exact. float32, complex64 and float16 follow `torchtpu.precision`; on XLA:CPU the
passes of a TPU are made here, where `config.numerics` asks for them. Both halves are summed in float32.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu.precision import Precision, lowered


class Multiply(Protocol):
    """A product that is linear in both arrays."""

    def __call__(self, a: jax.Array, b: jax.Array, *, precision: lax.Precision) -> jax.Array:
        """Multiply, and sum over some dimensions."""


def accumulator_of(dtype: Any) -> Any:
    """Return the dtype in which products of a dtype are summed, None for its own."""
    return jnp.float32 if dtype in (jnp.bfloat16, jnp.float16) else None


def product(multiply: Multiply, a: jax.Array, b: jax.Array) -> jax.Array:
    """Inside a trace: multiply two arrays of one dtype in the precision of the op that is being lowered."""
    if a.dtype not in (jnp.float32, jnp.complex64, jnp.float16):
        return multiply(a, b, precision=lax.Precision.DEFAULT if a.dtype == jnp.bfloat16 else lax.Precision.HIGHEST)
    setting = lowered()
    whole = partial(multiply, precision=lax.Precision[setting.precision.name])
    if setting.numerics == "native":
        return whole(a, b)
    # Lowered for a TPU the product stays whole: the chip makes the passes.
    return lax.platform_dependent(a, b, cpu=partial(_in_passes, whole, setting.precision), default=whole)


def _in_passes(multiply: partial[jax.Array], precision: Precision, a: jax.Array, b: jax.Array) -> jax.Array:
    """Multiply the bfloat16 parts of two arrays, exactly, and sum in float32, the smallest first."""
    if a.dtype == jnp.complex64:
        passes = partial(_in_passes, multiply, precision)
        return lax.complex(
            passes(a.real, b.real) - passes(a.imag, b.imag),
            passes(a.real, b.imag) + passes(a.imag, b.real),
        )
    count = min(precision.parts, 2) if a.dtype == jnp.float16 else precision.parts  # two hold its 11 bits
    lefts, rights = (_parts(x.astype(jnp.float32), count) for x in (a, b))
    # A part of order k is 2^-8k of the number. Pairs of order `count` and beyond are dropped.
    pairs = [(i, order - i) for order in reversed(range(1, count)) for i in range(order + 1)]
    largest = multiply(lefts[0], rights[0])
    if not pairs:
        return largest
    rest = sum(multiply(lefts[i], rights[j]) for i, j in pairs)
    # Infinity times a small part is NaN, or infinite with the wrong sign.
    return largest + jnp.where(jnp.isfinite(rest), rest, jnp.zeros_like(rest))


def _parts(x: jax.Array, count: int) -> list[jax.Array]:
    """Split float32 numbers into so many bfloat16 ones, kept as float32, that sum up to them."""
    parts = []
    for _ in range(count):
        part = lax.reduce_precision(x, 8, 7)  # bfloat16's bits; unlike a pair of casts, XLA never leaves this out
        parts.append(part)
        x = jnp.where(jnp.isfinite(part), x - part, jnp.zeros_like(x))
    return parts
