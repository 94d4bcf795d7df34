"""What the `%%tpu_mode` cells of a session did: a few figures each, without their reports."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torchtpu.report import Report

_KEPT = 500  # cells; totals go on


@dataclass(frozen=True, slots=True)
class CellFigures:
    """What one cell did. Seconds and bytes, all measured (the temporaries in `hbm_peak` are compiled).

    Attributes:
        cell: `In[7]`.
        failed: an exception ended it.
    """

    cell: str
    mode: str
    seconds: float
    compiles: int
    compile_seconds: float
    cache_hits: int
    runs: int
    syncs: int
    hbm_peak: int
    hbm_live: int
    failed: bool

    @classmethod
    def of(cls, cell: str, report: Report) -> CellFigures:
        """Take what is kept of a cell's report."""
        return cls(
            cell=cell,
            mode=report.mode,
            seconds=report.seconds.elapsed,
            compiles=report.compiles,
            compile_seconds=report.seconds.compile,
            cache_hits=report.cache_hits,
            runs=report.runs,
            syncs=len(report.syncs),
            hbm_peak=report.hbm_peak,
            hbm_live=report.hbm_live,
            failed=bool(report.error),
        )


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over cells; `hbm_peak` is the highest."""

    cells: int = 0
    seconds: float = 0.0
    compiles: int = 0
    compile_seconds: float = 0.0
    cache_hits: int = 0
    runs: int = 0
    syncs: int = 0
    hbm_peak: int = 0

    @property
    def hit_rate(self) -> float | None:
        """The share of runs that found their program compiled; None before the first run."""
        return self.cache_hits / self.runs if self.runs else None

    def plus(self, cell: CellFigures) -> Totals:
        """Return the totals with one cell more."""
        return Totals(
            self.cells + 1,
            self.seconds + cell.seconds,
            self.compiles + cell.compiles,
            self.compile_seconds + cell.compile_seconds,
            self.cache_hits + cell.cache_hits,
            self.runs + cell.runs,
            self.syncs + cell.syncs,
            max(self.hbm_peak, cell.hbm_peak),
        )


class History(Iterable[CellFigures]):
    """The last cells of a session, oldest first, and the totals of all of them."""

    def __init__(self) -> None:
        self._cells: deque[CellFigures] = deque(maxlen=_KEPT)
        self.totals = Totals()

    def add(self, cell: CellFigures) -> None:
        """Append a cell."""
        self._cells.append(cell)
        self.totals = self.totals.plus(cell)

    def __iter__(self) -> Iterator[CellFigures]:
        return iter(tuple(self._cells))

    def __len__(self) -> int:
        return len(self._cells)
