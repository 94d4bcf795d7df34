"""Matrix products: mm, bmm, mv, dot, and the forms that add to them (addmm, baddbmm, addmv, addbmm, addr).

float32 and float16 products follow `torchtpu.precision`. bfloat16 and float16 products accumulate in float32 and are rounded
once, at the very end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torchtpu.ops.products import accumulator_of, product
from torchtpu.ops.registry import overload, rule

_MATRICES = (((1,), (0,)), ((), ()))
_BATCHES = (((2,), (1,)), ((0,), (0,)))


def contract(a: jax.Array, b: jax.Array, dimensions: Any = _MATRICES) -> jax.Array:
    """Multiply and sum over dimensions (`lax.dot_general`'s). Halves give float32: the caller or the core rounds."""
    if a.dtype == bool:
        raise RuntimeError("matrix products are not implemented for 'Bool'")
    # XLA:CPU's fast matrix product reads rows: a transposed left side costs less copied than folded into the product.
    a = lax.platform_dependent(a, cpu=lax.optimization_barrier, default=lambda x: x)
    multiply = partial(lax.dot_general, dimension_numbers=dimensions, preferred_element_type=accumulator_of(a.dtype))
    return product(multiply, a, b)


def add(addend: jax.Array, product: jax.Array, beta: Any, alpha: Any) -> jax.Array:
    """Return beta * addend + alpha * product. With beta 0 the addend is not read: NaN does not spread from it."""
    if not _is(alpha, 1):
        product = product * jnp.asarray(alpha).astype(product.dtype)
    if _is(beta, 0):
        return product
    addend = addend.astype(product.dtype)
    return product + (addend if _is(beta, 1) else addend * jnp.asarray(beta).astype(addend.dtype))


def _is(number: Any, value: int) -> bool:
    """Whether a number is part of the program (see `Rule.unit`) and has this value."""
    return isinstance(number, (int, float, complex)) and number == value


def sum_to(x: jax.Array, shape: Sequence[int]) -> jax.Array:
    """Sum over the dimensions that broadcasting from `shape` has added or widened."""
    lead = x.ndim - len(shape)
    widened = [d + lead for d, n in enumerate(shape) if n == 1 and x.shape[d + lead] != 1]
    return jnp.sum(x, axis=(*range(lead), *widened), keepdims=True).reshape(shape)


def refused_as_on_cpu(name: str, ranks: tuple[int, int], added: int = 0) -> Callable[..., None]:
    """Return a check of a product's shapes and dtypes in the CPU's words: torch's meta kernels have others, or allow more.

    Args:
        name: of the op, whose words they are.
        ranks: of the two factors.
        added: how many tensors stand before them, to be added to the product.
    """
    op = overload(name)

    def check(*metas: Any) -> None:
        tensors = metas[: added + 2]
        a, b = tensors[added:]
        fits = (a.dim(), b.dim()) == ranks and all(t.dtype == a.dtype for t in tensors)
        if fits and a.shape[-1] == b.shape[max(b.dim() - 2, 0)] and a.shape[:-2] == b.shape[:-2]:
            product = a.shape[:-1] + (b.shape[-1:] if b.dim() > 1 else ())
            if all(_expands(t.shape, product) for t in tensors[:added]):
                return
        # The CPU's kernel looks at shapes and dtypes first, so one element of memory will do.
        op(*(torch.empty_strided(t.shape, (0,) * t.dim(), dtype=t.dtype) for t in tensors))

    return check


def _expands(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    return len(shape) <= len(wanted) and all(n in (1, m) for n, m in zip(shape[::-1], wanted[::-1], strict=False))


_add_to_product = refused_as_on_cpu("aten::addmm", (2, 2), added=1)
_add_to_batches = refused_as_on_cpu("aten::baddbmm", (3, 3), added=1)

rule("aten::mm", precision=True, check=refused_as_on_cpu("aten::mm", (2, 2)))(contract)
rule("aten::mm.dtype", precision=True)(lambda a, b, out_dtype: contract(a, b))
rule("aten::mv", precision=True, check=refused_as_on_cpu("aten::mv", (2, 1)))(lambda matrix, vector: contract(matrix, vector))
rule("aten::dot", precision=True, check=refused_as_on_cpu("aten::dot", (1, 1)))(
    lambda a, b: contract(a, b, (((0,), (0,)), ((), ())))
)
rule("aten::vdot", precision=True, check=refused_as_on_cpu("aten::vdot", (1, 1)))(
    lambda a, b: contract(jnp.conj(a), b, (((0,), (0,)), ((), ())))
)
rule("aten::bmm", precision=True, check=refused_as_on_cpu("aten::bmm", (3, 3)))(lambda a, b: contract(a, b, _BATCHES))
rule("aten::bmm.dtype", precision=True)(lambda a, b, out_dtype: contract(a, b, _BATCHES))


@rule("aten::_int_mm")
def _int_mm(a: jax.Array, b: jax.Array) -> jax.Array:
    return lax.dot_general(a, b, _MATRICES, lax.Precision.DEFAULT, preferred_element_type=jnp.int32)


@rule("aten::addmm", precision=True, unit=("beta", "alpha"), check=_add_to_product)
@rule("aten::addmv", precision=True, unit=("beta", "alpha"), check=refused_as_on_cpu("aten::addmv", (2, 1), added=1))
def _addmm(addend: jax.Array, a: jax.Array, b: jax.Array, beta: Any, alpha: Any) -> jax.Array:
    return add(addend, contract(a, b), beta, alpha)


@rule("aten::addmm.dtype", precision=True, unit=("beta", "alpha"))
def _addmm_dtype(addend: jax.Array, a: jax.Array, b: jax.Array, out_dtype: torch.dtype, beta: Any, alpha: Any) -> jax.Array:
    return add(addend, contract(a, b), beta, alpha)


@rule("aten::_addmm_activation", precision=True, unit=("beta", "alpha"), check=_add_to_product)
def _addmm_activation(addend: jax.Array, a: jax.Array, b: jax.Array, beta: Any, alpha: Any, use_gelu: bool) -> jax.Array:
    x = add(addend, contract(a, b), beta, alpha)
    return jax.nn.gelu(x, approximate=True) if use_gelu else jnp.maximum(x, 0)


@rule("aten::baddbmm", precision=True, unit=("beta", "alpha"), check=_add_to_batches)
def _baddbmm(addend: jax.Array, a: jax.Array, b: jax.Array, beta: Any, alpha: Any) -> jax.Array:
    return add(addend, contract(a, b, _BATCHES), beta, alpha)


@rule("aten::baddbmm.dtype", precision=True, unit=("beta", "alpha"))
def _baddbmm_dtype(addend: jax.Array, a: jax.Array, b: jax.Array, out_dtype: torch.dtype, beta: Any, alpha: Any) -> jax.Array:
    return add(addend, contract(a, b, _BATCHES), beta, alpha)


@rule("aten::addbmm", precision=True, unit=("beta", "alpha"))
def _addbmm(addend: jax.Array, a: jax.Array, b: jax.Array, beta: Any, alpha: Any) -> jax.Array:
    # The sum over the batch is one more contracted dimension.
    return add(addend, contract(a, b, (((0, 2), (0, 1)), ((), ()))), beta, alpha)


@rule("aten::addr", unit=("beta", "alpha"))
def _addr(addend: jax.Array, a: jax.Array, b: jax.Array, beta: Any, alpha: Any) -> jax.Array:
    if addend.dtype == bool:
        product = a[:, None] & b & jnp.asarray(alpha, bool)
        return product if _is(beta, 0) else product | (addend & jnp.asarray(beta, bool))
    wide = accumulator_of(a.dtype) or a.dtype
    return add(addend, a.astype(wide)[:, None] * b.astype(wide), beta, alpha)


@rule("aten::linear_backward", precision=True)
def _linear_backward(x: jax.Array, grad: jax.Array, weight: jax.Array, wanted: Sequence[bool]) -> tuple[jax.Array | None, ...]:
    rows, grads = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
    return (
        contract(grads, weight).reshape(x.shape) if wanted[0] else None,
        contract(grads.T, rows) if wanted[1] else None,
        jnp.sum(grads, 0, dtype=accumulator_of(grads.dtype)) if wanted[2] else None,
    )
