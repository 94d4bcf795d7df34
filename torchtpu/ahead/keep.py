"""What a function that is only recorded does to the user's objects, undone: values, gradients, states, random numbers."""

from __future__ import annotations

import contextlib
import gc
import random as python_random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchtpu import random
from torchtpu.buffer import Buffer

_is_leaf = torch._C.TensorBase.__dict__["is_leaf"].__get__
_grad = torch._C.TensorBase.__dict__["grad"].__get__
_set_versions = torch._C._autograd._unsafe_set_version_counter
_MODULE_PARTS = ("_parameters", "_buffers", "_modules")


class Kept:
    """What there was before.

    Attributes:
        buffers: of all storages on `tpu`, by the buffer's identity. A buffer is referred to once from here.
        optimizers: with the number of entries in their states.
    """

    def __init__(self) -> None:
        self.buffers: dict[int, Buffer] = {}
        self.optimizers: list[tuple[torch.optim.Optimizer, int]] = []
        self._storages: dict[int, tuple[torch.UntypedStorage, int]] = {}
        self._tensors: list[tuple[Any, ...]] = []
        self._dictionaries: list[tuple[Any, dict[Any, Any]]] = []
        with torch._C.DisableTorchFunctionSubclass():
            handlers: dict[type, Callable[[Any], None] | None] = {}
            for thing in gc.get_objects():
                cls = type(thing)
                if cls not in handlers:
                    handlers[cls] = self._handler(cls)
                if (handler := handlers[cls]) is not None:
                    handler(thing)
        self._streams = [(g.stream, g.stream.seed, g.stream.offset) for g in list(random._by_address.values())]
        self._host_random = python_random.getstate(), torch.get_rng_state()
        numpy = sys.modules.get("numpy")
        self._numpy_random = numpy.random.get_state() if numpy is not None else None

    def _handler(self, cls: type) -> Callable[[Any], None] | None:
        """Return what keeps the instances of a class; None for those that need not be kept."""
        if issubclass(cls, torch.Tensor):
            return self._tensor
        if issubclass(cls, torch.nn.Module):
            return self._module
        if issubclass(cls, torch.optim.Optimizer):
            return self._optimizer
        return self._scheduler if issubclass(cls, torch.optim.lr_scheduler.LRScheduler) else None

    def _scheduler(self, scheduler: torch.optim.lr_scheduler.LRScheduler) -> None:
        self._dictionary(scheduler.__dict__)

    def _tensor(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != "tpu":
            return
        grad = _grad(tensor) if _is_leaf(tensor) else None
        version = tensor._version if not tensor.is_inference() else None
        self._tensors.append((tensor, tensor.detach(), grad, tensor.requires_grad, version))
        self._storage(tensor.untyped_storage())
        if grad is not None and grad.device.type == "tpu":
            self._tensors.append((grad, grad.detach(), None, grad.requires_grad, grad._version))
            self._storage(grad.untyped_storage())

    def _storage(self, storage: torch.UntypedStorage) -> None:
        buffer = storage.buffer
        self._storages[storage._cdata] = storage, id(buffer)
        self.buffers[id(buffer)] = buffer

    def _dictionary(self, contents: dict[Any, Any]) -> None:
        self._dictionaries.append((contents, dict(contents)))

    def _module(self, module: torch.nn.Module) -> None:
        parts = object.__getattribute__(module, "__dict__")
        self._dictionary(parts)
        for part in _MODULE_PARTS:
            if part in parts:
                self._dictionary(parts[part])

    def _optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep its state, and let it work on copies of the tensors on the CPU (step counts), which it changes in place."""
        for group in optimizer.param_groups:
            self._dictionary(group)
        for state in list(optimizer.state.values()):
            if isinstance(state, dict):
                self._dictionary(state)
                for key, value in state.items():
                    if isinstance(value, torch.Tensor) and value.device.type == "cpu":
                        state[key] = value.clone()
        self._dictionary(optimizer.state)
        self._dictionary(optimizer.__dict__)
        self.optimizers.append((optimizer, entries(optimizer)))

    def put_back(self) -> None:
        """Make everything what it was."""
        with torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            for storage, buffer in self._storages.values():
                storage.buffer = self.buffers[buffer]
            for contents, before in reversed(self._dictionaries):
                if contents.keys() != before.keys() or any(contents[k] is not v for k, v in before.items()):
                    contents.clear()
                    contents.update(before)
            for tensor, same, grad, requires_grad, version in self._tensors:
                _put_back(tensor, same, grad, requires_grad, version)
        for stream, seed, offset in self._streams:
            stream.seed, stream.offset = seed, offset
        python_random.setstate(self._host_random[0])
        torch.set_rng_state(self._host_random[1])
        if self._numpy_random is not None:
            sys.modules["numpy"].random.set_state(self._numpy_random)
        # A traceback may keep this object: the next one must not find, and keep, what it holds.
        for held in (self._tensors, self._storages, self._dictionaries, self.buffers, self.optimizers):
            held.clear()


def _put_back(tensor: torch.Tensor, same: torch.Tensor, grad: Any, requires_grad: bool, version: int | None) -> None:
    """Give a tensor its old window and storage (those of `same`), gradient and version."""
    if (tensor.untyped_storage()._cdata, tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()) != (
        same.untyped_storage()._cdata, same.dtype, same.shape, same.stride(), same.storage_offset()
    ):  # fmt: skip
        tensor.data = same
    if _is_leaf(tensor):
        if tensor.requires_grad != requires_grad:
            tensor.requires_grad_(requires_grad)
        if _grad(tensor) is not grad:
            tensor.grad = grad
    if version is not None and tensor._version != version:
        _set_versions((tensor,), (version,))


def entries(optimizer: torch.optim.Optimizer) -> int:
    """Count the entries of an optimizer's state."""
    return sum(len(state) for state in optimizer.state.values() if isinstance(state, dict))


@contextlib.contextmanager
def unchanged() -> Iterator[Kept]:
    """Undo, at the end of the block, what it did to tensors on `tpu`, modules, optimizers, schedulers and random numbers."""
    kept = Kept()
    try:
        yield kept
    finally:
        kept.put_back()
