"""Lazy conjugation and negation: `x.conj()` and `x.conj().imag` are views with a bit set, and no new values.

PyTorch resolves the bits before it calls a kernel, except for the few kernels below that its CPU versions resolve
themselves (ATen/ConjugateFallback.cpp and NegateFallback.cpp list them).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

aten = torch.ops.aten

# Overloads whose kernels get tensors with unresolved bits; `copy_` and the reads deal with them by themselves.
UNRESOLVED = frozenset(
    {
        "_conj_physical",
        "addmm",
        "addmm.out",
        "addmm_",
        "baddbmm",
        "baddbmm.out",
        "baddbmm_",
        "bmm",
        "bmm.out",
        "clone",
        "dot",
        "dot.out",
        "linalg_solve_triangular",
        "linalg_solve_triangular.out",
        "linalg_svd",
        "linalg_svd.U",
        "mm",
        "mm.out",
        "vdot",
        "vdot.out",
    }
)


def resolved(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the same values whose bits are clear."""
    if tensor.is_neg():
        tensor = aten.neg(resolved(torch._neg_view(tensor)))
    if tensor.is_conj():
        tensor = aten._conj_physical(tensor.conj())
    return tensor


def resolving(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel that takes tensors with unresolved bits. What it writes must have none."""

    @wraps(kernel, updated=())
    def entry(*args: Any, **kwargs: Any) -> Any:
        for a in args:
            if isinstance(a, torch.Tensor) and (a.is_conj() or a.is_neg()):
                return kernel(*(resolved(a) if isinstance(a, torch.Tensor) else a for a in args), **kwargs)
        return kernel(*args, **kwargs)

    return entry


def resolving_in_place(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The same for a kernel that writes its first argument."""
    plain = resolving(kernel)

    @wraps(kernel, updated=())
    def entry(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        if tensor.is_conj() or tensor.is_neg():
            return tensor.copy_(plain(resolved(tensor), *args, **kwargs))
        return plain(tensor, *args, **kwargs)

    return entry
