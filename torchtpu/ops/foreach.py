"""Foreach ops: one call and one program for a list of tensors, as optimizers and gradient clipping use them.

Each is the rule of a single-tensor op applied to every element. A number that comes with the list, one for all or one
for each, is an input of the program.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import torch

# The families whose rules are applied here.
from torchtpu.ops import arithmetic, compare, copying, creation, matmul, special, unary  # noqa: F401
from torchtpu.ops.reduction import accumulated, vector_norm
from torchtpu.ops.registry import RULES, Rule, entry, rule

aten = torch.ops.aten

_COPIED = ("promotion", "dynamic", "static", "unit", "ignores", "meta", "precision")


def each(name: str, base: str, *rest: Any) -> None:
    """Register `aten::_foreach_{name}`: the rule of `aten::{base}` on each element, with `rest` as its last arguments."""
    single: Rule = RULES[f"aten::{base}"]
    fn = single.fn

    def element(*args: Any, **options: Any) -> Any:
        return fn(*args, *rest, **options)

    options = {key: getattr(single, key) for key in _COPIED}
    rule(f"aten::_foreach_{name}", each=True, **options)(element if rest else fn)


# One tensor.

for _name in (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "lgamma", "log",
    "log10", "log1p", "log2", "max", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan",
    "tanh", "trunc",
):  # fmt: skip
    each(_name, _name)

for _name in ("clone", "copy", "zero"):
    each(_name, _name)

# Two tensors, or a tensor and a number.

for _name, _base, _alpha in (
    ("add", "add.Tensor", (1,)),
    ("sub", "sub.Tensor", (1,)),
    ("mul", "mul.Tensor", ()),
    ("div", "div.Tensor", ()),
    ("clamp_max", "clamp_max", ()),
    ("clamp_min", "clamp_min", ()),
    ("maximum", "maximum", ()),
    ("minimum", "minimum", ()),
):
    each(f"{_name}.List", _base)
    each(f"{_name}.Scalar", _base, *_alpha)
    each(f"{_name}.ScalarList", _base, *_alpha)

for _name in ("add", "div", "mul"):
    each(f"{_name}.Tensor", f"{_name}.Tensor")

each("mm", "mm")
each("pow.List", "pow.Tensor_Tensor")
each("pow.Scalar", "pow.Tensor_Scalar")
each("pow.ScalarAndTensor", "pow.Scalar")
each("pow.ScalarList", "pow.Tensor_Tensor")

# Three tensors, or two and a number.

each("lerp.List", "lerp.Tensor")
each("lerp.Scalar", "lerp.Scalar")
each("lerp.ScalarList", "lerp.Scalar")

for _name in ("addcdiv", "addcmul"):
    each(f"{_name}.Scalar", _name)
    each(f"{_name}.ScalarList", _name)


def _numbers_in_a_tensor(op: torch._ops.OpOverload, _kernel: Any, *args: Any) -> Any:
    """Call the overload that takes a list of numbers for one that takes them in a CPU tensor."""
    *tensors, scalars = args
    if scalars.device.type != "cpu":
        raise RuntimeError(f"Expected scalars to be on CPU, got {scalars.device} instead.")
    return op(*tensors, scalars.tolist())


for _name in ("addcdiv", "addcdiv_", "addcmul", "addcmul_"):
    entry(f"aten::_foreach_{_name}.Tensor")(partial(_numbers_in_a_tensor, getattr(aten, f"_foreach_{_name}").ScalarList))


@entry("aten::_foreach_copy_")
def copy_across_devices(kernel: Any, self: list[torch.Tensor], src: list[torch.Tensor], non_blocking: bool = False) -> None:
    """One program where all tensors are on the device, else a transfer for each."""
    if all(t.device.type != "cpu" for t in (*self, *src)):
        return kernel(self, src, non_blocking)
    for target, source in zip(self, src, strict=True):
        target.copy_(source, non_blocking)
    return None


# Sums over each tensor.


@rule("aten::_foreach_norm.Scalar", each=True, meta=True)
def norm(x: jax.Array, p: float, dtype: torch.dtype | None, *, out: list[torch.Tensor]) -> jax.Array:
    return vector_norm(x, p, None, False, dtype, out=out)


@rule("aten::_foreach_powsum.Scalar", each=True, meta=True)
def powsum(x: jax.Array, p: float, dtype: torch.dtype | None, *, out: list[torch.Tensor]) -> jax.Array:
    """The p-th power of the norm."""
    x = jnp.abs(x if jnp.iscomplexobj(x) else accumulated(x, out))
    return jnp.sum(x * x if p == 2 else x if p == 1 else x ** jnp.asarray(p, x.dtype))
