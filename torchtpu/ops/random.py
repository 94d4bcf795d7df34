"""Random numbers: uniform, normal and other distributions, integers, trials, dropout.

All come from XLA's Threefry generator, whose state is the seed and offset of a torch generator: the same numbers on every
platform and in every eager mode. The distributions are PyTorch's; the numbers are not those of its CPU generator.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from torchtpu.dtypes import xla_dtype
from torchtpu.ops.registry import entry, overload, rule

Meta = list[torch.Tensor]
Shape = tuple[int, ...]


# Sources. Each takes the state of the stream and returns the next state with the numbers, float32 or float64.


def bits(key: Array, shape: Shape, dtype: Any) -> tuple[Array, Array]:
    """Draw unsigned integers of all bits."""
    return lax.rng_bit_generator(key, shape, dtype=dtype, algorithm=lax.RandomAlgorithm.RNG_THREE_FRY)


def uniform(key: Array, shape: Shape, dtype: Any, width: int | None = None) -> tuple[Array, Array]:
    """Draw multiples of 2**-width from [0, 1); as many bits as the significand has, unless told fewer."""
    integer = np.dtype(f"u{np.dtype(dtype).itemsize}")
    if width is None:
        width = np.finfo(dtype).nmant + 1
    key, drawn = bits(key, shape, integer)
    drawn = lax.shift_right_logical(drawn, np.asarray(8 * integer.itemsize - width, integer))
    return key, drawn.astype(dtype) * np.asarray(2.0**-width, dtype)


def symmetric(key: Array, shape: Shape, dtype: Any) -> tuple[Array, Array]:
    """Draw from (-1, 1): neither bound, nor zero."""
    width = np.finfo(dtype).nmant
    key, drawn = uniform(key, shape, dtype, width)
    return key, 2 * drawn - np.asarray(1 - 2.0**-width, dtype)


def positive(key: Array, shape: Shape, dtype: Any) -> tuple[Array, Array]:
    """Draw from (0, 1): neither bound, for logarithms."""
    width = np.finfo(dtype).nmant
    key, drawn = uniform(key, shape, dtype, width)
    return key, drawn + np.asarray(0.5 * 2.0**-width, dtype)


def normal(key: Array, shape: Shape, dtype: Any) -> tuple[Array, Array]:
    """Draw from the normal distribution of mean 0 and deviation 1."""
    key, drawn = symmetric(key, shape, dtype)
    return key, np.asarray(np.sqrt(2), dtype) * lax.erf_inv(drawn)


def exponential(key: Array, shape: Shape, dtype: Any) -> tuple[Array, Array]:
    """Draw from the exponential distribution of rate 1; never 0."""
    key, drawn = positive(key, shape, dtype)
    return key, -jnp.log(drawn)


def trial(key: Array, shape: Shape, p: Array) -> Array:
    """Draw booleans that are true with probability `p`."""
    dtype = real_dtype(p.dtype)
    return uniform(key, shape, dtype)[1] < p.astype(dtype)


def real_dtype(dtype: Any) -> np.dtype:
    """Return the dtype in which numbers for an XLA or torch dtype are drawn: float64 for double, else float32."""
    return np.dtype(np.float64 if dtype in (torch.float64, torch.complex128, np.float64, np.complex128) else np.float32)


# Distributions that fill a tensor. Their functional overloads are PyTorch's own: a copy, filled.

_FILLED = {"ignores": "self", "meta": True, "random": True}


@rule("aten::uniform_", dynamic=("from", "to"), **_FILLED)
def fill_uniform(_self: Any, low: Array, high: Array, *, key: Array, out: Meta) -> Array:
    """As many random bits as the dtype's significand has, so that rounding never reaches the upper bound of [0, 1)."""
    width = {torch.bfloat16: 8, torch.float16: 11}.get(out[0].dtype)
    low, high = (jnp.asarray(bound, real_dtype(out[0].dtype)) for bound in (low, high))
    return _parts(lambda *source: low + (high - low) * uniform(*source, width)[1], key, out[0])


@rule("aten::normal_", dynamic=("mean", "std"), **_FILLED)
def fill_normal(_self: Any, mean: Array, std: Array, *, key: Array, out: Meta) -> Array:
    """The parts of a complex number share its variance."""
    dtype = real_dtype(out[0].dtype)
    scale = jnp.asarray(std, dtype) * np.asarray(np.sqrt(0.5) if out[0].dtype.is_complex else 1, dtype)
    return jnp.asarray(mean, dtype) + _parts(lambda *source: scale * normal(*source)[1], key, out[0])


def _parts(draw: Callable[[Array, Shape, Any], Array], key: Array, out: torch.Tensor) -> Array:
    """Draw the numbers for `out`: both parts of complex ones."""
    shape, dtype = tuple(out.shape), real_dtype(out.dtype)
    return lax.complex(*draw(key, (2, *shape), dtype)) if out.dtype.is_complex else draw(key, shape, dtype)


def _filling(name: str, *parameters: str) -> Callable[[Callable[..., Array]], Callable[..., Array]]:
    """Register a distribution as a function of (key, shape, dtype) and its parameters."""

    def add(draw: Callable[..., Array]) -> Callable[..., Array]:
        @rule(name, dynamic=parameters, **_FILLED)
        def fill(_self: Any, *numbers: Any, key: Array, out: Meta) -> Array:
            dtype = real_dtype(out[0].dtype)
            return draw(key, tuple(out[0].shape), dtype, *(jnp.asarray(n, dtype) for n in numbers))

        return draw

    return add


@_filling("aten::log_normal_", "mean", "std")
def log_normal(key: Array, shape: Shape, dtype: Any, mean: Array, std: Array) -> Array:
    return jnp.exp(mean + std * normal(key, shape, dtype)[1])


@_filling("aten::exponential_", "lambd")
def exponential_of_rate(key: Array, shape: Shape, dtype: Any, rate: Array) -> Array:
    return exponential(key, shape, dtype)[1] / rate


@_filling("aten::cauchy_", "median", "sigma")
def cauchy(key: Array, shape: Shape, dtype: Any, median: Array, sigma: Array) -> Array:
    return median + sigma * jnp.tan(np.asarray(np.pi / 2, dtype) * symmetric(key, shape, dtype)[1])


@_filling("aten::geometric_", "p")
def geometric(key: Array, shape: Shape, dtype: Any, p: Array) -> Array:
    """The number of trials up to the first success."""
    return jnp.maximum(jnp.ceil(jnp.log(positive(key, shape, dtype)[1]) / jnp.log1p(-p)), 1)


@_filling("aten::bernoulli_.float", "p")
@_filling("aten::bernoulli.p", "p")
def bernoulli(key: Array, shape: Shape, dtype: Any, p: Array) -> Array:
    return trial(key, shape, p)


# Distributions whose parameters are tensors.


@rule("aten::bernoulli", meta=True, random=True)
def bernoulli_of(p: Array, *, key: Array, out: Meta) -> Array:
    return trial(key, tuple(out[0].shape), p)


@rule("aten::bernoulli.Tensor", "aten::bernoulli_.Tensor", **_FILLED)
def fill_bernoulli_of(_self: Any, p: Array, *, key: Array, out: Meta) -> Array:
    return bernoulli_of(p, key=key, out=out)


@rule(
    "aten::normal.Tensor_Tensor",
    "aten::normal.Tensor_float",
    "aten::normal.float_Tensor",
    dynamic=("mean", "std"),
    meta=True,
    random=True,
)
def normal_of(mean: Array, std: Array, *, key: Array, out: Meta) -> Array:
    dtype = real_dtype(out[0].dtype)
    scaled = _parts(lambda *source: normal(*source)[1], key, out[0]) * std
    return mean + scaled * np.asarray(np.sqrt(0.5) if out[0].dtype.is_complex else 1, dtype)


# Integers.


@rule("aten::random_.from", dynamic=("from", "to"), **_FILLED)
def integers_between(_self: Any, low: Array, high: Array | None, *, key: Array, out: Meta) -> Array:
    """64 random bits for each, so that no remainder is noticeably more frequent than another."""
    if high is None:
        high = jnp.asarray(-(2**63), np.int64)  # one above the largest, as it wraps
    drawn = bits(key, tuple(out[0].shape), np.uint64)[1]
    count = (high - low).astype(np.uint64)  # 0 means 2**64
    return jnp.where(count == 0, drawn, drawn % jnp.maximum(count, 1)).astype(np.int64) + low


@rule("aten::random_.to", dynamic="to", **_FILLED)
def integers_below(_self: Any, high: Array, *, key: Array, out: Meta) -> Array:
    return integers_between(None, jnp.zeros_like(high), high, key=key, out=out)


@rule("aten::random_", **_FILLED)
def integers(_self: Any, *, key: Array, out: Meta) -> Array:
    """All that are not negative; for a float dtype, up to the largest such that all below are exact."""
    dtype = out[0].dtype
    if dtype == torch.bool:
        largest = 1
    else:
        largest = int(2 / torch.finfo(dtype).eps) if dtype.is_floating_point else torch.iinfo(dtype).max
    drawn = bits(key, tuple(out[0].shape), np.uint64)[1]
    return (drawn % np.asarray(largest + 1, np.uint64)).astype(np.int64)


# Parameters are inputs of the programs, so plans do not see them: PyTorch's CPU kernels judge them, on no elements.


@cache
def _nothing(dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(0, dtype=dtype, device="cpu")


def _judged(op: torch._ops.OpOverload, kernel: Any, self: torch.Tensor, *parameters: Any, **kwargs: Any) -> torch.Tensor:
    op(_nothing(self.dtype), *parameters)
    return kernel(self, *parameters, **kwargs)


for _name in (
    "bernoulli.p",
    "bernoulli_.float",
    "cauchy_",
    "exponential_",
    "geometric_",
    "log_normal_",
    "normal.Tensor_float",
    "normal_",
    "random_.from",
    "random_.to",
    "uniform_",
):
    entry(f"aten::{_name}")(partial(_judged, overload(f"aten::{_name}")))


# Dropout and the random leaky ReLU.


@rule("aten::native_dropout", dynamic="p", random=True)
def native_dropout(x: Array, p: Array, train: bool | None, *, key: Array) -> tuple[Array, Array]:
    if train is False:
        return x, jnp.ones(x.shape, bool)
    p = p.astype(real_dtype(x.dtype))
    kept = trial(key, x.shape, 1 - p)
    scale = jnp.where(p == 1, 0, 1 / (1 - p))
    return x.astype(jnp.promote_types(x.dtype, np.float32)) * kept * scale, kept


@rule("aten::native_dropout_backward", dynamic="scale", meta=True)
def native_dropout_backward(grad: Array, kept: Array, scale: Any, *, out: Meta) -> Array:
    dtype = jnp.promote_types(xla_dtype(out[0].dtype), np.float32)
    return grad.astype(dtype) * kept * jnp.asarray(scale, dtype)


@rule("aten::rrelu_with_noise", "aten::rrelu_with_noise_", dynamic=("lower", "upper"), random=True)
def rrelu_with_noise(x: Array, noise: Array, lower: Array, upper: Array, training: bool, *, key: Array) -> tuple[Array, Array]:
    """Returns the result and the new noise: the slope of each element."""
    dtype = real_dtype(x.dtype)
    lower, upper = jnp.asarray(lower, dtype), jnp.asarray(upper, dtype)
    slope = lower + (upper - lower) * uniform(key, x.shape, dtype)[1] if training else (lower + upper) / 2
    slope = jnp.where(x <= 0, slope, 1)
    return x.astype(dtype) * slope, slope if training else noise
