"""A report arranged for reading: a headline, warnings, and tables with few rows. `to_text` and `to_html` draw them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torchtpu import reads
from torchtpu.lines import Line
from torchtpu.report import units
from torchtpu.report.chart import Chart, Picture
from torchtpu.report.report import Report
from torchtpu.report.rows import CompileRow, FlushRow, ProgramRow, SyncRow

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


@dataclass(frozen=True, slots=True)
class Prose:
    """Words that are worth more than one line in a narrow column."""

    text: str


Cell = str | Place | Fold | Prose


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; figures are aligned right."""

    title: str
    figure: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A table: its title, where its figures come from, and what is left out (`12 more, 3.4 ms together`).

    Attributes:
        listing: lines of text below the table, in columns of a fixed width; text reports show the first few.
        chart: a picture above the table.
    """

    title: str
    note: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    more: str = ""
    listing: tuple[str, ...] = ()
    chart: Chart | Picture | None = None


def headline(report: Report) -> list[str]:
    """The figures of the whole watch, one phrase each; all measured (for the HBM peak, see its section)."""
    waited = report.seconds.wait
    syncs = units.count(len(report.syncs), "sync")
    peak = f"HBM peak {units.nbytes(report.hbm_peak)}"
    return [
        units.count(len(report.programs), "program"),
        units.count(report.compiles, "compile") + (f", {report.disk_hits:,} loaded from disk" if report.disk_hits else ""),
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
        found.append((f"Ended by {one_line(report.error.partition(chr(10))[0])}", None))
    # One warning for what may be one cause, on however many lines.
    for kind, storms in _grouped(report.storms, lambda s: s.kind).items():
        first, compiles, seconds = storms[0], sum(s.compiles for s in storms), sum(s.seconds for s in storms)
        what = one_line(first.ops, _NAME) if len(storms) == 1 else f"and {units.count(len(storms) - 1, 'more line')} compiled"
        what = f"compiled {what}" if len(storms) == 1 else what
        last = f"{kind}, the last time {one_line(first.detail)}" if first.detail else kind
        advice = f"; {first.remedy}" if first.remedy else ""
        found.append((f"{what} {compiles:,} times, {units.seconds(seconds)}: {last}{advice}", place(first.line)))
    if report.seconds.finish > 0.1 * report.seconds.elapsed and report.seconds.finish > 0.01:
        more = f"The device worked for {units.seconds(report.seconds.finish)} after the last line"
        found.append((f"{more}, which a clock in the code does not see: torch.tpu.synchronize() before it stops", None))
    return found


def sections(report: Report) -> list[Section]:
    """The tables that have rows."""
    from torchtpu.report import target_sections  # here: they are made of what is above
    from torchtpu.report.memory_sections import live, peak
    from torchtpu.report.trace_sections import compared, traced

    tables = (traced, compared, _programs, compiles, syncs, _flushes, fallbacks, peak, live)
    own = [section for table in tables if (section := table(report)).rows]
    return own + (target_sections.tables(report.targets) if report.targets else [])


def place(line: Line | None) -> Place:
    """Return a line as it is shown."""
    if line is None:
        return Place("")
    return Place(f"{line.where} (backward)" if line.backward else line.where, one_line(line.source))


def _programs(report: Report) -> Section:
    rows = sorted(report.programs, key=lambda p: -(p.run_seconds + p.compile_seconds * p.compiled))
    shown, rest = rows[:_ROWS], rows[_ROWS:]
    chosen = any(p.precision not in ("", "HIGHEST") for p in report.programs)
    columns = (
        Column("program"),
        Column("line"),
        Column("why"),
        *((Column("precision"),) if chosen else ()),
        Column("runs", True),
        Column("run time", True),
        Column("compile", True),
        Column("args", True),
        Column("outputs", True),
        Column("temp", True),
    )
    return Section(
        f"Programs: {len(rows):,}",
        f"runs and times measured, bytes {_compiled(report)}{_exact(report) if chosen else ''}",
        columns,
        tuple(
            (
                _program(p),
                _first_line(p),
                one_line(p.reason),
                *((Prose(p.precision),) if chosen else ()),
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


def _exact(report: Report) -> str:
    """Say that a precision that was chosen is not that of the results."""
    native = any(p.precision and "emulated" not in p.precision for p in report.programs)
    return "; XLA:CPU computes float32 products exactly unless they are emulated" if native and report.platform == "cpu" else ""


def compiles(report: Report) -> Section:
    """What was compiled, by line and cause."""
    groups = _grouped(report.compile_events, lambda c: (c.line, c.kind))
    cost_of_line = {
        line: sum(c.seconds for c in rows) for line, rows in _grouped(report.compile_events, lambda c: c.line).items()
    }
    ordered = sorted(groups.items(), key=lambda g: (-cost_of_line[g[0][0]], str(g[0][0]), -sum(c.seconds for c in g[1])))
    rest = [c for _, rows in ordered[_ROWS:] for c in rows]
    return Section(
        f"Compiles: {len(report.compile_events):,}, {units.seconds(sum(c.seconds for c in report.compile_events))}",
        "why, compared with the closest program that was there; measured",
        (Column("line"), Column("why"), Column("what to do"), Column("programs", True), Column("time", True)),
        tuple(
            (
                Place(place(line).where),
                _causes(line, kind, rows),
                Prose(next((c.remedy for c in rows if c.remedy), "")),
                f"{len(rows):,}",
                units.seconds(sum(c.seconds for c in rows)),
            )
            for (line, kind), rows in ordered[:_ROWS]
        ),
        _more(rest, "compile", sum(c.seconds for c in rest)),
    )


def _causes(line: Line | None, kind: str, rows: list[CompileRow]) -> Cell:
    """The first cause of some compiles of a line, and as details that of each."""
    details = [f"# {place(line).source}"] if line is not None and line.source else []
    for c in rows[:_DETAIL_LINES]:
        # The number of a fused program tells it from others; programs of one op share a name.
        name = c.program if "#" in c.program else one_line(f"{c.program} {_shapes(c.outputs)}", _NAME)
        text = f"{name}: {c.detail or kind}"
        closest = f", compared with {c.closest.where}" if c.closest is not None and c.closest != c.line else ""
        details.append(one_line(f"{text}{closest}; {units.seconds(c.seconds)}{', from disk' if c.from_disk else ''}"))
    if len(rows) > _DETAIL_LINES:
        details.append(f"{len(rows) - _DETAIL_LINES} more")
    first = next((c.detail for c in rows if c.detail), "") if kind != "first time" else ""
    return Fold(one_line(f"{kind}: {first}" if first else kind), tuple(details))


def syncs(report: Report) -> Section:
    """What the host waited for, by line."""
    groups = _grouped(report.syncs, lambda s: (s.kind, s.line))

    def row(kind: str, line: Line | None, syncs: list[SyncRow]) -> tuple[Cell, ...]:
        size = units.nbytes(sum(s.nbytes for s in syncs))
        time = units.seconds(sum(s.seconds for s in syncs))
        return kind, place(line), Prose(reads.remedy(kind)), f"{len(syncs):,}", time, size

    ordered = sorted(groups.items(), key=lambda g: -sum(s.seconds for s in g[1]))
    rest = [s for _, syncs in ordered[_ROWS:] for s in syncs]
    return Section(
        f"Syncs: {len(report.syncs):,}, {units.seconds(report.seconds.wait)}",
        "the host waited for the device; measured",
        (
            Column("read by"),
            Column("line"),
            Column("instead"),
            Column("times", True),
            Column("waited", True),
            Column("bytes", True),
        ),
        tuple(row(kind, line, syncs) for (kind, line), syncs in ordered[:_ROWS]),
        _more(rest, "sync", sum(s.seconds for s in rest)),
    )


def _flushes(report: Report) -> Section:
    groups = _grouped(report.flushes, lambda f: (f.reason, f.line))

    def row(reason: str, line: Line | None, flushes: list[FlushRow]) -> tuple[Cell, ...]:
        ops, pieces, live = (sum(getattr(f, name) for f in flushes) for name in ("ops", "pieces", "live"))
        time = units.seconds(sum(f.seconds for f in flushes))
        return one_line(reason), place(line), f"{len(flushes):,}", f"{ops:,}", f"{pieces:,}", f"{live:,}", time

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


def fallbacks(report: Report) -> Section:
    """What ran on the CPU, by op and line."""
    rows = sorted(report.fallbacks, key=lambda f: -f.seconds)
    shown, rest = rows[:_ROWS], rows[_ROWS:]
    return Section(
        f"CPU fallbacks: {sum(f.count for f in rows):,}, {units.seconds(sum(f.seconds for f in rows))}",
        "ops without a lowering to XLA, run on the CPU; measured, both copies included",
        (Column("op"), Column("line"), Column("times", True), Column("time", True), Column("moved", True)),
        tuple((one_line(f.op), place(f.line), f"{f.count:,}", units.seconds(f.seconds), units.nbytes(f.nbytes)) for f in shown),
        _more(rest, "op", sum(f.seconds for f in rest)),
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
        details.append(one_line(f"{at.where or 'no line'}: {listed}{f'  # {at.source}' if at.source else ''}"))
    if len(groups) > _DETAIL_LINES:
        details.append(f"{len(groups) - _DETAIL_LINES} more lines")
    return Fold(one_line(text, _NAME), tuple(details))


def _first_line(program: ProgramRow) -> Cell:
    distinct = list(dict.fromkeys(o.line for o in program.ops if o.line is not None))
    if not distinct:
        return ""
    more = f" + {len(distinct) - 1} more" if len(distinct) > 1 else ""
    return Place(place(distinct[0]).where + more)  # the details quote the lines


def _shapes(arrays: Iterable[str]) -> str:
    counts = _grouped(arrays, lambda a: a)
    return one_line(", ".join(f"{array} x{len(same)}" if len(same) > 1 else array for array, same in counts.items()))


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


def one_line(text: str, width: int = _WIDE) -> str:
    """Return text without line breaks, cut to a width."""
    return units.cut(" ".join(text.split()), width)
