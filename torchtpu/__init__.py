"""torchtpu: stock PyTorch on a device named `tpu`, in pure Python over XLA. Independent of Google's torch_tpu."""

from __future__ import annotations

from typing import Any

from torchtpu import _torch_gaps, config, device
from torchtpu._register import name_device
from torchtpu.explain import explain
from torchtpu.interchange import from_jax, to_jax
from torchtpu.report import Report
from torchtpu.watch import watch

name_device(device)
_torch_gaps.apply_all()

__all__ = ["Report", "config", "explain", "from_jax", "to_jax", "watch"]


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext torchtpu`."""
    from torchtpu import notebook_ext

    notebook_ext.load(shell)


def unload_ipython_extension(shell: Any) -> None:
    """`%unload_ext torchtpu`."""
    from torchtpu import notebook_ext

    notebook_ext.unload(shell)
