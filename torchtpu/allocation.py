"""Kernels that make tensors or move their windows, and compute nothing: empty, views, set_, resize_.

Views are PyTorch's own: they are sent to its CPU kernels, which only touch metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchtpu import client, errors, hbm
from torchtpu.buffer import DEVICE, Buffer, new_storage, new_tensor
from torchtpu.device import index_of
from torchtpu.dtypes import xla_dtype
from torchtpu.layout import Layout, contiguous_strides
from torchtpu.plan import storage_spec

_cpu_keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
aten = torch.ops.aten
_set_window = aten.set_.source_Storage_storage_offset._handle.redispatch_boxed

# Overloads whose CPU kernel only changes sizes, strides, offset or storage of a tensor.
METADATA_ONLY = (
    "as_strided",
    "view",
    "view_as_complex",
    "view_as_real",
    "_reshape_alias",
    "unfold",
    "set_.source_Tensor",
)


def on_cpu_keys(op: torch._ops.OpOverload) -> Callable[..., Any]:
    """Return a kernel that runs PyTorch's CPU kernel of a metadata-only op on a `tpu` tensor."""
    redispatch = op._handle.redispatch_boxed

    def kernel(*args: Any, **kwargs: Any) -> Any:
        return redispatch(_cpu_keys, *args, **kwargs)

    return kernel


def _check_room(layout: Layout) -> None:
    if not client.nbytes_fit(layout, hbm.usage.live):
        raise errors.out_of_memory(layout.nbytes, hbm.usage.live, client.memory_limit(), f"a tensor of {layout}")


def empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    """`aten::empty_strided` for `tpu`: memory that is filled (with zeros) only if it is read before it is written."""
    index_of(device)
    if layout not in (None, torch.strided):
        raise NotImplementedError(f"{layout} tensors are not supported on tpu; keep them on the CPU")
    size, stride = tuple(size), tuple(stride)
    if any(s < 0 for s in size):
        raise RuntimeError(f"Trying to create tensor with negative dimension: {list(size)}")
    spec = storage_spec(size, stride, dtype or torch.get_default_dtype())
    _check_room(spec.layout)
    return new_tensor(spec, Buffer(spec.layout))


def empty(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """`aten::empty.memory_format` for `tpu`."""
    size = tuple(size)
    return empty_strided(size, _strides(size, memory_format), dtype, layout, device, pin_memory)


def _strides(size: tuple[int, ...], memory_format: torch.memory_format | None) -> tuple[int, ...]:
    if memory_format in (torch.channels_last, torch.channels_last_3d):
        return torch.empty(size, device="meta", memory_format=memory_format).stride()
    return contiguous_strides(size)


def set_window(
    tensor: torch.Tensor, storage: torch.UntypedStorage, offset: int, size: Sequence[int], stride: Sequence[int] = ()
) -> torch.Tensor:
    """`aten::set_.source_Storage_storage_offset`: a window on a storage, which grows where it is too small.

    Not if the tensor has the window's size and strides already: PyTorch then refuses, and so does its kernel.
    """
    extent = 1 + sum((n - 1) * s for n, s in zip(size, stride or contiguous_strides(tuple(size)), strict=True))
    needed = (offset + extent) * tensor.element_size()
    if 0 not in size and needed > storage.nbytes() and (tensor.shape, tensor.stride()) != (tuple(size), tuple(stride)):
        resize_storage(storage, needed, tensor.dtype)
    return _set_window(_cpu_keys, tensor, storage, offset, size, stride)


def set_storage(tensor: torch.Tensor, storage: torch.UntypedStorage) -> torch.Tensor:
    """`aten::set_.source_Storage`: the whole storage as a 1-d tensor."""
    count = storage.nbytes() // tensor.element_size()
    # PyTorch keeps the strides of a tensor that has so many elements already; all but an empty one would then reach outside.
    stride = tensor.stride() if tensor.shape == (count,) == (0,) else (1,)
    return aten.set_.source_Storage_storage_offset(tensor, storage, 0, (count,), stride)


def set_empty(tensor: torch.Tensor) -> torch.Tensor:
    """`aten::set_`: an empty tensor with a storage of its own."""
    return set_storage(tensor, new_storage(Buffer(Layout((0,), xla_dtype(tensor.dtype))), 0))


def resize(tensor: torch.Tensor, size: Sequence[int], *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    """`aten::resize_`: keep the storage if it is large enough, else enlarge it for all tensors that share it."""
    size = tuple(size)
    if tuple(tensor.shape) == size and memory_format in (None, torch.preserve_format):
        return tensor
    if any(n < 0 for n in size):
        raise RuntimeError(f"Trying to create tensor with negative dimension: {list(size)}")
    stride = _strides(size, memory_format)
    offset = tensor.storage_offset()
    extent = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if 0 not in size else 0
    storage = tensor.untyped_storage()
    needed = (offset + extent) * tensor.element_size()
    if extent and needed > storage.nbytes():
        resize_storage(storage, needed, tensor.dtype)
    return aten.set_.source_Storage_storage_offset(tensor, storage, offset, size, stride)


def resize_storage(storage: torch.UntypedStorage, nbytes: int, dtype: torch.dtype = torch.uint8) -> None:
    """Change the size of a storage in place, keeping the bytes that fit.

    Args:
        dtype: of the new array, where `nbytes` is a whole number of its items.
    """
    if nbytes == storage.nbytes():
        return
    new = _storage(nbytes, dtype if nbytes % dtype.itemsize == 0 else torch.uint8)
    old: Buffer = storage.buffer
    kept = min(storage.nbytes(), nbytes)
    if kept and (old.array is not None or old.epoch):
        word = dtype if kept % dtype.itemsize == 0 and storage.nbytes() % dtype.itemsize == 0 else torch.uint8
        _flat(new, word)[: kept // word.itemsize].copy_(_flat(storage, word)[: kept // word.itemsize])
    buffer = new.buffer
    # PyTorch swaps the memory of two storages of equal size, or if one is empty. The buffers are swapped by hand.
    storage._swap_data_ptr_(_storage(0, torch.uint8))
    storage._swap_data_ptr_(new)
    storage.buffer = buffer


def storage_of(content: int | Sequence[int], device: torch.device) -> torch.UntypedStorage:
    """Make a storage of so many bytes, or of these bytes."""
    index_of(device)
    if isinstance(content, Sequence):
        host = torch.UntypedStorage(content)
        storage = _storage(host.nbytes(), torch.uint8)
        return storage.copy_(host)
    return _storage(int(content), torch.uint8)


def _storage(nbytes: int, dtype: torch.dtype) -> torch.UntypedStorage:
    if nbytes < 0:
        raise RuntimeError(f"a storage cannot have {nbytes} bytes")
    layout = Layout((nbytes // dtype.itemsize,), xla_dtype(dtype))
    _check_room(layout)
    return new_storage(Buffer(layout), nbytes)


def _flat(storage: torch.UntypedStorage, dtype: torch.dtype) -> torch.Tensor:
    return set_storage(torch.empty(0, dtype=dtype, device=DEVICE), storage)
