"""`Report`: what the device did while it was watched."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtpu.errors import TorchTPUError, did_you_mean
from torchtpu.report.rows import (
    BufferRow,
    CompileRow,
    FallbackRow,
    FlushRow,
    HoldingRow,
    OwnerRow,
    ProgramRow,
    Seconds,
    Storm,
    SyncRow,
    measured,
)
from torchtpu.report.targets import TargetRow
from torchtpu.report.trace import Trace

if TYPE_CHECKING:
    from torchtpu.graph import ProgramGraph
    from torchtpu.program import Program


class WatchOpenError(TorchTPUError):
    """A field of a report was read before the watch was over."""


@dataclass(frozen=True, slots=True)
class Live:
    """What a report has while its process lives, and what is not saved.

    Attributes:
        programs: those of its rows; numbers: that their ops took at their first run.
        ops: the numbers of its ops in `provenance`.
        seconds: of each op, where debug mode traced them.
    """

    programs: tuple[Program, ...] = ()
    numbers: tuple[Sequence[Any], ...] = ()
    ops: range = range(0)
    seconds: tuple[float, ...] = ()


class _WithLive:
    """A slot that is no field: it is neither saved nor compared."""

    __slots__ = ("_live",)


@dataclass(frozen=True, slots=True, repr=False)
class Report(_WithLive):
    """What the device did while it was watched.

    `torchtpu.watch()` hands it out empty and fills it when the `with` block ends; reading a field before that raises
    `WatchOpenError`. `labels()` says of each figure whether it is measured, compiled or modelled.

    Attributes:
        mode: the eager mode at the start: strict, debug or defer_and_fuse.
        device: torch's name of the device.
        platform: XLA's platform: "cpu", "tpu", ...; empty if the device was never started.
        compiler: whose figures the compiled ones are ("XLA:CPU").
        error: the exception that ended the block, as text; empty if none did.
        seconds: where the time went.
        ops: ATen ops dispatched to the device.
        compiles: programs compiled; disk_hits: programs of an earlier session that were loaded instead.
        cache_hits: runs that found their program compiled.
        runs: programs launched.
        programs: each program compiled or run, with its ops, lines, times and bytes.
        compile_events, flushes, syncs, fallbacks: what happened, in order.
        trace: each op with its line, times and bytes, where debug mode was asked for it (`watch(trace=True)`).
        storms: lines that compiled the same ops again and again, the most expensive first.
        hbm_before: bytes that tensors held at the start.
        hbm_peak: the most bytes held at once, with the temporaries (compiled) of the programs running then.
        hbm_live: bytes that tensors held at the end.
        hbm_limit: bytes that the device has; 0 if it was never started.
        hbm_peak_at: seconds from the start to the peak.
        hbm_span, hbm_timeline: the most bytes in use in each of at most 256 spans of `hbm_span` seconds.
        hbm_peak_owners: whose the bytes at the peak were, largest first; the rows add up to it.
        hbm_peak_buffers, hbm_live_buffers: what held them, largest first; the rows add up to the figure.
        hbm_holdings: who holds the bytes at the end, and what frees them, largest first.
        targets: its programs compiled for TPU chips, as far as `compile_for` or `--target` has come.
    """

    mode: str
    device: str
    platform: str
    compiler: str
    error: str
    seconds: Seconds
    programs: tuple[ProgramRow, ...]
    compile_events: tuple[CompileRow, ...]
    flushes: tuple[FlushRow, ...]
    syncs: tuple[SyncRow, ...]
    fallbacks: tuple[FallbackRow, ...]
    storms: tuple[Storm, ...]
    hbm_peak_buffers: tuple[BufferRow, ...]
    hbm_live_buffers: tuple[BufferRow, ...]
    hbm_peak_owners: tuple[OwnerRow, ...]
    hbm_holdings: tuple[HoldingRow, ...]
    hbm_timeline: tuple[int, ...] = measured(label="measured, temporaries compiled")
    hbm_span: float = measured(0.0)
    hbm_peak_at: float = measured(0.0)
    trace: Trace = field(default_factory=Trace)
    targets: tuple[TargetRow, ...] = ()
    ops: int = measured()
    compiles: int = measured()
    disk_hits: int = measured()
    cache_hits: int = measured()
    runs: int = measured()
    hbm_before: int = measured()
    hbm_peak: int = measured(label="measured, temporaries compiled")
    hbm_live: int = measured()
    hbm_limit: int = measured()

    @classmethod
    def unfinished(cls) -> Report:
        """Return a report without figures, for a watch that begins."""
        return object.__new__(cls)

    @property
    def finished(self) -> bool:
        """Whether the watch is over."""
        try:
            object.__getattribute__(self, "seconds")
        except AttributeError:
            return False
        return True

    def __getattr__(self, name: str) -> Any:
        # Only reached for names without a value: a field of an open watch, or a mistake.
        if name in _FIELDS and not self.finished:
            raise WatchOpenError(f"the watch is still open: read report.{name} after its `with` block has ended")
        raise AttributeError(f"a report has no {name!r}.{'' if name.startswith('_') else did_you_mean(name, _FIELDS)}")

    def labels(self) -> dict[str, str]:
        """Say of each figure, by its path (`programs.temp_bytes`), where it comes from: `measured`, `compiled (XLA:CPU)`."""
        from torchtpu.report.to_json import labels

        return labels(self)

    def to_text(self, width: int = 110) -> str:
        """Return the report as plain text, `width` columns wide."""
        from torchtpu.report.to_text import to_text

        return to_text(self, width)

    def to_html(self) -> str:
        """Return the report as static HTML that also survives in an untrusted notebook."""
        from torchtpu.report.to_html import to_html

        return to_html(self)

    def to_json(self) -> str:
        """Return everything as JSON, in a versioned schema that `from_json` reads."""
        from torchtpu.report.to_json import to_json

        return to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Read what `to_json` wrote.

        Raises:
            ValueError: not a report, or one of another version of the schema.
        """
        from torchtpu.report.to_json import from_json

        return from_json(text)

    def graph(self, program: int | str | None = None) -> ProgramGraph:
        """Return the graph of a program: its ops, tensors, modules and XLA fusions, to look at or to save.

        Args:
            program: position in `programs` or name. Left out, the program with the most ops; where each op was a program of
                its own (strict and debug mode), all ops of the watch, with their times if debug mode traced them.

        Raises:
            ValueError: the report has no such program.
        """
        from torchtpu import graph

        position = self._position(program)
        live = self._known()
        if program is None and len(live.ops) > 1 and len(self.programs[position].ops) == 1:
            return graph.watched_graph(self.mode, live.ops, live.seconds)
        if not live.programs:
            return graph.program_graph(self.programs[position], self.compiler)
        return graph.program_graph(self.programs[position], self.compiler, live.programs[position], live.numbers[position])

    def _known(self) -> Live:
        return getattr(self, "_live", Live())

    def graphs(self) -> tuple[ProgramGraph, ...]:
        """Return the graphs of the programs with more than one op, those with the most ops first.

        Where each op was a program of its own (strict and debug mode), it is one graph of the whole watch.
        """
        fused = [k for k, program in enumerate(self.programs) if len(program.ops) > 1]
        if not fused and len(self._known().ops) > 1:
            return (self.graph(),)
        return tuple(self.graph(k) for k in sorted(fused, key=lambda k: -len(self.programs[k].ops)))

    def _position(self, program: int | str | None) -> int:
        names = [p.name for p in self.programs]
        if not names:
            raise ValueError("this report has no programs")
        if program is None:
            return max(range(len(names)), key=lambda k: len(self.programs[k].ops))
        if isinstance(program, str):
            if program not in names:
                raise ValueError(f"this report has no program {program!r}.{did_you_mean(program, names)}")
            return names.index(program)
        if not -len(names) <= program < len(names):
            raise ValueError(f"this report has {len(names)} programs, there is none at position {program}")
        return program

    def complete(self) -> None:
        """Fill in the fusions of its programs, which takes the time to read the compiler's text of each of them."""
        from torchtpu.graph import hlo

        rows = tuple(
            row if row.fusions else replace(row, fusions=hlo.fusions(program.hlo()))
            for row, program in zip(self.programs, self._known().programs, strict=False)
        )
        if rows:
            object.__setattr__(self, "programs", rows)

    def live_programs(self) -> tuple[Program, ...]:
        """Return the programs behind the rows of `programs`, in their order; none in a report that was read from JSON."""
        return self._known().programs

    def compile_for(self, target: str, *, effort: str = "memory", hbm: int | None = None) -> tuple[TargetRow, ...]:
        """Compile its programs for TPU chips, and wait for it; the results are in `targets` too.

        Ctrl-C ends the wait: what was compiled until then is in `targets`, and found again by the next call.

        Args:
            target: chips by name: `v6e`, `v5e,v6e` or `all`.
            effort: `memory`, a fast compile whose memory figures are right; `full` for its other figures.
            hbm: bytes that a program may use, if not what the chip has.

        Raises:
            UnknownChipError: there is no such chip.
            CompilerMissingError: libtpu is not installed.
            ValueError: the report was read from JSON: it has no programs to compile.
        """
        from torchtpu.ahead import parse
        from torchtpu.report.targets import Compilation

        if self.programs and not self.live_programs():
            raise ValueError("this report was read from a file: only a report of this process has programs to compile")
        compilation = Compilation(self, parse(target), effort, hbm)
        try:
            compilation.wait()
        finally:
            compilation.cancel()
            rows = compilation.collect()
        if compilation.error is not None:
            raise compilation.error
        return rows

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the report to a file, as its suffix says: .json, .html or .txt.

        Raises:
            ValueError: another suffix.
        """
        target = check_path(path)
        match target.suffix.lower():
            case ".json":
                text = self.to_json()
            case ".html":
                from torchtpu.report.to_html import page

                text = page(self)
            case _:
                text = self.to_text()
        target.write_text(text, encoding="utf-8")
        return target

    def __str__(self) -> str:
        return self.to_text() if self.finished else repr(self)

    def __repr__(self) -> str:
        if not self.finished:
            return "<torchtpu report: the watch is still open>"
        return (
            f"<torchtpu report: {self.mode}, {len(self.programs)} programs, {self.compiles} compiles, {self.runs} runs, "
            f"{len(self.syncs)} syncs, {self.seconds.elapsed:.3f} s>"
        )

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))  # IPython, where it shows text

    def _repr_html_(self) -> str | None:
        return self.to_html() if self.finished else None


_FIELDS = frozenset(f.name for f in fields(Report))


def fill(report: Report, figures: dict[str, Any]) -> None:
    """Give an unfinished report its figures: all its fields."""
    for name in _FIELDS:
        object.__setattr__(report, name, figures[name])
    object.__setattr__(report, "_live", figures["live"])


SUFFIXES = (".json", ".html", ".txt")


def check_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a report to be saved, if its suffix names a format.

    Raises:
        ValueError: it does not.
    """
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise ValueError(f"cannot save a report as {str(target)!r}: the name must end in {', '.join(SUFFIXES)}")
    return target
