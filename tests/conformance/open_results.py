"""Results that PyTorch's documentation leaves open: which of equal elements an index names, signs of singular vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

# Operators that return indices: where `dim` stands among the arguments after the input.
_DIM = {"argsort": 0, "kthvalue": 1, "median": 0, "mode": 0, "nanmedian": 0, "sort": 0, "topk": 1}


def settled(name: str, given: Any, results: list[Any]) -> list[Any]:
    """Return results in a form that is the same for all valid answers.

    Args:
        name: of the OpInfo.
        given: the sample's (input, args, kwargs), on the CPU.
        results: flattened, on the CPU.
    """
    first, args, kwargs = given
    if name in _DIM and not kwargs.get("stable") and len(results) == (1 if name == "argsort" else 2):
        place = _DIM[name]
        dim = kwargs.get("dim", args[place] if len(args) > place else -1)
        return [*results[:-1], _elements(first.detach(), dim, results[-1])]
    settle = _FACTORS.get(name)
    return settle(*results) if settle is not None and len(results) == settle.__code__.co_argcount else results


def _elements(values: torch.Tensor, dim: int, indices: torch.Tensor) -> torch.Tensor:
    """Return the elements that indices name; NaN, which equals no valid answer, if one is named twice."""
    if values.dim() == 0:
        return values.expand(indices.shape)
    reduced = indices.dim() < values.dim()
    picked = indices.unsqueeze(dim) if reduced else indices
    ordered = picked.sort(dim).values
    if bool((ordered.diff(dim=dim) == 0).any()):
        return torch.full(indices.shape, torch.nan)
    named = values.gather(dim, picked)
    return named.squeeze(dim) if reduced else named


def _svd(u: torch.Tensor, s: torch.Tensor, vh: torch.Tensor) -> list[torch.Tensor]:
    """Singular vectors up to a factor of modulus 1, shared by a pair; those of a full basis are free."""
    k = s.shape[-1]
    u, vh = u[..., :k], vh[..., :k, :]
    return [u.abs(), s, vh.abs(), (u * s.unsqueeze(-2).to(u.dtype)) @ vh]


def _svd_of_v(u: torch.Tensor, s: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
    return _svd(u, s, v.mH)


def _eigh(values: torch.Tensor, vectors: torch.Tensor) -> list[torch.Tensor]:
    return [values, vectors.abs(), (vectors * values.unsqueeze(-2).to(vectors.dtype)) @ vectors.mH]


_FACTORS: dict[str, Callable[..., list[torch.Tensor]]] = {"linalg.eigh": _eigh, "linalg.svd": _svd, "svd": _svd_of_v}
