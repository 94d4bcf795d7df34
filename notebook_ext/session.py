"""What `%tpu dashboard` shows of a session, arranged once and drawn as text, static HTML, or the state of the live panel."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from torchtpu import client, hbm, modes
from torchtpu.notebook_ext.history import CellFigures, History
from torchtpu.notebook_ext.live import Now
from torchtpu.report import bar, units
from torchtpu.report.table import BOX, PHRASE, QUIET, Table

_WORDS = 2  # columns
COLUMNS = ("cell", "mode", "time", "compile", "compiles", "hits", "runs", "syncs", "HBM peak", "HBM at the end")
_ROWS = 15  # of the static forms
_CHARTED = 60


@dataclass(frozen=True, slots=True)
class Session:
    """A session so far. All figures are measured; HBM peaks count temporaries as the compiler reports them.

    Attributes:
        mode: in force now.
        figures: of the whole session, one phrase each.
        running: what the running cell does, one phrase each; empty between cells.
        cells: the last cells, oldest first.
    """

    mode: str
    figures: tuple[str, ...]
    running: tuple[str, ...]
    cells: tuple[CellFigures, ...]

    def rows(self) -> list[tuple[str, ...]]:
        """The cells as a table, newest first, under `COLUMNS`."""
        return [_row(c) for c in reversed(self.cells)]

    def to_text(self) -> str:
        """The session as plain text."""
        lines = [f"torchtpu session, {self.mode}: {', '.join(self.figures)} (measured)"]
        if self.running:
            lines.append(f"running: {', '.join(self.running)}")
        if self.cells:
            lines.append(self._shown().to_text())
        return "\n".join(lines)

    def to_html(self) -> str:
        """The session as static HTML, which also survives in an untrusted notebook."""
        figures = " ".join(f'<span style="{PHRASE}">{escape(f)}</span>' for f in self.figures)
        head = f'<b style="{PHRASE}">torchtpu session</b> <span style="{PHRASE}">{escape(self.mode)}</span> {figures}'
        running = f"<div>running: {escape(', '.join(self.running))}</div>" if self.running else ""
        return (
            f'<div style="{BOX}"><div>{head} <span style="{QUIET}">measured</span></div>'
            f"{running}{self._chart()}{self._table()}</div>"
        )

    def state(self) -> dict[str, Any]:
        """The session as the live panel takes it."""
        return {
            "mode": self.mode,
            "figures": list(self.figures),
            "running": list(self.running),
            "columns": [{"title": name, "figure": k >= _WORDS} for k, name in enumerate(COLUMNS)],
            "rows": [list(row) for row in self.rows()],
            "chart": chart(self.cells),
            "caption": self._caption(),
        }

    def _caption(self) -> str:
        shown = units.count(len(self.cells[-_CHARTED:]), "cell")
        return f"the last {shown}, one column each: time above, with compile in orange; HBM peak below"

    def _chart(self) -> str:
        if not self.cells:
            return ""
        # The height is given twice because some sanitizers drop one of the two.
        style = "display:block;width:100%;height:72px;max-width:none;margin:6px 0"
        picture = f'<img alt="" src="{chart(self.cells)}" height="72" style="{style}">'
        return f'{picture}<div style="{QUIET}">{escape(self._caption())}</div>'

    def _table(self) -> str:
        if not self.cells:
            return "<div>no <code>%%tpu_mode</code> cell has run yet</div>"
        more = len(self.cells) - _ROWS
        return self._shown().to_html() + (f"<div>{units.count(more, 'earlier cell')}</div>" if more > 0 else "")

    def _shown(self) -> Table:
        return Table(COLUMNS, tuple(self.rows()[:_ROWS]), _WORDS)


def look(history: History, running: Now | None) -> Session:
    """Look at the session now, from any thread."""
    t = history.totals
    rate = f"{t.hit_rate:.0%} of runs found their program" if t.hit_rate is not None else "no run yet"
    limit = f" of {units.nbytes(client.memory_limit())}" if client.started() and running is None else ""
    return Session(
        mode=modes.current().label,
        figures=(
            units.count(t.cells, "cell"),
            units.seconds(t.seconds),
            units.count(t.compiles, "compile"),
            f"compile {units.seconds(t.compile_seconds)}",
            rate,
            units.count(t.runs, "run"),
            units.count(t.syncs, "sync"),
            f"HBM {units.nbytes(hbm.usage.live)}, peak {units.nbytes(t.hbm_peak)}{limit}",
        ),
        running=() if running is None else (running.mode, *running.phrases()),
        cells=tuple(history),
    )


def chart(cells: Sequence[CellFigures]) -> str:
    """Draw the last cells as two rows of columns, time above HBM peak, and return the picture's `data:` address."""
    shown = cells[-_CHARTED:]
    longest = max((c.seconds for c in shown), default=0.0) or 1.0
    highest = max((c.hbm_peak for c in shown), default=0) or 1
    columns = []
    for k, c in enumerate(shown):
        time, compile, peak = (34 * share for share in (c.seconds / longest, c.compile_seconds / longest, c.hbm_peak / highest))
        for y, height, colour in (
            (34 - time, time, bar.COLOURS["the rest"]),
            (34 - min(compile, time), min(compile, time), bar.COLOURS["compile"]),
            (72 - peak, peak, bar.COLOURS["run"]),
        ):
            columns.append(f'<rect x="{10 * k}" y="{y:.1f}" width="8" height="{height:.1f}" fill="{colour}"/>')
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {10 * _CHARTED} 72" preserveAspectRatio="none">'
        f"{''.join(columns)}</svg>"
    )
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def _row(c: CellFigures) -> tuple[str, ...]:
    return (
        f"{c.cell} failed" if c.failed else c.cell,
        c.mode,
        units.seconds(c.seconds),
        units.seconds(c.compile_seconds),
        f"{c.compiles:,}",
        f"{c.cache_hits / c.runs:.0%}" if c.runs else "",
        f"{c.runs:,}",
        f"{c.syncs:,}",
        units.nbytes(c.hbm_peak),
        units.nbytes(c.hbm_live),
    )
