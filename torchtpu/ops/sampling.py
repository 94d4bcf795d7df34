"""Sampling by rejection, sorting or search: permutations, multinomial, Poisson, binomial, gamma, Dirichlet."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from torchtpu.ops.random import bits, exponential, normal, positive, real_dtype, uniform
from torchtpu.ops.registry import elementwise, rule

aten = torch.ops.aten

# As on CUDA: beyond, float32 probabilities are too coarse.
_MAX_CATEGORIES = 2**24


@rule("aten::randperm.generator_out", random=True)
def randperm(n: int, *, key: Array) -> Array:
    """The order of random 64-bit numbers, sorted as two halves."""
    high, low = bits(key, (2, n), np.uint32)[1]
    return lax.sort((high, low, lax.iota(np.int32 if n < 2**31 else np.int64, n)), num_keys=2)[2]


def _multinomial_metadata(p: torch.Tensor, count: int, replacement: bool = False, **kwargs: Any) -> torch.Tensor:
    """PyTorch's meta kernel lets these mistakes pass."""
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
    return aten.multinomial(p, count, replacement, **kwargs)


@rule("aten::multinomial", random=True, metadata=_multinomial_metadata)
def multinomial(p: Array, count: int, replacement: bool, *, key: Array) -> Array:
    """Probabilities are not checked: PyTorch reads them back on the CPU, and asserts on CUDA.

    Without replacement, the categories that a race of exponential clocks with rates `p` reaches first.
    """
    p = p.astype(real_dtype(p.dtype))
    if count == 1:
        return jnp.argmax(p / exponential(key, p.shape, p.dtype)[1], axis=-1, keepdims=True).astype(np.int64)
    if not replacement:
        return lax.top_k(p / exponential(key, p.shape, p.dtype)[1], count)[1].astype(np.int64)
    upto = jnp.cumsum(p, axis=-1)
    drawn = uniform(key, (*p.shape[:-1], count), p.dtype)[1] * upto[..., -1:]
    if p.ndim == 1:
        return _search(upto, drawn)
    return jax.vmap(_search)(upto, drawn)


def _search(upto: Array, drawn: Array) -> Array:
    """Return the first category whose cumulated probability exceeds each number (rounding may reach the total)."""
    last = jnp.searchsorted(upto, upto[-1], side="left")
    return jnp.minimum(jnp.searchsorted(upto, drawn, side="right"), last).astype(np.int64)


# Counts, drawn by jax's rejection samplers.


def jax_key(key: Array) -> Array:
    """Return a key for `jax.random` from the stream."""
    return jax.random.wrap_key_data(bits(key, (2,), np.uint32)[1], impl="threefry2x32")


@rule("aten::poisson", random=True)
def poisson(rate: Array, *, key: Array) -> Array:
    dtype = real_dtype(rate.dtype)
    return jax.random.poisson(jax_key(key), rate.astype(dtype), dtype=np.int64).astype(dtype)


def _like_both(count: torch.Tensor, prob: torch.Tensor, generator: Any = None) -> torch.Tensor:
    return torch.empty_like(torch.broadcast_tensors(count, prob)[0])


@rule("aten::binomial", random=True, metadata=_like_both)
def binomial(count: Array, p: Array, *, key: Array) -> Array:
    dtype = real_dtype(count.dtype)
    return jax.random.binomial(jax_key(key), *jnp.broadcast_arrays(count.astype(dtype), p.astype(dtype)), dtype=dtype)


# Gamma and Dirichlet.


def gamma(key: Array, alpha: Array) -> tuple[Array, Array]:
    """Draw from the gamma distribution of shape `alpha` and scale 1 (Marsaglia and Tsang 2000).

    The candidates of all elements are drawn together until each has taken one: 19 of 20 do in a round.
    """
    shape, dtype = alpha.shape, alpha.dtype
    small = alpha < 1  # drawn for alpha + 1, then multiplied by a power of a uniform number
    d = jnp.where(small, alpha + 1, alpha) - np.asarray(1 / 3, dtype)
    c = 1 / (3 * jnp.sqrt(d))

    def draw(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        key, value, missing = state
        key, x = normal(key, shape, dtype)
        key, u = positive(key, shape, dtype)
        v = (1 + c * x) ** 3
        taken = (v > 0) & (jnp.log(u) < x * x / 2 + d * (1 - v + jnp.log(jnp.where(v > 0, v, 1))))
        return key, jnp.where(missing & taken, d * v, value), missing & ~taken

    key, boost = positive(key, shape, dtype)
    start = key, jnp.full(shape, np.nan, dtype), alpha > 0
    key, value, _ = lax.while_loop(lambda state: jnp.any(state[2]), draw, start)
    return key, jnp.where(small, value * boost ** (1 / alpha), value)


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
