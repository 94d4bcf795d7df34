"""The account of device memory arranged for reading: whose it was at the peak, in which buffers, and who holds the rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchtpu.report import units
from torchtpu.report.chart import Chart
from torchtpu.report.rows import BufferRow, HoldingRow
from torchtpu.report.sections import Column, Section, one_line, place

if TYPE_CHECKING:
    from torchtpu.report.report import Report

_ROWS = 10
_LINES = 15
_NAME = 60


def peak(report: Report) -> Section:
    """Whose the bytes at the peak were, and the way there."""
    rows = report.hbm_peak_owners
    shown, rest = rows[:_ROWS], rows[_ROWS:]
    share = report.hbm_peak / report.hbm_limit if report.hbm_limit else 0.0
    of_limit = f", {share:.1%} of {units.nbytes(report.hbm_limit)}" if share >= 0.001 else ""
    return Section(
        f"HBM at the peak: {units.nbytes(report.hbm_peak)}{of_limit}",
        f"whose it was; measured, temporaries compiled ({report.compiler})",
        (Column("owner"), Column("buffers", True), Column("bytes", True), Column("share", True)),
        tuple(
            (one_line(r.owner, _NAME), f"{r.count:,}", units.nbytes(r.nbytes), _share(r.nbytes, report.hbm_peak)) for r in shown
        ),
        _more("owner", len(rest), sum(r.nbytes for r in rest)),
        _listing(report),
        _chart(report) if rows else None,
    )


def _chart(report: Report) -> Chart | None:
    if not report.hbm_timeline:
        return None
    elapsed = report.hbm_span * len(report.hbm_timeline)
    caption = (
        f"HBM in use over {units.seconds(elapsed)}, scale 0 to {units.nbytes(max(report.hbm_timeline))}, "
        f"peak after {units.seconds(report.hbm_peak_at)}; measured, temporaries compiled"
    )
    return Chart(report.hbm_timeline, caption, report.hbm_limit)


def _listing(report: Report) -> tuple[str, ...]:
    """Return the buffers at the peak, a line of text each, with what they were for and the lines that made them."""
    rows = report.hbm_peak_buffers[:_LINES]
    whats = [one_line(f"{b.count:,} x {b.what}" if b.count > 1 else b.what, _NAME) for b in rows]
    owners = [_held_by(b) for b in rows]
    width, wide = (max(map(len, texts), default=0) for texts in (whats, owners))
    text = [
        f"{units.nbytes(b.nbytes):>10}  {what:<{width}}  {owner:<{wide}}  {_made_by(b)}".rstrip()
        for b, what, owner in zip(rows, whats, owners, strict=True)
    ]
    rest = report.hbm_peak_buffers[_LINES:]
    if rest:
        text.append(
            f"{units.nbytes(sum(b.nbytes for b in rest)):>10}  {units.count(sum(b.count for b in rest), 'more buffer')}"
        )
    return ("The buffers, and the lines that made them:", *text) if text else ()


def live(report: Report) -> Section:
    """Who holds what is left at the end, and how to free it."""
    change = report.hbm_live - report.hbm_before
    sign = "+" if change >= 0 else "-"
    title = f"HBM at the end: {units.nbytes(report.hbm_live)} ({sign}{units.nbytes(abs(change))})"
    return held(title, report.hbm_holdings)


def held(title: str, rows: Sequence[HoldingRow]) -> Section:
    """Return a table of who holds memory, and how to free it."""
    return Section(
        title,
        "who holds it, and what frees it; measured",
        (
            Column("held by"),
            Column("what"),
            Column("made by"),
            Column("count", True),
            Column("bytes", True),
            Column("frees it"),
        ),
        tuple(
            (holder(r), one_line(r.what), place(r.line), f"{r.count:,}", units.nbytes(r.nbytes), one_line(r.free, _NAME))
            for r in rows[:_ROWS]
        ),
        _more("holder", len(rows[_ROWS:]), sum(r.nbytes for r in rows[_ROWS:])),
    )


def holder(row: HoldingRow) -> str:
    """Say who holds a row's buffers, and what they are to it."""
    if not row.name:
        return "nothing with a name"
    also = f" (also {', '.join(row.also)})" if row.also else ""
    kind = "" if row.kind in ("variable", "output", "traceback", "autograd", "") else f": {row.kind}s"
    kind = kind.replace("states", "state").removesuffix(": pending graphs")
    return one_line(f"{row.name}{kind}{also}", 2 * _NAME)


def _held_by(row: BufferRow) -> str:
    if not row.held_by or row.owner.endswith(row.held_by):
        return one_line(row.owner, _NAME)
    return one_line(f"{row.owner}: {row.held_by}", _NAME)


def _made_by(row: BufferRow) -> str:
    if row.line is None:
        return "before the watch" if row.earlier else ""
    at = place(row.line)
    return one_line(f"{at.where}: {at.source}", 2 * _NAME)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else ""


def _more(one: str, count: int, nbytes: int) -> str:
    return f"{units.count(count, f'more {one}')}, {units.nbytes(nbytes)} together" if count else ""
