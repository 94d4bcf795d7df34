"""Runs a cell on copies of its tensors on the host's CPU, in PyTorch's own eager mode or under torch.compile."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode, _pop_mode_temporarily

LABELS = {"cpu": "cpu (PyTorch)", "compile": "torch.compile (CPU)"}


class _OnCPU(TorchFunctionMode):
    """Makes on the CPU what the code asks for on the tpu."""

    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        return func(*map(_cpu_for_tpu, args), **{name: _cpu_for_tpu(v) for name, v in (kwargs or {}).items()})


def _cpu_for_tpu(value: Any) -> Any:
    if isinstance(value, torch.device) and value.type == "tpu":
        return torch.device("cpu")
    return "cpu" if isinstance(value, str) and value.partition(":")[0] == "tpu" else value


@contextlib.contextmanager
def on_cpu(tensors: Iterable[torch.Tensor]) -> Iterator[None]:
    """Let tensors on tpu be copies on the CPU inside a `with` block. The objects stay, and tensors that share memory do.

    Raises:
        RuntimeError: something holds a weak reference to a tensor, or autograd holds the tensor.
    """
    tensors = [t for t in tensors if t.device.type == "tpu"]
    storages: dict[int, torch.UntypedStorage] = {}
    copies = {id(t): _copy(t, storages) for t in tensors}
    for t in tensors:
        if t.is_leaf and t.grad is not None and id(t.grad) in copies:
            copies[id(t)].grad = copies[id(t.grad)]
    swapped: list[torch.Tensor] = []
    try:
        for t in tensors:
            torch.utils.swap_tensors(t, copies[id(t)])
            swapped.append(t)
        with _OnCPU():
            yield
    finally:
        for t in swapped:
            torch.utils.swap_tensors(t, copies[id(t)])


def _copy(tensor: torch.Tensor, storages: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    storage = tensor.untyped_storage()
    host = storages.get(storage._cdata)
    if host is None:
        host = storages[storage._cdata] = storage.cpu()
    copy = torch.empty(0, dtype=tensor.dtype).set_(host, tensor.storage_offset(), tensor.size(), tensor.stride())
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(copy, tensor.requires_grad)
    return copy.requires_grad_(tensor.requires_grad)


def _compiled(module: torch.nn.Module) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return module._call_impl(*args, **kwargs)

    compiled = torch.compile(call)  # not `module.compile()`, which passes over torch's own modules, such as Sequential

    def outside_the_mode(*args: Any, **kwargs: Any) -> Any:
        with _pop_mode_temporarily():  # it would be compiled into the module's code
            return compiled(*args, **kwargs)

    return outside_the_mode


class Compiled:
    """Modules under torch.compile: each is compiled on its first run, and keeps its code for the later ones."""

    def __init__(self, modules: Iterable[torch.nn.Module]) -> None:
        self._modules = list(modules)
        self._calls: list[Any] = []

    def install(self) -> None:
        """Let calls of the modules go to their compiled form. A snapshot's `restore` undoes it."""
        if not self._calls:
            self._calls = [_compiled(module) for module in self._modules]
        for module, call in zip(self._modules, self._calls, strict=True):
            module._compiled_call_impl = call
