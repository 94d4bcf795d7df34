"""Profiles: where the time of a cell or a script went, on the device and on the host, line by line.

    with torchtpu.profiler.profile("runs") as p:
        for batch in batches:
            train_step(batch)
    print(p)

writes a run that TensorBoard (XProf) opens, and what torchtpu itself found: `p` is a `Profile`. In a notebook,
`%%tpu_profile` does the same for a cell.
"""

from __future__ import annotations

from typing import Any

from torchtpu.profiler.capture import Capture, ProfileOpenError, last, last_logdir, profile, start, stop
from torchtpu.profiler.result import Profile

# What it takes to show, compare or hook into PyTorch is loaded by those who ask.
_LATER = {
    "TpuProfilerConfig": "torch_profiler",
    "compare": "difference",
    "doctor": "diagnosis",
    "load": "stored",
    "range": "ranges",
    "range_pop": "ranges",
    "range_push": "ranges",
    "show": "viewer",
    "tensorboard_trace_handler": "torch_profiler",
}

__all__ = ["Capture", "Profile", "ProfileOpenError", "last", "last_logdir", "profile", "start", "stop", *_LATER]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
