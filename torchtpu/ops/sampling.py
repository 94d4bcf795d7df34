"""Sampling by rejection, sorting or search: permutations, multinomial, Poisson, binomial, gamma, Dirichlet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from torchtpu.ops.random import bits, exponential, normal, positive, real_dtype, symmetric, uniform
from torchtpu.ops.registry import elementwise, rule
from torchtpu.ops.scan import scan

# As on CUDA: beyond, float32 probabilities are too coarse.
_MAX_CATEGORIES = 2**24


@rule("aten::randperm.generator_out", random=True)
def randperm(n: int, *, key: Array) -> Array:
    """The order of random 64-bit numbers, sorted as two halves."""
    high, low = bits(key, (2, n), np.uint32)[1]
    return lax.sort((high, low, lax.iota(np.int32 if n < 2**31 else np.int64, n)), num_keys=2)[2]


def _check_multinomial(p: torch.Tensor, count: int, replacement: bool, *rest: Any) -> None:
    for out in rest:
        if isinstance(out, torch.Tensor) and out.dtype is not torch.int64:
            raise RuntimeError(f"multinomial expects Long tensor out, got: {out.dtype}")
    if p.dim() not in (1, 2):
        raise RuntimeError("prob_dist must be 1 or 2 dim")
    if not p.is_floating_point():
        raise RuntimeError(f"multinomial only supports floating-point dtypes for input, got: {p.dtype}")
    if count <= 0:
        raise RuntimeError("cannot sample n_sample <= 0 samples")
    if not replacement and count > p.size(-1):
        raise RuntimeError("cannot sample n_sample > prob_dist.size(-1) samples without replacement")
    if p.size(-1) > _MAX_CATEGORIES:
        raise RuntimeError("number of categories cannot exceed 2^24")


@rule("aten::multinomial", random=True, check=_check_multinomial)
def multinomial(p: Array, count: int, replacement: bool, *, key: Array) -> Array:
    """Probabilities are not checked: PyTorch reads them back on the CPU, and asserts on CUDA.

    Without replacement, the categories that a race of exponential clocks with rates `p` reaches first.
    """
    p = p.astype(real_dtype(p.dtype))
    if count == 1:
        return jnp.argmax(p / exponential(key, p.shape, p.dtype)[1], axis=-1, keepdims=True).astype(np.int64)
    if not replacement:
        return lax.top_k(p / exponential(key, p.shape, p.dtype)[1], count)[1].astype(np.int64)
    upto = scan(p, p.ndim - 1, lax.add)
    drawn = uniform(key, (*p.shape[:-1], count), p.dtype)[1] * upto[..., -1:]
    if p.ndim == 1:
        return _search(upto, drawn)
    return jax.vmap(_search)(upto, drawn)


def _search(upto: Array, drawn: Array) -> Array:
    """Return the first category whose cumulated probability exceeds each number (rounding may reach the total)."""
    last = jnp.searchsorted(upto, upto[-1], side="left")
    return jnp.minimum(jnp.searchsorted(upto, drawn, side="right"), last).astype(np.int64)


# Counts and gamma numbers. Candidates for all elements are drawn together until each element has accepted one.

Draw = Callable[[Array], tuple[Array, Array, Array]]


def rejection(key: Array, wanted: Array, dtype: Any, draw: Draw) -> tuple[Array, Array]:
    """Return accepted candidates for the `wanted` elements, 0 for others.

    Args:
        draw: from the state of the stream to its next state, a candidate for each element, and whether it is accepted.
    """

    def again(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        key, value, missing = state
        key, candidate, accepted = draw(key)
        return key, jnp.where(missing & accepted, candidate, value), missing & ~accepted

    start = key, jnp.zeros(wanted.shape, dtype), wanted
    key, value, _ = lax.while_loop(lambda state: jnp.any(state[2]), again, start)
    return key, value


def inversion(key: Array, first: Array, ratio: Callable[[Array], Array]) -> tuple[Array, Array]:
    """Draw counts of small mean: how many probabilities, from `first` on, a uniform number exceeds the sum of.

    Args:
        first: probability of 0.
        ratio: from k to the probability of k divided by that of k - 1.
    """
    key, drawn = positive(key, first.shape, first.dtype)

    def next_count(state: tuple[Array, ...]) -> tuple[Array, ...]:
        k, count, mass, upto = state
        mass = mass * ratio(k)
        return k + 1, count + (drawn > upto), mass, upto + mass

    start = jnp.ones((), first.dtype), jnp.zeros_like(first), first, first
    _, count, _, _ = lax.while_loop(lambda s: jnp.any(drawn > s[3]) & (s[0] < _MAX_INVERTED), next_count, start)
    return key, count


# Below this mean, counts are drawn by inversion; they stay far below the bound on them.
_SMALL_MEAN = 10
_MAX_INVERTED = 200


def transformed(key: Array, wanted: Array, shape: tuple[Array, ...], log_mass: Callable[[Array], Array]) -> tuple[Array, Array]:
    """Draw counts by Hörmann's transformed rejection (1993): algorithms PTRS and BTRS.

    Args:
        shape: the hat's a and b, its center, the squeeze `v_r`, and the scale alpha.
        log_mass: the logarithm of a count's probability, -inf where it is impossible.
    """
    a, b, center, squeeze, alpha = shape
    dtype = center.dtype

    def draw(key: Array) -> tuple[Array, Array, Array]:
        key, u = symmetric(key, wanted.shape, dtype)
        key, v = positive(key, wanted.shape, dtype)
        u = u / 2
        tail = 0.5 - jnp.abs(u)
        count = jnp.floor((2 * a / tail + b) * u + center)
        inside = (tail >= 0.07) & (v <= squeeze)
        return key, count, inside | (jnp.log(v * alpha / (a / (tail * tail) + b)) <= log_mass(count))

    return rejection(key, wanted, dtype, draw)


def deviance(count: Array, mean: Array) -> Array:
    """Return count * log(count / mean) + mean - count, without cancellation near the mean."""
    x = (count - mean) / mean
    return jnp.where(count == 0, mean, mean * ((1 + x) * jnp.log1p(jnp.maximum(x, -1)) - x))


def stirling_error(count: Array) -> Array:
    """Return log(count!) less Stirling's approximation of it, sqrt(2 pi count) * (count / e)**count."""
    small = lax.lgamma(count + 1) - ((count + 0.5) * jnp.log(count) - count + 0.5 * np.log(2 * np.pi))
    square = count * count
    return jnp.where(count < 10, small, (1 / 12 - (1 / 360 - 1 / 1260 / square) / square) / count)


def log_poisson(count: Array, mean: Array) -> Array:
    k = jnp.maximum(count, 1)
    log = -deviance(k, mean) - stirling_error(k) - 0.5 * jnp.log(2 * np.pi * k)
    return jnp.where(count < 0, -np.inf, jnp.where(count == 0, -mean, log))


@rule("aten::poisson", random=True)
def poisson(rate: Array, *, key: Array) -> Array:
    rate = rate.astype(real_dtype(rate.dtype))
    large = (rate >= _SMALL_MEAN) & jnp.isfinite(rate)
    mean = jnp.where(large, rate, _SMALL_MEAN)
    b = 0.931 + 2.53 * jnp.sqrt(mean)
    hat = -0.059 + 0.02483 * b, b, mean + 0.43, 0.9277 - 3.6224 / (b - 2), 1.1239 + 1.1328 / (b - 3.4)
    key, many = transformed(key, large, hat, lambda count: log_poisson(count, mean))
    mean = jnp.where(rate < _SMALL_MEAN, rate, 0)
    key, few = inversion(key, jnp.exp(-mean), lambda k: mean / k)
    return jnp.where(large, many, jnp.where(rate < _SMALL_MEAN, few, rate))


def _like_both(count: torch.Tensor, prob: torch.Tensor, generator: Any = None) -> torch.Tensor:
    return torch.empty_like(torch.broadcast_tensors(count, prob)[0])


@rule("aten::binomial", random=True, metadata=_like_both)
def binomial(n: Array, p: Array, *, key: Array) -> Array:
    """Successes of `n` trials, or failures, whichever are rarer."""
    dtype = real_dtype(n.dtype)
    n, p = jnp.broadcast_arrays(n.astype(dtype), p.astype(dtype))
    valid = (n >= 0) & jnp.isfinite(n) & (p >= 0) & (p <= 1)
    rare = jnp.minimum(p, 1 - p)
    large = valid & (n * rare >= _SMALL_MEAN)

    trials, q = jnp.where(large, n, 4 * _SMALL_MEAN), jnp.where(large, rare, 0.5)
    deviation = jnp.sqrt(trials * q * (1 - q))
    b = 1.15 + 2.53 * deviation
    hat = -0.0873 + 0.0248 * b + 0.01 * q, b, trials * q + 0.5, 0.92 - 4.2 / b, (2.83 + 5.1 / b) * deviation
    mode = jnp.floor((trials + 1) * q)

    def log_mass(count: Array) -> Array:
        """Without the factor that all counts share; the rest is 0 at both ends."""
        k = jnp.clip(count, 0, trials)
        log = -deviance(k, trials * q) - deviance(trials - k, trials * (1 - q))
        for part in (k, trials - k):
            part = jnp.maximum(part, 1)
            log -= stirling_error(part) + 0.5 * jnp.log(part)
        return jnp.where(k == count, log, -np.inf)

    key, many = transformed(key, large, hat, lambda count: log_mass(count) - log_mass(mode))
    few_of, q = jnp.where(valid & ~large, n, 0), jnp.where(valid & ~large, rare, 0)
    key, few = inversion(key, jnp.exp(few_of * jnp.log1p(-q)), lambda k: jnp.maximum(few_of - k + 1, 0) / k * (q / (1 - q)))
    count = jnp.where(large, many, few)
    return jnp.where(valid, jnp.where(p > 0.5, n - count, count), np.nan)


def gamma(key: Array, alpha: Array) -> tuple[Array, Array]:
    """Draw from the gamma distribution of shape `alpha` and scale 1 (Marsaglia and Tsang 2000)."""
    dtype = alpha.dtype
    small = alpha < 1  # drawn for alpha + 1, then multiplied by a power of a uniform number
    d = jnp.where(small, alpha + 1, alpha) - np.asarray(1 / 3, dtype)
    c = 1 / (3 * jnp.sqrt(d))

    def draw(key: Array) -> tuple[Array, Array, Array]:
        key, x = normal(key, alpha.shape, dtype)
        key, u = positive(key, alpha.shape, dtype)
        v = (1 + c * x) ** 3
        accepted = (v > 0) & (jnp.log(u) < x * x / 2 + d * (1 - v + jnp.log(jnp.where(v > 0, v, 1))))
        return key, d * v, accepted

    key, boost = positive(key, alpha.shape, dtype)
    key, value = rejection(key, (alpha > 0) & jnp.isfinite(alpha), dtype, draw)
    value = jnp.where(small, value * boost ** (1 / alpha), value)
    return key, jnp.where(alpha > 0, value, np.nan)


@rule("aten::_standard_gamma", random=True)
def standard_gamma(alpha: Array, *, key: Array) -> Array:
    return jnp.maximum(gamma(key, alpha.astype(real_dtype(alpha.dtype)))[1], np.finfo(np.float32).tiny)


elementwise("aten::_standard_gamma_grad", metadata=lambda alpha, sample: torch.empty_like(alpha))(lax.random_gamma_grad)


@rule("aten::_sample_dirichlet", random=True, metadata=lambda alpha, generator=None: torch.empty_like(alpha))
def sample_dirichlet(alpha: Array, *, key: Array) -> Array:
    """Gamma numbers divided by their sum, inside (0, 1)."""
    drawn = gamma(key, alpha.astype(real_dtype(alpha.dtype)))[1]
    limits = np.finfo(drawn.dtype)
    return jnp.clip(drawn / jnp.sum(drawn, axis=-1, keepdims=True), limits.tiny, 1 - limits.eps)


@elementwise("aten::_dirichlet_grad", metadata=lambda x, alpha, total: torch.empty_like(x))
def dirichlet_grad(x: Array, alpha: Array, total: Array) -> Array:
    """Return how a sample of Beta(alpha, total - alpha) moves with alpha, divided by 1 - x, at a fixed quantile.

    That is -(dF/dalpha) / (dF/dx) / (1 - x) of the distribution function F. Its derivative by alpha is a difference in
    float64 of the smaller of F and 1 - F, which are known to as many digits as they have: exact to about seven.
    """
    dtype = x.dtype
    x, alpha, total = (v.astype(np.float64) for v in (x, alpha, total))
    beta = total - alpha
    lower = x <= alpha / total
    step = 1e-4 * alpha

    def log_tail(a: Array) -> Array:
        first, second = jnp.where(lower, a, beta), jnp.where(lower, beta, a)
        return jnp.log(lax.betainc(first, second, jnp.where(lower, x, 1 - x)))

    log_pdf = (alpha - 1) * jnp.log(x) + (beta - 1) * jnp.log1p(-x) + lax.lgamma(total) - lax.lgamma(alpha) - lax.lgamma(beta)
    change = (log_tail(alpha + step) - log_tail(alpha - step)) / (2 * step)
    moved = jnp.where(lower, -change, change) * jnp.exp(log_tail(alpha) - log_pdf) / (1 - x)
    return jnp.where(jnp.isnan(moved), 0, moved).astype(dtype)
