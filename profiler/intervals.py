"""Sets of time: what is covered, and what is left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np


class Intervals:
    """Disjoint intervals in order, in seconds."""

    __slots__ = ("starts", "ends", "_sums")

    def __init__(self, pairs: Iterable[tuple[float, float]]) -> None:
        """Join intervals that may be in any order and overlap; those without length are left out."""
        table = np.array([p for p in pairs if p[1] > p[0]], dtype=float).reshape(-1, 2)
        table = table[np.argsort(table[:, 0], kind="stable")]
        reach = np.maximum.accumulate(table[:, 1]) if len(table) else table[:, 1]
        first = np.ones(len(table), dtype=bool)
        first[1:] = table[1:, 0] > reach[:-1]
        last = np.append(first[1:], True) if len(table) else first
        self.starts, self.ends = table[first, 0], reach[last]
        self._sums = np.concatenate(([0.0], np.cumsum(self.ends - self.starts)))

    def __iter__(self) -> Iterator[tuple[float, float]]:
        return zip(self.starts.tolist(), self.ends.tolist(), strict=True)

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def seconds(self) -> float:
        """Their length together."""
        return float(self._sums[-1])

    def within(self, start: float, end: float) -> float:
        """Return how much of a span they cover."""
        return self._until(end) - self._until(start) if end > start else 0.0

    def _until(self, at: float) -> float:
        k = int(np.searchsorted(self.starts, at))
        if k == 0:
            return 0.0
        return float(self._sums[k] - max(0.0, self.ends[k - 1] - at))

    def gaps(self, start: float, end: float) -> Intervals:
        """Return what they leave of a span."""
        edges = [start, *(at for pair in self for at in pair), end]
        return Intervals((max(a, start), min(b, end)) for a, b in zip(edges[::2], edges[1::2], strict=True))

    def without(self, other: Intervals) -> Intervals:
        """Return what the other does not cover."""
        found = []
        for start, end in self:
            first = int(np.searchsorted(other.ends, start, side="right"))
            for k in range(first, len(other)):
                if other.starts[k] >= end:
                    break
                if other.starts[k] > start:
                    found.append((start, float(other.starts[k])))
                start = max(start, float(other.ends[k]))
            if start < end:
                found.append((start, end))
        return Intervals(found)
