"""The table of lowering rules: one ATen overload, one function over jax arrays.

`rule("aten::tanh")(jnp.tanh)` is a whole entry. The in-place and `out=` overloads of the same op are derived from the
ATen schema by `torchtpu.kernel`; output shapes, dtypes and errors come from torch's own meta kernels. A name that ATen
does not have fails here, at import.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND


class Promotion(Enum):
    """How an elementwise op picks its computation dtype from its arguments (PyTorch's own rules)."""

    DEFAULT = KIND.DEFAULT
    NO_OPMATH = KIND.NO_OPMATH
    INT_TO_FLOAT = KIND.INT_TO_FLOAT
    COMPLEX_TO_FLOAT = KIND.COMPLEX_TO_FLOAT
    ALWAYS_BOOL = KIND.ALWAYS_BOOL
    BOOL_TO_LONG = KIND.BOOL_TO_LONG


@dataclass(frozen=True, slots=True)
class Rule:
    """How one ATen overload is lowered.

    Attributes:
        name: schema name, `aten::add.Tensor`.
        fn: takes the schema's arguments in order (without `generator` and `out`): tensors as jax arrays of the logical
            shape, the rest as Python values, defaults filled in. Returns one array per result (a tuple for several).
        promotion: set for elementwise rules: arguments arrive cast to the computation dtype (float32 for bfloat16).
        dynamic: number arguments that are program inputs: 0-d arrays for `fn`. Elementwise rules: all, unless static.
        static: number arguments of an elementwise rule whose value the program depends on.
        unit: number arguments that are dynamic unless they are 0 or 1 (`alpha`, `beta`).
        writes: arguments that the op changes although its schema does not say so; `fn` returns their new values last.
        ignores: written arguments whose old values `fn` does not read.
        meta: `fn` gets the meta tensors of the results as keyword `out`.
        random: `fn` gets the state of a random stream as keyword `key` (see `torchtpu.ops.random.bits`).
        precision: it has products of arrays, whose precision for float32 the program depends on (`torchtpu.precision`).
        indexed: for debug mode's check of indices: takes the arguments as meta tensors and returns a list of
            (index tensor, size that it indexes, whether negative indices count from the end).
        each: a foreach rule: `fn` is applied to each tensor of the lists in turn.
        wide: numbers travel as float64, for what float32 would lose before `fn` can round it (`1 - beta`).
        metadata: takes meta tensors and returns the op's results, where torch has no meta kernel.
        check: takes the arguments as meta tensors and raises what torch's meta kernel does not.
        inner: serves decompositions only: PyTorch's own kernel needs no computation (`_unsafe_view`).
    """

    name: str
    fn: Callable[..., Any]
    promotion: Promotion | None = None
    dynamic: frozenset[str] = frozenset()
    static: frozenset[str] = frozenset()
    unit: frozenset[str] = frozenset()
    writes: tuple[str, ...] = ()
    ignores: frozenset[str] = frozenset()
    meta: bool = False
    random: bool = False
    precision: bool = False
    each: bool = False
    indexed: Callable[..., list[tuple[Any, int, bool]]] | None = None
    wide: bool = False
    metadata: Callable[..., Any] | None = None
    check: Callable[..., None] | None = None
    inner: bool = False


RULES: dict[str, Rule] = {}

# What the dispatcher calls instead of an overload's kernel, which (None without a rule) is its first argument.
ENTRIES: dict[str, Callable[..., Any]] = {}

# Functions over torch tensors that replace PyTorch's composition of plain ops.
COMPOSITES: dict[str, Callable[..., Any]] = {}


def rule(*names: str, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a lowering for one or more overloads. See `Rule` for the options.

    Raises:
        KeyError: ATen has no such overload.
        ValueError: the overload has a rule already.
    """
    for key in ("dynamic", "static", "unit", "ignores"):
        if key in options:
            value = options[key]
            options[key] = frozenset((value,) if isinstance(value, str) else value)

    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            overload(name)
            if name in RULES:
                raise ValueError(f"{name} has a rule already")
            RULES[name] = Rule(name, fn, **options)
        return fn

    return add


def elementwise(
    *names: str, promotion: Promotion = Promotion.DEFAULT, **options: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register an elementwise lowering: arguments arrive in the computation dtype, the result is cast to torch's."""
    return rule(*names, promotion=promotion, **options)


def entry(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function that stands before an overload's kernel: for arguments that no program can take as they are."""

    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            overload(name)
            ENTRIES[name] = fn
        return fn

    return add


def composite(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function over torch tensors in place of PyTorch's own composition; the ops it calls have derivatives."""

    def add(fn: Callable[..., Any]) -> Callable[..., Any]:
        overload(name)
        COMPOSITES[name] = fn
        return fn

    return add


def overload(name: str) -> torch._ops.OpOverload:
    """Return the ATen overload of a schema name (`aten::add.Tensor`, `aten::tanh`).

    Raises:
        KeyError: there is none.
    """
    base, _, suffix = name.removeprefix("aten::").partition(".")
    try:
        return getattr(getattr(torch.ops.aten, base), suffix or "default")
    except AttributeError:
        raise KeyError(f"ATen has no overload {name}") from None


def load_all() -> dict[str, Rule]:
    """Import every family of operators and return the full table."""
    import importlib
    import pkgutil

    import torchtpu.ops as package

    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{package.__name__}.{module.name}")
    return RULES
