"""A report arranged for reading: a headline, warnings, and tables with few rows. `to_text` and `to_html` draw them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torchtpu.lines import Line
from torchtpu.report import units
from torchtpu.report.report import Report
from torchtpu.report.rows import BufferRow, FlushRow, ProgramRow, SyncRow

# A report must stay small whatever the cell did: these many rows, lines of detail, and characters are shown.
_ROWS = 10
_DETAIL_LINES = 16
_WIDE = 160
_NAME = 40


@dataclass(frozen=True, slots=True)
class Place:
    """A line of code: where it is (`In[7], line 3`) and what it says."""

    where: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class Fold:
    """Text with details that a reader may open."""

    text: str
    details: tuple[str, ...]


Cell = str | Place | Fold


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; figures are aligned right."""

    title: str
    figure: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A table: its title, where its figures come from, and what is left out (`12 more, 3.4 ms together`)."""

    title: str
    note: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    more: str = ""


def headline(report: Report) -> list[str]:
    """The figures of the whole watch, one phrase each; all measured (for the HBM peak, see its section)."""
    waited = report.seconds.wait
    syncs = units.count(len(report.syncs), "sync")
    peak = f"HBM peak {units.nbytes(report.hbm_peak)}"
    return [
        units.count(len(report.programs), "program"),
        units.count(report.compiles, "compile"),
        units.count(report.cache_hits, "cache hit"),
        units.count(report.runs, "run"),
        f"{syncs} ({units.seconds(waited)})" if report.syncs else syncs,
        units.count(sum(f.count for f in report.fallbacks), "fallback"),
        f"{peak} of {units.nbytes(report.hbm_limit)}" if report.hbm_limit else peak,
    ]


def times(report: Report) -> list[tuple[str, float]]:
    """The parts of the elapsed time, in seconds."""
    s = report.seconds
    parts = [("dispatch", s.dispatch), ("compile", s.compile), ("run", s.run), ("wait", s.wait), ("finish", s.finish)]
    return [*parts, ("the rest", s.rest)]


def warnings(report: Report) -> list[tuple[str, Place | None]]:
    """What deserves attention without opening anything: a sentence, and the line that is its subject."""
    found: list[tuple[str, Place | None]] = []
    if report.error:
        found.append((f"Ended by {_cut(report.error)}", None))
    for storm in report.storms[:3]:
        cause = f"; the last time: {_cut(storm.cause)}" if storm.cause else ""
        found.append((f"compiled {storm.ops} {storm.compiles} times, {units.seconds(storm.seconds)}{cause}", place(storm.line)))
    if len(report.storms) > 3:
        found.append((f"{len(report.storms) - 3} more lines compiled the same ops again and again", None))
    if report.seconds.finish > 0.1 * report.seconds.elapsed and report.seconds.finish > 0.01:
        found.append((f"The device worked for {units.seconds(report.seconds.finish)} after the last line", None))
    return found


def sections(report: Report) -> list[Section]:
    """The tables that have rows."""
    tables = (_programs, _compiles, _syncs, _flushes, _fallbacks, _peak, _live)
    return [section for table in tables if (section := table(report)).rows]


def place(line: Line | None) -> Place:
    """Return a line as it is shown."""
    if line is None:
        return Place("")
    return Place(f"{line.where} (backward)" if line.backward else line.where, _cut(line.source))


def _programs(report: Report) -> Section:
    rows = sorted(report.programs, key=lambda p: -(p.run_seconds + p.compile_seconds * p.compiled))
    shown, rest = rows[:_ROWS], rows[_ROWS:]
    columns = (
        Column("program"),
        Column("line"),
        Column("why"),
        Column("runs", True),
        Column("run time", True),
        Column("compile", True),
        Column("args", True),
        Column("outputs", True),
        Column("temp", True),
    )
    return Section(
        f"Programs: {len(rows):,}",
        f"runs and times measured, bytes {_compiled(report)}",
        columns,
        tuple(
            (
                _program(p),
                _first_line(p),
                _cut(p.reason),
                f"{p.runs:,}",
                units.seconds(p.run_seconds),
                units.seconds(p.compile_seconds) if p.compiled else "cached",
                units.nbytes(p.argument_bytes),
                units.nbytes(p.output_bytes),
                units.nbytes(p.temp_bytes),
            )
            for p in shown
        ),
        _more(rest, "program", sum(p.run_seconds + p.compile_seconds * p.compiled for p in rest)),
    )


def _compiles(report: Report) -> Section:
    rows = sorted(report.compile_events, key=lambda c: -c.seconds)
    shown, rest = rows[:_ROWS], rows[_ROWS:]
    return Section(
        f"Compiles: {len(rows):,}, {units.seconds(sum(c.seconds for c in rows))}",
        "measured",
        (Column("program"), Column("line"), Column("why"), Column("time", True)),
        tuple(
            (_cut(f"{c.program} {_shapes(c.outputs)}", _NAME), place(c.line), _cut(c.cause), units.seconds(c.seconds))
            for c in shown
        ),
        _more(rest, "compile", sum(c.seconds for c in rest)),
    )


def _syncs(report: Report) -> Section:
    groups = _grouped(report.syncs, lambda s: (s.kind, s.line))

    def row(kind: str, line: Line | None, syncs: list[SyncRow]) -> tuple[Cell, ...]:
        size = units.nbytes(sum(s.nbytes for s in syncs))
        return kind, place(line), f"{len(syncs):,}", units.seconds(sum(s.seconds for s in syncs)), size

    ordered = sorted(groups.items(), key=lambda g: -sum(s.seconds for s in g[1]))
    rest = [s for _, syncs in ordered[_ROWS:] for s in syncs]
    return Section(
        f"Syncs: {len(report.syncs):,}, {units.seconds(report.seconds.wait)}",
        "the host waited for the device; measured",
        (Column("read by"), Column("line"), Column("times", True), Column("waited", True), Column("bytes", True)),
        tuple(row(kind, line, syncs) for (kind, line), syncs in ordered[:_ROWS]),
        _more(rest, "sync", sum(s.seconds for s in rest)),
    )


def _flushes(report: Report) -> Section:
    groups = _grouped(report.flushes, lambda f: (f.reason, f.line))

    def row(reason: str, line: Line | None, flushes: list[FlushRow]) -> tuple[Cell, ...]:
        ops, pieces, live = (sum(getattr(f, name) for f in flushes) for name in ("ops", "pieces", "live"))
        time = units.seconds(sum(f.seconds for f in flushes))
        return _cut(reason), place(line), f"{len(flushes):,}", f"{ops:,}", f"{pieces:,}", f"{live:,}", time

    ordered = sorted(groups.items(), key=lambda g: -len(g[1]))
    rest = [f for _, flushes in ordered[_ROWS:] for f in flushes]
    columns = (
        Column("reason"),
        Column("line"),
        Column("times", True),
        Column("ops", True),
        Column("programs", True),
        Column("results kept", True),
        Column("host time", True),
    )
    return Section(
        f"Flushes: {len(report.flushes):,}",
        "pending ops were run; measured",
        columns,
        tuple(row(reason, line, flushes) for (reason, line), flushes in ordered[:_ROWS]),
        _more(rest, "flush", sum(f.seconds for f in rest), "flushes"),
    )


def _fallbacks(report: Report) -> Section:
    rows = sorted(report.fallbacks, key=lambda f: -f.seconds)
    shown, rest = rows[:_ROWS], rows[_ROWS:]
    return Section(
        f"CPU fallbacks: {sum(f.count for f in rows):,}, {units.seconds(sum(f.seconds for f in rows))}",
        "ops without a lowering to XLA, run on the CPU; measured, both copies included",
        (Column("op"), Column("line"), Column("times", True), Column("time", True), Column("moved", True)),
        tuple((_cut(f.op), place(f.line), f"{f.count:,}", units.seconds(f.seconds), units.nbytes(f.nbytes)) for f in shown),
        _more(rest, "op", sum(f.seconds for f in rest)),
    )


def _peak(report: Report) -> Section:
    note = f"what held it; measured, temporaries {_compiled(report)}"
    return _buffers(f"HBM at the peak: {units.nbytes(report.hbm_peak)}", note, report.hbm_peak_buffers)


def _live(report: Report) -> Section:
    change = report.hbm_live - report.hbm_before
    sign = "+" if change >= 0 else "-"
    title = f"HBM at the end: {units.nbytes(report.hbm_live)} ({sign}{units.nbytes(abs(change))})"
    return _buffers(title, "what holds it; measured", report.hbm_live_buffers)


def _buffers(title: str, note: str, rows: Sequence[BufferRow]) -> Section:
    shown, rest = rows[:_ROWS], rows[_ROWS:]
    buffers = sum(b.count for b in rest)
    return Section(
        title,
        note,
        (Column("buffers"), Column("made by"), Column("count", True), Column("bytes", True)),
        tuple(
            (
                _cut(b.what),
                Place("before the watch") if b.earlier and b.line is None else place(b.line),
                f"{b.count:,}",
                units.nbytes(b.nbytes),
            )
            for b in shown
        ),
        f"{units.count(buffers, 'more buffer')}, {units.nbytes(sum(b.nbytes for b in rest))} together" if rest else "",
    )


def _program(program: ProgramRow) -> Cell:
    single = len(program.ops) == 1
    text = f"{program.ops[0].op.removeprefix('aten::')} {_shapes(program.outputs)}" if single else program.name
    arrays = f"{_shapes(program.inputs) or 'no arrays'} -> {_shapes(program.outputs) or 'nothing'}"
    details = [f"{program.name}: {arrays}" if single else arrays]
    groups = _grouped(program.ops, lambda o: o.line)
    for line, ops in list(groups.items())[:_DETAIL_LINES]:
        names = _grouped(ops, lambda o: o.op.removeprefix("aten::"))
        listed = ", ".join(f"{name} x{len(same)}" if len(same) > 1 else name for name, same in names.items())
        at = place(line)
        details.append(_cut(f"{at.where or 'no line'}: {listed}{f'  # {at.source}' if at.source else ''}"))
    if len(groups) > _DETAIL_LINES:
        details.append(f"{len(groups) - _DETAIL_LINES} more lines")
    return Fold(_cut(text, _NAME), tuple(details))


def _first_line(program: ProgramRow) -> Cell:
    distinct = list(dict.fromkeys(o.line for o in program.ops if o.line is not None))
    if not distinct:
        return ""
    more = f" + {len(distinct) - 1} more" if len(distinct) > 1 else ""
    return Place(place(distinct[0]).where + more)  # the details quote the lines


def _shapes(arrays: Iterable[str]) -> str:
    counts = _grouped(arrays, lambda a: a)
    return _cut(", ".join(f"{array} x{len(same)}" if len(same) > 1 else array for array, same in counts.items()))


def _grouped(items: Iterable[Any], key: Any) -> dict[Any, list[Any]]:
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def _more(rest: Sequence[Any], one: str, seconds: float, many: str = "") -> str:
    if not rest:
        return ""
    return f"{units.count(len(rest), f'more {one}', many and f'more {many}')}, {units.seconds(seconds)} together"


def _compiled(report: Report) -> str:
    return f"compiled ({report.compiler})"


def _cut(text: str, width: int = _WIDE) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "\u2026"
