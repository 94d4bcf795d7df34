"""What XLA made of a program, read from its optimized HLO: the kernels, and the ATen ops in each.

An op is traced under a scope with its position in the program, so that the `op_name` of an HLO instruction is
`jit(program)/12.add.Tensor/add`. Fusions call computations whose instructions keep those names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from torchtpu.graph.shapes import nbytes_of
from torchtpu.report.rows import FusionRow

_COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_KIND = re.compile(r"\bkind=k(\w+)")
_SCOPE = re.compile(r'op_name="[^"]*?/(\d+)\.[^"/]+')
_ARRAY = re.compile(r"\b([a-z]+[0-9]*\w*)\[([\d,]*)\]")
# Work that moves no bytes, or only says where they are.
_FREE = frozenset({"parameter", "constant", "tuple", "get-tuple-element", "bitcast"})


@dataclass(frozen=True, slots=True)
class _Instruction:
    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    called: tuple[str, ...]
    kind: str
    op: int | None


def fusions(text: str) -> tuple[FusionRow, ...]:
    """Return the kernels of a program from its optimized HLO, in the order in which they run.

    A kernel is an instruction of the entry computation that does work: a fusion, or one that XLA left alone. Those that
    carry no op's name, and whose users do not either (copies of arguments), are left out.
    """
    computations, entry = _parse(text)
    return tuple(row for row in _kernels(computations.get(entry, []), computations, {}) if row.ops)


def kernels(text: str) -> dict[str, FusionRow]:
    """Return every kernel by name, those of loops' bodies and of branches too, and those that carry no op's name."""
    computations, _ = _parse(text)
    known: dict[str, frozenset[int]] = {}
    fused = {name for instructions in computations.values() for i in instructions if i.opcode == "fusion" for name in i.called}
    return {
        row.name: row
        for name, instructions in computations.items()
        if name not in fused
        for row in _kernels(instructions, computations, known)
    }


def _kernels(
    instructions: list[_Instruction], computations: dict[str, list[_Instruction]], known: dict[str, frozenset[int]]
) -> Iterator[FusionRow]:
    shape_of = {i.name: i.shape for i in instructions}
    ops_of = {i.name: _ops(i, computations, known) for i in instructions}
    root_of = {i.name: i.op for i in instructions}
    users: dict[str, list[str]] = {}
    for i in instructions:
        for operand in i.operands:
            users.setdefault(operand, []).append(i.name)
    for i in reversed(instructions):
        # XLA splits a large reduction in two and names the second half only.
        if not ops_of[i.name] and i.opcode == "fusion" and i.name in users:
            user = users[i.name][0]
            ops_of[i.name], root_of[i.name] = ops_of[user], root_of[user]
    for i in instructions:
        if i.opcode in _FREE:
            continue
        nbytes = _nbytes(i.shape) + sum(_nbytes(shape_of[o]) for o in dict.fromkeys(i.operands) if o in shape_of)
        kind = f"{i.kind.lower()} fusion" if i.opcode == "fusion" else i.opcode
        root = root_of[i.name]
        yield FusionRow(i.name, kind, tuple(sorted(ops_of[i.name])), -1 if root is None else root, nbytes)


def lines_by_op(text: str) -> dict[int, list[str]]:
    """Return the instructions of each op in an HLO text, without the metadata."""
    found: dict[int, list[str]] = {}
    for line in text.splitlines():
        scope = _SCOPE.search(line)
        if scope is not None and " = " in line:
            found.setdefault(int(scope[1]), []).append(_bare(line).strip())
    return found


def instructions(text: str) -> dict[str, str]:
    """Return the instructions of an HLO text by name, without the metadata."""
    found = {}
    for line in text.splitlines():
        match = _INSTRUCTION.match(line)
        if match is not None:
            found[match[2]] = _bare(line.strip().removeprefix("ROOT "))
    return found


def _bare(line: str) -> str:
    return re.sub(r", (?:metadata|backend_config)=.*", "", line)


_LOCATION = re.compile(r'^(#loc\d*) = loc\("[^"]*?/(\d+)\.[^"/]+')
_AT = re.compile(r"\s*loc\((#loc\d*)\)")


def stablehlo_by_op(text: str) -> dict[int, list[str]]:
    """Return the instructions of each op in a StableHLO text with debug information, without the locations."""
    op_at = {m[1]: int(m[2]) for line in text.splitlines() if (m := _LOCATION.match(line))}
    found: dict[int, list[str]] = {}
    for line in text.splitlines():
        at = _AT.search(line)
        if at is not None and at[1] in op_at and not line.startswith("#"):
            found.setdefault(op_at[at[1]], []).append(_AT.sub("", line).strip())
    return found


def _parse(text: str) -> tuple[dict[str, list[_Instruction]], str]:
    computations: dict[str, list[_Instruction]] = {}
    entry, current = "", []
    for line in text.splitlines():
        if line[:1] not in (" ", "}", ""):
            header = _COMPUTATION.match(line)
            if header is not None:
                current = computations.setdefault(header[2], [])
                entry = header[2] if header[1] else entry
            continue
        match = _INSTRUCTION.match(line)
        if match is None:
            continue
        _, name, shape, opcode, rest = match.groups()
        arguments, _, attributes = rest.partition(")")
        branches = _BRANCHES.search(attributes)
        called = _CALLED.findall(attributes) + (_OPERAND.findall(branches[1]) if branches else [])
        kind, scope = _KIND.search(attributes), _SCOPE.search(attributes)
        op = int(scope[1]) if scope else None
        operands = tuple(_OPERAND.findall(arguments))
        current.append(_Instruction(name, shape, opcode, operands, tuple(called), kind[1] if kind else "", op))
    return computations, entry


def _ops(
    instruction: _Instruction, computations: dict[str, list[_Instruction]], known: dict[str, frozenset[int]]
) -> frozenset[int]:
    """Return the ops of an instruction and of all that it calls."""
    ops = frozenset() if instruction.op is None else frozenset({instruction.op})
    for name in instruction.called:
        if name not in known:
            known[name] = frozenset()  # computations do not recurse; this only guards against a text that is cut off
            known[name] = frozenset().union(*(_ops(i, computations, known) for i in computations.get(name, ())))
        ops |= known[name]
    return ops


def _nbytes(shape: str) -> int:
    return sum(nbytes_of(dtype, dims) for dtype, dims in _ARRAY.findall(shape))


@dataclass(frozen=True, slots=True)
class Value:
    """What an HLO instruction makes.

    Attributes:
        shape: as HLO writes it: `f32[8,128]{1,0:T(8,128)}`.
        parameter: it is an argument of the program.
        op: position of the ATen op that makes it, or of the first that reads an argument; None where neither is known.
    """

    shape: str
    parameter: bool
    op: int | None


def values(text: str) -> dict[str, Value]:
    """Return what the instructions of a program make, by their names, from its optimized HLO."""
    computations, entry = _parse(text)
    readers: dict[str, int] = {}
    for i in computations.get(entry, []):
        if i.op is not None:
            for operand in i.operands:
                readers.setdefault(operand, i.op)
    return {
        i.name: Value(i.shape, i.opcode == "parameter", i.op if i.op is not None else readers.get(i.name))
        for instructions in computations.values()
        for i in instructions
    }
