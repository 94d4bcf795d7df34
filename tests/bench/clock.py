"""Timing that holds on a noisy machine: peers take turns, and only their ratio is compared."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One line of the result table.

    Attributes:
        what: the measurement.
        value: its value in `unit`.
        bound: what the project promises ("<= 3", ">= 1.5"), or "" where a figure is only shown.
    """

    what: str
    value: float
    unit: str
    bound: str = ""

    @property
    def holds(self) -> bool | None:
        """Whether the value is within its bound; None without one."""
        if not self.bound:
            return None
        sign, limit = self.bound.split()
        return self.value <= float(limit) if sign == "<=" else self.value >= float(limit)


def alternate(peers: dict[str, Callable[[], object]], rounds: int, number: int = 1) -> dict[str, list[float]]:
    """Run the peers in turn, `number` calls each, `rounds` times; return the seconds per call of every round.

    A call that is not timed goes before: OpenMP's threads go on spinning for a while, on the cores of the next peer.
    """
    seconds: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(rounds):
        for name, call in peers.items():
            call()
            start = time.perf_counter()
            for _ in range(number):
                call()
            seconds[name].append((time.perf_counter() - start) / number)
    return seconds


def median(values: list[float]) -> float:
    """The median."""
    return statistics.median(values)


def ratio(numerator: list[float], denominator: list[float]) -> float:
    """The median of the ratios round by round, so that a drift of the machine cancels."""
    return statistics.median(a / b for a, b in zip(numerator, denominator, strict=True))
