"""Reports as plain text. rich is imported here, when a report is shown, and never by `import torchtpu`."""

from __future__ import annotations

from io import StringIO
from typing import Any

from torchtpu.report import units
from torchtpu.report.report import Report
from torchtpu.report.sections import Cell, Fold, Place, Section, headline, sections, times, warnings


def to_text(report: Report, width: int) -> str:
    """Draw a report, `width` columns wide, without colours."""
    from rich.console import Console
    from rich.text import Text

    out = StringIO()
    # In a kernel, rich would display what it prints by itself, beside the text that is returned.
    console = Console(file=out, width=width, color_system=None, legacy_windows=False, force_jupyter=False)
    console.print(Text(f"torchtpu {report.mode}: {', '.join(headline(report))} (measured)"))
    shown = ", ".join(f"{name} {units.seconds(s)}" for name, s in times(report) if s > 0)
    console.print(Text(f"elapsed {units.seconds(report.seconds.elapsed)} (measured): {shown}"))
    for sentence, place in warnings(report):
        console.print(Text(f"! {f'{place.where} ' if place and place.where else ''}{sentence}"))
    for section in sections(report):
        console.print()
        console.print(Text(f"{section.title}  [{section.note}]"))
        console.print(_table(section))
        if section.more:
            console.print(Text(f"  {section.more}"))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _table(section: Section) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1))
    for column in section.columns:
        # Figures are never cut; the words beside them give way.
        table.add_column(column.title, justify="right" if column.figure else "left", no_wrap=column.figure)
    for row in section.rows:
        table.add_row(*(Text(_cell(cell), no_wrap=True, overflow="ellipsis") for cell in row))
    return table


def _cell(cell: Cell) -> str:
    match cell:
        case Place(where, source):
            return f"{where}: {source}" if source else where
        case Fold(text):
            return text
        case _:
            return cell
