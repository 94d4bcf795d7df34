"""Copies of a sample: on `tpu`, on the CPU, and in float64. Strides, and memory that tensors share, are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map


def on_device(sample: Any) -> Any:
    """Copy a CPU sample to `tpu`; `device="cpu"` becomes `device="tpu"`."""

    def to_device(value: Any) -> Any:
        if isinstance(value, torch.device) and value.type == "cpu":
            return torch.device("tpu")
        return "tpu" if isinstance(value, str) and value == "cpu" else value

    return tree_map(to_device, _copied(sample, lambda t: t.to("tpu")))


def on_cpu(sample: Any) -> Any:
    """Copy a sample that the op may change."""
    return _copied(sample, torch.clone)


def _copied(sample: Any, copy: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    bases: dict[int, torch.Tensor] = {}

    def copied(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.is_meta:
            return value
        return _copy(value.detach(), copy, bases).requires_grad_(value.requires_grad)

    return tree_map(copied, sample)


def _copy(t: torch.Tensor, copy: Callable[[torch.Tensor], torch.Tensor], bases: dict[int, torch.Tensor]) -> torch.Tensor:
    if t.layout is not torch.strided:
        return copy(t)
    if t.is_conj():
        return _copy(t.conj(), copy, bases).conj()
    if t.is_neg():
        return torch._neg_view(_copy(torch._neg_view(t), copy, bases))
    storage = t.untyped_storage()
    base = bases.get(storage._cdata)
    if base is None and storage.nbytes() == t.nbytes and t.is_contiguous():
        base = bases[storage._cdata] = copy(t)
        return base.view_as(base)
    if base is None:  # a window: its whole storage, which other tensors of the sample may share
        flat = torch.empty(0, dtype=t.dtype).set_(storage, 0, (storage.nbytes() // t.itemsize,), (1,))
        base = bases[storage._cdata] = copy(flat)
    return base.as_strided(t.shape, t.stride(), t.storage_offset())


_WIDE = {torch.complex64: torch.complex128, torch.complex32: torch.complex128}


def in_float64(sample: Any) -> Any:
    """Return a sample whose floating-point tensors and dtypes are float64 or complex128."""

    def widen(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex()):
            return value.detach().to(_WIDE.get(value.dtype, torch.float64)).requires_grad_(value.requires_grad)
        if isinstance(value, torch.dtype) and (value.is_floating_point or value.is_complex):
            return _WIDE.get(value, torch.float64)
        return value

    return tree_map(widen, sample)


def host(values: Any) -> list[Any]:
    """Return the leaves of a result, tensors copied to the CPU."""
    return [v.detach().cpu() if isinstance(v, torch.Tensor) else v for v in tree_leaves(values)]
