"""The numbers that a cell leaves behind, by name, and how far two sets of them are apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

_LIMIT = 20_000  # values
_DEPTH = 8


@dataclass(frozen=True, slots=True)
class Gap:
    """How far apart two runs of one value are.

    Attributes:
        name: of the value (`model.0.weight`, `losses[3]`).
        absolute: largest difference of two elements; infinite where only one is a NaN, or the shapes differ.
        relative: the same, divided by the largest magnitude in the value.
    """

    name: str
    absolute: float
    relative: float


@dataclass(frozen=True, slots=True)
class Distance:
    """How far apart two runs are.

    Attributes:
        compared: how many values were compared.
        gaps: the values that differ, the furthest apart first.
        only_one: names that only one of the runs has.
    """

    compared: int
    gaps: tuple[Gap, ...]
    only_one: tuple[str, ...] = ()


def collect(namespace: Mapping[str, Any], names: Iterable[str]) -> dict[str, torch.Tensor]:
    """Copy to the host the numbers that names lead to: tensors, modules with gradients, optimizers' state, containers."""
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()

    def visit(value: Any, path: str, depth: int) -> None:
        if len(found) >= _LIMIT or depth > _DEPTH:
            return
        if isinstance(value, (bool, int, float, complex)):
            found[path] = torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else None)
            return
        if id(value) in seen:
            return
        seen.add(id(value))
        match value:
            case torch.Tensor():
                if value.layout is torch.strided and value.device.type != "meta":
                    found[path] = value.detach().cpu().clone()
                if value.is_leaf and value.grad is not None:
                    visit(value.grad, f"{path}.grad", depth)
            case torch.nn.Module():
                for name, tensor in [*value.named_parameters(path), *value.named_buffers(path)]:
                    visit(tensor, name, depth)
            case torch.optim.Optimizer():
                visit(value.state_dict()["state"], f"{path}.state", depth)
            case dict():
                _each(value.items(), lambda key: f"{path}[{key!r}]", visit, depth)
            case list() | tuple():
                _each(enumerate(value), lambda k: f"{path}[{k}]", visit, depth)

    for name in names:
        if name in namespace:
            visit(namespace[name], name, 0)
    return found


def _each(
    items: Iterable[tuple[Any, Any]], path_of: Callable[[Any], str], visit: Callable[[Any, str, int], None], depth: int
) -> None:
    for key, value in items:
        visit(value, path_of(key), depth + 1)


def distance(first: Mapping[str, torch.Tensor], second: Mapping[str, torch.Tensor]) -> Distance | None:
    """Compare what two runs left behind; None if they share no value."""
    shared = [name for name in first if name in second]
    only_one = tuple(name for name in [*first, *second] if (name in first) != (name in second))
    if not shared:
        return None
    gaps = [Gap(name, *_apart(first[name], second[name])) for name in shared]
    apart = sorted((g for g in gaps if g.absolute), key=lambda g: -g.absolute)
    return Distance(len(shared), tuple(apart), only_one)


def _apart(a: torch.Tensor, b: torch.Tensor) -> tuple[float, float]:
    """Return the largest difference of two tensors on the host, absolute and relative."""
    infinite = float("inf")
    if a.shape != b.shape:
        return infinite, infinite
    if a.numel() == 0:
        return 0.0, 0.0
    wide = torch.complex128 if a.is_complex() or b.is_complex() else torch.float64
    a, b = a.to(wide), b.to(wide)
    same = (a == b) | (a.isnan() & b.isnan())
    if bool(same.all()):
        return 0.0, 0.0
    gap = torch.where(same, 0.0, (a - b).abs())
    absolute = float(gap.nan_to_num(infinite, infinite).max())
    scale = float(a.abs().nan_to_num(0.0, 0.0, 0.0).max())
    return absolute, absolute / scale if scale else infinite
