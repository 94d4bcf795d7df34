"""XLA's own trace, read: which kernel ran when, for which run of which program.

XLA:CPU's tracer notes every kernel on the thread that ran it; a TPU's notes them on the device's own plane. Both say to
which program and run a kernel belongs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torchtpu.lines import Line

CLOCK = "torchtpu clock"  # an annotation whose `at` is `time.perf_counter_ns` when it began
_LONG = 5.0  # seconds from which on the clocks can be told apart
_OPS = "XLA Ops"
# What XLA notes most often on threads that also run kernels; their arguments need not be looked at.
_OTHERS = ("end: ", "Threadpool", "ThunkExecutor", "Wait for", "PythonRef", "ParseArg", "PjitFunction", "CommonPjRt", "$")


class About(NamedTuple):
    """What a kernel was for: its kind, its ATen ops (that whose result it writes first), their line and module, backward."""

    kind: str
    ops: tuple[str, ...]
    line: Line | None
    module: str
    backward: bool


@dataclass(slots=True)
class Kernel:
    """A kernel that ran.

    Attributes:
        name: of the HLO instruction.
        thread: position of the thread that ran it, from 1 on in order of appearance.
        start, end: seconds since the profile began, by XLA's clock.
        own: seconds without the kernels inside it (a loop's body).
        leaf: no other kernel ran inside it.
        about: filled in when the run is known.
    """

    name: str
    thread: int
    start: float
    end: float
    own: float
    leaf: bool = True
    about: About | None = None


@dataclass(slots=True)
class Run:
    """A run of a program: `module` and `number` as XLA knows it, its kernels in order of their start."""

    module: str
    number: int
    kernels: list[Kernel] = field(default_factory=list)

    @property
    def start(self) -> float:
        """Start of its first kernel, in seconds since the profile began."""
        return self.kernels[0].start

    @property
    def end(self) -> float:
        """End of its last kernel."""
        return max(k.end for k in self.kernels)


@dataclass(frozen=True, slots=True)
class Trace:
    """What XLA's tracer noted.

    Attributes:
        runs: in order of their start.
        offset: `time.perf_counter` when the profile began.
        rate: seconds of that clock in one of XLA's, which follows the time of day: a little more or less than 1.
        began: when the profile began, in seconds since 1970.
        device: the device has a plane of its own in the trace.
    """

    runs: list[Run]
    offset: float
    rate: float
    began: float
    device: bool

    def on_host(self, at: float) -> float:
        """Turn a time of XLA's into one of `time.perf_counter`."""
        return self.offset + at * self.rate

    def on_xla(self, at: float) -> float:
        """Turn a time of `time.perf_counter` into one of XLA's."""
        return (at - self.offset) / self.rate


def read(space: bytes) -> Trace:
    """Read what `ProfilerSession.stop` returned."""
    from jax.profiler import ProfileData

    runs: dict[tuple[Any, ...], Run] = {}
    clocks: list[tuple[float, float]] = []
    began, threads, device = 0.0, 0, False
    for plane in ProfileData.from_serialized_xspace(space).planes:
        on_device = plane.name.startswith("/device:")
        for line in plane.lines:
            if on_device and line.name != _OPS:
                continue
            kernels = []
            for event in line.events:
                name = event.name
                if name == CLOCK:
                    clocks.append((dict(event.stats)["at"] * 1e-9, event.start_ns * 1e-9))
                elif not name.startswith(_OTHERS):
                    stats = dict(event.stats)
                    if "hlo_op" in stats or on_device:
                        kernels.append((event.start_ns * 1e-9, event.duration_ns * 1e-9, name, stats))
            if kernels:
                threads += 1
                device |= on_device
                for kernel, stats in _nested(kernels, threads):
                    key = stats.get("hlo_module", ""), stats.get("program_id", 0), stats.get("run_id", 0)
                    if key not in runs:
                        runs[key] = Run(str(key[0]), int(key[1]))
                    runs[key].kernels.append(kernel)
        if plane.name == "Task Environment":
            began = float(dict(plane.stats).get("profile_start_time", 0)) * 1e-9
    for run in runs.values():
        run.kernels.sort(key=lambda k: k.start)
    ordered = sorted(runs.values(), key=lambda r: r.start)
    return Trace(ordered, *_clock(clocks), began, device)


def _clock(marks: list[tuple[float, float]]) -> tuple[float, float]:
    """Return offset and rate, from marks at the start and at the end: times of `time.perf_counter`, and XLA's a little later.

    Of the marks of one end, that with the least in between is right.
    """
    if not marks:
        return 0.0, 1.0

    def closest(found: list[tuple[float, float]]) -> tuple[float, float]:
        return max(found, key=lambda mark: mark[0] - mark[1])

    marks.sort()
    if marks[-1][0] - marks[0][0] < _LONG:
        mine, xla = closest(marks)
        return mine - xla, 1.0
    (mine, xla), (mine_later, xla_later) = closest(marks[: len(marks) // 2]), closest(marks[len(marks) // 2 :])
    rate = (mine_later - mine) / (xla_later - xla)
    return mine - xla * rate, rate


def _nested(found: list[tuple[float, float, str, dict[str, Any]]], thread: int) -> Iterator[tuple[Kernel, dict[str, Any]]]:
    """Make the kernels of a thread, with the time that each spent outside those inside it."""
    found.sort(key=lambda k: (k[0], -k[1]))
    outer: list[Kernel] = []
    for start, seconds, name, stats in found:
        kernel = Kernel(name, thread, start, start + seconds, seconds)
        while outer and outer[-1].end <= start:
            outer.pop()
        if outer:
            outer[-1].own = max(0.0, outer[-1].own - seconds)
            outer[-1].leaf = False
        outer.append(kernel)
        yield kernel, stats
