"""Activation functions and their backward formulas (PyTorch's own, so that edges and NaN agree)."""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import Array, lax

from torchtpu.ops.arithmetic import scaled
from torchtpu.ops.registry import elementwise

_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
_GELU_CUBE = 0.044715

elementwise("aten::relu")(lambda x: jnp.maximum(x, 0))
elementwise("aten::_add_relu.Tensor", "aten::_add_relu.Scalar", unit="alpha")(
    lambda x, y, alpha: jnp.maximum(x + scaled(y, alpha), 0)
)
elementwise("aten::sigmoid_backward")(lambda grad, y: grad * jnp.conj((1 - y) * y))
elementwise("aten::tanh_backward")(lambda grad, y: grad * jnp.conj(1 - y * y))


# gelu, silu, mish.


@elementwise("aten::gelu")
def gelu(x: Array, approximate: str) -> Array:
    if approximate == "tanh":
        return 0.5 * x * (1 + jnp.tanh(_gelu_inner(x)))
    return x * _normal_cdf(x)


@elementwise("aten::gelu_backward")
def gelu_backward(grad: Array, x: Array, approximate: str) -> Array:
    if approximate == "tanh":
        t = jnp.tanh(_gelu_inner(x))
        slope = _SQRT_2_OVER_PI * (1 + 3 * _GELU_CUBE * x * x)
        return grad * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope)
    density = jnp.exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
    return grad * (_normal_cdf(x) + x * density)


def _gelu_inner(x: Array) -> Array:
    return _SQRT_2_OVER_PI * (x + _GELU_CUBE * x * x * x)


def _normal_cdf(x: Array) -> Array:
    return 0.5 * (1 + lax.erf(x * math.sqrt(0.5)))


elementwise("aten::silu")(lambda x: x * lax.logistic(x))


@elementwise("aten::silu_backward")
def silu_backward(grad: Array, x: Array) -> Array:
    sigmoid = lax.logistic(x)
    return grad * sigmoid * (1 + x * (1 - sigmoid))


elementwise("aten::mish")(lambda x: x * jnp.tanh(jnp.log1p(jnp.exp(x))))


@elementwise("aten::mish_backward")
def mish_backward(grad: Array, x: Array) -> Array:
    t = jnp.tanh(jnp.log1p(jnp.exp(x)))
    return grad * (t + x * lax.logistic(x) * (1 - t * t))


# Exponential below zero: elu (celu and selu are elu with other constants), softplus, log_sigmoid.


@elementwise("aten::elu")
def elu(x: Array, alpha: Array, scale: Array, input_scale: Array) -> Array:
    return jnp.where(x < 0, jnp.expm1(x * input_scale) * (alpha * scale), x * scale)


@elementwise("aten::elu_backward")
def elu_backward(grad: Array, alpha: Array, scale: Array, input_scale: Array, is_result: bool, x: Array) -> Array:
    """`x` is the input, or the result if `is_result`."""
    coefficient = alpha * scale
    below = x + coefficient if is_result else coefficient * jnp.exp(x * input_scale)
    return jnp.where(x <= 0, grad * input_scale * below, grad * scale)


@elementwise("aten::softplus")
def softplus(x: Array, beta: Array, threshold: Array) -> Array:
    return jnp.where(x * beta > threshold, x, jnp.log1p(jnp.exp(x * beta)) / beta)


@elementwise("aten::softplus_backward")
def softplus_backward(grad: Array, x: Array, beta: Array, threshold: Array) -> Array:
    z = jnp.exp(x * beta)
    return jnp.where(x * beta > threshold, grad, grad * z / (z + 1))


@elementwise("aten::log_sigmoid_forward")
def log_sigmoid_forward(x: Array) -> tuple[Array, Array]:
    """The second result is what the backward formula would need again."""
    z = jnp.exp(-jnp.abs(x))
    return jnp.minimum(x, 0) - jnp.log1p(z), z


@elementwise("aten::log_sigmoid_backward")
def log_sigmoid_backward(grad: Array, x: Array, buffer: Array) -> Array:
    fraction = buffer / (1 + buffer)
    return grad * jnp.where(x < 0, 1 - fraction, fraction)


# Piecewise linear.

elementwise("aten::hardtanh")(lambda x, low, high: jnp.minimum(jnp.maximum(x, low), high))
elementwise("aten::hardtanh_backward")(lambda grad, x, low, high: jnp.where((x <= low) | (x >= high), 0, grad))
elementwise("aten::hardsigmoid")(lambda x: _relu6(x + 3) / 6)
elementwise("aten::hardsigmoid_backward")(lambda grad, x: jnp.where((x > -3) & (x < 3), grad / 6, 0))
elementwise("aten::hardswish")(lambda x: x * _relu6(x + 3) / 6)
elementwise("aten::leaky_relu")(lambda x, slope: jnp.where(x > 0, x, x * slope))
elementwise("aten::leaky_relu_backward")(lambda grad, x, slope, is_result: jnp.where(x > 0, grad, grad * slope))
elementwise("aten::_prelu_kernel")(lambda x, weight: jnp.where(x > 0, x, x * weight))
elementwise("aten::threshold")(lambda x, threshold, value: jnp.where(x <= threshold, value, x))
elementwise("aten::threshold_backward")(lambda grad, x, threshold: jnp.where(x <= threshold, 0, grad))
elementwise("aten::hardshrink")(lambda x, bound: jnp.where((x >= -bound) & (x <= bound), 0, x))
elementwise("aten::softshrink")(lambda x, bound: jnp.where(x > bound, x - bound, jnp.where(x < -bound, x + bound, x * 0)))
elementwise("aten::hardshrink_backward", "aten::softshrink_backward")(
    lambda grad, x, bound: jnp.where((x >= -bound) & (x <= bound), 0, grad)
)


def _relu6(x: Array) -> Array:
    return jnp.minimum(jnp.maximum(x, 0), 6)


@elementwise("aten::hardswish_backward")
def hardswish_backward(grad: Array, x: Array) -> Array:
    return jnp.where(x <= -3, 0, jnp.where(x < 3, grad * (x / 3 + 0.5), grad))


@elementwise("aten::_prelu_kernel_backward")
def prelu_kernel_backward(grad: Array, x: Array, weight: Array) -> tuple[Array, Array]:
    """The weight's gradient is summed over its broadcast dimensions by the caller."""
    return jnp.where(x > 0, grad, weight * grad), jnp.where(x > 0, 0, x * grad)


# Gated: one half of a dimension decides how much of the other passes.


@elementwise("aten::glu")
def glu(x: Array, dim: int) -> Array:
    value, gate = jnp.split(x, 2, axis=dim)
    return value * lax.logistic(gate)


@elementwise("aten::glu_backward")
def glu_backward(grad: Array, x: Array, dim: int) -> Array:
    value, gate = jnp.split(x, 2, axis=dim)
    sigmoid = lax.logistic(gate)
    return jnp.concatenate([grad * sigmoid, grad * value * sigmoid * (1 - sigmoid)], axis=dim)
