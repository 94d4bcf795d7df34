"""What a check found: the op, its line, its inputs' values, and where they came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from torchtpu import lines, provenance
from torchtpu.buffer import Buffer
from torchtpu.lines import Line, Origin

_STEPS = 12  # of an input's history
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Statistics:
    """The values of an array.

    Attributes:
        array: `float32[8,128]`.
        count, zeros, nans, infs: numbers of elements.
        lowest, highest, mean: of the finite ones; of complex numbers, of their sizes. NaN if there are none.
    """

    array: str
    count: int
    zeros: int
    nans: int
    infs: int
    lowest: float
    highest: float
    mean: float

    def __str__(self) -> str:
        finite = self.count > self.nans + self.infs
        values = f", {self.lowest:.4g} to {self.highest:.4g}, mean {self.mean:.4g}" if finite else ""
        named = ((self.zeros, "zero"), (self.nans, "NaN"), (self.infs, "Inf"))
        rest = ", ".join(f"{n:,} {what}" for n, what in named if n)
        return f"{self.array}{values}{f'; {rest} of {self.count:,}' if rest else ''}"


@dataclass(frozen=True, slots=True)
class Input:
    """An array that an op read: what a variable or parameter calls it, its values, and its history (latest op first)."""

    name: str
    values: Statistics
    history: tuple[provenance.Step, ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found at one op.

    Attributes:
        op: its ATen name.
        line: the line that called it; for a backward op the line of its forward op.
        called: for a backward op, the line that asked for the gradients; else None.
        inputs, results: the arrays that it read and made.
        numbers: the numbers among its arguments that may change from call to call.
    """

    op: str
    line: Line | None
    called: Line | None
    inputs: tuple[Input, ...]
    results: tuple[Statistics, ...]
    numbers: tuple[Any, ...]

    def __str__(self) -> str:
        out = [f"  called by the backward pass of {self.called.where}: {self.called.source}"] if self.called else []
        for k, x in enumerate(self.inputs):
            out.append(f"  {x.name or f'input {k}'}: {x.values}")
            for step in x.history[:_SHOWN]:
                where = f"  {_place(step.line)}: {step.line.source}" if step.line else ""
                out.append(f"      from {step.op}{where}")
            if len(x.history) > _SHOWN:
                out.append(f"      from {len(x.history) - _SHOWN} more ops: .finding.inputs[{k}].history")
        out += [f"  result: {values}" for values in self.results]
        return "\n".join(out)


def found(
    op: str, origin: Origin | None, inputs: Sequence[Buffer], results: Sequence[Any], numbers: Sequence[Any] = ()
) -> Finding:
    """Describe an op whose check failed.

    Args:
        results: the arrays that it made.
    """
    from torchtpu import holders  # here: only a failed check asks

    line = lines.resolve(origin)
    names = holders.names(inputs)
    return Finding(
        op,
        line,
        lines.resolve(lines.here()) if line is not None and line.backward else None,
        tuple(
            Input(name or "", statistics(b.array), provenance.history(b, _STEPS))
            for name, b in zip(names, inputs, strict=True)
            if b.array is not None
        ),
        tuple(statistics(r) for r in results),
        tuple(numbers),
    )


def statistics(array: Any) -> Statistics:
    """Describe an array's values."""
    host = np.asarray(array)
    name = f"{host.dtype.name}[{','.join(map(str, host.shape))}]"
    values = np.abs(host) if host.dtype.kind == "c" else host if host.dtype.kind == "f" else host.astype(np.float64)
    nans, infs = np.isnan(values), np.isinf(values)
    finite = values[~(nans | infs)].astype(np.float64)
    low, high, mean = (finite.min(), finite.max(), finite.mean()) if finite.size else (np.nan,) * 3
    zeros = int(finite.size - np.count_nonzero(finite))
    return Statistics(name, host.size, zeros, int(nans.sum()), int(infs.sum()), float(low), float(high), float(mean))


def at(origin: Origin | None) -> str:
    """Say where an op was called: ` (In[3], line 4: y = x.log())`, or nothing where it is not known."""
    line = lines.resolve(origin)
    return f" ({_place(line)}: {line.source})" if line is not None else ""


def _place(line: Line) -> str:
    return f"backward of {line.where}" if line.backward else line.where
