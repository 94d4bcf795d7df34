"""Tensors on `tpu` that take the place of the CPU's and of meta tensors, while a function is recorded.

They have no values. Python's names, modules and optimizers keep their objects, whose inside is exchanged: so code that
asks for a tensor's device finds `tpu`, as it would on the chip.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from torchtpu import reach
from torchtpu.ahead.tape import unknown
from torchtpu.buffer import DEVICE, Buffer, new_storage
from torchtpu.dtypes import xla_dtype
from torchtpu.layout import Layout
from torchtpu.plan import storage_spec

_BUDGET = 1_000_000  # objects to look at
# The C++ part alone, whoever else refers to it: both come back. `torch.utils.swap_tensors` is for good, and so refuses.
_swap = torch._C._swap_tensor_impl


class _Search(reach.Walk):
    """Finds the tensors that are reached from a function and its arguments, without those that autograd saved."""

    def __init__(self) -> None:
        super().__init__(_BUDGET)
        self.found: dict[int, tuple[torch.Tensor, bool]] = {}  # the tensor, and whether a module owns it

    def _add(self, value: Any, name: str, role: int, depth: int, owner: str) -> None:
        if role != reach.SAVED and issubclass(type(value), torch.Tensor):
            owned = role == reach.PARAMETER
            if owned or id(value) not in self.found:
                self.found[id(value)] = value, owned
        super()._add(value, name, role, depth, owner)


def reached(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors of the CPU and of `meta` that stand for device memory.

    Numbers (0-d tensors of the CPU that belong to no module) stay where they are, as on the device.
    """
    search = _Search()
    for start in ((function, args, kwargs), *(value for _, value in reach.globals_of(function))):
        for _ in search.run(start, ""):
            pass
    return [
        tensor
        for tensor, owned in search.found.values()
        if tensor.layout is torch.strided
        and (tensor.device.type == "meta" or (tensor.device.type == "cpu" and (tensor.dim() or owned)))
    ]


@contextlib.contextmanager
def standing_in(tensors: list[torch.Tensor]) -> Iterator[None]:
    """Exchange tensors for stand-ins on `tpu`, inside the block.

    What autograd's graphs hold of the user's tensors stays with the originals, and so do their gradients.
    """
    storages: dict[int, torch.UntypedStorage] = {}
    exchanged: list[tuple[torch.Tensor, torch.Tensor]] = []
    try:
        for tensor in tensors:
            stand_in = _stand_in(tensor, storages)
            _swap(tensor, stand_in)
            exchanged.append((tensor, stand_in))
        yield
    finally:
        for tensor, stand_in in exchanged:
            _swap(tensor, stand_in)


def _stand_in(tensor: torch.Tensor, storages: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    like = _on_tpu(tensor, storages)
    made = torch.Tensor._make_subclass(type(tensor), like, tensor.requires_grad) if type(tensor) is not torch.Tensor else like
    made.requires_grad_(tensor.requires_grad)
    made.__dict__.update(tensor.__dict__)
    grad = tensor.grad if tensor.is_leaf else None
    if grad is not None:
        made.grad = _on_tpu(grad, storages)
    return made


def _on_tpu(tensor: torch.Tensor, storages: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    """Return a tensor on `tpu` with the window of another; those that share a storage still do."""
    size, stride, offset = tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset()
    original = tensor.untyped_storage()
    storage = storages.get(original._cdata)
    if storage is None:
        layout = storage_spec(size, stride, tensor.dtype).layout
        if layout.nbytes != original.nbytes() or offset:
            layout = Layout((original.nbytes() // tensor.itemsize,), xla_dtype(tensor.dtype))
        buffer = Buffer(layout)
        buffer.error = unknown()
        storage = storages[original._cdata] = new_storage(buffer, original.nbytes())
    return torch.empty(0, dtype=tensor.dtype, device=DEVICE).set_(storage, offset, size, stride)
