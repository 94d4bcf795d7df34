"""Rows of two profiles in pairs: the same op, program or cause in both, or in one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from torchtpu.lines import Line


@dataclass(frozen=True, slots=True)
class Delta:
    """Something that took time in both profiles, or in one of them.

    Attributes:
        what: an op, a program, a kind of kernel, a cause.
        line: of the later profile, if it is in both; `was` has the earlier one where its text is another.
        module, backward: of an op.
        before, after: seconds; None where it does not occur.
        calls: how often, in both.
    """

    what: str
    line: Line | None
    was: Line | None
    module: str
    backward: bool
    before: float | None
    after: float | None
    calls: tuple[int, int]

    @property
    def seconds(self) -> float:
        """Seconds that the later profile takes longer."""
        return (self.after or 0.0) - (self.before or 0.0)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of one profile, as it is compared."""

    what: str
    line: Line | None
    module: str
    backward: bool
    seconds: float
    calls: int


def summed(rows: Iterable[tuple[str, Line | None, float, int]]) -> list[Row]:
    """Sum rows of the same thing on the same line: (what, line, seconds, how often)."""
    found: dict[tuple[str, Line | None], tuple[float, int]] = {}
    for what, line, seconds, count in rows:
        before = found.get((what, line), (0.0, 0))
        found[what, line] = before[0] + seconds, before[1] + count
    return [Row(what, line, "", False, seconds, count) for (what, line), (seconds, count) in found.items()]


def what(row: Row) -> object:
    """Key of rows that are the same wherever they are."""
    return row.what


def line_and_number(row: Row) -> object:
    """Key of rows of a line that has neither changed nor moved."""
    return row.what, row.module, row.backward, row.line and (row.line.source, row.line.number)


def line_text(row: Row) -> object:
    """Key of rows of a line that has not changed."""
    # Lines whose text is not known are not all the same.
    return row.what, row.module, row.backward, row.line and (row.line.source or row.line.number)


def line_number(row: Row) -> object:
    """Key of rows of a line that has not moved."""
    return row.what, row.module, row.backward, row.line and (row.line.function, row.line.number)


def deltas(before: Sequence[Row], after: Sequence[Row], keys: Sequence[Callable[[Row], object]]) -> tuple[Delta, ...]:
    """Pair rows by the first key that they share, and return them by their difference."""
    pairs: list[tuple[Row | None, Row | None]] = []
    left, right = list(before), list(after)
    for key in keys:
        found: dict[object, list[Row]] = {}
        for row in right:
            found.setdefault(key(row), []).append(row)
        unpaired = []
        for row in left:
            same = found.get(key(row))
            if same:
                pairs.append((row, same.pop(0)))
            else:
                unpaired.append(row)
        left, right = unpaired, [row for rows in found.values() for row in rows]
    pairs += [(row, None) for row in left] + [(None, row) for row in right]
    return tuple(sorted((_delta(*pair) for pair in pairs), key=lambda d: -abs(d.seconds)))


def _delta(before: Row | None, after: Row | None) -> Delta:
    shown = after or before
    assert shown is not None  # a pair has one of the two
    was = before.line if before and after and before.line and after.line else None
    return Delta(
        shown.what,
        shown.line,
        was if was and shown.line and was.source != shown.line.source else None,
        shown.module,
        shown.backward,
        before.seconds if before else None,
        after.seconds if after else None,
        (before.calls if before else 0, after.calls if after else 0),
    )
