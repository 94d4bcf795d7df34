"""What a capture notes while it is open: every op, launch, step, annotation and allocation, with its time and line.

Notes are tuples in lists, since there can be very many, and hold no buffer. They are read when the capture has ended.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from torchtpu import events, hbm
from torchtpu.lines import Origin

if TYPE_CHECKING:
    from torchtpu.buffer import Buffer
    from torchtpu.layout import Layout
    from torchtpu.plan import Plan
    from torchtpu.program import Program

STEP_OF_TORCH = "ProfilerStep#"  # how torch.profiler annotates a whole step

KEPT = 1_000_000  # notes of a kind; as many events as XLA's own tracer keeps of a thread


class Recorded(NamedTuple):
    """An op was put in the pending graph. `start` and `seconds` of noting it."""

    plan: Plan
    origin: Origin | None
    start: float
    seconds: float


class Launch(NamedTuple):
    """A program was launched. `start` by `time.perf_counter`, `seconds` in the launch; `origins` of its ops."""

    program: Program
    reason: str
    origins: tuple[Origin | None, ...]
    start: float
    seconds: float


class Annotation(NamedTuple):
    """A `record_function` block, or a step that was marked. `start`, `end` by `time.perf_counter`."""

    name: str
    start: float
    end: float


class Bytes(NamedTuple):
    """Device memory that was taken (`nbytes` > 0) or given back.

    Attributes:
        at: by `time.perf_counter`.
        address: the same for both.
        what: the array's layout, or the program whose temporaries and results these are while it runs.
        origin: the line that made it.
        live, peak: bytes in use after it, and the most so far.
    """

    at: float
    nbytes: int
    address: int
    what: Layout | str
    origin: Origin | None
    live: int
    peak: int


@dataclass(slots=True)
class Timeline(events.Log):
    """An event log that also keeps what a report only counts.

    Attributes:
        ops: recorded in graphs; in strict and debug mode each op is a launch instead.
        dropped: notes that were not kept because there were too many.
    """

    notes: list[Recorded] = field(default_factory=list)
    launches: list[Launch] = field(default_factory=list)
    annotations: list[Annotation] = field(default_factory=list)
    ends_of_steps: list[float] = field(default_factory=list)
    dropped: int = 0

    def recorded(self, plan: Plan, origin: Origin | None, start: float, seconds: float) -> None:
        """Note an op that was put in the pending graph."""
        events.Log.recorded(self, plan, origin, start, seconds)
        self._keep(self.notes, Recorded(plan, origin, start, seconds))

    def ran(
        self,
        program: Program,
        reason: str,
        origins: tuple[Origin | None, ...],
        start: float,
        seconds: float,
        numbers: Any = (),
        again: bool = False,
    ) -> None:
        """Note a launch."""
        events.Log.ran(self, program, reason, origins, start, seconds, numbers, again)
        self._keep(self.launches, Launch(program, reason, origins, start, seconds))

    def annotated(self, name: str, start: float, end: float) -> None:
        """Note an annotation."""
        self._keep(self.annotations, Annotation(name, start, end))

    def _keep(self, notes: list[Any], note: Any) -> None:
        if len(notes) < KEPT:
            notes.append(note)
        else:
            self.dropped += 1


class Allocations:
    """Takes the trace of device memory (`hbm.Trace`)."""

    def __init__(self) -> None:
        self.notes: list[Bytes] = []
        self.before = self._live = self._peak = hbm.usage.live
        self.dropped = 0

    def allocated(self, buffer: Buffer) -> None:
        """Note an array."""
        if buffer.nbytes:
            self._note(buffer.nbytes, id(buffer), buffer.layout, buffer.origin)

    def released(self, buffer: Buffer, nbytes: int) -> None:
        """Note that an array is gone."""
        self._note(-nbytes, id(buffer), buffer.layout, buffer.origin)

    def running(self, program: str, results: int, reused: int, temporaries: int) -> None:
        """Note what a program needs while it runs: for a moment, since its results follow as arrays."""
        needed = results - reused + temporaries
        if needed > 0:
            self._note(needed, 0, program, hbm.usage.origin)
            self._note(-needed, 0, program, hbm.usage.origin)

    def _note(self, nbytes: int, address: int, what: Layout | str, origin: Origin | None) -> None:
        self._live += nbytes
        self._peak = max(self._peak, self._live)
        if len(self.notes) < KEPT:
            self.notes.append(Bytes(time.perf_counter(), nbytes, address, what, origin, self._live, self._peak))
        else:
            self.dropped += 1
