"""Copies: `copy`, `clone`, dtype conversion, and conjugation made real."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array
from torch import Tensor

from torchtpu.ops.registry import entry, rule


@rule("aten::copy", ignores="self", meta=True)
def copy(_self: Any, src: Array, non_blocking: bool, *, out: list[Any]) -> Array:
    """The core casts to self's dtype."""
    return jnp.broadcast_to(src, out[0].shape)


@rule("aten::clone")
def clone(x: Array, memory_format: Any) -> Array:
    """The memory format is in the result's strides, which the core follows."""
    return x


@entry("aten::_copy_from")
def copy_from(_kernel: Any, source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    return target.copy_(source, non_blocking)


@entry("aten::_copy_from_and_resize")
def copy_from_and_resize(_kernel: Any, source: Tensor, target: Tensor) -> Tensor:
    return target.resize_(source.shape).copy_(source)


# Outside a decomposition, PyTorch makes it of `empty` and `copy_`.
rule("aten::_to_copy", inner=True)(lambda x, *_: x)

# PyTorch resolves the lazy conjugate and negative bits of a tensor with these before any other kernel sees it.
rule("aten::_conj_physical", "aten::conj_physical.out", "aten::conj_physical_")(jnp.conj)
rule("aten::lift")(lambda x: x)
