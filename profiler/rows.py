"""The rows of a profile: plain frozen dataclasses. Times are in seconds, sizes in bytes.

Device times are measured: on XLA:CPU by XLA's own tracer, kernel by kernel. Floating-point operations and bytes moved are
those of XLA's cost analysis for the program as it was compiled.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

from torchtpu.lines import Line
from torchtpu.report.rows import compiled, measured


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step: from the end of the step before (or the start of the capture) to its own end.

    Attributes:
        number: from 0 on.
        at: seconds since the capture began.
        seconds: wall time.
        busy: of these, the device ran something.
        compile, wait: of these, the host compiled, or waited for the device.
        runs, compiles: programs launched and compiled in it.
    """

    number: int
    at: float = measured(0.0)
    seconds: float = measured(0.0)
    busy: float = measured(0.0)
    compile: float = measured(0.0)
    wait: float = measured(0.0)
    runs: int = measured()
    compiles: int = measured()


@dataclass(frozen=True, slots=True)
class ProgramTime:
    """A program, by the time that it took on the device.

    Attributes:
        name: as in the report (`fused_12_ops#3`).
        number: its `program_id` in the trace, from 1 on.
        ops: how many ATen ops it computes.
        line: the line of its first op.
        reason: why it ran: the flush reason, or the mode for programs of one op.
        runs: how often it ran.
        seconds: from each run's first kernel to the end of its last one, together.
        flops, nbytes: of all runs.
        temp_bytes: temporaries of one run.
    """

    name: str
    number: int
    ops: int
    line: Line | None
    reason: str
    runs: int = measured()
    seconds: float = measured(0.0)
    flops: float = compiled(0.0)
    nbytes: float = compiled(0.0)
    temp_bytes: int = compiled()


@dataclass(frozen=True, slots=True)
class KernelTime:
    """A kernel of a program (an XLA fusion, or an instruction that XLA left alone), with all its runs.

    Attributes:
        program: name of its program.
        name: of the HLO instruction.
        kind: `loop fusion`, `dot`, ...
        ops: the ATen ops that it computes, or parts of them.
        line, module: of the op whose result it writes; backward: that op belongs to a backward pass.
        seconds: on the device, together; kernels that ran at the same time count in full.
        flops, nbytes: of all runs.
    """

    program: str
    name: str
    kind: str
    ops: tuple[str, ...]
    line: Line | None
    module: str
    backward: bool
    count: int = measured()
    seconds: float = measured(0.0)
    flops: float = compiled(0.0)
    nbytes: float = compiled(0.0)


@dataclass(frozen=True, slots=True)
class OpTime:
    """An ATen op of a line, by the time of the kernels that write its results.

    Attributes:
        op: ATen name.
        line, module, backward: as in `KernelTime`.
        calls: how often the line called it.
        fused: names of other ops that its kernels compute too.
        seconds, flops, nbytes: of those kernels.
    """

    op: str
    line: Line | None
    module: str
    backward: bool
    calls: int = measured()
    fused: tuple[str, ...] = ()
    seconds: float = measured(0.0)
    flops: float = compiled(0.0)
    nbytes: float = compiled(0.0)


@dataclass(frozen=True, slots=True)
class IdleRow:
    """Time in which the device had nothing to run, by what the host did meanwhile.

    Attributes:
        cause: `compile`, `fallback` (an op on the CPU), `wait` (the host fetched a value), `dispatch` (torchtpu planned,
            recorded or launched ops) or `Python` (the user's own code: loading data, logging, ...).
        line: the line that compiled, waited or launched; for `Python` the line whose op came next.
        count: how many gaps.
    """

    cause: str
    line: Line | None
    count: int = measured()
    seconds: float = measured(0.0)


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took time.

    Attributes:
        track: `steps`, `annotations`, `ops`, `launches`, `flushes`, `compiles`, `waits`, `fallbacks` (all on the host), or
            `device`, `device thread 1`, ... for kernels and `programs` for their programs.
        name: of the op, program, kernel, annotation, ...
        at, seconds: since the capture began, and how long.
        line: the line that it is for.
        detail: in words: shapes, a compile's cause, a flush's reason, module, the ops of a fusion.
    """

    track: str
    name: str
    at: float
    seconds: float
    line: Line | None
    detail: str


@dataclass(frozen=True, slots=True)
class Spans(Sequence[Span]):
    """A sequence of `Span`, kept in columns: there can be hundreds of thousands.

    Attributes:
        tracks, names, lines, details: the distinct ones.
        track, name, line, detail: for each span its position in these; `line` is -1 where there is none.
        at, seconds: for each span.
    """

    tracks: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    lines: tuple[Line, ...] = ()
    details: tuple[str, ...] = ()
    track: tuple[int, ...] = ()
    name: tuple[int, ...] = ()
    line: tuple[int, ...] = ()
    detail: tuple[int, ...] = ()
    at: tuple[float, ...] = measured(())
    seconds: tuple[float, ...] = measured(())

    @classmethod
    def of(cls, spans: Sequence[Span]) -> Spans:
        """Put spans into columns."""
        tracks: dict[str, int] = {}
        names: dict[str, int] = {}
        lines: dict[Line, int] = {}
        details: dict[str, int] = {}
        return cls(
            track=tuple(tracks.setdefault(s.track, len(tracks)) for s in spans),
            name=tuple(names.setdefault(s.name, len(names)) for s in spans),
            line=tuple(-1 if s.line is None else lines.setdefault(s.line, len(lines)) for s in spans),
            detail=tuple(details.setdefault(s.detail, len(details)) for s in spans),
            at=tuple(s.at for s in spans),
            seconds=tuple(s.seconds for s in spans),
            tracks=tuple(tracks),
            names=tuple(names),
            lines=tuple(lines),
            details=tuple(details),
        )

    def __len__(self) -> int:
        return len(self.at)

    @overload
    def __getitem__(self, index: int) -> Span: ...
    @overload
    def __getitem__(self, index: slice) -> list[Span]: ...
    def __getitem__(self, index: int | slice) -> Span | list[Span]:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        k = range(len(self))[index]
        return Span(
            self.tracks[self.track[k]],
            self.names[self.name[k]],
            self.at[k],
            self.seconds[k],
            self.lines[self.line[k]] if self.line[k] >= 0 else None,
            self.details[self.detail[k]],
        )

    def __iter__(self) -> Iterator[Span]:
        return (self[k] for k in range(len(self)))
