"""Ahead of time: what programs would be on a TPU chip, compiled by the real TPU compiler, without a TPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchtpu.ahead.chips import Chip, chip, parse, targets
from torchtpu.ahead.compiled import Compiled, LargeRow, Memory, Roofline

if TYPE_CHECKING:
    from torchtpu.ahead.captured import Captured, capture
    from torchtpu.ahead.jobs import Job, compile_for, compile_programs

__all__ = [
    "Captured",
    "Chip",
    "Compiled",
    "Job",
    "LargeRow",
    "Memory",
    "Roofline",
    "capture",
    "chip",
    "compile_for",
    "compile_programs",
    "parse",
    "targets",
]

# Names of chips are checked, and results read, without loading what compiles.
_LATER = {"Captured": "captured", "capture": "captured", "Job": "jobs", "compile_for": "jobs", "compile_programs": "jobs"}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
