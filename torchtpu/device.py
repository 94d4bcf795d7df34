"""`torch.tpu`: the device module, with the names of Google's torch_tpu and of PyTorch's own device modules.

Reading a property of the module or asking about the device loads nothing; the device starts with the first tensor on it,
or with `init()`.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

import torch

from torchtpu import client, config, hbm, precision as _precision, reads
from torchtpu.precision import Precision
from torchtpu.random import (
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torchtpu.streams import Event, Stream, current_stream, default_stream, set_stream, stream

if TYPE_CHECKING:
    from torchtpu.modes import EagerMode

__all__ = [
    "DeviceProperties",
    "EagerMode",
    "Event",
    "Precision",
    "Stream",
    "current_device",
    "current_stream",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_of",
    "empty_cache",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "get_sync_debug_mode",
    "init",
    "initial_seed",
    "is_available",
    "is_bf16_supported",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "precision",
    "reset_accumulated_memory_stats",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_eager_mode",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "set_sync_debug_mode",
    "stream",
    "synchronize",
]

Device = torch.device | str | int | None


# The device


def is_available() -> bool:
    """Whether tensors can live on `tpu`: always, on XLA:CPU where there is no TPU."""
    return True


def is_initialized() -> bool:
    """Whether the device has started in this process."""
    return client.started()


# torch.utils.checkpoint asks for this before it keeps the random state, which is there from the start.
_initialized = True


def init() -> None:
    """Start the device. The first tensor on it does so by itself."""
    client.device()


def device_count() -> int:
    """Number of devices of this process: one."""
    return 1


def current_device() -> int:
    """Index of the current device: 0."""
    return 0


def index_of(device: Device) -> int:
    """Return the index of a `tpu` device given as index, string, `torch.device`, or None for the current one.

    Raises:
        ValueError: the device is not a `tpu`.
        RuntimeError: the process has no such device.
    """
    index: int | None
    if device is None or isinstance(device, int):
        index = device
    else:
        device = torch.device(device)
        if device.type != "tpu":
            raise ValueError(f"expected a tpu device, got {device}")
        index = device.index
    if index not in (None, 0, -1):
        raise RuntimeError(f"invalid device tpu:{index}: this process has one device, tpu:0 (torch.tpu.device_count() is 1)")
    return 0


def set_device(device: Device) -> None:
    """Choose the current device. There is one, so this only checks the index."""
    index_of(device)


class device:  # a class and a lower-case name, like torch.cuda.device
    """Context manager that chooses the current device. There is one, so this only checks the index."""

    def __init__(self, device: Device) -> None:
        self.idx = index_of(device)

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        return None


class device_of(device):
    """Context manager that chooses the device of a tensor; nothing happens for a tensor elsewhere."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.device if tensor.device.type == "tpu" else None)


def synchronize(device: Device = None) -> None:
    """Run what is pending and wait until the device has nothing left to do. Without a started device: nothing."""
    index_of(device)
    if client.in_bad_fork():
        raise client.forked()
    if client.started():
        from torchtpu import transfer

        transfer.synchronize()


@dataclass(frozen=True, slots=True)
class DeviceProperties:
    """What is known of a device.

    Attributes:
        name: as XLA names it: `TPU v5 lite`, `cpu`.
        platform: XLA's platform: `tpu`, `cpu`.
        total_memory: bytes that tensors may use.
        platform_version: version text of the PJRT plugin.
    """

    name: str
    platform: str
    total_memory: int
    platform_version: str


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Return what is known of the device, which starts for it."""
    index_of(device)
    xla = client.device()
    return DeviceProperties(xla.device_kind, xla.platform, client.memory_limit(), xla.client.platform_version)


def get_device_name(device: Device = None) -> str:
    """Return the device's name as XLA has it (`TPU v5 lite`, `cpu`). The device starts for it."""
    return get_device_properties(device).name


def get_device_capability(device: Device = None) -> dict[str, Any]:
    """Return `{"supported_dtypes": ...}`: the dtypes that a tensor on the device can have."""
    from torchtpu import dtypes

    index_of(device)
    return {"supported_dtypes": set(dtypes.XLA)}


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Whether bfloat16 works on the device: yes."""
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    """The dtypes that `torch.autocast("tpu")` takes."""
    return [torch.bfloat16, torch.float16]


def set_sync_debug_mode(debug_mode: int | str) -> None:
    """Say what a read that waits for the device does: 0 or "default" nothing, 1 or "warn" warns, 2 or "error" raises.

    As `torch.cuda.set_sync_debug_mode`. `synchronize` is never objected to.
    """
    if debug_mode not in (*reads.MODES, *range(len(reads.MODES))):
        raise ValueError(f"sync debug mode {debug_mode!r}: use one of {', '.join(reads.MODES)}, or 0, 1, 2")
    reads.debug_mode = reads.MODES.index(debug_mode) if isinstance(debug_mode, str) else debug_mode


def get_sync_debug_mode() -> int:
    """Return what a read that waits for the device does: 0 nothing, 1 warns, 2 raises."""
    return reads.debug_mode


def _is_in_bad_fork() -> bool:
    return client.in_bad_fork()


# Eager mode and precision


@contextlib.contextmanager
def set_eager_mode(mode: EagerMode | str) -> Iterator[None]:
    """Use an eager mode inside a `with` block: strict, debug or defer_and_fuse.

    Raises:
        ValueError: there is no such mode (with the closest name).
    """
    from torchtpu import modes

    with modes.scope(mode):
        yield


@contextlib.contextmanager
def precision(mode: Precision | str) -> Iterator[None]:
    """Use a precision of float32 products inside a `with` block: of matrices, convolutions and attention.

    Outside of any block it is that of `torch.set_float32_matmul_precision`, which this leaves alone. Like the eager mode it
    belongs to the process: gradients have the precision that is in force when the backward pass runs.

    Args:
        mode: DEFAULT, HIGH or HIGHEST (1, 3 or 6 bfloat16 passes), as `Precision` or by name.

    Raises:
        ValueError: there is no such precision (with the closest name).
    """
    with _precision.scope(mode):
        yield


# Memory. Bytes are those that tensors hold; pending results of defer_and_fuse have none yet.


def memory_allocated(device: Device = None) -> int:
    """Bytes that tensors hold."""
    index_of(device)
    return hbm.usage.live


def max_memory_allocated(device: Device = None) -> int:
    """Highest bytes in use, with the temporaries of running programs, since `reset_peak_memory_stats`."""
    index_of(device)
    return hbm.usage.peak


def memory_reserved(device: Device = None) -> int:
    """The same as `memory_allocated`: there is no caching allocator between tensors and XLA."""
    return memory_allocated(device)


def max_memory_reserved(device: Device = None) -> int:
    """The same as `max_memory_allocated`."""
    return max_memory_allocated(device)


def reset_peak_memory_stats(device: Device = None) -> None:
    """Start the peak anew from what is in use now."""
    index_of(device)
    hbm.reset_peak()


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Start the counts of all allocations anew."""
    index_of(device)
    hbm.usage.allocations = hbm.usage.allocated = 0
    hbm.usage.before = hbm.usage.live


def memory_stats(device: Device = None) -> dict[str, int]:
    """Return bytes in use, peak and total since the start, under PyTorch's names for them."""
    index_of(device)
    u = hbm.usage
    counts = {"current": u.live, "peak": u.peak, "allocated": u.allocated, "freed": u.before + u.allocated - u.live}
    stats = {f"{group}.all.{k}": v for group in ("allocated_bytes", "reserved_bytes") for k, v in counts.items()}
    return {**stats, "allocation.all.allocated": u.allocations, "num_device_alloc": u.allocations}


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Return (free, total) bytes. The device starts for it."""
    index_of(device)
    total = client.memory_limit()
    return max(total - hbm.usage.live, 0), total


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Let tensors use this part of the device's memory, as `torch.cuda.set_per_process_memory_fraction`.

    The device starts for it. What is in use already stays.

    Raises:
        ValueError: `fraction` is not between 0 and 1.
    """
    index_of(device)
    if not 0 < fraction <= 1:
        raise ValueError(f"invalid memory fraction {fraction}: it must be above 0 and at most 1")
    config.memory_limit = max(int(fraction * client.device_memory()), 1)


def empty_cache() -> None:
    """Nothing: memory goes back to XLA when its tensor is freed."""


class _DeviceModule(ModuleType):
    """The module's type: it gives the module the properties `eager_mode` and `allow_excess_precision`."""

    @property
    def eager_mode(self) -> EagerMode:
        """The eager mode of the process. Assign a mode or its name."""
        from torchtpu import modes

        return modes.current()

    @eager_mode.setter
    def eager_mode(self, mode: EagerMode | str) -> None:
        from torchtpu import modes

        modes.set(mode)

    @property
    def allow_excess_precision(self) -> bool:
        """Whether XLA may keep values in float32 where the ops of one program round them to bfloat16 or float16. Assign a bool.

        False: a program of many ops gives what its ops give one by one.
        """
        return _precision.excess_allowed()

    @allow_excess_precision.setter
    def allow_excess_precision(self, allowed: bool) -> None:
        _precision.allow_excess(allowed)

    @property
    def profiler(self) -> ModuleType:
        """Profiles of the device: `TpuProfilerConfig`, `profile`, ... (torchtpu.profiler)."""
        import torchtpu.profiler

        return torchtpu.profiler

    @property
    def EagerMode(self) -> type[EagerMode]:
        """The eager modes. A property, because `import torchtpu` does not read the mode's setting yet."""
        from torchtpu.modes import EagerMode

        return EagerMode


sys.modules[__name__].__class__ = _DeviceModule
