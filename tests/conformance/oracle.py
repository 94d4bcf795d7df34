"""What CPU PyTorch says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True, slots=True)
class Answer:
    """A result of the CPU, and whether it drew random numbers for it."""

    value: Any
    random: bool


def ask(function: Callable[[], Any]) -> Answer | None:
    """Run on the CPU; None if it raises: such a sample has nothing to say."""
    try:
        with _Draws() as draws:
            value = function()
    except Exception:
        return None
    return Answer(value, draws.seen)


class _Draws(TorchDispatchMode):
    """Sees whether operators draw random numbers. OpInfos do not say so, and many reset the seed themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.seen or torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **(kwargs or {}))
        before = torch.get_rng_state()
        result = func(*args, **(kwargs or {}))
        self.seen = not torch.equal(before, torch.get_rng_state())
        return result
