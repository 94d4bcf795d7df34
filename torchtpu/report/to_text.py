"""Reports as plain text. rich is imported here, when a report is shown, and never by `import torchtpu`."""

from __future__ import annotations

from io import StringIO
from typing import Any

from torchtpu.report import units
from torchtpu.report.chart import Picture, blocks
from torchtpu.report.report import Report
from torchtpu.report.sections import Cell, Fold, Place, Prose, Section, headline, sections, times, warnings

_LISTED = 41  # lines
_BLOCKS = 80


def to_text(report: Report, width: int) -> str:
    """Draw a report, `width` columns wide, without colours."""
    from rich.text import Text

    console = _console(width)
    console.print(Text(f"torchtpu {report.mode}: {', '.join(headline(report))} (measured)"))
    shown = ", ".join(f"{name} {units.seconds(s)}" for name, s in times(report) if s > 0)
    console.print(Text(f"elapsed {units.seconds(report.seconds.elapsed)} (measured): {shown}"))
    for sentence, place in warnings(report):
        console.print(Text(f"! {f'{place.where} ' if place and place.where else ''}{sentence}"))
    for section in sections(report):
        console.print()
        _print(console, section)
    return _printed(console)


def section_text(section: Section, width: int) -> str:
    """Draw one section, `width` columns wide."""
    console = _console(width)
    _print(console, section)
    return _printed(console)


def _console(width: int) -> Any:
    from rich.console import Console

    # In a kernel, rich would display what it prints by itself, beside the text that is returned.
    return Console(file=StringIO(), width=width, color_system=None, legacy_windows=False, force_jupyter=False)


def _printed(console: Any) -> str:
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def _print(console: Any, section: Section) -> None:
    from rich.padding import Padding
    from rich.text import Text

    width, indented = console.width, (0, 0, 0, 2)
    console.print(Text(f"{section.title}  [{section.note}]"))
    if isinstance(section.chart, Picture):
        for line in (*section.chart.lines, section.chart.caption):
            console.print(Padding(Text(line), indented))
    elif section.chart is not None:
        console.print(Text(f"  {blocks(section.chart.values, min(width - 2, _BLOCKS))}"))
        console.print(Padding(Text(section.chart.caption), indented))
    if section.rows:
        console.print(_table(section))
    if section.more:
        console.print(Padding(Text(section.more), indented))
    for line in section.listing[:_LISTED]:
        console.print(Text(units.cut(line, width)))


def _table(section: Section) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    for column in section.columns:
        # Figures are never cut; the words beside them give way.
        table.add_column(column.title, justify="right" if column.figure else "left", no_wrap=column.figure)
    for row in section.rows:
        table.add_row(*(Text(_cell(c), no_wrap=not isinstance(c, Prose), overflow="ellipsis") for c in row))
    return table


def _cell(cell: Cell) -> str:
    match cell:
        case Place(where, source):
            return f"{where}: {source}" if source else where
        case Fold(text) | Prose(text):
            return text
        case _:
            return cell
