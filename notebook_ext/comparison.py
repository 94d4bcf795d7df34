"""What `%%tpu_compare` shows: one cell in several modes, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

from torchtpu.notebook_ext.values import Distance
from torchtpu.report import Report, units
from torchtpu.report.table import BOX, PHRASE, QUIET, WARNING, Table


@dataclass(frozen=True, slots=True)
class Column:
    """A cell's runs in one mode. Seconds and bytes, measured (HBM temporaries compiled).

    Attributes:
        mode: its label.
        seconds: of the first run.
        first, second: the reports of the first run and of one more; None on the CPU, and if the cell failed.
        steady: the fastest of the runs after these, which nobody watched; until the device had nothing left to do.
        distance: from the first mode's results; None for the first mode itself, or where nothing can be compared.
        error: the exception that ended the cell, as text.
    """

    mode: str
    seconds: float = 0.0
    first: Report | None = None
    second: Report | None = None
    steady: float = 0.0
    distance: Distance | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A cell in several modes, each run from the same state.

    Attributes:
        columns: the modes in the order asked for.
        timed: number of runs that `Column.steady` is the fastest of.
        lost: what could not be put back between the runs, one phrase each.
    """

    columns: tuple[Column, ...]
    timed: int
    lost: tuple[str, ...] = ()

    def to_text(self) -> str:
        """The comparison as plain text."""
        return "\n".join(
            [f"torchtpu comparison: {self._what()}", self._table().to_text(), *(f"! {r}" for r in self._remarks())]
        )

    def to_html(self) -> str:
        """The comparison as static HTML, which also survives in an untrusted notebook."""
        remarks = "".join(f'<div style="{WARNING}">{escape(remark)}</div>' for remark in self._remarks())
        head = f'<b style="{PHRASE}">comparison</b> <span style="{QUIET}">{escape(self._what())}</span>'
        return f'<div style="{BOX}"><div>{head}</div>{self._table().to_html()}{remarks}</div>'

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return self.to_html()

    def _repr_pretty_(self, printer: object, cycle: bool) -> None:
        printer.text(self.to_text())  # type: ignore[attr-defined]

    def _what(self) -> str:
        runs = f"fastest of {units.count(self.timed, 'later run')}"
        return f"each mode from the same state; later: {runs}; the rest of the second run; measured"

    def _table(self) -> Table:
        rows = [
            ("first run", *("failed" if c.error else units.seconds(c.seconds) for c in self.columns)),
            ("of it compiling", *(units.seconds(c.first.seconds.compile) if c.first else "" for c in self.columns)),
            ("compiles", *(_compiles(c.first) for c in self.columns)),
            ("later", *("" if c.error else units.seconds(c.steady) for c in self.columns)),
            ("later, relative", *(self._relative(c) for c in self.columns)),
            ("later compiles", *(_compiles(c.second) for c in self.columns)),
            ("programs run", *(f"{c.second.runs:,}" if c.second else "" for c in self.columns)),
            ("syncs", *(f"{len(c.second.syncs):,}" if c.second else "" for c in self.columns)),
            ("HBM peak", *(units.nbytes(c.second.hbm_peak) if c.second else "" for c in self.columns)),
            ("values that differ", *(self._differing(c) for c in self.columns)),
        ]
        for k, name in enumerate(("largest difference", "next", "next")):
            gaps = [_gap(c.distance, k) for c in self.columns]
            if any(gaps):
                rows.append((name, *gaps))
        return Table(("", *(c.mode for c in self.columns)), tuple(rows))

    def _relative(self, column: Column) -> str:
        base = self.columns[0].steady
        return f"{column.steady / base:.2f} x" if base and column.steady else ""

    def _differing(self, column: Column) -> str:
        if column is self.columns[0] or column.error:
            return ""
        d = column.distance
        return f"{len(d.gaps):,} of {d.compared:,}" if d is not None else "nothing to compare"

    def _remarks(self) -> list[str]:
        remarks = [f"{c.mode}: {c.error}" for c in self.columns if c.error]
        for c in self.columns:
            if c.distance is not None and c.distance.only_one:
                remarks.append(f"{c.mode}: only one of the runs has {_some(c.distance.only_one)}")
        if self.lost:
            remarks.append(f"not put back between the runs: {_some(self.lost, '; ')}")
        return remarks


def _gap(distance: Distance | None, k: int) -> str:
    if distance is None or k >= len(distance.gaps):
        return ""
    gap = distance.gaps[k]
    return f"{gap.absolute:.1e} in {gap.name}"


def _compiles(report: Report | None) -> str:
    if report is None:
        return ""
    return f"{report.compiles:,} + {report.disk_hits:,} from disk" if report.disk_hits else f"{report.compiles:,}"


def _some(phrases: tuple[str, ...], separator: str = ", ") -> str:
    more = f"{separator}{len(phrases) - 5} more" if len(phrases) > 5 else ""
    return separator.join(phrases[:5]) + more
