"""Programs compiled for chips, arranged for reading: the chips side by side, and each program on each of them."""

from __future__ import annotations

from collections.abc import Sequence

from torchtpu.report import units
from torchtpu.report.sections import Cell, Column, Fold, Place, Section, one_line, place
from torchtpu.report.targets import TargetRow

_ROWS = 12
_NAME = 40


def tables(rows: Sequence[TargetRow]) -> list[Section]:
    """Return the tables for what a cell ran: the chips if there are several, and the programs."""
    several = len({r.chip for r in rows}) > 1
    return [*([chips_table(rows)] if several else []), programs_table(rows)]


def chips_table(rows: Sequence[TargetRow]) -> Section:
    """Compare the chips."""
    chips = {r.chip: [s for s in rows if s.chip == r.chip] for r in rows}
    return Section(
        f"On {units.count(len(chips), 'chip')}: {_verdict(rows)}",
        _note(rows),
        (
            Column("chip"),
            Column("fits"),
            Column("largest program"),
            Column("HBM peak", True),
            Column("of", True),
            Column("share", True),
            Column("roofline", True),
            Column("compile", True),
        ),
        tuple(_chip_row(chip, group) for chip, group in chips.items()),
    )


def programs_table(rows: Sequence[TargetRow]) -> Section:
    """List the programs, those that do not fit first, then by their peak."""
    ordered = sorted(rows, key=lambda r: (r.fits, not r.refused, -r.peak))
    shown, rest = ordered[:_ROWS], ordered[_ROWS:]
    more = ""
    if rest:
        more = f"{units.count(len(rest), 'more row')}, {_verdict(rest)}, at most {units.nbytes(max(r.peak for r in rest))}"
    chips = list(dict.fromkeys(r.chip for r in rows))
    held = any(r.held for r in rows)
    columns = (
        Column("program"),
        Column("line"),
        *((Column("chip"),) if len(chips) > 1 else ()),
        Column("fits"),
        Column("HBM peak", True),
        Column("args", True),
        Column("new outputs", True),
        Column("temp", True),
        Column("code", True),
        *((Column("held", True),) if held else ()),
        Column("roofline", True),
        Column("compile", True),
    )
    return Section(
        f"Compiled for {', '.join(chips)}: {_verdict(rows)}",
        _note(rows),
        columns,
        tuple(_program_row(r, len(chips) > 1, held) for r in shown),
        more,
    )


def _chip_row(chip: str, rows: Sequence[TargetRow]) -> tuple[Cell, ...]:
    largest = max(rows, key=lambda r: r.peak)
    limit = largest.limit
    fit = sum(r.fits for r in rows)
    return (
        chip,
        "yes" if fit == len(rows) else f"no: {fit} of {len(rows)}",
        _name(largest),
        units.nbytes(largest.peak),
        units.nbytes(limit),
        f"{largest.peak / limit:.0%}" if limit else "",
        units.seconds(sum(r.roofline * r.runs for r in rows)),
        units.seconds(sum(r.seconds for r in rows)),
    )


def _program_row(r: TargetRow, several: bool, held: bool) -> tuple[Cell, ...]:
    """Return the cells for a program; `several` chips have a column for theirs, and so has what is `held`."""
    chip = (r.chip,) if several else ()
    if r.refused:
        fits: Cell = Fold("refused", (r.reason,))
        figures = ("",) * (7 if held else 6)
    else:
        fits = "yes" if r.fits else Fold("no", (r.reason or f"more than {units.nbytes(r.limit)}",))
        new = r.output_bytes - r.alias_bytes
        sizes = (r.peak, r.argument_bytes, new, r.temp_bytes, r.code_bytes, *((r.held,) if held else ()))
        figures = (*map(units.nbytes, sizes), f"{units.seconds(r.roofline)} {r.bound}")
    return (_name(r), Place(place(r.line).where), *chip, fits, *figures, units.seconds(r.seconds))


def _name(r: TargetRow) -> str:
    # The number of a fused program tells it from others; programs of one op share a name.
    name = r.program if "#" in r.program else f"{r.program} {', '.join(r.outputs)}"
    return one_line(name.removeprefix("aten_"), _NAME)


def _verdict(rows: Sequence[TargetRow]) -> str:
    bad = sum(not r.fits for r in rows)
    if not bad:
        return "all fit" if len(rows) > 1 else "it fits"
    return f"{bad} of {units.count(len(rows), 'program')} {'does' if bad == 1 else 'do'} not fit"


def _note(rows: Sequence[TargetRow]) -> str:
    compilers = ", ".join(dict.fromkeys(f"{r.compiler}, effort {r.effort}" for r in rows if r.compiler))
    return f"memory compiled ({compilers or 'refused'}), held and compile measured, roofline modelled"
