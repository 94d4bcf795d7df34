"""Discrete Fourier transforms. `torch.fft.*`, `stft` and `istft` are PyTorch's own compositions of these three."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from torchtpu.ops.registry import rule

_NONE, _BY_ROOT_N, _BY_N = range(3)  # ATen's fft_norm_mode


@rule("aten::_fft_c2c")
def fft_c2c(x: jax.Array, dim: Sequence[int], normalization: int, forward: bool) -> jax.Array:
    """Complex to complex."""
    points = math.prod(x.shape[d] for d in dim)
    for d in dim:
        x = (jnp.fft.fft if forward else jnp.fft.ifft)(x, axis=d)
    return _scaled(x, normalization, points, 1 if forward else points)


@rule("aten::_fft_r2c")
def fft_r2c(x: jax.Array, dim: Sequence[int], normalization: int, onesided: bool) -> jax.Array:
    """Real to complex; `onesided` leaves out the half of the last dimension that is the conjugate of the other."""
    points = math.prod(x.shape[d] for d in dim)
    y = jnp.fft.rfft(x, axis=dim[-1]) if onesided else jnp.fft.fft(x, axis=dim[-1])
    for d in dim[:-1]:
        y = jnp.fft.fft(y, axis=d)
    return _scaled(y, normalization, points, 1)


@rule("aten::_fft_c2r")
def fft_c2r(x: jax.Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> jax.Array:
    """Complex (half of a conjugate-symmetric signal) to real, of `last_dim_size` in the last dimension."""
    for d in dim[:-1]:
        x = jnp.fft.ifft(x, axis=d)
    y = jnp.fft.irfft(x, last_dim_size, axis=dim[-1])
    points = math.prod(y.shape[d] for d in dim)
    return _scaled(y, normalization, points, points)


def _scaled(x: jax.Array, normalization: int, points: int, factor: float) -> jax.Array:
    """Scale a transform of `points` points: jax divided inverse ones by their points, which `factor` takes back."""
    factor /= {_NONE: 1, _BY_ROOT_N: math.sqrt(points), _BY_N: points}[normalization]
    return x if factor == 1 else x * jnp.asarray(factor, x.real.dtype)
