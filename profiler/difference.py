"""What differs between two profiles: each figure, op, program, kind of kernel, cause of idle time and compile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from torchtpu.profiler.figures import at, device_label
from torchtpu.profiler.pairing import Delta, Row, deltas, line_and_number, line_number, line_text, summed, what
from torchtpu.report import units
from torchtpu.report.difference import Change
from torchtpu.report.sections import Cell, Column, Place, Section, one_line
from torchtpu.report.table import BOX, PHRASE, QUIET
from torchtpu.report.to_html import folded
from torchtpu.report.to_text import section_text

if TYPE_CHECKING:
    from torchtpu.profiler.result import Profile

_ROWS = 12
_NAME = 32


@dataclass(frozen=True, slots=True)
class ProfileDifference:
    """What differs between two profiles.

    Attributes:
        before, after: names of the two.
        per_step: seconds of ops, programs, kernels and idle time are those of a step: their sum by the number of steps.
        source: where the figures come from.
        changes: figures of the whole profile.
        ops, programs, kernels, idle, compiles: by how much they differ, most first; kernels by kind, compiles by line and
            cause and never by step.
    """

    before: str
    after: str
    per_step: bool
    source: str
    changes: tuple[Change, ...]
    ops: tuple[Delta, ...]
    programs: tuple[Delta, ...]
    kernels: tuple[Delta, ...]
    idle: tuple[Delta, ...]
    compiles: tuple[Delta, ...]

    def to_text(self, width: int = 110) -> str:
        """The difference as plain text, `width` columns wide."""
        head = f"torchtpu profile difference: before {self.before}, after {self.after} ({self.source})"
        return "\n\n".join([head, *(section_text(section, width) for section in self._sections())])

    def to_html(self) -> str:
        """The difference as static HTML, which also survives in an untrusted notebook."""
        head = (
            f'<div><b style="{PHRASE}">profile difference</b> before: {escape(self.before)}, after: {escape(self.after)} '
            f'<span style="{QUIET}">{escape(self.source)}</span></div>'
        )
        parts = (folded(section, "open " if k < 2 else "") for k, section in enumerate(self._sections()))
        return f'<div style="{BOX}">{head}{"".join(parts)}</div>'

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"<torchtpu profile difference: {self.before} -> {self.after}, {len(self.ops)} ops>"

    def _repr_html_(self) -> str:
        return self.to_html()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self.to_text())

    def _sections(self) -> list[Section]:
        each = "seconds of a step" if self.per_step else "seconds in all"
        figures = Section(
            "Figures",
            self.source,
            (Column(""), Column("before", True), Column("after", True), Column("change", True)),
            tuple(c.row() for c in self.changes),
        )
        tables = (
            ("Ops", "op", self.ops, f"device time; {each}"),
            ("Programs", "program", self.programs, f"device time; {each}"),
            ("Kernels", "kind", self.kernels, f"device time; {each}"),
            ("Idle time", "the host", self.idle, f"the device had nothing to run, compiling left out; {each}"),
            ("Compiles", "why", self.compiles, "seconds in all"),
        )
        return [figures, *(self._table(title, what, rows, note) for title, what, rows, note in tables if rows)]

    def _table(self, title: str, what: str, rows: Sequence[Delta], note: str) -> Section:
        shown, rest = rows[:_ROWS], rows[_ROWS:]
        lines, modules = any(r.line for r in shown), any(r.module for r in shown)

        def row(r: Delta) -> tuple[Cell, ...]:
            before, after = ("" if s is None else units.seconds(s) for s in (r.before, r.after))
            return (
                one_line(r.what, _NAME),
                *((_place(r),) if lines else ()),
                *((r.module,) if modules else ()),
                before,
                after,
                self._change(r),
                f"{r.calls[0]:,}" if r.calls[0] == r.calls[1] else f"{r.calls[0]:,} \u2192 {r.calls[1]:,}",
            )

        words = (Column(what), *((Column("line"),) if lines else ()), *((Column("module"),) if modules else ()))
        figures = ("before", "after", "difference", "count")
        return Section(
            f"{title}: {len(rows):,}, {_signed(sum(r.seconds for r in rows))}",
            note,
            (*words, *(Column(figure, True) for figure in figures)),
            tuple(map(row, shown)),
            f"{len(rest):,} more, {_signed(sum(r.seconds for r in rest))} together" if rest else "",
        )

    @staticmethod
    def _change(row: Delta) -> str:
        if row.before is None or row.after is None:
            return f"{_signed(row.seconds)}, only {'before' if row.after is None else 'after'}"
        if row.before == row.after:
            return "same"
        factor = f", {row.after / row.before:.2f} x" if row.before and row.after else ""
        return f"{_signed(row.seconds)}{factor}"


def compare(before: Profile, after: Profile, names: tuple[str, str] = ("", "")) -> ProfileDifference:
    """Compare two profiles.

    An op is the same in both if its name, its module and the text of its line are; where that text is gone, the line of that
    number in the same function is taken for it. If both have steps, times of the device are compared by the step.

    Args:
        before, after: the profiles.
        names: what to call them; left out, their runs.
    """
    first, second = names[0] or before.run, names[1] or after.run
    if first == second:
        first, second = f"{first} (before)", f"{second} (after)"
    per_step = bool(before.steps and after.steps)
    sides = [_Side(p, len(p.steps) if per_step else 1) for p in (before, after)]
    figures = zip(*(side.figures(per_step) for side in sides), strict=True)
    same_line = (line_and_number, line_text, line_number)
    labels = list(dict.fromkeys(device_label(p) for p in (before, after)))
    return ProfileDifference(
        first,
        second,
        per_step,
        f"times of the device {' and '.join(labels)}, others measured" if labels != ["measured"] else "measured",
        tuple(Change(name, unit, value, other) for (name, unit, value), (_, _, other) in figures),
        deltas(*(side.ops() for side in sides), same_line),
        deltas(*(side.programs() for side in sides), (*same_line[:2], what)),
        deltas(*(side.kernels() for side in sides), (what,)),
        deltas(*(side.idle() for side in sides), same_line[:2]),
        deltas(*(side.compiles() for side in sides), same_line[:2]),
    )


class _Side:
    """One of the two profiles; `by`: what its seconds are divided by."""

    def __init__(self, profile: Profile, by: int) -> None:
        self.profile, self.by = profile, by

    def figures(self, per_step: bool) -> list[tuple[str, str, float]]:
        p, report = self.profile, self.profile.report
        later = p.steps[1:] or p.steps

        def mean(name: str) -> float:
            return sum(getattr(s, name) for s in later) / len(later)

        parts = [(f"a step: {name}", "s", mean(name)) for name in ("busy", "compile", "wait")] if per_step else []
        return [
            ("steps", "", len(p.steps)),
            ("median step", "s", p.step_seconds),
            *parts,
            ("elapsed", "s", p.elapsed),
            ("device busy", "s", p.busy),
            ("device idle", "s", sum(r.seconds for r in p.idle)),
            ("compiles", "", report.compiles),
            ("compiling", "s", report.seconds.compile),
            ("runs", "", report.runs),
            ("waits", "", len(report.syncs)),
            ("waiting", "s", report.seconds.wait),
            ("CPU fallbacks", "", sum(f.count for f in report.fallbacks)),
            ("HBM peak", "B", report.hbm_peak),
        ]

    def ops(self) -> list[Row]:
        return [
            Row(o.op.removeprefix("aten::"), o.line, o.module, o.backward, o.seconds / self.by, o.calls)
            for o in self.profile.ops
        ]

    def programs(self) -> list[Row]:
        # The number in a program's name counts what the process compiled before.
        return [Row(p.name.partition("#")[0], p.line, "", False, p.seconds / self.by, p.runs) for p in self.profile.programs]

    def kernels(self) -> list[Row]:
        return summed((k.kind, None, k.seconds / self.by, k.count) for k in self.profile.kernels)

    def idle(self) -> list[Row]:
        # Programs are compiled once, whatever the number of steps, and have a table of their own.
        rows = (r for r in self.profile.idle if r.cause != "compile")
        return [Row(r.cause, r.line, "", False, r.seconds / self.by, r.count) for r in rows]

    def compiles(self) -> list[Row]:
        return summed((c.kind, c.line, c.seconds, 1) for c in self.profile.report.compile_events)


def _place(row: Delta) -> Place:
    place = at(row.line, row.backward)
    return Place(place.where, f"{place.source}  (was: {one_line(row.was.source, _NAME)})") if row.was else place


def _signed(seconds: float) -> str:
    return f"{'-' if seconds < 0 else '+'}{units.seconds(abs(seconds))}" if seconds else "no change"
