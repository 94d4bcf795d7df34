"""Orthogonal polynomials (`torch.special.*_polynomial_*`): three-term recurrences up to each element's own degree."""

from __future__ import annotations

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

from torchtpu.ops.registry import Promotion, elementwise

# From the values at degrees i - 1 and i to the one at i + 1: (x, i, previous, current).
Step = Callable[[Array, Array, Array, Array], Array]

# Within (-1, 1), Chebyshev polynomials above this degree are computed from their trigonometric form.
_MAX_CHEBYSHEV_STEPS = 6


def _recur(x: Array, n: Array, first: Array, step: Step, known: Array | bool = False) -> Array:
    """Return the polynomial of degree n: 0 below degree 0, 1 at 0, `first` at 1. Elements in `known` are not computed."""

    def active(state: tuple[Array, Array, Array, Array]) -> Array:
        i, _, current, _ = state
        return (i < n) & ~jnp.isnan(current) & ~known

    def advance(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        i, previous, current, _ = state
        going = active(state)
        following = jnp.where(going, step(x, i, previous, current), current)
        return i + 1, jnp.where(going, current, previous), following, jnp.any(active((i + 1, current, following, going)))

    start = jnp.ones((), x.dtype), jnp.ones_like(x), first
    value = lax.while_loop(lambda state: state[3], advance, (*start, jnp.any(active((*start, n)))))[2]
    return jnp.where(n < 0, 0, jnp.where(n == 0, 1, value))


def _degree(n: Array) -> Array:
    return jnp.where(jnp.isfinite(n), jnp.trunc(n), -1)


def _odd(n: Array) -> Array:
    return jnp.abs(jnp.fmod(n, 2)) == 1


# Chebyshev polynomials of the four kinds: the value at degree 1, at x = 1, at x = -1 (of even degree), and inside.
_CHEBYSHEV: dict[str, tuple[Callable, Callable, Callable, Callable]] = {
    "t": (lambda x: x, lambda n: 1 + 0 * n, lambda n: 1 + 0 * n, lambda n, a: jnp.cos(n * a)),
    "u": (lambda x: x + x, lambda n: n + 1, lambda n: n + 1, lambda n, a: jnp.sin((n + 1) * a) / jnp.sin(a)),
    "v": (lambda x: x + x - 1, lambda n: 1 + 0 * n, lambda n: n + n + 1, lambda n, a: jnp.cos((n + 0.5) * a) / jnp.cos(a / 2)),
    "w": (lambda x: x + x + 1, lambda n: n + n + 1, lambda n: 1 + 0 * n, lambda n, a: jnp.sin((n + 0.5) * a) / jnp.sin(a / 2)),
}


def _chebyshev(kind: str, x: Array, n: Array) -> Array:
    first, right, left, inside = _CHEBYSHEV[kind]
    x, n = jnp.broadcast_arrays(x, _degree(n))
    end = jnp.where(x > 0, right(n), jnp.where(_odd(n), -left(n), left(n)))
    closed = (n > _MAX_CHEBYSHEV_STEPS) & (jnp.abs(x) < 1)
    at_end = (jnp.abs(x) == 1) & (n >= 0)
    value = _recur(x, n, first(x), lambda x, i, previous, current: (x + x) * current - previous, closed | at_end)
    return jnp.where(at_end, end, jnp.where(closed, inside(n, jnp.arccos(x)), value))


def _hermite(physical: bool, x: Array, n: Array) -> Array:
    x, n = jnp.broadcast_arrays(x, _degree(n))
    scale = 2 if physical else 1
    limit = 128 if x.dtype.itemsize == 4 else 512  # above, PyTorch returns NaN
    value = _recur(x, n, scale * x, lambda x, i, previous, current: scale * (x * current - i * previous), n > limit)
    return jnp.where(n > limit, jnp.nan, value)


def _laguerre(x: Array, n: Array) -> Array:
    x, n = jnp.broadcast_arrays(x, _degree(n))
    zero = (x == 0) & (n >= 0)
    value = _recur(x, n, 1 - x, lambda x, i, previous, current: ((i + i + (1 - x)) * current - i * previous) / (i + 1), zero)
    return jnp.where(zero, 1, value)


def _legendre(x: Array, n: Array) -> Array:
    x, n = jnp.broadcast_arrays(x, _degree(n))
    end = (jnp.abs(x) == 1) & (n >= 0)
    value = _recur(x, n, x, lambda x, i, previous, current: ((i + i + 1) * x * current - i * previous) / (i + 1), end)
    return jnp.where(end, jnp.where((x > 0) | ~_odd(n), 1, -1).astype(x.dtype), value)


_POLYNOMIALS: dict[str, Callable[[Array, Array], Array]] = {
    "hermite_polynomial_h": lambda x, n: _hermite(True, x, n),
    "hermite_polynomial_he": lambda x, n: _hermite(False, x, n),
    "laguerre_polynomial_l": _laguerre,
    "legendre_polynomial_p": _legendre,
}
for _kind in _CHEBYSHEV:
    _POLYNOMIALS[f"chebyshev_polynomial_{_kind}"] = lambda x, n, kind=_kind: _chebyshev(kind, x, n)
    _POLYNOMIALS[f"shifted_chebyshev_polynomial_{_kind}"] = lambda x, n, kind=_kind: _chebyshev(kind, x + x - 1, n)

for _name, _fn in _POLYNOMIALS.items():
    _overloads = (f"aten::special_{_name}{suffix}" for suffix in ("", ".x_scalar", ".n_scalar"))
    elementwise(*_overloads, promotion=Promotion.INT_TO_FLOAT)(_fn)
