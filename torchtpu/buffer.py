"""The value behind a tensor: a `Buffer` on its storage, and the making of tensors that have one.

A `tpu` tensor is a plain `torch.Tensor`. Its `UntypedStorage` carries one Python attribute, `buffer`; PyTorch keeps it
alive with the storage and frees it with the storage. A buffer never changes once it holds an array: writing to a tensor
gives its storage another buffer.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import torch

from torchtpu import hbm, lines
from torchtpu.layout import Layout

DEVICE = torch.device("privateuseone", 0)  # `_register` renames the backend; the object follows

_cpu_keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_set = torch.ops.aten.set_.source_Storage_storage_offset._handle.redispatch_boxed
_create = torch._C._acc.create_empty_tensor
_storage = torch._C._construct_storage_from_data_pointer

# Addresses are unique and never read. They start high and step by a page so that `data_ptr() + offset` stays apart.
_next_address = count(1 << 44, 1 << 12).__next__
_STEP = 1 << 12


class Buffer:
    """An XLA array, or the promise of one.

    Attributes:
        layout: shape and dtype.
        array: the jax array; None while pending or not yet filled.
        nbytes: bytes counted in `hbm.usage` for it.
        epoch, ref: where a pending graph knows it from (`graph.py`): an op's output if `ref >= 0`, else an input.
        error: why the promise can't be kept, once a flush has failed.
        shared: the array's memory is exported (DLPack), so it must never be donated.
        origin: the user's line that made it, while lines are kept.
        made: the number of the op that made it; unset unless `provenance` has set it.
        owner: what it is for; unset unless `ownership` has set it.
    """

    __slots__ = ("layout", "array", "nbytes", "epoch", "ref", "error", "shared", "origin", "made", "owner", "__weakref__")

    def __init__(self, layout: Layout, array: Any = None) -> None:
        self.layout = layout
        self.array = array
        self.epoch = self.nbytes = 0
        self.error = self.origin = None
        self.shared = False
        if array is not None:
            self.nbytes = n = layout.nbytes
            u = hbm.usage
            u.live = live = u.live + n
            u.allocated += n
            u.allocations += 1
            if live > u.mark:
                hbm.rise(self)
            if u.trace is not None:
                self.origin = u.origin or lines.here()
                u.trace.allocated(self)

    def fulfil(self, array: Any) -> None:
        """Keep the promise."""
        self.array = array
        self.nbytes = n = self.layout.nbytes
        u = hbm.usage
        u.live += n
        u.allocated += n
        u.allocations += 1
        if u.live > u.peak:
            u.peak = u.live
        if u.trace is not None:
            u.trace.allocated(self)

    def release(self) -> None:
        """Take the bytes off the account: the memory is gone, or (donated) belongs to another buffer."""
        n = self.nbytes
        if n:
            self.nbytes = 0
            u = hbm.usage
            u.live -= n
            if u.trace is not None:
                u.trace.released(self, n)

    __del__ = release

    def __repr__(self) -> str:
        state = "ready" if self.array is not None else "pending" if self.epoch else "unfilled"
        return f"Buffer({self.layout}, {state})"


class TensorSpec:
    """Metadata of a tensor to make: torch's sizes and strides, and the layout its array has in memory order.

    Attributes:
        size, stride: PyTorch's, stride in elements.
        dtype: torch dtype.
        layout: physical array; its shape is `size` ordered by falling stride.
        order: the permutation from logical to physical axes, or None where they agree.
    """

    __slots__ = ("size", "stride", "dtype", "layout", "order", "nbytes")

    def __init__(
        self, size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, layout: Layout, order: tuple[int, ...] | None
    ) -> None:
        self.size, self.stride, self.dtype, self.layout, self.order = size, stride, dtype, layout, order
        self.nbytes = layout.nbytes


def new_storage(buffer: Buffer, nbytes: int) -> torch.UntypedStorage:
    """Return a storage of `nbytes` bytes that holds `buffer`."""
    global _next_address
    address = _next_address()
    if nbytes >= _STEP:
        _next_address = count(address + (nbytes // _STEP + 1) * _STEP, _STEP).__next__
    storage = _storage(address, DEVICE, nbytes)
    storage.buffer = buffer
    return storage


def new_tensor(spec: TensorSpec, buffer: Buffer) -> torch.Tensor:
    """Return a tensor of `spec` whose storage holds `buffer`."""
    tensor = _create(spec.size, spec.dtype)
    _set(_cpu_keys, tensor, new_storage(buffer, spec.nbytes), 0, spec.size, spec.stride)
    return tensor


def buffer_of(tensor: torch.Tensor) -> Buffer:
    """Return the buffer of a `tpu` tensor."""
    return tensor.untyped_storage().buffer
