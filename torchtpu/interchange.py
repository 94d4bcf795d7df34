"""Exchange with jax, numpy and others without a copy: `to_jax`, `from_jax`, and DLPack.

An array that somebody else holds is marked `shared`: a write to the tensor then makes a new array, and never reuses its
memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from torchtpu import client

if TYPE_CHECKING:
    import jax


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """Return a `tpu` tensor as a jax array.

    A tensor that fills its storage in row-major order is not copied. Later writes to the tensor do not change the array.

    Raises:
        ValueError: the tensor is not on `tpu`, or requires a gradient, which would not reach jax.
    """
    from torchtpu import lazy_bits
    from torchtpu.buffer import buffer_of
    from torchtpu.plan import storage_spec

    if tensor.device.type != "tpu":
        raise ValueError(f"to_jax takes a tensor on tpu, got one on {tensor.device}")
    if tensor.requires_grad:
        raise ValueError("to_jax takes a tensor that does not require grad: use tensor.detach()")
    tensor = lazy_bits.resolved(tensor)
    spec = storage_spec(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype)
    if tensor.storage_offset() or spec.order is not None or buffer_of(tensor).layout is not spec.layout:
        tensor = tensor.clone(memory_format=torch.contiguous_format)
    return _share(tensor)


def from_jax(array: jax.Array) -> torch.Tensor:
    """Return a `tpu` tensor with the values of a jax array, without a copy where the array is on the device.

    Writes to the tensor do not change the array.

    Raises:
        TypeError: not a jax array with a value, or its dtype has no counterpart in torch.
        ValueError: the array is spread over several devices.
    """
    import jax

    from torchtpu._register import start
    from torchtpu.buffer import Buffer, new_tensor
    from torchtpu.dtypes import XLA
    from torchtpu.layout import contiguous_strides
    from torchtpu.plan import storage_spec

    if not isinstance(array, jax.Array) or isinstance(array, jax.core.Tracer):
        raise TypeError(f"from_jax takes a jax array with a value, got {type(array).__name__}")
    dtype = next((t for t, xla in XLA.items() if xla == array.dtype), None)
    if dtype is None:
        raise TypeError(f"a jax array of dtype {array.dtype} has no counterpart in torch")
    if len(array.devices()) != 1:
        raise ValueError(f"from_jax takes an array on one device, this one is on {len(array.devices())}")
    start()
    if array.devices() != {client.device()}:
        array = jax.device_put(array, client.device())
    spec = storage_spec(array.shape, contiguous_strides(array.shape), dtype)
    buffer = Buffer(spec.layout, array)
    buffer.shared = True
    return new_tensor(spec, buffer)


def host_alias(tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor on the same memory as a `tpu` tensor, for DLPack.

    Raises:
        BufferError: the memory is a TPU's, or the tensor requires grad or is a lazy conjugate.
    """
    from torchtpu import transfer

    if tensor.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if tensor.is_conj() or tensor.is_neg():
        raise BufferError("Can't export tensors with the conjugate or negative bit set, use tensor.resolve_conj()")
    dlpack_device()
    _share(tensor)
    return transfer.on_host(tensor, "dlpack")


def dlpack_device() -> tuple[Any, int]:
    """Return DLPack's name of the device: the CPU, where XLA:CPU keeps arrays.

    Raises:
        BufferError: DLPack has no name for a TPU.
    """
    from torch.utils.dlpack import DLDeviceType

    if not client.shares_memory():
        raise BufferError(
            f"DLPack cannot reach the memory of a {client.device().device_kind}: use tensor.cpu(), or torchtpu.to_jax(tensor) "
            "to hand the tensor to jax without a copy"
        )
    return DLDeviceType.kDLCPU, 0


def _share(tensor: torch.Tensor) -> jax.Array:
    """Run what the tensor waits for and return its storage's array, never to be donated."""
    from torchtpu.buffer import buffer_of
    from torchtpu.modes import deferred, strict

    if client.in_bad_fork():
        raise client.forked()
    buffer = buffer_of(tensor)
    if buffer.array is None:
        deferred.flush("to_jax")
    array = buffer.array if buffer.array is not None else strict.fill(buffer)
    buffer.shared = True
    return array
