"""The event log: what the device did while somebody watched.

The engine appends; reports, magics and the profiler read. `log` is None when nobody watches, and the engine's hot paths
are then other functions, so that watching costs nothing when off.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from torchtpu import provenance
from torchtpu.lines import Origin

if TYPE_CHECKING:
    from torchtpu.causes import Cause
    from torchtpu.checks import Difference
    from torchtpu.plan import Plan
    from torchtpu.program import Program


@dataclass(slots=True)
class Compile:
    """A program was compiled.

    Attributes:
        program: what was compiled.
        seconds: tracing, lowering and XLA together (measured).
        cause: why none of the programs at hand would do.
        origin: the line whose op or read asked for it.
        at: seconds since the log began.
    """

    program: Program
    seconds: float
    cause: Cause
    origin: Origin | None
    at: float


@dataclass(slots=True)
class Runs:
    """Runs of one program while watched.

    Attributes:
        count: number of runs.
        passes: number of graphs that ran it, whose layers may share it; for programs of one op, number of runs.
        seconds: host time inside the launches (measured; on XLA:CPU small programs run inside the launch).
        reason: why it ran: the flush reason, or the mode for programs of one op.
        origins: the line of each of its ops, at its first run.
        first, last: seconds since the log began.
        numbers: that its ops took at its first run.
    """

    program: Program
    reason: str
    origins: tuple[Origin | None, ...]
    first: float
    numbers: Sequence[Any] = ()
    count: int = 0
    passes: int = 0
    seconds: float = 0.0
    last: float = 0.0


@dataclass(slots=True)
class Flush:
    """A pending graph was run. `nodes` ops, `live` results kept; `pieces`: the programs that ran it."""

    reason: str
    origin: Origin | None
    nodes: int
    live: int
    seconds: float
    at: float
    pieces: int = 1


@dataclass(slots=True)
class Sync:
    """The host waited for the device. `seconds` measured.

    `kind`: bool, int, float, complex, item, tolist, format, print, to_host, dlpack, synchronize or debug.
    """

    kind: str
    origin: Origin | None
    seconds: float
    nbytes: int
    at: float


@dataclass(slots=True)
class Fallback:
    """An op ran on the CPU. `seconds` measured, with both copies; `nbytes` moved."""

    op: str
    origin: Origin | None
    seconds: float
    nbytes: int
    at: float


class Traced(NamedTuple):
    """An op of debug mode. `seconds` to launch it and wait for it, `at` since the log began; `difference` from the CPU."""

    plan: Plan
    origin: Origin | None
    seconds: float
    at: float
    difference: Difference | None


@dataclass(slots=True)
class Log:
    """Everything recorded between the start and the end of one watch.

    Attributes:
        runs: per program and line of its first op (told apart by identity: the code of two cells with one statement is equal).
        cache_hits: runs and flushes that found their program compiled.
        ops, dispatch_seconds: ops that were called, and host time spent on noting them (measured).
        run_seconds: host time inside launches (measured).
        mode: the mode at the start.
        tracing: whether debug mode keeps each op in `trace`.
        first_op: number that the first op will have in `provenance`.
    """

    mode: str
    started: float = field(default_factory=time.perf_counter)
    ended: float | None = None
    compiles: list[Compile] = field(default_factory=list)
    runs: dict[tuple[Any, ...], Runs] = field(default_factory=dict)
    flushes: list[Flush] = field(default_factory=list)
    syncs: list[Sync] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)
    trace: list[Traced] = field(default_factory=list)
    tracing: bool = False
    first_op: int = field(default_factory=lambda: provenance.latest() + 1)
    cache_hits: int = 0
    ops: int = 0
    dispatch_seconds: float = 0.0
    run_seconds: float = 0.0

    def now(self) -> float:
        """Seconds since the log began."""
        return time.perf_counter() - self.started

    def recorded(self, plan: Plan, origin: Origin | None, start: float, seconds: float) -> None:
        """Count an op that was put in the pending graph; `start` by `time.perf_counter`."""
        self.ops += 1
        self.dispatch_seconds += seconds

    def ran(
        self,
        program: Program,
        reason: str,
        origins: tuple[Origin | None, ...],
        start: float,
        seconds: float,
        numbers: Sequence[Any] = (),
        again: bool = False,
    ) -> None:
        """Count a run; `start` of its launch by `time.perf_counter`; `again`: not the first one in its graph."""
        at = self.now()
        first = origins[0] if origins else None
        key = (id(program), id(first[0]), *first[1:]) if first is not None else (id(program),)
        runs = self.runs.get(key)
        if runs is None:
            runs = self.runs[key] = Runs(program, reason, origins, at, numbers)
        runs.count += 1
        runs.passes += not again
        runs.seconds += seconds
        runs.last = at
        self.run_seconds += seconds


# Open logs, outermost first; each event goes to all of them.
logs: list[Log] = []
