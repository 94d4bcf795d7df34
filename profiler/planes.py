"""The planes that torchtpu adds to XLA's trace, so that every tool of XProf has something to show.

XProf's tools read the kernels of a device from a plane of its own, which XLA:CPU does not write: its kernels are on the
threads that ran them. So one is written from these, with the times as they were measured. It is named as a TPU's, since
XProf's tools look for no other with such lines; its device type says what it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import TypeVar

from torchtpu import client
from torchtpu.layout import Layout
from torchtpu.lines import Line
from torchtpu.profiler.build import about
from torchtpu.profiler.captured import Captured
from torchtpu.profiler.result import Profile
from torchtpu.profiler.rows import Span
from torchtpu.profiler.runs import Ran
from torchtpu.profiler.timeline import Bytes
from torchtpu.profiler.trace import Kernel
from torchtpu.profiler.xspace import Event, Plane, Stat

_K = TypeVar("_K", Kernel, None)

DEVICE = "/device:TPU:0"
HOST = "/host:CPU"
METADATA = "/host:metadata"
# Lines of the host's plane, in the order in which the trace viewer lists them, before XLA's own threads.
_HOST_LINES = ("steps", "annotations", "ops", "launches", "flushes", "compiles", "waits", "fallbacks")


def of(captured: Captured, profile: Profile, spans: Iterable[Span]) -> list[Plane]:
    """Return the planes to be joined with what XLA has written."""
    planes = [_host(captured, spans), _metadata(captured)]
    if not captured.trace.device:
        planes.append(_device(captured, profile))
    return planes


def _where(line: Line | None) -> tuple[tuple[str, Stat], ...]:
    return (("line", str(line)), ("source", line.source)) if line is not None else ()


def _host(captured: Captured, spans: Iterable[Span]) -> Plane:
    """What torchtpu noted: a line for each kind, and one for what happened to device memory."""
    plane = Plane(HOST, 0, joined=True)
    by_track: dict[str, list[Event]] = {}
    for span in spans:
        if span.track not in _HOST_LINES:
            continue
        name = f"{span.name} [{span.line}]" if span.line is not None else span.name
        key = f"{span.track}/{name}/{span.detail}"
        made = plane.metadata(key, name, stats=(*_where(span.line), *((("detail", span.detail),) if span.detail else ())))
        by_track.setdefault(span.track, []).append(Event(made, captured.on_xla(span.at), span.seconds))
    for number, track in enumerate(_HOST_LINES, 1):
        if track in by_track:
            plane.line(number, f"torchtpu {track}", by_track[track])
    memory = list(_memory(captured, plane))
    if memory:
        plane.line(len(_HOST_LINES) + 1, "torchtpu memory", memory)
    return plane


def _memory(captured: Captured, plane: Plane) -> Iterator[Event]:
    """The events that XProf's memory profile is made of (its trace_me's arguments, tsl/profiler/lib/traceme_encode)."""
    taken = plane.metadata("MemoryAllocation")
    given = plane.metadata("MemoryDeallocation")
    limit = client.memory_limit()
    # XProf adds up from nothing: what was there before is one allocation at the start.
    notes: list[Bytes] = list(captured.allocations.notes)
    before = captured.allocations.before
    if before:
        start = captured.timeline.started
        notes.insert(0, Bytes(start, before, 0, "made before the capture", None, before, before))
    names: dict[Layout | str, str] = {}
    for note in notes:
        made = captured.resolve(note.origin)
        what = names.get(note.what)
        if what is None:
            what = names[note.what] = str(note.what)
        yield Event(
            taken if note.nbytes > 0 else given,
            captured.trace.on_xla(note.at),
            0.0,
            (
                ("allocator_name", "tpu:0"),
                ("bytes_reserved", 0),
                ("bytes_allocated", note.live),
                ("bytes_available", max(0, limit - note.live)),
                ("fragmentation", 0.0),
                ("peak_bytes_in_use", note.peak),
                ("requested_bytes", abs(note.nbytes)),
                ("allocation_bytes", abs(note.nbytes)),
                ("addr", note.address),
                ("tf_op", made.where if made is not None else what),
                ("region_type", "output" if isinstance(note.what, Layout) else "temp"),
                ("data_type", 1),
                ("shape", what),
            ),
        )


def _metadata(captured: Captured) -> Plane:
    """The optimized HLO of every program that ran, with its buffer assignment: memory_viewer and graph_viewer read it.

    XLA:CPU writes that of all programs of the process, under numbers that two of them can share: this takes its place.
    """
    plane = Plane(METADATA, 0, joined=captured.trace.device)
    for known in captured.programs:
        if known.hlo:
            plane.metadata(_module(known.module, known.number), stats=[("Hlo Proto", known.hlo)], number=known.number)
    return plane


def _module(name: str, number: int) -> str:
    return f"{name}({number})"


def _device(captured: Captured, profile: Profile) -> Plane:
    plane = Plane(DEVICE, 100)
    plane.stat("device_type_string", captured.device_type)
    plane.stat("peak_teraflops_per_second", profile.peak_flops / 1e12)
    plane.stat("peak_hbm_bw_gigabytes_per_second", profile.peak_bandwidth / 1e9)
    ends = [captured.on_xla(end) for end in captured.steps]
    starts = [captured.on_xla(0.0), *ends]
    steps = [
        Event(plane.metadata(f"step/{k}", str(k)), start, end - start, (("group_id", k),))
        for k, (start, end) in enumerate(zip(starts, ends, strict=False))
    ]
    plane.line(1, "Steps", steps)
    modules = []
    for at, seconds, ran, _ in _in_turn((r.run.start, r.run.end, r, None) for r in captured.ran):
        name = _module(ran.known.module, ran.known.number)
        made = plane.metadata(f"module/{name}", name, ran.known.name)
        modules.append(Event(made, at, seconds, (("program_id", ran.known.number), *_step(ends, at))))
    plane.line(2, "XLA Modules", modules)
    kernels = []
    for at, seconds, ran, kernel in _in_turn((k.start, k.end, r, k) for r, k in captured.kernels() if k.leaf):
        made = _kernel(captured, plane, ran, kernel)
        kernels.append(Event(made, at, seconds, (*_for(captured, ran, kernel), *_step(ends, at))))
    plane.line(3, "XLA Ops", kernels)
    threads: dict[int, list[Event]] = {}
    for ran, kernel in captured.kernels():
        made = _kernel(captured, plane, ran, kernel)
        event = Event(made, kernel.start, kernel.end - kernel.start, _for(captured, ran, kernel))
        threads.setdefault(kernel.thread, []).append(event)
    for thread, events in sorted(threads.items()):
        plane.line(10 + thread, f"XLA:CPU thread {thread}", events)
    return plane


def _in_turn(found: Iterable[tuple[float, float, Ran, _K]]) -> Iterator[tuple[float, float, Ran, _K]]:
    """Yield what ran at the same time on several threads as if one followed the other, in order of their start.

    XProf takes the events of a device's line for its one queue. The overlap counts for what began first; the lines of the
    threads show all of it.
    """
    free = 0.0
    for start, end, ran, kernel in sorted(found, key=lambda f: (f[0], f[1])):
        at = max(start, free)
        free = max(free, end)
        yield at, max(0.0, end - at), ran, kernel


def _step(ends: list[float], at: float) -> tuple[tuple[str, Stat], ...]:
    k = bisect_right(ends, at)
    return (("group_id", k),) if k < len(ends) else ()


def _for(captured: Captured, ran: Ran, kernel: Kernel) -> tuple[tuple[str, Stat], ...]:
    """What the trace viewer shows of a kernel that is clicked: its ATen ops, and the line that called them."""
    _, ops, line, module, backward = about(captured, ran, kernel)
    stats = [("aten_ops", ", ".join(ops)), ("module", module), ("pass", "backward" if backward else ""), *_where(line)]
    return tuple((name, value) for name, value in stats if value)


def _kernel(captured: Captured, plane: Plane, ran: Ran, kernel: Kernel) -> int:
    kind, ops, line, module, backward = about(captured, ran, kernel)
    key = f"kernel/{ran.known.number}/{kernel.name}/{line}/{module}/{backward}"
    cost = ran.cost(kernel)
    path = "/".join(filter(None, ("backward" if backward else "", module, str(line) if line is not None else "")))
    first = ops[0] if ops else "data movement"
    stats: list[tuple[str, Stat]] = [
        ("hlo_category", kind),
        ("program_id", ran.known.number),
        ("symbol_id", ran.known.symbol(kernel.name)),
        ("flops", round(cost.flops)),
        ("model_flops", round(cost.flops)),
        ("bytes_accessed", round(cost.nbytes)),
        ("tf_op", f"{path}/{first}:{first}" if path else f"{first}:{first}"),
    ]
    return plane.metadata(key, ran.known.text(kernel.name), kernel.name, stats)
