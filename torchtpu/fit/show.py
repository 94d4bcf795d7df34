"""`Fit` as text and as HTML: for each chip an answer in a sentence, a picture, and the table."""

from __future__ import annotations

from html import escape

from torchtpu.fit import picture
from torchtpu.fit.result import Answer, Fit
from torchtpu.report import units
from torchtpu.report.table import BOX, PHRASE, QUIET, WARNING, Table

_LABEL = "memory compiled ({}, effort {}); every size was compiled, none estimated"


def to_text(fit: Fit) -> str:
    """Draw a fit as plain text."""
    parts = [f"torchtpu fit: {fit.step}, {fit.vary} varied; {_label(fit)}"]
    chips = _chips(fit)
    if len(chips) > 1:
        parts += ["", _compared(fit, chips).to_text()]
    for answers in chips:
        parts += ["", _sentence(fit, answers), _table(fit, answers).to_text(), *_details(answers)]
        parts += [f"! {r}" for r in _remarks(answers)]
    return "\n".join(parts)


def to_html(fit: Fit) -> str:
    """Draw a fit with what an untrusted notebook keeps."""
    head = f'<b style="{PHRASE}">does it fit?</b> {escape(f"{fit.step}, {fit.vary} varied")}'
    parts = [f'<div>{head} <span style="{QUIET}">{escape(_label(fit))}</span></div>']
    chips = _chips(fit)
    if len(chips) > 1:
        parts.append(_compared(fit, chips).to_html())
    for k, answers in enumerate(chips):
        parts.append(
            f'<details {"" if k else "open "}style="margin-top:8px"><summary style="cursor:pointer">'
            f"{escape(_sentence(fit, answers))}</summary>{_chip(fit, answers)}</details>"
        )
    return f'<div style="{BOX}">{"".join(parts)}</div>'


def _chip(fit: Fit, answers: list[Answer]) -> str:
    rows = [r for r in fit.rows if r.chip == answers[0].chip]
    parts = []
    if any(r.hbm_peak for r in rows):
        # The height is given twice because some sanitizers drop one of the two.
        style = f"display:block;width:{picture.WIDTH}px;height:{picture.HEIGHT}px;max-width:100%;margin:4px 0"
        source = picture.picture(answers, rows, fit.vary)
        parts.append(f'<img alt="" src="{source}" height="{picture.HEIGHT}" style="{style}"><div>{_legend(answers)}</div>')
    parts.append(_table(fit, answers).to_html())
    parts += [f'<div style="{QUIET}">{escape(d)}</div>' for d in _details(answers)]
    parts += [f'<div style="{WARNING}">{escape(r)}</div>' for r in _remarks(answers)]
    return "".join(parts) + _tried(fit, answers[0].chip)


def _label(fit: Fit) -> str:
    return _LABEL.format(fit.compiler or "libtpu", fit.effort)


def _chips(fit: Fit) -> list[list[Answer]]:
    return [[a for a in fit.answers if a.chip == chip] for chip in dict.fromkeys(a.chip for a in fit.answers)]


def _compared(fit: Fit, chips: list[list[Answer]]) -> Table:
    """The chips side by side: the largest size with each change."""
    changes = list(dict.fromkeys(a.change for answers in chips for a in answers))
    rows = []
    for answers in chips:
        found = {a.change: _largest(a) for a in answers}
        rows.append((answers[0].chip, units.nbytes(answers[0].limit), *(found.get(change, "") for change in changes)))
    return Table(("chip", "HBM", *(f"largest {fit.vary}, {change}" for change in changes)), tuple(rows))


def _largest(a: Answer) -> str:
    if a.error:
        return "failed"
    return f"{a.largest:,}{'' if a.refused else ' or more'}" if a.largest else "none"


def _sentence(fit: Fit, answers: list[Answer]) -> str:
    first = answers[0]
    limit = units.nbytes(first.limit)
    if first.error:
        return f"{first.chip}, {limit}: {first.change} nothing could be tried"
    if not first.largest and not first.refused:
        return f"{first.chip}, {limit}: nothing was compiled"
    if not first.largest:
        needs = fit.peak(first.refused, first.chip, first.change)
        needed = f": it needs {units.nbytes(needs)}" if needs else ""
        return f"{first.chip}, {limit}: {fit.vary} {first.refused:,} does not fit{needed}"
    peak = units.nbytes(fit.peak(first.largest, first.chip, first.change) or 0)
    if not first.refused:
        return f"{first.chip}, {limit}: {fit.vary} {first.largest:,} fits, with a peak of {peak}; no larger one was tried"
    best = max(answers, key=lambda a: a.largest)
    more = f"; with {best.change}, {best.largest:,} does" if best.largest > first.largest else ""
    return (
        f"{first.chip}, {limit}: the largest {fit.vary} that fits is {first.largest:,}, with a peak of {peak}; "
        f"{first.refused:,} does not fit{more}"
    )


def _table(fit: Fit, answers: list[Answer]) -> Table:
    # All changes at one size, where it was tried with each: what they save.
    first = answers[0]
    common = first.largest or first.refused
    titles = ("step", f"largest {fit.vary}", "HBM peak", "does not fit", "HBM peak ", f"peak at {common:,}")
    return Table(titles, tuple(_row(fit, a, common) for a in answers))


def _row(fit: Fit, a: Answer, common: int) -> tuple[str, ...]:
    def peak(size: int) -> str:
        found = fit.peak(size, a.chip, a.change) if size else None
        return units.nbytes(found) if found else ""

    refused = f"{a.refused:,}" if a.refused else ""
    return (a.change, _largest(a), peak(a.largest), refused, peak(a.refused), peak(common))


def _details(answers: list[Answer]) -> list[str]:
    return [f"{a.change}: {a.detail}" for a in answers if a.detail]


def _remarks(answers: list[Answer]) -> list[str]:
    return [f"{a.change}: {a.error}" for a in answers if a.error]


def _legend(answers: list[Answer]) -> str:
    squares = [
        f'<span style="{PHRASE}"><span style="color:{colour}">&#9632;</span> {escape(a.change)}</span>'
        for colour, a in zip(picture.COLOURS, answers, strict=False)
        if not a.error
    ]
    return " ".join([*squares, f'<span style="{QUIET}">HBM peak; a hollow dot does not fit</span>'])


def _tried(fit: Fit, chip: str) -> str:
    rows = [r for r in fit.rows if r.chip == chip]
    if not rows:
        return ""
    seconds = units.seconds(sum(r.seconds for r in rows if not r.from_disk))
    table = Table(
        ("step", fit.vary, "fits", "HBM peak", "compile"),
        tuple(
            (
                r.change,
                f"{r.size:,}",
                "yes" if r.fits else "no",
                units.nbytes(r.hbm_peak) if r.hbm_peak else "",
                f"{units.seconds(r.seconds)}{', from disk' if r.from_disk else ''}",
            )
            for r in rows
        ),
    )
    title = f"What was tried: {units.count(len(rows), 'program')}, {seconds} of compiling (measured)"
    return f'<details><summary style="cursor:pointer">{escape(title)}</summary>{table.to_html()}</details>'
