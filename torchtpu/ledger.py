"""Which buffers filled device memory at the peak of a watch, and which fill it at the end.

While somebody watches, `hbm.usage.trace` takes an entry per allocation and per release. A ledger replays them in
chunks, so that watching a day of training costs memory for what is live and not for what has happened. It holds layouts
and lines, never buffers: watching keeps nothing alive.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, NamedTuple

from torchtpu import hbm

if TYPE_CHECKING:
    from torchtpu.layout import Layout
    from torchtpu.lines import Origin

    Entry = tuple[int, int, Layout | str, Origin | None]

MOMENTARY = 0  # "buffer id" of the bytes that a program needs only while it runs

_CHUNK = 1 << 16


class Held(NamedTuple):
    """Bytes that something held: a buffer of a layout, or the results and temporaries of a running program, by name."""

    nbytes: int
    what: Layout | str
    origin: Origin | None
    earlier: bool = False  # made before the watch began


class Account(NamedTuple):
    """A closed ledger: bytes before the watch, at its peak and at its end, and what held the last two."""

    before: int
    peak: int
    live: int
    held_at_peak: list[Held]
    held_at_end: list[Held]


class Ledger:
    """The account of one watch, while it is kept."""

    def __init__(self) -> None:
        self._before = self._peak = self._live = hbm.usage.live
        self._entries: list[Entry] = []
        self._held: dict[int, Held] = {}  # by buffer id; made while watched
        self._earlier_freed: list[Held] = []  # made before, freed while watched, in order
        self._at_peak: list[Held] = []
        self._freed_before_peak = 0  # of `_earlier_freed`

    def append(self, entry: Entry) -> None:
        """Take an entry of `hbm.usage.trace`."""
        self._entries.append(entry)
        if len(self._entries) >= _CHUNK:
            self._fold()

    def _fold(self) -> None:
        # A release can come from the garbage collector at any point, also while this runs: it then goes to the new list.
        entries, self._entries = self._entries, []
        live, peak, peak_at = self._live, self._peak, -1
        for k, (nbytes, key, _, _) in enumerate(entries):
            if key != MOMENTARY:
                live += nbytes
            top = live + nbytes if key == MOMENTARY else live
            if top > peak:
                peak, peak_at = top, k
        self._live, self._peak = live, peak
        for k, (nbytes, key, what, origin) in enumerate(entries):
            if nbytes < 0:
                if self._held.pop(key, None) is None:
                    self._earlier_freed.append(Held(-nbytes, what, origin, earlier=True))
            elif nbytes and key != MOMENTARY:
                self._held[key] = Held(nbytes, what, origin)
            if k == peak_at:
                self._at_peak = list(self._held.values())
                if key == MOMENTARY:
                    self._at_peak.append(Held(nbytes, what, origin))
                self._freed_before_peak = len(self._earlier_freed)

    def close(self) -> Account:
        """Return the account of what has happened so far."""
        self._fold()
        earlier = [] if self._live == sum(h.nbytes for h in self._held.values()) else self._earlier_alive()
        if self._peak == self._before:  # never above the start: then the start is the peak
            at_peak = [*earlier, *self._earlier_freed]
        else:
            at_peak = [*earlier, *self._earlier_freed[self._freed_before_peak :], *self._at_peak]
        return Account(self._before, self._peak, self._live, at_peak, [*earlier, *self._held.values()])

    def _earlier_alive(self) -> list[Held]:
        from torchtpu.buffer import Buffer

        return [
            Held(b.nbytes, b.layout, b.origin, earlier=True)
            for b in gc.get_objects()
            if type(b) is Buffer and b.nbytes and id(b) not in self._held
        ]


class _Fan:
    """Sends the trace to several ledgers (nested watches)."""

    def __init__(self, ledgers: list[Ledger]) -> None:
        self._ledgers = ledgers

    def append(self, entry: Entry) -> None:
        for ledger in self._ledgers:
            ledger.append(entry)


_open: list[Ledger] = []


def start() -> Ledger:
    """Open a ledger: the trace goes to it too."""
    ledger = Ledger()
    _open.append(ledger)
    _connect()
    return ledger


def stop(ledger: Ledger) -> None:
    """Take a ledger off the trace."""
    _open.remove(ledger)
    _connect()


def _connect() -> None:
    match _open:
        case []:
            hbm.usage.trace = None
        case [only]:
            hbm.usage.trace = only
        case several:
            hbm.usage.trace = _Fan(list(several))
