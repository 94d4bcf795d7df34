"""How two plans of one op differ, argument by argument."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from torchtpu.causes import cause
from torchtpu.causes.cause import Kind
from torchtpu.evaluate import NumberArg, TensorArg
from torchtpu.layout import View

if TYPE_CHECKING:
    from torchtpu.plan import Plan, PlanKey

# Static arguments that say how large the result is.
_SIZES = frozenset(
    {"size", "sizes", "input_sizes", "output_size", "end", "steps", "n", "m", "length", "repeats", "num_classes", "num_samples"}
)
# What is told first where an op differs in several ways.
_ORDER = (Kind.PRECISION, Kind.DTYPE, Kind.SHAPE, Kind.CONSTANT, Kind.VIEW, Kind.OPS)
_WORST = 1000


@dataclass(frozen=True, slots=True)
class Difference:
    """One argument that changed.

    Attributes:
        kind: what changed about it.
        subject: its name in the schema.
        change: `dim 1: 12 -> 17`.
        weight: how far apart the two are.
        remedy: what to do about it.
        position: of the tensor, if it is one, among the op's.
        whole: the change of the array that it is a window on, where that says more: as a variable of the user's has it.
    """

    kind: Kind
    subject: str
    change: str
    weight: int
    remedy: str
    position: int | None = None
    whole: Difference | None = None


def differences(new: Plan, old: Plan) -> list[Difference]:
    """Return how a plan differs from another of the same op, the most telling first."""
    if new.key is None or old.key is None:
        return []
    found = []
    for name, ours, theirs in zip(new.key.names, new.key.template, old.key.template, strict=True):
        found += _argument(name, ours, theirs, new, old)
    found += _precision(new.key, old.key)
    if not found and new.key.aliases != old.key.aliases:
        found.append(Difference(Kind.OPS, "", "other arguments share their memory", 1, cause.OPS))
    return sorted(found, key=lambda d: _ORDER.index(d.kind))


def distance(new: Plan, old: Plan) -> int:
    """Say how far apart two plans of an op are."""
    return sum(d.weight for d in differences(new, old)) if new is not old else 0


def argument(plan: Plan, position: int) -> str:
    """Return the schema's name of the tensor argument at a position."""
    places = zip(plan.key.names, plan.key.template, strict=True) if plan.key is not None else ()
    return next((name for name, place in places if place == TensorArg(position)), "value")


def input_of(plan: Plan, position: int) -> int | None:
    """Return which of the plan's inputs the tensor argument at a position is a window on; None if it is not read."""
    if plan.key is None or plan.key.aliases[position] not in plan.needs:
        return None
    return plan.needs.index(plan.key.aliases[position])


def _precision(new: PlanKey, old: PlanKey) -> Iterator[Difference]:
    ours, theirs = new.precision, old.precision
    if ours is not None and theirs is not None:
        if ours.precision is not theirs.precision:
            yield _difference(Kind.PRECISION, "precision", f"{theirs.precision.name} -> {ours.precision.name}")
        if ours.numerics != theirs.numerics:
            yield _difference(Kind.PRECISION, "numerics", f"{theirs.numerics} -> {ours.numerics}")
    if new.excess != old.excess:
        yield _difference(Kind.PRECISION, "allow_excess_precision", f"{old.excess} -> {new.excess}")


def _argument(name: str, ours: Any, theirs: Any, new: Plan, old: Plan) -> Iterator[Difference]:
    match ours, theirs:
        case (TensorArg(a), TensorArg(b)):
            yield from _tensor(name, a, new.views[a], old.views[b])
        case (NumberArg(a), NumberArg(b)):
            kinds = _types(old.key, b), _types(new.key, a)
            if kinds[0] != kinds[1]:
                yield _difference(Kind.DTYPE, name, f"{kinds[0]} -> {kinds[1]}")
        case (list(), list()) if len(ours) == len(theirs):
            if all(type(v) is int for v in (*ours, *theirs)):
                yield from _integers(name, ours, theirs)
            else:
                for k, (a, b) in enumerate(zip(ours, theirs, strict=True)):
                    yield from _argument(f"{name}[{k}]", a, b, new, old)
        case (list(), list()) if any(isinstance(v, TensorArg) for v in (*ours, *theirs)):
            yield Difference(Kind.OPS, name, f"{len(theirs)} -> {len(ours)} tensors", _WORST, cause.OPS)
        case (list(), list()):
            kind = Kind.SHAPE if name in _SIZES else Kind.CONSTANT
            yield _difference(kind, name, f"{theirs} -> {ours}", 10)
        case _ if type(ours) is not type(theirs) or ours != theirs:
            if isinstance(ours, torch.dtype) or isinstance(theirs, torch.dtype):
                yield _difference(Kind.DTYPE, name, f"{_shown(theirs)} -> {_shown(ours)}")
            elif name in _SIZES and type(ours) is type(theirs) is int:
                yield _sizes(name, "", [(0, theirs, ours)])
            else:
                change = f"{_shown(theirs)} -> {_shown(ours)}"
                if isinstance(ours, TensorArg) or isinstance(theirs, TensorArg):
                    yield _difference(Kind.OPS, name, change, 10)
                elif isinstance(ours, NumberArg) or isinstance(theirs, NumberArg):
                    yield Difference(Kind.CONSTANT, name, change, 1, cause.UNIT)
                else:
                    yield _difference(Kind.CONSTANT, name, change)


def _tensor(name: str, position: int, new: View, old: View) -> Iterator[Difference]:
    if new.dtype != old.dtype:
        yield _difference(Kind.DTYPE, name, f"{_shown(old.dtype)} -> {_shown(new.dtype)}", 2, position)
    if len(new.size) != len(old.size):
        change = f"shape {list(old.size)} -> {list(new.size)}"
        yield Difference(Kind.SHAPE, name, change, 10, cause.PAD, position)
    elif new.size != old.size:
        found = _sizes(name, "dim ", _changed(old.size, new.size), position)
        behind = old.layout.shape, new.layout.shape
        if len(behind[0]) == len(behind[1]) and new.layout.shape != new.size and behind[0] != behind[1]:
            found = replace(found, whole=_sizes(name, "dim ", _changed(*behind), position))
        yield found
    elif new.stride != old.stride:
        yield _difference(Kind.VIEW, name, f"strides {list(old.stride)} -> {list(new.stride)}", 1, position)
    elif new.offset != old.offset:
        yield _difference(Kind.VIEW, name, f"begins at element {old.offset} -> {new.offset} of its storage", 1, position)
    elif new.layout.shape != old.layout.shape:
        change = f"a view of {old.layout} -> of {new.layout}"
        yield Difference(Kind.VIEW, name, change, 1, cause.OWN_STORAGE, position)


def _integers(name: str, ours: Sequence[int], theirs: Sequence[int]) -> Iterator[Difference]:
    changed = _changed(theirs, ours)
    if not changed:
        return
    if name in _SIZES:
        yield _sizes(name, "dim ", changed)
    else:
        yield _difference(Kind.CONSTANT, name, f"{list(theirs)} -> {list(ours)}", len(changed))


def _changed(old: Sequence[int], new: Sequence[int]) -> list[tuple[int, int, int]]:
    return [(k, a, b) for k, (a, b) in enumerate(zip(old, new, strict=True)) if a != b]


def _sizes(name: str, prefix: str, dims: list[tuple[int, int, int]], position: int | None = None) -> Difference:
    change = ", ".join(f"{f'{prefix}{d}: ' if prefix else ''}{a} -> {b}" for d, a, b in dims)
    return Difference(Kind.SHAPE, name, change, len(dims), cause.of_sizes(dims), position)


def _difference(kind: Kind, subject: str, change: str, weight: int = 1, position: int | None = None) -> Difference:
    return Difference(kind, subject, change, weight, cause.of_kind(kind, subject), position)


def _types(key: PlanKey | None, index: int) -> str:
    return key.types[index] if key is not None and index < len(key.types) else "number"


def _shown(value: Any) -> str:
    match value:
        case TensorArg():
            return "a tensor"
        case NumberArg():
            return "another number"
        case _:
            return str(value).removeprefix("torch.")
