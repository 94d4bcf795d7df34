"""An op's tensors on the host."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from torchtpu.buffer import Buffer
from torchtpu.plan import Plan
from torchtpu.transfer import as_host_view


class HostTensors:
    """The tensors of an op, on the memory of its inputs' arrays. Not to be written; zeros where there is no array."""

    def __init__(self, plan: Plan, inputs: Sequence[Buffer]) -> None:
        self._plan = plan
        self._arrays = {need: b.array for need, b in zip(plan.needs, inputs, strict=True)}

    def __getitem__(self, position: int) -> torch.Tensor:
        view = self._plan.views[position]
        array = self._arrays.get(self._plan.key.aliases[position])
        if array is None:
            array = np.zeros(view.layout.shape, view.layout.dtype)
        return as_host_view(np.asarray(array), view.dtype, view.size, view.stride, view.offset)
