"""Operators that run on the CPU because nothing lowers them: correct, slow, and visible.

Each shows as one warning, one event per call, one row in the report; `torchtpu.config.cpu_fallback = "error"` forbids it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from torchtpu import config, errors, events, lines
from torchtpu.modes import state
from torchtpu.schema import Signature

_warned: set[str] = set()


def check(name: str, reason: Exception) -> None:
    """Refuse, or warn once, that an op has no lowering.

    Raises:
        FallbackError: `config.cpu_fallback` is "error".
        ValueUnknownError: it is only recorded, for another chip.
    """
    if state.recorder is not None:
        raise errors.ValueUnknownError(f"{name} runs on the CPU, for it has no lowering to XLA: a chip cannot run it")
    if config.cpu_fallback == "error":
        raise errors.FallbackError(
            f"{name} has no lowering to XLA and CPU fallback is off ({reason}). Set torchtpu.config.cpu_fallback = 'warn' to "
            "allow it."
        ) from None
    if config.cpu_fallback == "warn" and name not in _warned:
        _warned.add(name)
        line = lines.resolve(lines.here())
        warnings.warn(
            f"{name} runs on the CPU ({line.where if line else 'unknown line'}): it has no lowering to XLA yet. Each call "
            "copies its tensors to the host and back. torchtpu.config.cpu_fallback = 'error' forbids it, 'silent' hides this.",
            RuntimeWarning,
            stacklevel=2,
        )


def run(signature: Signature, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """Run an op on CPU copies of its tensors; what it writes is copied back."""
    check(signature.name, NotImplementedError("no lowering"))
    start = time.perf_counter()
    bound = signature.bind(args, kwargs)
    host = [_to_host(value) for value in bound]
    positional, named = signature.split(host)
    for name, value in named.items():
        if isinstance(value, torch.device):
            named[name] = torch.device("cpu")
    result = signature.op(*positional, **named)
    for k in signature.mutated:
        _copy_back(bound[k], host[k])
    values = list(result) if isinstance(result, (tuple, list)) else [result]
    moved = []
    for k, value in enumerate(values):
        source = signature.returns_argument(k)
        moved.append(bound[source] if source is not None else _to_device(value))
    if events.logs:
        seconds = time.perf_counter() - start
        nbytes = sum(t.nbytes for t in _tensors(bound)) + sum(t.nbytes for t in _tensors(moved))
        origin = lines.note()
        for log in events.logs:
            log.fallbacks.append(events.Fallback(signature.name, origin, seconds, nbytes, log.now()))
    if isinstance(result, (tuple, list)):
        return moved if signature.returns_list else tuple(moved)
    return moved[0]


def _to_host(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cpu()
    if isinstance(value, (list, tuple)):
        return [_to_host(v) for v in value]
    return value


def _to_device(value: Any) -> Any:
    return value.to("tpu") if isinstance(value, torch.Tensor) else value


def _copy_back(tensors: Any, copies: Any) -> None:
    if isinstance(tensors, (list, tuple)):
        for t, c in zip(tensors, copies, strict=True):
            _copy_back(t, c)
    elif isinstance(tensors, torch.Tensor):
        if tensors.shape != copies.shape:
            tensors.resize_(copies.shape)
        tensors.copy_(copies)


def _tensors(values: Any) -> list[torch.Tensor]:
    if isinstance(values, torch.Tensor):
        return [values]
    return [t for v in values for t in _tensors(v)] if isinstance(values, (list, tuple)) else []
