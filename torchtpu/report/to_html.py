"""Reports as static HTML for notebooks.

Only what an untrusted notebook keeps: `<details>`, tables, `style=` attributes and `<img src="data:...">`; no style
sheets, scripts, inline SVG or iframes. Colours are inherited or see-through, so that light and dark themes both work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from torchtpu.report import bar, chart, units
from torchtpu.report.chart import Chart, Picture
from torchtpu.report.report import Report
from torchtpu.report.sections import Cell, Fold, Place, Prose, Section, headline, sections, times, warnings
from torchtpu.report.table import BOX, LINE, PHRASE, QUIET, WARNING

_CODE = "font-family:monospace;font-size:12px"
# JupyterLab, nbconvert and VS Code style `td`, `th` and `tr` of outputs (zebra rows, right-aligned text): undone here.
_TABLE = "border-collapse:collapse;border:none;margin:2px 0 8px 0;font-size:13px;color:inherit"
_ROW = f"background:none;border-top:1px solid {LINE}"
_TD = "padding:3px 14px 3px 0;vertical-align:top;text-align:"
_TH = "padding:3px 14px 3px 0;font-weight:normal;opacity:0.7;vertical-align:bottom;white-space:nowrap;text-align:"


def to_html(report: Report) -> str:
    """Draw a report as one HTML fragment."""
    return (
        f'<div style="{BOX}">{_head(report)}{_time(report)}'
        f"{''.join(map(warning_html, warnings(report)))}{''.join(map(folded, sections(report)))}</div>"
    )


def page(report: Report) -> str:
    """Draw a report as a whole HTML page, for a file."""
    return whole(f"torchtpu report: {report.mode}", to_html(report))


def whole(title: str, fragment: str) -> str:
    """Return a page around an HTML fragment."""
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)}</title></head>"
        f'<body style="font-family:system-ui,sans-serif;margin:16px">{fragment}</body></html>\n'
    )


def _head(report: Report) -> str:
    # The spaces between the phrases are where the line may break.
    figures = " ".join(f'<span style="{PHRASE}">{escape(figure)}</span>' for figure in headline(report))
    return f'<div><b style="{PHRASE}">{escape(report.mode)}</b> {figures} <span style="{QUIET}">measured</span></div>'


def _time(report: Report) -> str:
    return time_bar(times(report), f"of {units.seconds(report.seconds.elapsed)} elapsed, measured")


def time_bar(seconds: Sequence[tuple[str, float]], whole: str, colours: Mapping[str, str] = bar.COLOURS) -> str:
    """Draw parts of a time as a bar with its legend.

    Args:
        seconds: each part by the name of its colour.
        whole: what they are parts of, in words.
    """
    parts = [(name, s) for name, s in seconds if s > 0]
    if not parts:
        return ""
    shown = [f"{name} {units.seconds(s)}" for name, s in parts]
    # The picture is stretched; its height is given twice because some sanitizers drop one of the two.
    style = "display:block;width:100%;height:8px;max-width:none;margin:6px 0 4px 0"
    picture = f'<img alt="{escape(", ".join(shown))}" src="{bar.picture(parts, colours)}" height="8" style="{style}">'
    legend = " ".join(
        f'<span style="{PHRASE}"><span style="color:{colours[name]}">&#9632;</span> {escape(text)}</span>'
        for (name, _), text in zip(parts, shown, strict=True)
    )
    elapsed = f'<span style="white-space:nowrap;{QUIET}">{escape(whole)}</span>'
    return f'{picture}<div style="margin-bottom:4px">{legend} {elapsed}</div>'


def warning_html(warning: tuple[str, Place | None]) -> str:
    """Draw a sentence that deserves attention, and the line that is its subject."""
    sentence, place = warning
    where = f"{_cell(place)} " if place and place.where else ""
    return f'<div style="{WARNING}">{where}{escape(sentence)}</div>'


def section_html(section: Section) -> str:
    """Draw one section, open, as an HTML fragment."""
    return f'<div style="{BOX}">{folded(section, "open ")}</div>'


def folded(section: Section, state: str = "") -> str:
    """Draw one section under its title. `state`: attributes of its `<details>`, with a space behind them."""
    head = "".join(f'<th style="{_TH}{_align(c.figure)}">{escape(c.title)}</th>' for c in section.columns)
    rows = "".join(
        f'<tr style="{_ROW}">' + "".join(_data(cell, c.figure) for cell, c in zip(row, section.columns, strict=True)) + "</tr>"
        for row in section.rows
    )
    table = (
        f'<table style="{_TABLE}"><thead><tr style="background:none">{head}</tr></thead><tbody>{rows}</tbody></table>'
        if section.rows
        else ""
    )
    more = f'<div style="{QUIET}">{escape(section.more)}</div>' if section.more else ""
    if section.listing:
        more += f'<div style="{_CODE};white-space:pre;margin-bottom:8px">{escape(chr(10).join(section.listing))}</div>'
    return (
        f'<details {state}style="margin:0"><summary style="cursor:pointer;padding:2px 0">{escape(section.title)} '
        f'<span style="{QUIET}">{escape(section.note)}</span></summary>'
        f'<div style="overflow-x:auto;padding-left:16px">{_chart(section.chart)}{table}{more}</div></details>'
    )


def _chart(drawn: Chart | Picture | None) -> str:
    if drawn is None:
        return ""
    if isinstance(drawn, Picture):
        source, height, alt, size = chart.address(drawn.svg), drawn.height, drawn.alt, "height:auto;max-width:100%"
    else:
        source, height, alt, size = chart.picture(drawn), 72, "", "width:100%;height:72px;max-width:760px"
    style = f"display:block;{size};margin:4px 0 2px 0"
    return (
        f'<img alt="{escape(alt)}" src="{source}" height="{height}" style="{style}">'
        f'<div style="{QUIET};margin-bottom:6px">{escape(drawn.caption)}</div>'
    )


def _align(figure: bool) -> str:
    return "right" if figure else "left"


def _data(cell: Cell, figure: bool) -> str:
    wrap = ";white-space:nowrap" if figure else ""
    return f'<td style="{_TD}{_align(figure)}{wrap}">{_cell(cell)}</td>'


def _cell(cell: Cell) -> str:
    match cell:
        case Place(where, source):
            code = f' <span style="{_CODE}">{escape(source)}</span>' if source else ""
            return f'<span style="white-space:nowrap">{escape(where)}</span>{code}' if where else ""
        case Fold(text, details):
            lines = "".join(f"<div>{escape(line)}</div>" for line in details)
            return (
                f'<details style="margin:0"><summary style="cursor:pointer;white-space:nowrap;{_CODE}">{escape(text)}</summary>'
                f'<div style="{_CODE};padding-left:16px;min-width:280px">{lines}</div></details>'
            )
        case Prose(text):
            return escape(text)
        case _:
            return escape(cell)
