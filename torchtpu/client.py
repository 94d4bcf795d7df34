"""The XLA client: started at first use, on the platform that `TORCHTPU_PLATFORM` names.

jax is imported here and below, never by `import torchtpu`. The user's jax configuration is left as it is: 64-bit types
are traced under a scoped `enable_x64`, compiler options go with each program.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from functools import cache, lru_cache
from glob import glob
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtpu import config
from torchtpu.errors import TorchTPUError

if TYPE_CHECKING:  # loads ml_dtypes, which takes longer than all of `import torchtpu`
    from torchtpu.layout import Layout


@cache
def device() -> Any:
    """Return the jax device that `tpu:0` is, starting its client on the first call."""
    global _pid
    if in_bad_fork():
        raise forked()
    import jax

    wanted = config.platform
    _pid = os.getpid()
    if wanted != "tpu":
        _skip_absent_tpu()
    try:
        return jax.devices(wanted)[0] if wanted else _preferred(jax)
    except RuntimeError as error:
        raise TorchTPUError(
            f"no XLA device on platform {wanted or 'tpu or cpu'!r}: {error}. Set TORCHTPU_PLATFORM to cpu, tpu, or another "
            "platform that jax knows here."
        ) from None


def _skip_absent_tpu() -> None:
    """Where no TPU is plugged in, keep jax from starting libtpu: it may be there as a compiler, and complains at length."""
    from jax._src import hardware_utils, xla_bridge

    plugged_in = hardware_utils.num_available_tpu_chips_and_device_id()[0] or glob("/dev/accel*") or glob("/dev/vfio/[0-9]*")
    if not plugged_in:
        xla_bridge._backend_factories.pop("tpu", None)


def _preferred(jax: Any) -> Any:
    devices = jax.devices()
    tpus = [d for d in devices if d.platform == "tpu"]
    return tpus[0] if tpus else jax.devices("cpu")[0]


_pid: int | None = None  # of the process that started the client


def started() -> bool:
    """Whether the client runs in this process."""
    return _pid == os.getpid()


def in_bad_fork() -> bool:
    """Whether this process was forked from one that had started the client."""
    return _pid not in (None, os.getpid())


def forked() -> TorchTPUError:
    """Build the error for using the device in a forked process."""
    return TorchTPUError(
        "the tpu device cannot be used in a forked process (a DataLoader worker, say): its client and threads belong to the "
        "parent. Return CPU tensors from the worker and move them in the main process, or start workers with 'spawn'."
    )


@cache
def sharding() -> Any:
    """Return the placement of every array: the one device."""
    from jax.sharding import SingleDeviceSharding

    return SingleDeviceSharding(device())


@cache
def _put() -> Any:
    from jax._src import config as jax_config
    from jax._src.lib import xla_client
    from jax.core import ShapedArray

    return jax_config.enable_x64, xla_client.batched_device_put, lru_cache(maxsize=4096)(ShapedArray)


def put(host: np.ndarray) -> Any:
    """Copy a numpy array to the device. The array must be private to the caller: XLA:CPU may alias its memory."""
    if in_bad_fork():
        raise forked()
    x64, batched_device_put, shaped = _put()
    with x64(True):  # otherwise 64-bit types are narrowed silently
        return batched_device_put(shaped(host.shape, host.dtype), sharding(), [host], [device()])


@contextlib.contextmanager
def tracing() -> Iterator[None]:
    """Trace with 64-bit types, and without the caller's file and line in the program: they would change its disk key.

    Products that say nothing of their precision, inside jax's own algorithms, are exact.
    """
    from jax._src import config as jax_config

    exact = jax_config.default_matmul_precision("highest")
    with jax_config.enable_x64(True), jax_config.traceback_in_locations_limit(0), exact:
        yield


@cache
def shares_memory() -> bool:
    """Whether the host reads the device's memory where it is (XLA:CPU)."""
    return device().platform == "cpu"


def memory_limit() -> int:
    """Bytes of memory that tensors may use: what the device has, or less if `config.memory_limit` says so."""
    return min(config.memory_limit or sys.maxsize, device_memory())


@cache
def device_memory() -> int:
    """Bytes of the device's memory, or of the machine's for XLA:CPU."""
    stats = device().memory_stats() or {}
    if "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


nothing_allocated = False  # while ops are only recorded


def nbytes_fit(layout: Layout, live: int) -> bool:
    """Whether a new array of this layout fits beside `live` bytes."""
    return nothing_allocated or live + layout.nbytes <= memory_limit()


def wait() -> None:
    """Wait until every array on the device has its value."""
    for array in device().client.live_arrays():
        array.block_until_ready()
