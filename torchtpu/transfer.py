"""Copies between host and device, and reads. A read flushes what is pending, waits, and never compiles."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torchtpu import client, dtypes, events, lazy_bits, lines, provenance, reads
from torchtpu.buffer import Buffer, buffer_of
from torchtpu.modes import deferred, strict
from torchtpu.plan import storage_spec

# The copy between two `tpu` tensors is an op like others; its kernel is set when the operators are loaded.
on_device: Any = None


def to_host(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    """Return a private CPU copy of a `tpu` tensor with its strides, waiting for its value."""
    return on_host(tensor, kind).clone()


def on_host(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    """Wait for a `tpu` tensor and return a CPU tensor with its values. Not to be written: it may be the device's memory.

    The storage's whole array is fetched and the view is taken on the host, so that no program is compiled. Only where a
    transfer costs something, a small window of a large array is cut out on the device first.
    """
    buffer = buffer_of(tensor)
    if buffer.layout.nbytes > _LARGE and buffer.layout.nbytes > 16 * tensor.nbytes and not client.shares_memory():
        tensor = torch.ops.aten.clone(tensor, memory_format=torch.contiguous_format)
        buffer = buffer_of(tensor)
    return window(host_array(buffer, kind), tensor)


_LARGE = 1 << 20


def host_array(buffer: Buffer, kind: str) -> np.ndarray:
    """Wait for a buffer and return it as a (read-only) numpy array."""
    if client.in_bad_fork():
        raise client.forked()
    if reads.debug_mode:
        reads.object_to(kind)
    array = buffer.array
    if array is None:
        if buffer.error is None and not buffer.epoch:
            return np.zeros(buffer.layout.shape, buffer.layout.dtype)
        if buffer.error is None:
            deferred.flush(kind)
        array = strict.fill(buffer)
    if not events.logs:
        return np.asarray(array)
    origin = lines.note()
    start = time.perf_counter()
    host = np.asarray(array)
    seconds = time.perf_counter() - start
    if kind in ("item", "to_host"):
        kind = reads.kind(origin, kind)
    for log in events.logs:
        log.syncs.append(events.Sync(kind, origin, seconds, buffer.layout.nbytes, log.now()))
    return host


def window(host: np.ndarray, tensor: torch.Tensor) -> torch.Tensor:
    """Return the CPU tensor that sees on a storage's host array what `tensor` sees on the device. Not to be written."""
    memory = as_host_view(host, tensor.dtype, tensor.size(), tensor.stride(), tensor.storage_offset())
    if tensor.is_conj():
        memory = memory.conj()
    return torch._neg_view(memory) if tensor.is_neg() else memory


def as_host_view(host: np.ndarray, dtype: torch.dtype, size: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
    """Return the CPU tensor with this window on the memory of a numpy array. Not to be written."""
    flat = np.ascontiguousarray(host).reshape(-1).view(np.uint8)
    if not flat.flags.writeable:
        # torch only warns of read-only memory; the copy that every caller makes is what keeps it unwritten.
        flat = _assume_writable(flat)
    data = torch.from_numpy(flat)
    return torch.empty(0, dtype=dtype).set_(data.untyped_storage(), offset, size, stride)


def _assume_writable(flat: np.ndarray) -> np.ndarray:
    interface = dict(flat.__array_interface__)
    interface["data"] = (interface["data"][0], False)
    if flat.size == 0:
        return np.empty(flat.shape, flat.dtype)
    holder = _Memory()
    holder.__array_interface__ = interface
    holder.owner = flat
    return np.asarray(holder)


class _Memory:
    """Memory of another array, for numpy's array interface."""

    __array_interface__: dict[str, Any]
    owner: np.ndarray


def from_host(tensor: torch.Tensor) -> Any:
    """Return a device array with the values of a CPU tensor, in the memory order of its strides (made dense)."""
    private = tensor.detach().clone(memory_format=torch.contiguous_format)
    return client.put(dtypes.to_numpy(private))


def copy_(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """`aten::copy_` in all directions between `tpu` and the CPU; on `tpu` alone it is an op like others."""
    if target.device.type == "cpu":
        return target.copy_(on_host(source, "to_host"))
    if source.device.type not in ("cpu", "tpu") or target.device.type != "tpu":
        raise NotImplementedError(
            f"cannot copy from {source.device} to {target.device}: meta tensors have no data, other devices go through the CPU"
        )
    whole = target
    if target.is_neg():
        target, source = torch._neg_view(target), source.neg()
    if target.is_conj():
        target, source = target.conj(), source.conj()
    if source.device.type == "cpu":
        if target.shape != source.shape:
            # The meta kernel raises torch's own error if the shapes do not fit.
            torch.empty(target.shape, device="meta").copy_(torch.empty(source.shape, device="meta"))
        spec = storage_spec(tuple(target.shape), tuple(target.stride()), target.dtype)
        storage = target.untyped_storage()
        if spec.layout.nbytes == storage.nbytes() and target.storage_offset() == 0 and spec.layout.numel == target.numel():
            value = torch.broadcast_to(source.detach(), target.shape).to(target.dtype)
            if spec.order is not None:
                value = value.permute(spec.order)
            storage.buffer = Buffer(spec.layout, from_host(value))
            if events.logs:
                provenance.copied(storage.buffer, lines.here())
            return whole
        source = source.to(target.device)
    on_device(target, lazy_bits.resolved(source))
    return whole


def local_scalar(tensor: torch.Tensor) -> Any:
    """`aten::_local_scalar_dense`: the one value of a tensor as a Python number."""
    return on_host(tensor, "item").item()


def synchronize() -> None:
    """Run what is pending and wait until the device has nothing left to do."""
    deferred.flush("synchronize")
    start = time.perf_counter()
    # Programs run in order on one device: when a transfer queued now is done, so is everything before it.
    client.wait()
    if events.logs:
        seconds = time.perf_counter() - start
        origin = lines.note()
        for log in events.logs:
            log.syncs.append(events.Sync("synchronize", origin, seconds, 0, log.now()))
