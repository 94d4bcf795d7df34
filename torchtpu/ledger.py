"""Which buffers filled device memory at the peak of a watch, which fill it at the end, and how it went in between.

While somebody watches, `hbm.usage.trace` tells of every allocation, release and program. A ledger keeps what is live, what
has happened since the latest peak until it has looked back for that, and a timeline of fixed size: watching a day of
training costs memory for what is live and not for what has happened. It holds layouts, lines and owners, never buffers:
watching keeps nothing alive.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

import torch

from torchtpu import hbm, ownership
from torchtpu.timeline import Timeline

if TYPE_CHECKING:
    from torchtpu.buffer import Buffer
    from torchtpu.layout import Layout
    from torchtpu.lines import Origin
    from torchtpu.ownership import Owner

_LOOK_BACK = 1 << 13  # events after a peak
_graph_task = torch._C._current_graph_task_id


class Held:
    """Bytes that something held.

    Attributes:
        nbytes: how many.
        what: a buffer's layout, or the name of a program whose temporaries these are.
        origin: the line that made them.
        owner: what they were for; None for temporaries.
        earlier: made before the watch began.
    """

    __slots__ = ("nbytes", "what", "origin", "_owner", "earlier")

    def __init__(
        self, nbytes: int, what: Layout | str, origin: Origin | None = None, owner: Owner | None = None, earlier: bool = False
    ) -> None:
        self.nbytes, self.what, self.origin, self.earlier = nbytes, what, origin, earlier
        self._owner = owner

    @classmethod
    def earlier_one(cls, buffer: Buffer, nbytes: int) -> Held:
        """Describe a buffer that was made before the watch began."""
        return cls(nbytes, buffer.layout, buffer.origin, ownership.owner_of(buffer, ownership.BEFORE), earlier=True)

    @property
    def owner(self) -> Owner | None:
        """What they were for, as far as it is known by now."""
        owner = self._owner
        return owner if owner is None or owner.root is None else owner.root


class Running(NamedTuple):
    """A program that runs, in bytes: its results, those of them that reuse an argument's memory, its temporaries."""

    program: str
    results: int
    reused: int
    temporaries: int

    @property
    def needed(self) -> int:
        """Bytes beside what is live."""
        return self.results - self.reused + self.temporaries


class Account(NamedTuple):
    """A closed ledger.

    Attributes:
        before, peak, live: bytes before the watch, at its peak and at its end.
        peak_at: seconds from the start of the watch to its peak.
        held_at_peak, held_at_end: what held them, without the buffers below; the latter by buffer id.
        earlier_alive: bytes in buffers that were there before the watch and still are: at the peak too.
        span, tops: the timeline: its step in seconds, and the most bytes in use in each.
    """

    before: int
    peak: int
    peak_at: float
    live: int
    held_at_peak: list[Held]
    held_at_end: dict[int, Held]
    earlier_alive: int
    span: float
    tops: tuple[int, ...]


class Ledger:
    """The account of one watch, while it is kept."""

    def __init__(self) -> None:
        self._before = self._peak = self._live = hbm.usage.live
        self._held: dict[int, Held] = {}  # by buffer id; made while watched
        self._earlier_freed: list[Held] = []  # made before, freed while watched, in order
        # What has happened since the peak, (allocated?, what) in order, until the peak has been looked back for.
        self._since: list[tuple[bool, Held]] | None = None
        self._peak_run: Running | None = None  # the program that made the peak
        self._peak_seconds = 0.0
        self._at_peak: list[Held] = []
        self._freed_before_peak = 0  # of `_earlier_freed`
        self._start = time.perf_counter()
        self._timeline = Timeline(self._live)

    def allocated(self, buffer: Buffer) -> None:
        """Take a buffer that got its array."""
        nbytes = buffer.nbytes
        if not nbytes:
            return
        held = self._held[id(buffer)] = Held(nbytes, buffer.layout, buffer.origin, ownership.owner_of(buffer, ownership.HOST))
        if self._since is not None:
            self._since.append((True, held))
        self._live += nbytes
        self._rise(self._live, None)

    def released(self, buffer: Buffer, nbytes: int) -> None:
        """Take a buffer that gave its bytes up."""
        # This can be called by the garbage collector at any point, also while another method runs.
        held = self._held.pop(id(buffer), None)
        if held is None:
            held = Held.earlier_one(buffer, nbytes)
            self._earlier_freed.append(held)
        if _graph_task() != -1:
            held.owner.ended = True
        if self._since is not None:
            self._since.append((False, held))
        self._live -= nbytes
        self._timeline.add(time.perf_counter() - self._start, self._live, self._live)

    def running(self, program: str, results: int, reused: int, temporaries: int) -> None:
        """Take a program that is about to run."""
        run = Running(program, results, reused, temporaries)
        self._rise(self._live + run.needed, run)

    def _rise(self, top: int, run: Running | None) -> None:
        now = time.perf_counter() - self._start
        if top > self._peak:
            self._peak, self._peak_seconds, self._peak_run = top, now, run
            self._since = []
        elif self._since is not None and len(self._since) > _LOOK_BACK:
            self._look_back()
        self._timeline.add(now, top, self._live)

    def _look_back(self) -> None:
        """Work out what was held at the peak, from what is held now and what has happened since."""
        since, self._since = self._since, None
        if since is None:
            return
        held = {id(h): h for h in self._held.values()}
        freed = len(self._earlier_freed)
        for made, h in reversed(since):
            if made:
                held.pop(id(h), None)
            elif h.earlier:
                freed -= 1
            else:
                held[id(h)] = h
        self._at_peak, self._freed_before_peak = list(held.values()), freed
        if self._peak_run is not None:
            self._at_peak += _while_running(self._peak_run, since)

    def close(self) -> Account:
        """Return the account of what has happened so far."""
        self._look_back()
        freed = self._earlier_freed if self._peak == self._before else self._earlier_freed[self._freed_before_peak :]
        at_peak = [] if self._peak == self._before else self._at_peak  # never above the start: then the start is the peak
        earlier = self._live - sum(h.nbytes for h in self._held.values())
        return Account(
            self._before,
            self._peak,
            self._peak_seconds,
            self._live,
            [*freed, *at_peak],
            dict(self._held),
            earlier,
            *self._timeline.close(time.perf_counter() - self._start),
        )


def _while_running(run: Running, following: list[tuple[bool, Held]]) -> list[Held]:
    """Return what a program's needs were for: its results, which were allocated right after, and its temporaries."""
    results: list[Held] = []
    given: list[Held] = []
    missing = run.results
    for made, held in following:
        if missing < held.nbytes * made or missing <= 0:
            break
        (results if made else given).append(held)
        missing -= held.nbytes * made
    # Results that took an argument's memory over are there already, as that argument.
    reused = run.reused
    for argument in given:
        same = [h for h in results if h.what == argument.what and h.nbytes <= reused]
        if same:
            taker = next((h for h in same if h.owner is argument.owner), same[0])
            results.remove(taker)
            reused -= taker.nbytes
    rest = run.needed - sum(h.nbytes for h in results)
    if rest < 0:
        return [Held(run.needed, run.program)]
    return [*results, Held(rest, run.program)] if rest else results


class _Fan:
    """Sends the trace to several readers (nested watches, a profile)."""

    def __init__(self, readers: list[hbm.Trace]) -> None:
        self._readers = readers

    def allocated(self, buffer: Buffer) -> None:
        for reader in self._readers:
            reader.allocated(buffer)

    def released(self, buffer: Buffer, nbytes: int) -> None:
        for reader in self._readers:
            reader.released(buffer, nbytes)

    def running(self, program: str, results: int, reused: int, temporaries: int) -> None:
        for reader in self._readers:
            reader.running(program, results, reused, temporaries)


_open: list[hbm.Trace] = []


def start() -> Ledger:
    """Open a ledger: the trace goes to it too."""
    ownership.step_ends()  # an optimizer's step that failed has not said so
    ledger = Ledger()
    attach(ledger)
    return ledger


def attach(reader: hbm.Trace) -> None:
    """Send the trace to a reader too."""
    _open.append(reader)
    _connect()


def stop(reader: hbm.Trace) -> None:
    """Take a ledger, or another reader, off the trace."""
    _open.remove(reader)
    _connect()


def _connect() -> None:
    match _open:
        case []:
            hbm.usage.trace = None
        case [only]:
            hbm.usage.trace = only
        case several:
            hbm.usage.trace = _Fan(list(several))
