"""View ops as functions on arrays, for decompositions and for their `_copy` overloads.

PyTorch's own kernels make the views of a `tpu` tensor. Inside a decomposition there are only arrays: the view op then
runs on a contiguous meta tensor, which says what window it takes, and that window is read like any other tensor's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

from torchtpu import dtypes
from torchtpu.layout import Layout, View
from torchtpu.ops.registry import overload, rule

_TORCH = {xla: dtype for dtype, xla in dtypes.XLA.items()}


def windows(op: Callable[..., Any], x: jax.Array, *args: Any) -> list[View]:
    """Return the windows that a view op takes of a contiguous tensor with x's shape and dtype."""
    views = op(torch.empty(x.shape, dtype=_TORCH[x.dtype], device="meta"), *args)
    layout = Layout(x.shape, x.dtype)
    return [
        View(tuple(v.shape), tuple(v.stride()), v.storage_offset(), v.dtype, layout)
        for v in (views if isinstance(views, (tuple, list)) else (views,))
    ]


def read_as(view: str, *names: str, inner: bool = False) -> None:
    """Register the lowering of ops that read what a view op sees."""
    op = overload(f"aten::{view}")
    positional = sum(not a.kwarg_only for a in op._schema.arguments) - 1  # `expand` has a flag that says nothing to us

    @rule(*(f"aten::{name}" for name in names), inner=inner)
    def read(x: jax.Array, *args: Any) -> list[jax.Array]:
        return [window.read(x) for window in windows(op, x, *args[:positional])]


for _view, _copy in {
    "alias": "alias_copy",
    "detach": "detach_copy",
    "diagonal": "diagonal_copy",
    "expand": "expand_copy",
    "permute": "permute_copy",
    "select.int": "select_copy.int",
    "slice.Tensor": "slice_copy.Tensor",
    "split.Tensor": "split_copy.Tensor",
    "split_with_sizes": "split_with_sizes_copy",
    "squeeze": "squeeze_copy",
    "squeeze.dim": "squeeze_copy.dim",
    "squeeze.dims": "squeeze_copy.dims",
    "t": "t_copy",
    "transpose.int": "transpose_copy.int",
    "unbind.int": "unbind_copy.int",
    "unfold": "unfold_copy",
    "unsqueeze": "unsqueeze_copy",
    "view": "view_copy",
    "view.dtype": "view_copy.dtype",
}.items():
    read_as(_view, _view, _copy)
read_as("alias", "lift_fresh_copy")
# Windows on a storage, which only PyTorch's own kernels see.
read_as("_reshape_alias", "_reshape_alias", "_reshape_alias_copy", inner=True)
read_as("as_strided", "as_strided", "as_strided_copy", inner=True)
read_as("narrow", "narrow_copy")
read_as("split.Tensor", "unsafe_split.Tensor", inner=True)
read_as("split_with_sizes", "unsafe_split_with_sizes", inner=True)
read_as("view", "_unsafe_view", inner=True)

rule("aten::_conj", "aten::_conj_copy")(jnp.conj)
rule("aten::_neg_view", "aten::_neg_view_copy")(jnp.negative)


@rule("aten::view_as_real", "aten::view_as_real_copy")
def view_as_real(x: jax.Array) -> jax.Array:
    return jnp.stack([x.real, x.imag], -1)


@rule("aten::view_as_complex", "aten::view_as_complex_copy")
def view_as_complex(x: jax.Array) -> jax.Array:
    return jax.lax.complex(x[..., 0], x[..., 1])
