"""A program as Python text: one call of `torch.ops.aten` per op, with the views that the op saw.

A program's arrays are storages. In the text each is a tensor, and an op that reads another window of it reads it through
`permute`, `view` or `as_strided`. Ops write in place as they did. Numbers (learning rates, epsilons) are arguments.
"""

from __future__ import annotations

import keyword
import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from torchtpu.dtypes import XLA
from torchtpu.evaluate import NumberArg, TensorArg
from torchtpu.layout import Layout, View, contiguous_strides, dense_order
from torchtpu.precision import Precision
from torchtpu.report.rows import OpRow

if TYPE_CHECKING:
    from torchtpu.plan import Plan
    from torchtpu.program import Node, Program

_WIDTH = 100
_DTYPES = {xla: dtype for dtype, xla in XLA.items()}


@dataclass(frozen=True, slots=True)
class _Value:
    """A tensor of the text: its name, and its geometry."""

    name: str
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype


def to_python(program: Program, rows: Sequence[OpRow], numbers: Sequence[Any] = ()) -> str:
    """Write a program as a Python file that runs.

    Args:
        rows: the ops' lines and modules.
        numbers: default values of the numbers; 1 for each where there are none.
    """
    writer = _Writer(program.inputs)
    for k, (node, row) in enumerate(zip(program.graph, rows, strict=True)):
        writer.op(k, node, row)
    function = program.name.partition("#")[0]
    function = function if function.isidentifier() and not keyword.iskeyword(function) else "program"
    arguments = [f"a{k}" for k in range(len(program.inputs))]
    if writer.numbers:
        arguments += ["*", *(f"n{n}={_literal(numbers[n]) if numbers else 1}" for n in writer.numbers)]
    returned = _wrapped("return (", [writer.values[r].name for r in program.results], ")", "    ")
    return "\n".join(
        [
            f'"""{program.name}: {len(program.graph)} ops.',
            "",
            "The arguments are the storages that the program reads, as contiguous tensors; in-place ops change them.",
            '"""',
            "",
            "import torch",
            "import torchtpu",
            "",
            "aten = torch.ops.aten",
            'DEVICE = "tpu"',
            "",
            "",
            "@torch.no_grad()",
            *_wrapped(f"def {function}(", arguments, "):", ""),
            *(f"    {line}" if line else "" for line in writer.lines),
            *returned,
            "",
            "",
            "def example():",
            '    """Make arguments of the right shapes and dtypes."""',
            "    return [",
            *(f"        {_example(layout)}," for layout in program.inputs),
            "    ]",
            "",
            "",
            'if __name__ == "__main__":',
            "    torch.manual_seed(0)",
            f"    for result in {function}(*example()):",
            "        print(tuple(result.shape), result.dtype)",
            "",
        ]
    )


def _wrapped(opening: str, items: Sequence[str], closing: str, indent: str) -> list[str]:
    """Write a list between brackets, on as many lines as it takes."""
    # The comma makes a tuple also of one item.
    line = f"{indent}{opening}{', '.join(items)}{',' if len(items) == 1 else ''}{closing}"
    if len(line) <= _WIDTH:
        return [line]
    rows = textwrap.wrap(", ".join(items) + ",", _WIDTH - len(indent) - 4, break_long_words=False, break_on_hyphens=False)
    return [f"{indent}{opening}", *(f"{indent}    {row}" for row in rows), f"{indent}{closing}"]


def _literal(number: Any) -> str:
    """Write a number; infinities and NaN have no literal."""
    if isinstance(number, float) and not math.isfinite(number):
        return f'float("{number}")'
    return repr(number)


class _Writer:
    """Writes the ops one after the other, and remembers what their results are called."""

    def __init__(self, inputs: Sequence[Layout]) -> None:
        self.lines: list[str] = []
        self.numbers: list[int] = []
        self.values: list[_Value] = []
        self._inputs = [_Value(f"a{k}", i.shape, contiguous_strides(i.shape), _DTYPES[i.dtype]) for k, i in enumerate(inputs)]
        self._number = 0
        self._place = ""

    def op(self, position: int, node: Node, row: OpRow) -> None:
        """Write one op."""
        plan = node.plan
        self._comment(row)
        stored = {n: self.values[r] if r >= 0 else self._inputs[-1 - r] for n, r in zip(plan.needs, node.refs, strict=True)}
        base = f"{_identifier(plan.name)}_{position}"
        assert plan.key is not None  # only plans that resize `out=` tensors have none, and they are no ops of a program
        aliases = plan.key.aliases
        for p, view in enumerate(plan.views):
            if aliases[p] not in stored:  # written without being read
                written = _Value(f"{base}_out{p}", view.size, view.stride, view.dtype)
                self.lines.append(
                    f"{written.name} = torch.empty_strided({_tuple(view.size)}, {_tuple(view.stride)}, dtype={view.dtype}, "
                    "device=DEVICE)"
                )
                stored[aliases[p]] = written
        windows = [window(stored[aliases[p]], view) for p, view in enumerate(plan.views)]
        names = [base] if len(plan.specs) == 1 else [f"{base}_{n}" for n in range(len(plan.specs))]
        call = self._call(plan.name, plan.key.template, windows)
        self._number += len(plan.wires)
        start = len(self.lines)
        self._assign(plan, names, call)
        if plan.key.precision is not None and plan.key.precision.precision is not Precision.HIGHEST:
            chosen = f'with torch.tpu.precision("{plan.key.precision.precision.name}"):'
            self.lines[start:] = [chosen, *(f"    {line}" for line in self.lines[start:])]
        self.values += [_Value(name, s.size, s.stride, s.dtype) for name, s in zip(names, plan.specs, strict=True)]
        self.values += [stored[w] for w in plan.writes]

    def _comment(self, row: OpRow) -> None:
        module = row.module.replace("/", ".")
        place = ", ".join(filter(None, (module, row.line.where if row.line else "", "backward" if row.backward else "")))
        if place and place != self._place:
            source = f": {row.line.source}" if row.line is not None and row.line.source else ""
            self.lines += ["", *f"# {place}{source}".splitlines()[:1]]
            self._place = place

    def _call(self, name: str, template: Sequence[Any], windows: Sequence[str]) -> str:
        schema = _overload(name)._schema
        written = []
        for argument, place in zip(schema.arguments, template, strict=True):
            default = argument.default_value
            if argument.has_default_value() and type(place) is type(default) and place == default:
                if not argument.kwarg_only:
                    written.append((argument.name, None))
                continue
            text = "DEVICE" if argument.name == "device" else self._argument(place, windows)
            written.append((argument.name, f"{argument.name}={text}" if argument.kwarg_only else text))
        while written and written[-1][1] is None:
            written.pop()
        # After an argument that is left out, the others go by their names.
        texts, named = [], False
        for argument, text in written:
            if text is None:
                named = True
            else:
                texts.append(text if not named or text.startswith(f"{argument}=") else f"{argument}={text}")
        packet, _, overload = name.removeprefix("aten::").partition(".")
        return f"aten.{packet}.{overload or 'default'}({', '.join(texts)})"

    def _argument(self, place: Any, windows: Sequence[str]) -> str:
        match place:
            case TensorArg(index):
                return windows[index]
            case NumberArg(index):
                number = self._number + index
                if number not in self.numbers:
                    self.numbers.append(number)
                return f"n{number}"
            case list() | tuple():
                return f"[{', '.join(self._argument(p, windows) for p in place)}]"
            case torch.Generator():
                return "None"
            case _:
                return _literal(place)

    def _assign(self, plan: Plan, names: Sequence[str], call: str) -> None:
        if not names:
            self.lines.append(call)
            return
        schema = _overload(plan.name)._schema
        listed = len(schema.returns) == 1 and str(schema.returns[0].type).startswith("List[")
        if len(schema.returns) == 1 and not listed:
            self.lines.append(f"{names[0]} = {call}")
            return
        count = len(names) if listed else len(schema.returns)
        if count == len(names):
            self.lines.append(f"{', '.join(names)}{',' if count == 1 else ''} = {call}")
            return
        # Some results are no tensors: gradients that were not asked for, sizes.
        self.lines.append(
            f"{', '.join(names)}{',' if len(names) == 1 else ''} = (r for r in {call} if isinstance(r, torch.Tensor))"
        )


def window(value: _Value, view: View) -> str:
    """Return the expression for a window on a tensor's storage."""
    if view.dtype != value.dtype:
        return (
            f"torch.empty(0, dtype={view.dtype}, device=DEVICE).set_({value.name}.untyped_storage(), {view.offset}, "
            f"{_tuple(view.size)}, {_tuple(view.stride)})"
        )
    if (view.size, view.stride, view.offset) == (value.size, value.stride, 0):
        return value.name
    whole = view.offset == 0 and _numel(view.size) == _numel(value.size)
    if whole and view.stride == contiguous_strides(view.size) and value.stride == contiguous_strides(value.size):
        return f"{value.name}.view({_tuple(view.size)})"
    order = dense_order(view.size, view.stride)
    if whole and order is not None and value.stride == contiguous_strides(value.size):
        permuted = tuple(order.index(d) for d in range(len(order)))
        if tuple(view.size[d] for d in order) == value.size and tuple(value.stride[p] for p in permuted) == view.stride:
            return f"{value.name}.permute({_tuple(permuted)})"
    return f"{value.name}.as_strided({_tuple(view.size)}, {_tuple(view.stride)}, {view.offset})"


def _overload(name: str) -> torch._ops.OpOverload:
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _identifier(name: str) -> str:
    base = name.removeprefix("aten::").partition(".")[0].strip("_")
    return f"{base}_" if keyword.iskeyword(base) else base


def _numel(size: Sequence[int]) -> int:
    count = 1
    for n in size:
        count *= n
    return count


def _tuple(values: Sequence[int]) -> str:
    return f"({', '.join(map(str, values))}{',' if len(values) == 1 else ''})"


def _example(layout: Layout) -> str:
    dtype = _DTYPES[layout.dtype]
    size = _tuple(layout.shape)
    if dtype.is_floating_point or dtype.is_complex:
        wide = dtype.itemsize < 2
        return f"torch.randn({size}).to({dtype}).to(DEVICE)" if wide else f"torch.randn({size}, dtype={dtype}).to(DEVICE)"
    return f"torch.zeros({size}, dtype={dtype}, device=DEVICE)"
