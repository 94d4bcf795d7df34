"""Every knob of torchtpu, and the environment variables that set their defaults.

A knob is a module attribute (for the process). `with config.options(cpu_fallback="error"): ...` sets some for a scope.
Environment variables are read here and nowhere else; docs/environment.md is the table of them.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Literal

from torchtpu.errors import did_you_mean


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name}={text!r} is not a whole number") from None


def _choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"{name}={value!r}: use one of {', '.join(choices)}.{did_you_mean(value, choices)}")
    return value


FALLBACKS = ("warn", "error", "silent")
NUMERICS = ("native", "tpu")

# "cpu", "tpu", or another PJRT platform; empty: TPU if there is one, else CPU. Read when the device starts.
platform: str = os.environ.get("TORCHTPU_PLATFORM", "").strip().lower()

# The eager mode of a new process.
eager_mode: str = os.environ.get("TORCHTPU_EAGER_MODE", "strict")

# Where compiled programs are kept between sessions; "off" keeps none. Read when the first program is compiled.
cache_dir: str = os.environ.get(
    "TORCHTPU_CACHE_DIR", os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache"), "torchtpu")
)

# What to do with an operator that has no lowering to XLA: run it on the CPU with a warning, refuse, or just run it.
cpu_fallback: Literal["warn", "error", "silent"] = _choice(  # type: ignore[assignment]
    "TORCHTPU_CPU_FALLBACK", os.environ.get("TORCHTPU_CPU_FALLBACK", "warn"), FALLBACKS
)

# How XLA:CPU multiplies float32 matrices: as it does, exactly, or as a TPU does, in bfloat16 passes (torchtpu.precision).
numerics: Literal["native", "tpu"] = _choice(  # type: ignore[assignment]
    "TORCHTPU_NUMERICS", os.environ.get("TORCHTPU_NUMERICS", "native"), NUMERICS
)

# defer_and_fuse flushes when this many ops, or this many bytes of their results, are pending.
max_pending_ops: int = _number("TORCHTPU_MAX_PENDING_OPS", 2000)
max_pending_bytes: int = _number("TORCHTPU_MAX_PENDING_BYTES", 4 << 30)

# Bytes of device memory that tensors may use, if that is less than the device has; 0: all of it.
memory_limit: int = _number("TORCHTPU_MEMORY_LIMIT", 0)

# A region of code whose graph compiled this often without ever being reused is compiled in pieces until a graph comes back.
churn_limit: int = _number("TORCHTPU_CHURN_LIMIT", 3)

# Checks of debug mode. Indices are read on the host anyway once waited for; the others cost more than the op.
debug_nan: bool = False
debug_index: bool = True
debug_compare_cpu: bool = False

# Debug mode opens a debugger before each op of this name ("mm", "aten::mm"), or when a line ("train.py:12") comes to an op.
debug_break: str = ""

_KNOBS = {name for name in globals() if not name.startswith("_") and name in __annotations__}
_CHOICES = {"cpu_fallback": FALLBACKS, "numerics": NUMERICS}


@contextlib.contextmanager
def options(**knobs: Any) -> Iterator[None]:
    """Set knobs for a scope.

    Raises:
        AttributeError: no such knob (with the closest name).
        ValueError: a value that the knob does not take.
    """
    for name, value in knobs.items():
        if name not in _KNOBS:
            raise AttributeError(f"torchtpu.config has no knob {name!r}.{did_you_mean(name, _KNOBS)}")
        check(name, value)
    before = {name: globals()[name] for name in knobs}
    _update(knobs)
    try:
        yield
    finally:
        _update(before)


def check(knob: str, value: Any) -> Any:
    """Return a knob's value.

    Raises:
        ValueError: the knob takes one of a few values, and this is none of them (with the closest one).
    """
    return _choice(knob, value, _CHOICES[knob]) if knob in _CHOICES else value


def _update(knobs: dict[str, Any]) -> None:
    for name, value in knobs.items():
        setattr(sys.modules[__name__], name, value)


class _Config(ModuleType):
    """The module's type: it checks values where they are set, and tells those who would have to ask for them at every op."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, check(name, value))
        if name == "memory_limit":
            from torchtpu import hbm

            hbm.limit_changed()
        elif name == "numerics":
            from torchtpu import precision

            precision.numerics_changed()


sys.modules[__name__].__class__ = _Config
