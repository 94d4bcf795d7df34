"""Naming the device, and the list of what PyTorch's dispatcher finds under it.

`import torchtpu` registers the name, and three kernels that start the device when the first tensor is made on it. Only
then are jax and the operators loaded, and their kernels registered.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from functools import cache, partial
from types import ModuleType
from typing import Any

import torch
from torch.library import Library
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from torchtpu import autocast
from torchtpu.errors import DeviceTakenError

NAME = "tpu"

_aten = Library("aten", "IMPL")
_all = Library("_", "IMPL")


class _Profiler(ModuleType):
    """`from torch.tpu.profiler import TpuProfilerConfig`: torchtpu.profiler, loaded when it is asked."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module("torchtpu.profiler"), name)


def name_device(module: Any) -> None:
    """Make `tpu` a device of PyTorch, with `module` as `torch.tpu`.

    Raises:
        DeviceTakenError: another package has taken PyTorch's one out-of-tree device, or its name.
    """
    from torch.utils.backend_registration import _setup_privateuseone_for_python_backend as setup

    if getattr(torch, NAME, None) is module:  # `%reload_ext torchtpu` runs torchtpu/__init__.py again
        return
    taken = torch._C._get_privateuse1_backend_name()
    if taken != "privateuseone" or hasattr(torch, NAME):
        owner = getattr(getattr(torch, NAME, None), "__name__", None)
        raise DeviceTakenError(
            f"PyTorch's out-of-tree device is taken in this process: it is named {taken!r}"
            + (f" and belongs to {owner}" if owner else "")
            + ". A process can have one. Google's torch_tpu registers it at `import torch`: to use torchtpu instead, start "
            "Python with TORCH_DEVICE_BACKEND_AUTOLOAD=0, or uninstall torch_tpu; to use torch_tpu, do not import torchtpu."
        )
    setup(NAME, module)
    sys.modules[f"torch.{NAME}.profiler"] = _Profiler(f"torch.{NAME}.profiler")
    for name in _FACTORIES:
        _aten.impl(name, _factory(name), "PrivateUse1")
    _all.fallback(_missing, "PrivateUse1")
    for key, what in _UNSUPPORTED.items():
        _all.fallback(partial(_refuse, what), key)
    for name in _ON_HOST_MEMORY:
        _aten.impl(name, partial(_refuse_memory, name), "PrivateUse1")
    autocast.pass_through()


_UNSUPPORTED = {
    "QuantizedPrivateUse1": "quantized",
    "SparsePrivateUse1": "sparse",
    "SparseCsrPrivateUse1": "sparse",
}


def _refuse(what: str, op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    name = op._schema.name
    raise NotImplementedError(
        f"{what} tensors are not supported on tpu ({name}): keep them on the CPU, or make them dense there"
    )


# Composite ops that go to a tensor's memory by themselves, whatever its device: with an address of ours, the process ends.
_ON_HOST_MEMORY = ("_saturate_weight_to_fp16", "fbgemm_linear_quantize_weight", "fbgemm_pack_gemm_matrix_fp16")


def _refuse_memory(name: str, *args: Any, **kwargs: Any) -> Any:
    raise NotImplementedError(f"aten::{name} works on the CPU's memory only: move the tensor with .cpu()")


# Every other op needs a tensor that one of these made.
_FACTORIES = ("empty.memory_format", "empty_strided")


def _factory(name: str) -> Any:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        if not _kernels:
            start()
        return _kernels[name](*args, **kwargs)

    return kernel


_kernels: dict[str, Any] = {}


@cache
def start() -> None:
    """Load jax and the operators, and register a kernel for each."""
    from torchtpu import allocation, lazy_bits, ownership, streams, transfer
    from torchtpu.buffer import DEVICE  # noqa: F401  (resolves the renamed device)
    from torchtpu.kernel import Kernel, entry
    from torchtpu.modes import deferred, state
    from torchtpu.ops.registry import COMPOSITES, ENTRIES, RULES, load_all

    load_all()
    state.select()
    transfer.on_device = Kernel(torch.ops.aten.copy_.default, RULES["aten::copy"])
    _kernels.update(
        {
            "_local_scalar_dense": transfer.local_scalar,
            "_resize_output_": lambda tensor, size, device: allocation.resize(tensor, size),
            "copy_": transfer.copy_,
            "empty.memory_format": allocation.empty,
            "empty_strided": allocation.empty_strided,
            "record_stream": streams.record_stream,
            "resize_": allocation.resize,
            "set_": allocation.set_empty,
            "set_.source_Storage": allocation.set_storage,
            "set_.source_Storage_storage_offset": allocation.set_window,
        }
    )
    for name in allocation.METADATA_ONLY:
        _kernels[name] = allocation.on_cpu_keys(_overload(name))
    for rule in RULES.values():
        for op in overloads_of(rule.name) if not rule.inner else ():
            name = _key(op)
            if name not in _kernels:
                _kernels[name] = entry(Kernel(op, rule))
    for name, stand_in in ENTRIES.items():
        key = name.removeprefix("aten::")
        _kernels[key] = partial(stand_in, _kernels.get(key))
    for name in lazy_bits.UNRESOLVED.intersection(_kernels):
        resolving = lazy_bits.resolving_in_place if name.endswith("_") else lazy_bits.resolving
        _kernels[name] = resolving(_kernels[name])
    for name, kernel in _kernels.items():
        if name not in _FACTORIES:
            _aten.impl(name, kernel, "PrivateUse1")
    for name, composed in COMPOSITES.items():
        for key in ("PrivateUse1", "AutogradPrivateUse1"):
            _aten.impl(name.removeprefix("aten::"), composed, key)
    autocast.register()
    register_optimizer_step_pre_hook(ownership.step_begins)
    register_optimizer_step_post_hook(ownership.step_ends)
    register_optimizer_step_post_hook(deferred.optimizer_stepped)


def overloads_of(name: str) -> Iterator[torch._ops.OpOverload]:
    """Yield the overload of a rule, then the in-place and `out=` overloads that its function also serves.

    Views are left out: PyTorch's own kernels make them (their rules serve decompositions).
    """
    op = _overload(name.removeprefix("aten::"))
    if any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns):
        return
    yield op
    types = _types(op)
    packet = op.overloadpacket
    base = packet._qualified_op_name.removeprefix("aten::")
    if any(a.alias_info is not None and a.alias_info.is_write for a in op._schema.arguments):
        return
    for candidate in _packet(f"{base}_"):
        if _types(candidate) == types:
            yield candidate
    for candidate in _packet(base):
        if candidate is not op and _outs(candidate) and _types(candidate) == types:
            yield candidate


def _packet(base: str) -> list[torch._ops.OpOverload]:
    packet = getattr(torch.ops.aten, base, None)
    return [getattr(packet, o) for o in packet.overloads()] if packet is not None else []


def _outs(op: torch._ops.OpOverload) -> bool:
    return any(a.kwarg_only and a.alias_info is not None and a.alias_info.is_write for a in op._schema.arguments)


def _types(op: torch._ops.OpOverload) -> tuple[str, ...]:
    arguments = op._schema.arguments
    out = [a.kwarg_only and a.alias_info is not None and a.alias_info.is_write for a in arguments]
    return tuple(str(a.type) for a, o in zip(arguments, out, strict=True) if not o)


def _overload(name: str) -> torch._ops.OpOverload:
    base, _, suffix = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), suffix or "default")


def _key(op: torch._ops.OpOverload) -> str:
    schema = op._schema
    return schema.name.removeprefix("aten::") + (f".{schema.overload_name}" if schema.overload_name else "")


def _missing(op: torch._ops.OpOverload, *args: Any, **kwargs: Any) -> Any:
    """The boxed fallback: an op without a kernel is decomposed, or runs on the CPU. It has a kernel from then on."""
    from torchtpu.kernel import Kernel

    start()
    kernel = _unlisted.get(op)
    if kernel is None:
        kernel = _unlisted[op] = _kernels.get(_key(op)) or Kernel(op, None)
    return kernel(*args, **kwargs)


_unlisted: dict[torch._ops.OpOverload, Any] = {}
