"""A closed capture, as it was gathered: from it come both the profile and the planes that TensorBoard reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from torchtpu.lines import Line, Origin
from torchtpu.profiler.intervals import Intervals
from torchtpu.profiler.peaks import Peaks
from torchtpu.profiler.runs import Known, Ran
from torchtpu.profiler.timeline import Allocations, Timeline
from torchtpu.profiler.trace import Kernel, Trace
from torchtpu.report import Report


@dataclass(frozen=True)
class Captured:
    """What a capture gathered. Times that it returns are in seconds since the capture began.

    Attributes:
        run, folder, host: as in `Profile`.
        elapsed: wall time.
        report: of the watch around it.
        timeline, allocations: noted by torchtpu.
        trace: noted by XLA.
        programs, ran: matched.
        resolve: turns origins into lines.
        peaks: of the device.
        device_type: what the device is, and where its times are from.
    """

    run: str
    folder: str
    host: str
    elapsed: float
    report: Report
    timeline: Timeline
    allocations: Allocations
    trace: Trace
    programs: list[Known]
    ran: list[Ran]
    resolve: Callable[[Origin | None], Line | None]
    peaks: Peaks
    device_type: str

    def on_host(self, at: float) -> float:
        """Turn a time of `time.perf_counter` into one of the capture."""
        return at - self.timeline.started

    def on_device(self, at: float) -> float:
        """Turn a time of XLA's clock into one of the capture."""
        return self.trace.on_host(at) - self.timeline.started

    def on_xla(self, at: float) -> float:
        """Turn a time of the capture into one of XLA's clock."""
        return self.trace.on_xla(at + self.timeline.started)

    def kernels(self) -> Iterator[tuple[Ran, Kernel]]:
        """Yield every kernel that ran."""
        return ((ran, kernel) for ran in self.ran for kernel in ran.run.kernels)

    @cached_property
    def busy(self) -> Intervals:
        """When the device ran something."""
        return Intervals((self.on_device(k.start), self.on_device(k.end)) for _, k in self.kernels())

    @cached_property
    def steps(self) -> list[float]:
        """When steps ended."""
        return [self.on_host(at) for at in self.timeline.ends_of_steps]
