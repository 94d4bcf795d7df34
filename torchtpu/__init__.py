"""torchtpu: stock PyTorch on a device named `tpu`, in pure Python over XLA. Independent of Google's torch_tpu."""

from __future__ import annotations

import importlib
from typing import Any

from torchtpu import _torch_gaps, config, device
from torchtpu._register import name_device
from torchtpu.explain import explain
from torchtpu.fit import fit
from torchtpu.interchange import from_jax, to_jax
from torchtpu.report import Report
from torchtpu.watch import watch

name_device(device)
_torch_gaps.apply_all()

__all__ = [
    "Report",
    "compile_for",
    "config",
    "explain",
    "fit",
    "from_jax",
    "profile",
    "profiler",
    "show_profile",
    "targets",
    "to_jax",
    "watch",
]


# What these load is of use to those who ask.
_LATER = {
    "compile_for": ("torchtpu.ahead", "compile_for"),
    "profile": ("torchtpu.profiler", "profile"),
    "profiler": ("torchtpu.profiler", None),
    "show_profile": ("torchtpu.profiler", "show"),
    "targets": ("torchtpu.ahead", "targets"),
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _LATER[name]
    found = importlib.import_module(module)
    return found if attribute is None else getattr(found, attribute)


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext torchtpu`."""
    from torchtpu import notebook_ext

    notebook_ext.load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext torchtpu`."""
    from torchtpu import notebook_ext

    notebook_ext.unload(shell)
