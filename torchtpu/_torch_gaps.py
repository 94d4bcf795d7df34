"""Every patch to PyTorch, one function each: what a Python backend cannot reach, why, and what upstream says.

They act on `tpu` alone: for tensors, storages and generators elsewhere, and where another accelerator is in charge, the
original runs. `torch._C` is patched rather than `torch.accelerator`, so that PyTorch's own functions, with their
documentation and argument checks, stay what users and libraries call.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from torchtpu import client, device, streams

_accelerator = torch._C._accelerator_getAccelerator


@functools.cache
def apply_all() -> None:
    """Apply every patch of this module, once. Called by `import torchtpu`, which `%reload_ext` may run again."""
    storage_constructor()
    storage_resize()
    storage_memory()
    printing()
    accelerator_device()
    accelerator_memory()
    accelerator_streams()
    pinned_memory()
    dlpack()
    autocast_cache()
    generator()
    module_conversion()
    cross_entropy_accumulation()


def _is_tpu(where: Any) -> bool:
    return where is not None and torch.device(where).type == "tpu"


def storage_constructor() -> None:
    """`torch.UntypedStorage(n, device="tpu")` ends the process with a segmentation fault.

    It asks for the device's C++ allocator, and none can be registered from Python (torch 2.13; pytorch/pytorch#157859 added
    Python backends without one). So does `storage.new()`. With this, `storage.clone()`, and so `copy.deepcopy` of tensors
    and modules, `torch.load` and `map_location` work.
    """
    plain, plain_new = torch.UntypedStorage.__new__, torch.UntypedStorage.new

    @functools.wraps(plain)
    def new(cls: type[torch.UntypedStorage], *args: Any, device: Any = None, **kwargs: Any) -> torch.UntypedStorage:
        if device is None:
            return plain(cls, *args, **kwargs)
        if not _is_tpu(device):
            return plain(cls, *args, device=device, **kwargs)
        from torchtpu import allocation

        return allocation.storage_of(args[0] if args else kwargs.get("size", 0), torch.device(device))

    @functools.wraps(plain_new)
    def empty(self: torch.UntypedStorage) -> torch.UntypedStorage:
        return plain_new(self) if self.device.type != "tpu" else torch.UntypedStorage(0, device=self.device)

    torch.UntypedStorage.__new__, torch.UntypedStorage.new = new, empty


def storage_resize() -> None:
    """`UntypedStorage.resize_` needs `resizePrivateUse1Bytes` of the C++ hooks, which Python hooks lack (torch 2.13)."""
    plain = torch.UntypedStorage.resize_

    @functools.wraps(plain)
    def resize_(self: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
        if self.device.type != "tpu":
            return plain(self, size)
        from torchtpu import allocation

        allocation.resize_storage(self, int(size))
        return self

    torch.UntypedStorage.resize_ = resize_


def storage_memory() -> None:
    """Pickling a tensor, the old format of `torch.save`, and `byteswap` go to a storage's memory at its address.

    In C++ the former wrap the address in a storage of their own, behind which there is no buffer; the latter reads it,
    which ends the process (torch 2.13). The bytes go through a CPU storage instead.
    """
    write, read, swap = (getattr(torch.UntypedStorage, name) for name in ("_write_file", "_set_from_file", "_byteswap"))

    @functools.wraps(write)
    def _write_file(self: torch.UntypedStorage, *args: Any) -> None:
        write(self.cpu() if self.device.type == "tpu" else self, *args)

    @functools.wraps(read)
    def _set_from_file(self: torch.UntypedStorage, *args: Any) -> torch.UntypedStorage:
        if self.device.type != "tpu":
            return read(self, *args)
        host = torch.UntypedStorage(self.nbytes())
        read(host, *args)
        return self.copy_(host)

    @functools.wraps(swap)
    def _byteswap(self: torch.UntypedStorage, *args: Any) -> None:
        host = self.cpu()
        swap(host, *args)
        if host is not self:
            self.copy_(host)

    torch.UntypedStorage._write_file, torch.UntypedStorage._set_from_file = _write_file, _set_from_file
    torch.UntypedStorage._byteswap = _byteswap


def printing() -> None:
    """Tensors are formatted on the host, as PyTorch does for a fixed list of devices (xla, lazy, ipu, mtia).

    The list cannot be extended (torch 2.13, `_tensor_str._str_intern`). On the device, one `print` would compile dozens
    of programs (pytorch/pytorch#71147).

    What goes wrong then, as a deferred error that comes out here, must not leave functorch switched off: PyTorch's frame holds
    a guard that does it, and lives as long as the traceback, in a notebook until the next error.
    """
    from torch import _tensor_str

    plain, whole = _tensor_str._tensor_str, _tensor_str._str

    @functools.wraps(plain)
    def tensor_str(self: torch.Tensor, indent: int) -> str:
        if self.device.type == "tpu":
            from torchtpu import transfer

            self = transfer.to_host(self, "print")
        return plain(self, indent)

    @functools.wraps(whole)
    def text(self: torch.Tensor, **options: Any) -> str:
        try:
            return whole(self, **options)
        except BaseException as error:
            if self.device.type == "tpu" and error.__traceback__ is not None and error.__traceback__.tb_next is not None:
                error.__traceback__.tb_next.tb_frame.clear()
            raise

    _tensor_str._tensor_str, _tensor_str._str = tensor_str, text


def _replace(name: str, on_tpu: Callable[..., Any]) -> None:
    """Replace a function of `torch._C` where `tpu` is the accelerator."""
    plain = getattr(torch._C, name)

    @functools.wraps(plain)
    def call(*args: Any) -> Any:
        accelerator = _accelerator()
        return on_tpu(*args) if accelerator is not None and accelerator.type == "tpu" else plain(*args)

    setattr(torch._C, name, call)


def accelerator_device() -> None:
    """`torch.accelerator`'s `synchronize`, `get_device_capability` and `set_device_index`.

    PyTorch's C++ asks the device guard, and the one for Python backends implements none of it (torch 2.13): it refuses
    the first two and accepts any index. Upstream: pytorch/pytorch#196299, open.
    """
    _replace("_accelerator_synchronizeDevice", device.synchronize)
    _replace("_accelerator_getDeviceCapability", device.get_device_capability)
    _replace("_accelerator_setDeviceIndex", device.set_device)
    _replace("_accelerator_exchangeDevice", device.index_of)


def accelerator_memory() -> None:
    """`torch.accelerator`'s memory functions.

    They read the C++ device allocator, which cannot be registered from Python: most fail with an internal assertion,
    `empty_host_cache` with a segmentation fault (torch 2.13).
    """

    def stats(index: int) -> dict[str, Any]:
        nested: dict[str, Any] = {}
        for name, value in device.memory_stats(index).items():
            *groups, last = name.split(".")
            inner = nested
            for group in groups:
                inner = inner.setdefault(group, {})
            inner[last] = value
        return nested

    _replace("_accelerator_isAllocatorInitialized", client.started)
    _replace("_accelerator_getDeviceStats", stats)
    _replace("_accelerator_getMemoryInfo", device.mem_get_info)
    _replace("_accelerator_resetPeakStats", device.reset_peak_memory_stats)
    _replace("_accelerator_resetAccumulatedStats", device.reset_accumulated_memory_stats)
    _replace("_accelerator_emptyCache", device.empty_cache)
    _replace("_accelerator_emptyHostCache", device.empty_cache)


def accelerator_streams() -> None:
    """`torch.accelerator.current_stream()`: the C++ stream's `synchronize` returns at once for a Python backend.

    The type `torch.Stream` is immutable, so a subclass is returned (torch 2.13; pytorch/pytorch#157859 made it so).
    """
    _replace("_accelerator_getStream", streams.current_stream)
    _replace("_accelerator_setStream", streams.set_stream)


def pinned_memory() -> None:
    """`Tensor.pin_memory()` and `DataLoader(pin_memory=True)`: a `tpu` needs no pinned memory, so tensors stay as they are.

    PyTorch asks the C++ hooks for an allocator of pinned memory, which Python hooks lack, and raises (torch 2.13).
    `torch.empty(..., pin_memory=True)` still does.
    """
    plain = torch.Tensor.pin_memory

    @functools.wraps(plain)
    def pin_memory(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        elsewhere = any(a is not None and not _is_tpu(a) for a in (*args, *kwargs.values()))
        if self.device.type != "cpu" or elsewhere:
            return plain(self, *args, **kwargs)
        return self

    torch.Tensor.pin_memory = pin_memory


def dlpack() -> None:
    """`__dlpack__`, `__dlpack_device__` and `to_dlpack` of a `tpu` tensor, for `torch.from_dlpack`, numpy and jax.

    PyTorch knows no DLPack device for a renamed backend: it compares with the name "privateuse1" (torch 2.13). `to_dlpack`
    would give away an address of ours.
    """
    plain, plain_device, plain_to = torch.Tensor.__dlpack__, torch.Tensor.__dlpack_device__, torch.utils.dlpack.to_dlpack

    @functools.wraps(plain)
    def __dlpack__(self: torch.Tensor, **kwargs: Any) -> Any:
        if type(self) not in (torch.Tensor, torch.nn.Parameter) or self.device.type != "tpu":
            return plain(self, **kwargs)
        from torchtpu import interchange

        return interchange.host_alias(self).__dlpack__(**kwargs)

    @functools.wraps(plain_device)
    def __dlpack_device__(self: torch.Tensor) -> tuple[Any, int]:
        if type(self) not in (torch.Tensor, torch.nn.Parameter) or self.device.type != "tpu":
            return plain_device(self)
        from torchtpu import interchange

        return interchange.dlpack_device()

    @functools.wraps(plain_to)
    def to_dlpack(tensor: torch.Tensor) -> Any:
        return tensor.__dlpack__() if tensor.device.type == "tpu" else plain_to(tensor)

    torch.Tensor.__dlpack__, torch.Tensor.__dlpack_device__ = __dlpack__, __dlpack_device__
    torch.utils.dlpack.to_dlpack = torch.to_dlpack = to_dlpack


def autocast_cache() -> None:
    """`torch.autocast` keeps the casts of parameters in C++, which Python cast rules cannot share (torch 2.13).

    Ours are kept in `torchtpu.autocast`, and dropped with PyTorch's when the outermost `autocast` ends.
    """
    plain = torch.clear_autocast_cache

    @functools.wraps(plain)
    def clear_autocast_cache() -> None:
        from torchtpu import autocast

        autocast.clear_cache()
        plain()

    torch.clear_autocast_cache = clear_autocast_cache


def generator() -> None:
    """`torch.Generator(device="tpu")` asks the C++ hooks for a new generator, which Python hooks cannot make (torch 2.13).

    The type `torch.Generator` must stay what it is for `isinstance`, and is immutable; its metaclass is a Python class.
    """
    from torch._opaque_base import OpaqueBaseMeta

    plain = OpaqueBaseMeta.__call__

    def construct(cls: type, *args: Any, **kwargs: Any) -> Any:
        where = args[0] if args else kwargs.get("device")
        if cls is not torch.Generator or not _is_tpu(where):
            return plain(cls, *args, **kwargs)
        from torchtpu import random

        device.index_of(where)
        return random.Generator()

    OpaqueBaseMeta.__call__ = construct


def module_conversion() -> None:
    """`module.to("tpu")` makes new Parameters, so tied weights come apart and optimizers keep the old ones.

    `Module._apply` moves a Parameter in place where `.data =` can (CPU to CUDA), which PyTorch's C++ does not allow between
    the CPU and an out-of-tree device. It can swap tensors instead, behind `torch.__future__` (torch 2.13). Moves to and
    from `tpu` use that, which keeps each Parameter the object that it was. Where one cannot be swapped (a graph or a weak
    reference holds it), new Parameters are made as before, but shared ones stay shared.
    """
    plain = torch.nn.Module._apply
    converting = False

    @functools.wraps(plain)
    def apply(self: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> torch.nn.Module:
        nonlocal converting
        if converting or not recurse or not _moves(self, fn):
            return plain(self, fn, recurse)
        converting = True
        future = torch.__future__
        before = future.get_swap_module_params_on_conversion()
        shared = _shared_tensors(self)
        for _, *others in shared:
            for members, name in others:
                members[name] = None  # converted once, at its first place
        try:
            future.set_swap_module_params_on_conversion(True)
            try:
                return plain(self, fn)
            except RuntimeError as error:
                if "Couldn't swap" not in str(error):
                    raise
                future.set_swap_module_params_on_conversion(False)
                return plain(self, fn)  # what was swapped already stays as it is
        finally:
            future.set_swap_module_params_on_conversion(before)
            converting = False
            for (first, first_name), *others in shared:
                for members, name in others:
                    members[name] = first[first_name]

    torch.nn.Module._apply = apply


def _moves(module: torch.nn.Module, fn: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Whether a conversion moves the module's tensors to or from `tpu`, tried on the smallest of them."""
    tensors = [t for t in (*module.parameters(), *module.buffers()) if type(t) in (torch.Tensor, torch.nn.Parameter)]
    if not tensors:
        return False
    smallest = min(tensors, key=torch.Tensor.numel)
    with torch.no_grad():
        devices = {smallest.device.type, fn(smallest).device.type}
    return len(devices) == 2 and "tpu" in devices


def _shared_tensors(module: torch.nn.Module) -> list[list[tuple[dict[str, torch.Tensor | None], str]]]:
    """Return the places of each parameter or buffer that a module tree holds in more than one."""
    places: dict[int, list[tuple[dict[str, torch.Tensor | None], str]]] = {}
    for part in module.modules():
        for members in (part._parameters, part._buffers):
            for name, tensor in members.items():
                if tensor is not None:
                    places.setdefault(id(tensor), []).append((members, name))
    return [found for found in places.values() if len(found) > 1]


def cross_entropy_accumulation() -> None:
    """`linear_cross_entropy` in chunks sums 16-bit floats in their own dtype on devices that it does not know (torch 2.13).

    On the CPU and on CUDA it sums them in float32; here it shall do what it does on the CPU.
    """
    from torch.nn.modules import linear_cross_entropy_options as module

    options, defaults = module.LinearCrossEntropyOptions, module._AUTO_DEFAULTS
    resolve = options._resolve_auto_acc_dtype

    @functools.wraps(resolve)
    def resolve_accumulation(dtype: torch.dtype, where: torch.device | None) -> torch.dtype | None:
        return resolve(dtype, torch.device("cpu") if where is not None and where.type == "tpu" else where)

    options._resolve_auto_acc_dtype = staticmethod(resolve_accumulation)
    defaults.update({("tpu", dtype): choice for (where, dtype), choice in list(defaults.items()) if where == "cpu"})


@contextlib.contextmanager
def annotations(note: Callable[[str, float, float], None]) -> Iterator[None]:
    """Inside the block, tell of every `record_function` (the user's, an optimizer's, a DataLoader's) when it ends.

    PyTorch tells its own profiler only: a Python backend cannot listen (torch 2.13).

    Args:
        note: called with the name, and the start and end by `time.perf_counter`.
    """
    cls = torch.autograd.profiler.record_function
    plain_enter, plain_exit = cls.__enter__, cls.__exit__

    @functools.wraps(plain_enter)
    def enter(self: Any) -> Any:
        self._torchtpu_began = time.perf_counter()
        return plain_enter(self)

    @functools.wraps(plain_exit)
    def leave(self: Any, *error: Any) -> None:
        plain_exit(self, *error)
        began = self.__dict__.pop("_torchtpu_began", None)
        if began is not None:
            note(self.name, began, time.perf_counter())

    cls.__enter__, cls.__exit__ = enter, leave
    try:
        yield
    finally:
        cls.__enter__, cls.__exit__ = plain_enter, plain_exit


@functools.cache
def profiler_traces(started: Callable[[Any], None], stopped: Callable[[Any], None]) -> None:
    """Tell of each trace that a `torch.profiler.profile` starts and stops.

    Its `on_trace_ready` is only called at the end, and a Python backend has no profiler of its own in PyTorch (torch 2.13;
    Kineto takes C++ ones).
    """
    cls = torch.profiler.profile
    plain_start, plain_stop = cls.start_trace, cls.stop_trace

    @functools.wraps(plain_start)
    def start_trace(self: torch.profiler.profile) -> None:
        plain_start(self)
        try:
            started(self)
        except BaseException:
            plain_stop(self)
            raise

    @functools.wraps(plain_stop)
    def stop_trace(self: torch.profiler.profile) -> None:
        try:
            stopped(self)
        finally:
            plain_stop(self)

    cls.start_trace, cls.stop_trace = start_trace, stop_trace
