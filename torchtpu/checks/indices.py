"""Indices in range: XLA clamps or drops those that are not."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchtpu.buffer import Buffer
from torchtpu.checks.finding import at
from torchtpu.checks.host import HostTensors
from torchtpu.lines import Origin
from torchtpu.plan import Plan


def indices(plan: Plan, origin: Origin | None, inputs: Sequence[Buffer]) -> None:
    """Check that every index that an op takes is in range.

    Raises:
        IndexError: with the value, the size and the line.
    """
    if not plan.bounds:
        return
    tensors = HostTensors(plan, inputs)
    for position, low, high in plan.bounds:
        index = tensors[position]
        if index.dtype == torch.bool or index.numel() == 0:
            continue
        lowest, highest = int(index.min()), int(index.max())
        if lowest < low or highest > high:
            wrong = lowest if lowest < low else highest
            what = f"index {wrong} is out of bounds for dimension with size {high + 1}"
            raise IndexError(f"{plan.name}: {what}{at(origin)}") from None
