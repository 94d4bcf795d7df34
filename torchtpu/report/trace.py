"""The ops of a watch in debug mode, one by one: thousands of them, so kept in columns and shown in part."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import overload

from torchtpu.lines import Line
from torchtpu.report.rows import measured


@dataclass(frozen=True, slots=True)
class Call:
    """What ops of a trace have in common.

    Attributes:
        op: ATen name.
        line: the line that called it.
        inputs, outputs: tensor arguments and results (`float32[8,128]`).
        read, written: bytes of the arrays that it reads and makes.
    """

    op: str
    line: Line | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    read: int = measured()
    written: int = measured()


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One op of a trace.

    Attributes:
        number: from 1 on.
        op, line, inputs, outputs, read, written: as in `Call`.
        at: seconds since the watch began, when it was launched.
        seconds: to launch it and wait for it; compiling is not counted.
        alone: how far its results are off from the CPU's, the largest difference divided by the largest value; None where
            it was not compared.
        so_far: the same with all ops computed by the CPU, from the first one compared on.
    """

    number: int
    op: str
    line: Line | None
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    read: int
    written: int
    at: float
    seconds: float
    alone: float | None
    so_far: float | None


@dataclass(frozen=True, slots=True)
class Trace(Sequence[TraceRow]):
    """A sequence of `TraceRow`, kept in columns: an op is a number in `calls` and its times and errors.

    Attributes:
        calls: the distinct calls.
        order: for each op its position in `calls`.
        at, seconds, alone, so_far: for each op, as in `TraceRow`.
    """

    calls: tuple[Call, ...] = ()
    order: tuple[int, ...] = ()
    at: tuple[float, ...] = measured(())
    seconds: tuple[float, ...] = measured(())
    alone: tuple[float | None, ...] = measured(())
    so_far: tuple[float | None, ...] = measured(())

    def __len__(self) -> int:
        return len(self.order)

    @overload
    def __getitem__(self, index: int) -> TraceRow: ...
    @overload
    def __getitem__(self, index: slice) -> list[TraceRow]: ...
    def __getitem__(self, index: int | slice) -> TraceRow | list[TraceRow]:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        k = range(len(self))[index]
        c = self.calls[self.order[k]]
        return TraceRow(
            k + 1, c.op, c.line, c.inputs, c.outputs, c.read, c.written,
            self.at[k], self.seconds[k], self.alone[k], self.so_far[k],
        )  # fmt: skip

    def __iter__(self) -> Iterator[TraceRow]:
        return (self[k] for k in range(len(self)))

    @property
    def compared(self) -> bool:
        """Whether ops were compared with the CPU."""
        return any(error is not None for error in self.alone)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write every op as a line of comma-separated values.

        Raises:
            ValueError: the name does not end in .csv.
        """
        target = Path(path)
        if target.suffix.lower() != ".csv":
            raise ValueError(f"cannot save a trace as {target.name!r}: the name must end in .csv")
        with target.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([f.name for f in fields(TraceRow)])
            for row in self:
                writer.writerow([" ".join(v) if isinstance(v, tuple) else v for v in _cells(row)])
        return target


def _cells(row: TraceRow) -> list[object]:
    return [getattr(row, f.name) for f in fields(row)]
