"""What the tables of a profile have in common: how figures, lines and their sources are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torchtpu.lines import Line
from torchtpu.profiler.rows import IdleRow, KernelTime, OpTime, ProgramTime, StepRow
from torchtpu.report import units
from torchtpu.report.rows import MEASURED, MODELLED
from torchtpu.report.sections import Place, place

if TYPE_CHECKING:
    from torchtpu.profiler.result import Profile

NAME = 44  # characters of a name
NOTHING_RAN = "The device ran nothing between the start and the end of the capture."


def device_label(profile: Profile) -> str:
    """Say where the times of the device come from."""
    return MODELLED if profile.modelled else MEASURED


def share(part: float, whole: float) -> str:
    """`12%`, `0.3%`; empty for nothing."""
    if not (part > 0 and whole > 0):
        return ""
    percent = 100 * part / whole
    return f"{percent:.0f}%" if percent >= 9.95 else f"{percent:.1f}%" if percent >= 0.05 else "<0.1%"


def figure(value: float) -> str:
    """Three digits or more, without an exponent: `1,234`, `12.3`, `0.012`; empty for nothing."""
    if value <= 0:
        return ""
    if value < 0.0005:
        return "<0.001"
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f}"


def rate(amount: float, seconds: float) -> str:
    """Thousand millions a second."""
    return figure(amount / seconds / 1e9) if seconds > 0 else ""


def at(line: Line | None, backward: bool) -> Place:
    """A row's line; that of a backward op is the line of its forward op."""
    shown = place(line)
    marked = backward and bool(shown.where) and not (line and line.backward)
    return Place(f"{shown.where} (backward)", shown.source) if marked else shown


def short(op: str) -> str:
    """An op without `aten::`."""
    return op.removeprefix("aten::")


def module(path: str) -> str:
    """The path of a module; of a long one its end, which tells it from its neighbours."""
    return path if len(path) <= NAME else f"\u2026{path[1 - NAME :]}"


def more(rest: Sequence[StepRow | IdleRow | OpTime | ProgramTime | KernelTime], one: str) -> str:
    """What is left out: how many, and their time."""
    if not rest:
        return ""
    return f"{units.count(len(rest), f'more {one}')}, {units.seconds(sum(r.seconds for r in rest))} together"


def compiled_label(profile: Profile) -> str:
    """Say where FLOP, bytes moved and temporaries come from."""
    return f"compiled ({profile.compiler})"
