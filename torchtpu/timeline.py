"""Bytes over time, in a fixed number of points however long it takes."""

from __future__ import annotations

_POINTS = 256
_FIRST_SPAN = 1e-5  # seconds


class Timeline:
    """The highest value in each of at most 256 equal spans of time; when they are full, two become one."""

    def __init__(self, nbytes: int) -> None:
        self._span = _FIRST_SPAN
        self._tops = [nbytes]  # of each span so far
        self._now = nbytes

    def add(self, at: float, top: int, now: int) -> None:
        """Note that the value rose to `top` at a time, and is `now` from then on."""
        k = int(at / self._span)
        if k >= len(self._tops):
            k = self._reach(at)
        if top > self._tops[k]:
            self._tops[k] = top
        self._now = now

    def _reach(self, at: float) -> int:
        """Make the spans up to a time, in which the value has not changed, and return the last one's position."""
        while int(at / self._span) >= _POINTS:
            tops = self._tops
            self._tops = [max(tops[k : k + 2]) for k in range(0, len(tops), 2)]
            self._span *= 2
        k = int(at / self._span)
        self._tops += [self._now] * (k + 1 - len(self._tops))
        return k

    def close(self, at: float) -> tuple[float, tuple[int, ...]]:
        """Return the length of a span in seconds, and the highest value in each up to a time."""
        self._reach(at)
        return self._span, tuple(self._tops)
