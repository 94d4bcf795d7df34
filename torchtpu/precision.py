"""Precision of float32 products (matrix products, convolutions, attention): which is in force, and which an op is lowered with.

A TPU multiplies bfloat16 numbers. Of float32 numbers it multiplies the bfloat16 parts, in one pass, three or six, and sums
in float32. XLA:CPU computes float32 products exactly, unless `config.numerics` is "tpu": then it makes the same passes.
float16 numbers have two such parts: their products are rounded to bfloat16 at DEFAULT, and exact otherwise.

The precision of an op is that of the moment when it is called, in every eager mode, and is part of its plan: programs are
lowered later. Like the mode it belongs to the process, since autograd runs the backward pass in a thread of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum

import torch

from torchtpu import config, errors


class Precision(Enum):
    """Of how many bfloat16 products a float32 product is made; the value is PyTorch's name for it.

    DEFAULT: 1 pass; a relative error near 2^-8, that of bfloat16.
    HIGH: 3 passes; near 2^-16.
    HIGHEST: 6 passes; near 2^-24, that of float32.
    """

    DEFAULT = "medium"
    HIGH = "high"
    HIGHEST = "highest"

    @property
    def passes(self) -> int:
        """Number of bfloat16 products: 1, 3 or 6."""
        return self.parts * (self.parts + 1) // 2

    @property
    def parts(self) -> int:
        """Number of bfloat16 numbers that stand for a float32 one: 1, 2 or 3."""
        return list(Precision).index(self) + 1

    @classmethod
    def parse(cls, precision: Precision | str) -> Precision:
        """Return the precision of a name, ours or PyTorch's; case does not matter.

        Raises:
            ValueError: there is no such precision (with the closest name).
        """
        if isinstance(precision, cls):
            return precision
        known = {p.name.lower(): p for p in cls} | {p.value: p for p in cls}
        word = str(precision).strip().lower().removeprefix("precision.")
        if word not in known:
            names = ", ".join(p.name for p in cls)
            raise ValueError(f"unknown precision {precision!r}: use one of {names}.{errors.did_you_mean(word, known)}")
        return known[word]


@dataclass(frozen=True, slots=True, eq=False)  # one object for each pair: it is compared and hashed by identity
class Setting:
    """How float32 products are computed: their precision, and `config.numerics`."""

    precision: Precision
    numerics: str

    def __str__(self) -> str:
        return f"{self.precision.name}, emulated" if self.numerics == "tpu" else self.precision.name


_SETTINGS = {numerics: {p.value: Setting(p, numerics) for p in Precision} for numerics in config.NUMERICS}
_settings = _SETTINGS[config.numerics]
EXACT = _SETTINGS["native"]["highest"]

# The dtypes whose products have a choice of precision.
DTYPES = frozenset({torch.float32, torch.complex64, torch.float16})

_scoped: str | None = None
_of_torch = torch.get_float32_matmul_precision


def current() -> Setting:
    """Return what is in force: the innermost `scope`'s precision, else `torch.set_float32_matmul_precision`'s."""
    try:
        return _settings[_scoped or _of_torch()]
    except RuntimeError:  # PyTorch has no answer once its settings for single backends are in use, of which none is `tpu`
        return _settings["highest"]


def numerics_changed() -> None:
    """Follow `config.numerics`."""
    global _settings
    _settings = _SETTINGS[config.numerics]


@contextlib.contextmanager
def scope(precision: Precision | str) -> Iterator[None]:
    """Use a precision inside a `with` block, and the former one after it, also after an error.

    PyTorch's own setting is left alone: it counts for other devices too.
    """
    global _scoped
    before = _scoped
    _scoped = Precision.parse(precision).value
    try:
        yield
    finally:
        _scoped = before


_lowered: ContextVar[Setting] = ContextVar("_lowered", default=EXACT)


def lowered() -> Setting:
    """Inside a trace: the setting of the op that is being lowered."""
    return _lowered.get()


@contextlib.contextmanager
def lowering(setting: Setting | None) -> Iterator[None]:
    """Lower an op with a setting; None: it has no products of its own, and those of its algorithm are exact."""
    if setting is not None and _for_tpu.get():
        setting = _SETTINGS["native"][setting.precision.value]
    token = _lowered.set(setting or EXACT)
    try:
        yield
    finally:
        _lowered.reset(token)


_for_tpu: ContextVar[bool] = ContextVar("_for_tpu", default=False)


@contextlib.contextmanager
def for_tpu() -> Iterator[None]:
    """Lower for a TPU, where nothing needs to be emulated."""
    token = _for_tpu.set(True)
    try:
        yield
    finally:
        _for_tpu.reset(token)


_excess = False


def excess_allowed() -> bool:
    """Whether XLA may leave out roundings to bfloat16 and float16 between the ops of a program."""
    return _excess


def allow_excess(allowed: bool) -> None:
    """Let XLA leave out roundings to bfloat16 and float16 or not, from the next op on. Pending work is run first.

    Raises:
        TypeError: not a bool.
    """
    global _excess
    if not isinstance(allowed, bool):
        raise TypeError(f"allow_excess_precision is True or False, not {allowed!r}")
    if allowed is _excess:
        return
    from torchtpu import modes

    try:
        modes.flush("precision change")
    finally:
        _excess = allowed
        if modes.engine_loaded():
            from torchtpu import kernel

            kernel.swap_plans()
