"""What differs between two reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from html import escape

from torchtpu.report import units
from torchtpu.report.report import Report
from torchtpu.report.rows import ProgramRow
from torchtpu.report.table import BOX, PHRASE, QUIET, Table

_ROWS = 20
_NAME = 60


@dataclass(frozen=True, slots=True)
class Change:
    """A figure in both reports. `unit`: s (seconds), B (bytes) or "" (a count); all measured, as in the reports."""

    figure: str
    unit: str
    before: float
    after: float

    def row(self) -> tuple[str, str, str, str]:
        """The figure's name, both values and the change, as text."""
        show: Callable[[float], str] = {"s": units.seconds, "B": lambda v: units.nbytes(int(v)), "": lambda v: f"{int(v):,}"}[
            self.unit
        ]
        if self.before == self.after:
            change = "same"
        elif not self.after:
            change = "gone"
        elif self.before:
            factor = self.after / self.before
            change = f"{factor:.2f} x" if factor >= 0.01 else f"{factor:.2g} x"
        else:
            change = "new"
        return self.figure, show(self.before), show(self.after), change


@dataclass(frozen=True, slots=True)
class ProgramChange:
    """A program that ran a different number of times: the same ops on the same shapes. `line`: of its first op."""

    program: str
    line: str
    runs_before: int
    runs_after: int


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs between two reports.

    Attributes:
        before, after: what to call the two.
        changes: figures of the whole watch, all of them.
        programs: those that ran in one of the two only, or another number of times; the most runs first.
    """

    before: str
    after: str
    changes: tuple[Change, ...]
    programs: tuple[ProgramChange, ...]

    def to_text(self) -> str:
        """The difference as plain text."""
        parts = [f"torchtpu difference: {self.before} -> {self.after} (measured)", self._figures().to_text()]
        if self.programs:
            parts += ["", self._title(), self._programs().to_text()]
        return "\n".join(parts)

    def to_html(self) -> str:
        """The difference as static HTML, which also survives in an untrusted notebook."""
        head = f'<b style="{PHRASE}">difference</b> {escape(self.before)} &#8594; {escape(self.after)}'
        programs = (
            f'<details><summary style="cursor:pointer">{escape(self._title())}</summary>{self._programs().to_html()}</details>'
            if self.programs
            else ""
        )
        quiet = f'<span style="{QUIET}">measured</span>'
        return f'<div style="{BOX}"><div>{head} {quiet}</div>{self._figures().to_html()}{programs}</div>'

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return self.to_html()

    def _repr_pretty_(self, printer: object, cycle: bool) -> None:
        printer.text(self.to_text())  # type: ignore[attr-defined]

    def _figures(self) -> Table:
        return Table(("", self.before, self.after, "change"), tuple(c.row() for c in self.changes))

    def _title(self) -> str:
        return f"Programs that ran a different number of times: {len(self.programs):,}"

    def _programs(self) -> Table:
        rows = [(p.program, p.line, f"{p.runs_before:,}", f"{p.runs_after:,}") for p in self.programs[:_ROWS]]
        rest = self.programs[_ROWS:]
        if rest:
            before, after = sum(p.runs_before for p in rest), sum(p.runs_after for p in rest)
            rows.append((f"{len(rest):,} more", "", f"{before:,}", f"{after:,}"))
        return Table(("program", "line", f"runs in {self.before}", f"runs in {self.after}"), tuple(rows), words=2)


def diff(before: Report, after: Report, names: tuple[str, str] = ("", "")) -> Difference:
    """Compare two reports.

    Args:
        before, after: finished reports, of this process or read with `Report.from_json`.
        names: what to call them; left out, their modes.
    """
    first, second = names[0] or before.mode, names[1] or after.mode
    if first == second:
        first, second = f"{first} (before)", f"{second} (after)"
    pairs = zip(_figures(before), _figures(after), strict=True)
    return Difference(
        first,
        second,
        tuple(Change(name, unit, value, other) for (name, unit, value), (_, _, other) in pairs),
        _programs(before, after),
    )


def _figures(report: Report) -> list[tuple[str, str, float]]:
    s = report.seconds
    return [
        ("elapsed", "s", s.elapsed),
        ("dispatch", "s", s.dispatch),
        ("compile", "s", s.compile),
        ("run", "s", s.run),
        ("wait", "s", s.wait),
        ("finish", "s", s.finish),
        ("the rest", "s", s.rest),
        ("ops", "", report.ops),
        ("programs", "", len(report.programs)),
        ("compiles", "", report.compiles),
        ("cache hits", "", report.cache_hits),
        ("runs", "", report.runs),
        ("syncs", "", len(report.syncs)),
        ("flushes", "", len(report.flushes)),
        ("CPU fallbacks", "", sum(f.count for f in report.fallbacks)),
        ("HBM peak", "B", report.hbm_peak),
        ("HBM at the end", "B", report.hbm_live),
    ]


def _programs(before: Report, after: Report) -> tuple[ProgramChange, ...]:
    known: dict[tuple[object, ...], ProgramRow] = {}

    def count(report: Report) -> Counter[tuple[object, ...]]:
        runs: Counter[tuple[object, ...]] = Counter()
        for p in report.programs:
            key = (tuple((o.op, o.outputs) for o in p.ops), p.inputs)
            known.setdefault(key, p)
            runs[key] += p.runs
        return runs

    first, second = count(before), count(after)
    changed = [key for key in known if first[key] != second[key]]
    changed.sort(key=lambda key: -max(first[key], second[key]))
    return tuple(ProgramChange(_name(known[k]), _line(known[k]), first[k], second[k]) for k in changed)


def _name(program: ProgramRow) -> str:
    name = program.name if len(program.ops) > 1 else program.ops[0].op.removeprefix("aten::")
    return units.cut(f"{name} {', '.join(program.outputs)}", _NAME)


def _line(program: ProgramRow) -> str:
    return next((o.line.where for o in program.ops if o.line is not None), "")
