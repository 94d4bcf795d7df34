"""The largest number that fits, found by trying: few numbers, each of which takes a compile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

# The bracket is closed when it is this share of its lower end: 1 in 64 for large numbers, 1 for small ones.
_RESOLUTION = 64
_JUMP = 64  # times the largest number that fits: how far one step may extrapolate


@dataclass(frozen=True, slots=True)
class Trial:
    """What trying a number gave.

    Attributes:
        fits: it does.
        room: bytes that were left, negative if they were too few; None if the compiler gave no figure.
    """

    fits: bool
    room: int | None = None


@dataclass(slots=True)
class Bracket:
    """What is known: the largest number that fits and the smallest that does not, among those that were tried.

    Attributes:
        largest: 0 before one fits.
        refused: 0 before one does not fit.
        rooms: bytes left, of each number with a figure.
    """

    largest: int = 0
    refused: int = 0
    rooms: dict[int, int] = field(default_factory=dict)

    def add(self, number: int, trial: Trial) -> None:
        """Take the result of one trial."""
        if trial.fits:
            self.largest = max(self.largest, number)
        elif not self.refused or number < self.refused:
            self.refused = number
        if trial.room is not None:
            self.rooms[number] = trial.room

    def step(self, multiple: int) -> int:
        """Return how close the two ends are to come."""
        return max(multiple, self.largest // _RESOLUTION // multiple * multiple)

    def closed(self, multiple: int) -> bool:
        """Whether the two ends are as close as the search goes."""
        return 0 < self.refused <= self.largest + self.step(multiple)

    def crossing(self) -> float | None:
        """Estimate the number at which nothing is left, by the line through the two known points next to it."""
        below = sorted(n for n, room in self.rooms.items() if room >= 0)
        above = sorted(n for n, room in self.rooms.items() if room < 0)
        points = [*below[-1:], *above[:1]] if below and above else below[-2:] or above[:2]
        if len(points) < 2:
            return None
        (a, room_a), (b, room_b) = ((n, self.rooms[n]) for n in points)
        return a + room_a * (b - a) / (room_a - room_b) if room_a > room_b else None


def search(probe: Callable[[int], Trial], first: int, most: int, multiple: int = 1) -> Bracket:
    """Find the largest multiple of `multiple` up to `most` that fits, if whatever is smaller than one that fits does too.

    Memory grows nearly linearly with a batch, so each guess is where the line through the last two crosses the limit.

    Args:
        probe: tries a number.
        first: to try first.
        most: to try at all.
        multiple: numbers are multiples of it.
    """
    found = Bracket()
    most = max(multiple, most // multiple * multiple)
    number = _rounded(first, multiple, multiple, most)
    guesses = 0  # by the line, since the bracket was halved
    while True:
        found.add(number, probe(number))
        low, high = found.largest, found.refused
        if low >= most or high == multiple or found.closed(multiple):
            return found
        crossing, least = found.crossing(), low + found.step(multiple)
        if not high:
            # The second number is far from the first, so that the line through them is a good one.
            wanted = 4 * low if crossing is None else min(crossing, _JUMP * low)
            number = _rounded(wanted, least, multiple, most)
        elif crossing is None or crossing >= high or guesses == 2:  # the line misleads
            number, guesses = _rounded((low + high) / 2, least, multiple, high - multiple), 0
        else:
            number, guesses = _rounded(crossing, least, multiple, high - multiple), guesses + 1


def _rounded(number: float, least: int, multiple: int, most: int) -> int:
    """Return the multiple at or below a number, within two that are multiples themselves."""
    return min(max(int(number) // multiple * multiple, least), most)
