"""Fused optimizers and gradient scaling: one program for a step over all parameters of one dtype.

Learning rate, betas and the like are inputs of the program, as float64: `1 - beta` is rounded once, not twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from torchtpu.ops.registry import rule

Arrays = list[Array]
Formula = Callable[..., Sequence[Array]]


def fused(formula: Formula, lists: list[Arrays], steps: Arrays, grad_scale: Array | None, found_inf: Array | None) -> Arrays:
    """Apply an optimizer's formula to every parameter.

    Args:
        formula: from (parameter, gradient, states) and `step` to the new (parameter, states), in float32 or float64.
        lists: parameters, gradients, and each state; a list is empty where the optimizer does without that state.
        steps: how often each parameter has been stepped, this time included; empty if the formula does not ask.
        grad_scale: what the gradients are multiplied by, or None; they are changed too.
        found_inf: 1 where the step is to be skipped, or None.

    Returns:
        The new values of all lists, one list after the other.
    """
    lists = [values for values in lists if values]
    new: list[Arrays] = [[] for _ in lists]
    for k, old in enumerate(zip(*lists, strict=True)):
        dtype = jnp.promote_types(old[0].dtype, np.float32)
        param, grad, *states = (x.astype(dtype) for x in old)
        if grad_scale is not None:
            grad = grad / grad_scale.astype(dtype)
        param, *states = formula(param, grad, *states, **({"step": steps[k].astype(dtype)} if steps else {}))
        for values, before, after in zip(new, old, (param, grad, *states), strict=True):
            values.append(after if found_inf is None else jnp.where(found_inf == 1, before, after.astype(before.dtype)))
    return [x for values in new for x in values]


def _register(name: str, *numbers: str, overloads: tuple[str, ...] = ("", ".tensor_lr")) -> Callable[[Formula], Formula]:
    """Register overloads of a fused optimizer: learning rate as a number, and as a tensor. Most have no meta kernel."""
    return rule(
        *(f"aten::_fused_{name}_{overload}" for overload in overloads),
        dynamic=("lr", *numbers),
        unit="weight_decay",
        wide=True,
        metadata=lambda *args, **kwargs: None,
    )


def is_zero(number: Any) -> bool:
    """Whether a `unit` number is 0; then it is no input."""
    return isinstance(number, (int, float)) and number == 0


def bias_correction(beta: Array, step: Array) -> Array:
    """Return 1 - beta**step without cancellation."""
    return -jnp.expm1(step * jnp.log1p(-(1 - beta).astype(step.dtype)))


def _adam(
    params: Arrays, grads: Arrays, means: Arrays, squares: Arrays, max_squares: Arrays, steps: Arrays,
    lr: Array, beta1: Array, beta2: Array, weight_decay: Any, eps: Array, amsgrad: bool, maximize: bool,
    grad_scale: Array | None, found_inf: Array | None, *, decoupled: bool,
) -> Arrays:  # fmt: skip
    def formula(param: Array, grad: Array, mean: Array, square: Array, *max_square: Array, step: Array) -> tuple[Array, ...]:
        dtype = param.dtype
        grad = -grad if maximize else grad
        if not is_zero(weight_decay):
            if decoupled:
                param = param * (1 - lr * weight_decay).astype(dtype)
            else:
                grad = grad + param * jnp.asarray(weight_decay, dtype)
        mean = mean + (grad - mean) * (1 - beta1).astype(dtype)
        square = square * beta2.astype(dtype) + grad * grad * (1 - beta2).astype(dtype)
        max_square = tuple(jnp.maximum(m, square) for m in max_square)
        deviation = jnp.sqrt(max_square[0] if amsgrad else square) / jnp.sqrt(bias_correction(beta2, step))
        param = param - lr.astype(dtype) / bias_correction(beta1, step) * mean / (deviation + eps.astype(dtype))
        return param, mean, square, *max_square

    return fused(formula, [params, grads, means, squares, max_squares], steps, grad_scale, found_inf)


_register("adam", "beta1", "beta2", "eps")(partial(_adam, decoupled=False))
_register("adamw", "beta1", "beta2", "eps")(partial(_adam, decoupled=True))


@_register("sgd", "momentum", "dampening")
def sgd(
    params: Arrays, grads: Arrays, momenta: Arrays, weight_decay: Any, momentum: Array, lr: Array, dampening: Array,
    nesterov: bool, maximize: bool, is_first_step: bool, grad_scale: Array | None, found_inf: Array | None,
) -> Arrays:  # fmt: skip
    def formula(param: Array, grad: Array, *moment: Array) -> tuple[Array, ...]:
        dtype = param.dtype
        grad = -grad if maximize else grad
        if not is_zero(weight_decay):
            grad = grad + param * jnp.asarray(weight_decay, dtype)
        if moment:
            damped = grad * (1 - dampening).astype(dtype)
            moment = (grad if is_first_step else moment[0] * momentum.astype(dtype) + damped,)
            grad = grad + moment[0] * momentum.astype(dtype) if nesterov else moment[0]
        return param - lr.astype(dtype) * grad, *moment

    return fused(formula, [params, grads, momenta], [], grad_scale, found_inf)


@_register("adagrad", "lr_decay", "eps", overloads=(".tensor_lr",))
def adagrad(
    params: Arrays, grads: Arrays, sums: Arrays, steps: Arrays, lr: Array, lr_decay: Array, weight_decay: Any, eps: Array,
    maximize: bool, grad_scale: Array | None, found_inf: Array | None,
) -> Arrays:  # fmt: skip
    def formula(param: Array, grad: Array, total: Array, step: Array) -> tuple[Array, ...]:
        dtype = param.dtype
        grad = -grad if maximize else grad
        if not is_zero(weight_decay):
            grad = grad + param * jnp.asarray(weight_decay, dtype)
        rate = lr.astype(dtype) / (1 + (step - 1) * lr_decay.astype(dtype))
        total = total + grad * grad
        return param - rate * grad / (jnp.sqrt(total) + eps.astype(dtype)), total

    return fused(formula, [params, grads, sums], steps, grad_scale, found_inf)


@_register("adagrad", "lr_decay", "eps", overloads=("",))
def adagrad_with_steps(params: Arrays, grads: Arrays, sums: Arrays, steps: Arrays, *options: Any) -> Arrays:
    """This overload declares that it writes the steps, and does not."""
    return [*adagrad(params, grads, sums, steps, *options), *steps]


# Gradient scaling (torch.amp.GradScaler). Whether a step is skipped stays on the device until the scaler reads it.


@rule("aten::_amp_foreach_non_finite_check_and_unscale_")
def unscale(grads: Arrays, found_inf: Array, inverse_scale: Array) -> tuple[Array, ...]:
    """Multiply the gradients, and set `found_inf` to 1 if any of them is not finite."""
    finite = jnp.asarray(True)
    scaled = []
    for grad in grads:
        finite &= jnp.all(jnp.isfinite(grad))
        scaled.append(grad.astype(jnp.promote_types(grad.dtype, np.float32)) * inverse_scale)
    return *scaled, jnp.where(finite, found_inf, 1)


@rule("aten::_amp_update_scale_", dynamic=("scale_growth_factor", "scale_backoff_factor"))
def update_scale(
    scale: Array, tracker: Array, found_inf: Array, growth: Array, backoff: Array, interval: int
) -> tuple[Array, Array]:
    """Shrink the scale after a step with infinities; grow it after `interval` steps without, unless it would overflow."""
    found = found_inf.reshape(()) > 0
    good = tracker + 1
    grown = scale * growth
    grows = ~found & (good == interval)
    scale = jnp.where(found, scale * backoff, jnp.where(grows & jnp.isfinite(grown), grown, scale))
    return scale, jnp.where(found | grows, 0, good)
