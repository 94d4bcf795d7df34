"""The event log: what the device did while somebody watched.

The engine appends; reports, magics and the profiler read. `log` is None when nobody watches, and the engine's hot paths
are then other functions, so that watching costs nothing when off.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torchtpu.lines import Origin

if TYPE_CHECKING:
    from torchtpu.program import Program


@dataclass(slots=True)
class Compile:
    """A program was compiled.

    Attributes:
        program: what was compiled.
        seconds: tracing, lowering and XLA together (measured).
        cause: why there was no cached one, in a few words.
        origin: the line whose op or read asked for it.
        at: seconds since the log began.
    """

    program: Program
    seconds: float
    cause: str
    origin: Origin | None
    at: float


@dataclass(slots=True)
class Runs:
    """Runs of one program while watched.

    Attributes:
        count: number of runs.
        seconds: host time inside the launches (measured; on XLA:CPU small programs run inside the launch).
        reason: why it ran: the flush reason, or the mode for programs of one op.
        origins: the line of each of its ops, at its first run.
        first, last: seconds since the log began.
    """

    program: Program
    reason: str
    origins: tuple[Origin | None, ...]
    first: float
    count: int = 0
    seconds: float = 0.0
    last: float = 0.0


@dataclass(slots=True)
class Flush:
    """A pending graph was run. `nodes` ops, `live` results kept; `pieces` > 1 where churn had it run op by op."""

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


@dataclass(slots=True)
class Log:
    """Everything recorded between the start and the end of one watch.

    Attributes:
        runs: per program and line of its first op.
        cache_hits: runs and flushes that found their program compiled.
        plan_seconds: host time spent planning ops (meta kernels, keys) on first sight (measured).
        record_seconds: host time inside torchtpu's kernels, without compile, run and wait (measured).
        mode: the mode at the start.
    """

    mode: str
    started: float = field(default_factory=time.perf_counter)
    ended: float | None = None
    compiles: list[Compile] = field(default_factory=list)
    runs: dict[tuple[int, Origin | None], Runs] = field(default_factory=dict)
    flushes: list[Flush] = field(default_factory=list)
    syncs: list[Sync] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)
    cache_hits: int = 0
    ops: int = 0
    dispatch_seconds: float = 0.0
    run_seconds: float = 0.0

    def now(self) -> float:
        """Seconds since the log began."""
        return time.perf_counter() - self.started

    def ran(self, program: Program, reason: str, origins: tuple[Origin | None, ...], seconds: float) -> None:
        """Count a run."""
        at = self.now()
        key = (id(program), origins[0] if origins else None)
        runs = self.runs.get(key)
        if runs is None:
            runs = self.runs[key] = Runs(program, reason, origins, at)
        runs.count += 1
        runs.seconds += seconds
        runs.last = at
        self.run_seconds += seconds


# Open logs, outermost first; each event goes to all of them.
logs: list[Log] = []
