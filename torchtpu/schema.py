"""What an ATen schema says about a call: kinds of arguments, what is written, what is returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torchtpu.ops.registry import Rule

_TENSOR, _LIST, _NUMBER, _NUMBERS, _INTEGER, _GENERATOR, _STATIC = "TLNMIGS"


def _kind(type_name: str) -> str:
    inner = type_name.removeprefix("Optional[").removesuffix("]") if type_name.startswith("Optional[") else type_name
    match inner:
        case "Tensor":
            return _TENSOR
        case "List[Tensor]" | "List[Optional[Tensor]]":
            return _LIST
        case "number" | "float":
            return _NUMBER
        case "List[number]":
            return _NUMBERS
        case "int":
            return _INTEGER
        case "Generator":
            return _GENERATOR
    return _STATIC


class Signature:
    """A parsed schema.

    Attributes:
        op: the overload; name: `aten::add.Tensor`.
        names, kinds, defaults: per argument. Kinds: T tensor, L tensor list, N number, M number list, I integer,
            G generator, S static.
        keyword: first keyword-only position.
        mutated: positions of the arguments that the schema says are written; outs: of those, the `out=` ones.
    """

    def __init__(self, op: torch._ops.OpOverload) -> None:
        schema = op._schema
        self.op = op
        self.name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        arguments = schema.arguments
        self.names = [a.name for a in arguments]
        self.kinds = [_kind(str(a.type)) for a in arguments]
        self.defaults = [a.default_value for a in arguments]
        self.keyword = next((k for k, a in enumerate(arguments) if a.kwarg_only), len(arguments))
        self.mutated = [k for k, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]
        self.outs = [k for k in self.mutated if arguments[k].kwarg_only]
        sets = {frozenset(a.alias_info.before_set): k for k, a in enumerate(arguments) if a.alias_info is not None}
        self._returned = [
            sets.get(frozenset(r.alias_info.before_set)) if r.alias_info is not None else None for r in schema.returns
        ]
        self.returns_list = len(schema.returns) == 1 and str(schema.returns[0].type).startswith("List[")
        self.types = tuple(str(a.type) for k, a in enumerate(arguments) if k not in self.outs)

    def bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
        """Return every argument in schema order, defaults filled in."""
        bound = list(args) + self.defaults[len(args) :]
        for name, value in kwargs.items():
            bound[self.names.index(name)] = value
        return bound

    def split(self, bound: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return bound arguments as the positional and keyword arguments of a call."""
        return list(bound[: self.keyword]), dict(zip(self.names[self.keyword :], bound[self.keyword :], strict=True))

    def returns_argument(self, result: int) -> int | None:
        """Return the position of the argument that result `result` is, or None for a new tensor."""
        return self._returned[result] if result < len(self._returned) else self._returned[0] if self._returned else None

    def is_dynamic(self, rule: Rule | None, position: int, value: Any) -> bool:
        """Whether a Python number in this position is a program input (and not part of the program)."""
        kind, name = self.kinds[position], self.names[position]
        if kind == _INTEGER:
            return rule is not None and name in rule.dynamic
        if rule is None or kind not in (_TENSOR, _LIST, _NUMBER, _NUMBERS):
            return False
        if kind in (_TENSOR, _LIST):  # `x * 2.0`: a number where the schema has a tensor
            return name not in rule.static
        if name in rule.unit:
            return not (value == 0 or value == 1)
        if rule.promotion is None:
            return name in rule.dynamic
        return name not in rule.static


def functional_of(op: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """Return the overload that computes what an in-place or `out=` overload writes, or None if ATen has none."""
    base = op.overloadpacket._qualified_op_name.removeprefix("aten::")
    signature = Signature(op)
    if not signature.outs:
        base = base.removesuffix("_")
    packet = getattr(torch.ops.aten, base, None)
    for name in packet.overloads() if packet is not None else ():
        candidate = Signature(getattr(packet, name))
        if not candidate.mutated and candidate.types == signature.types:
            return candidate.op
    return None
