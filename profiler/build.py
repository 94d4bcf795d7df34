"""From what a capture gathered to a `Profile`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torchtpu import lines
from torchtpu.lines import Origin
from torchtpu.profiler import idle, steps
from torchtpu.profiler.captured import Captured
from torchtpu.profiler.intervals import Intervals
from torchtpu.profiler.result import Profile
from torchtpu.profiler.rows import KernelTime, OpTime, ProgramTime, Span, Spans
from torchtpu.profiler.runs import Ran
from torchtpu.profiler.trace import About, Kernel

_SPANS = 300_000  # that a profile keeps; the trace file has all of them
DATA_MOVEMENT = "data movement"  # kernels that no op asked for: copies of arguments


def spans(captured: Captured) -> list[Span]:
    """Return everything that took time, in order of its start."""
    return sorted(_spans(captured), key=lambda s: s.at)


def profile(captured: Captured, spans: Sequence[Span]) -> Profile:
    """Work out the figures."""
    t = captured.timeline
    kernels = _kernels(captured)
    compiling = Intervals((e.at - e.seconds, e.at) for e in t.compiles)
    waiting = Intervals((e.at - e.seconds, e.at) for e in t.syncs)
    launched = [captured.on_host(launch.start) for launch in t.launches]
    return Profile(
        run=captured.run,
        folder=captured.folder,
        host=captured.host,
        began=captured.trace.began,
        modelled=False,
        report=captured.report,
        steps=steps.rows(captured.steps, captured.busy, compiling, waiting, launched, [e.at for e in t.compiles]),
        programs=_programs(captured),
        kernels=kernels,
        ops=_ops(captured, kernels),
        idle=idle.rows(captured),
        spans=Spans.of(spans[:_SPANS]),
        elapsed=captured.elapsed,
        busy=captured.busy.within(0.0, captured.elapsed),
        peak_flops=captured.peaks.flops,
        peak_bandwidth=captured.peaks.bandwidth,
        peaks_from=captured.peaks.source,
        dropped=max(0, len(spans) - _SPANS) + t.dropped,
    )


def _programs(captured: Captured) -> tuple[ProgramTime, ...]:
    times = {p.number: 0.0 for p in captured.programs}
    flops, nbytes = dict(times), dict(times)
    runs = dict.fromkeys(times, 0)
    for ran in captured.ran:
        number = ran.known.number
        runs[number] += 1
        times[number] += ran.run.end - ran.run.start
        for kernel in ran.run.kernels:
            flops[number] += ran.cost(kernel).flops
            nbytes[number] += ran.cost(kernel).nbytes
    rows = []
    for known in captured.programs:
        origins = known.launches[0].origins if known.launches else ()
        rows.append(
            ProgramTime(
                name=known.name,
                number=known.number,
                ops=len(known.program.nodes) if known.program is not None else 0,
                line=captured.resolve(origins[0]) if origins else None,
                reason=", ".join(dict.fromkeys(launch.reason for launch in known.launches)),
                runs=len(known.launches) or runs[known.number],
                seconds=times[known.number],
                flops=flops[known.number],
                nbytes=nbytes[known.number],
                temp_bytes=known.program.temp_bytes if known.program is not None else 0,
            )
        )
    return tuple(sorted(rows, key=lambda r: -r.seconds))


def about(captured: Captured, ran: Ran, kernel: Kernel) -> About:
    """Say what a kernel was for."""
    if kernel.about is None:
        kernel.about = _about(captured, ran, kernel)
    return kernel.about


def _about(captured: Captured, ran: Ran, kernel: Kernel) -> About:
    row = ran.known.kernels.get(kernel.name)
    program = ran.known.program
    if row is None or program is None:
        return About("kernel", (), None, "", False)
    members = row.ops or ((0,) if len(program.nodes) == 1 else ())  # a program of one op does not name it in its HLO
    root = row.root if row.root >= 0 else (members[-1] if members else -1)
    positions = dict.fromkeys(k for k in (root, *members) if 0 <= k < len(program.nodes))
    ops = tuple(dict.fromkeys(program.nodes[k].op for k in positions))
    origin = _origin(ran, root)
    return About(row.kind, ops, captured.resolve(origin), lines.module_of(origin), _backward(ran, root, origin))


def _origin(ran: Ran, position: int) -> Origin | None:
    launch = ran.launch
    return launch.origins[position] if launch is not None and 0 <= position < len(launch.origins) else None


def _backward(ran: Ran, position: int, origin: Origin | None) -> bool:
    graph = ran.known.program.graph if ran.known.program is not None else ()
    return (origin is not None and len(origin) > 3) or (0 <= position < len(graph) and graph[position].backward)


def _kernels(captured: Captured) -> tuple[KernelTime, ...]:
    found: dict[tuple[Any, ...], list[Any]] = {}
    for ran, kernel in captured.kernels():
        kind, ops, line, module, backward = about(captured, ran, kernel)
        key = ran.known.number, kernel.name, line, module, backward
        row = found.get(key)
        if row is None:
            row = found[key] = [ran.known.name, kind, ops, 0, 0.0, ran.cost(kernel)]
        row[3] += 1
        row[4] += kernel.own
    rows = (
        KernelTime(program, name, kind, ops, line, module, backward, count, seconds, cost.flops * count, cost.nbytes * count)
        for (_, name, line, module, backward), (program, kind, ops, count, seconds, cost) in found.items()
    )
    return tuple(sorted(rows, key=lambda r: -r.seconds))


def _ops(captured: Captured, kernels: tuple[KernelTime, ...]) -> tuple[OpTime, ...]:
    calls: dict[tuple[Any, ...], int] = {}
    for known in captured.programs:
        if known.program is None:
            continue
        for launch in known.launches:
            for node, info, origin in zip(known.program.graph, known.program.nodes, launch.origins, strict=False):
                backward = node.backward or (origin is not None and len(origin) > 3)
                key = info.op, captured.resolve(origin), lines.module_of(origin), backward
                calls[key] = calls.get(key, 0) + 1
    found: dict[tuple[Any, ...], list[Any]] = {}
    for k in kernels:
        key = (k.ops[0] if k.ops else DATA_MOVEMENT), k.line, k.module, k.backward
        row = found.setdefault(key, [{}, 0.0, 0.0, 0.0, 0])
        row[0].update(dict.fromkeys(k.ops[1:]))
        row[1] += k.seconds
        row[2] += k.flops
        row[3] += k.nbytes
        row[4] += k.count
    rows = (
        OpTime(*key, calls.get(key, count), tuple(fused), seconds, flops, nbytes)
        for key, (fused, seconds, flops, nbytes, count) in found.items()
    )
    return tuple(sorted(rows, key=lambda r: -r.seconds))


def _spans(captured: Captured) -> Iterator[Span]:
    """Yield everything that took time."""
    t, resolve, host, device = captured.timeline, captured.resolve, captured.on_host, captured.on_device
    start = 0.0
    for number, end in enumerate(captured.steps):
        yield Span("steps", f"step {number}", start, end - start, None, "")
        start = end
    for a in t.annotations:
        yield Span("annotations", a.name, host(a.start), a.end - a.start, None, "")
    for n in t.notes:
        yield Span("ops", n.plan.name, host(n.start), n.seconds, resolve(n.origin), lines.module_of(n.origin))
    for launch in t.launches:
        origin = launch.origins[0] if launch.origins else None
        single = len(launch.program.nodes) == 1
        track, name = ("ops", launch.program.nodes[0].op) if single else ("launches", launch.program.name)
        detail = lines.module_of(origin) if single else f"{len(launch.program.nodes)} ops, run at {launch.reason}"
        yield Span(track, name, host(launch.start), launch.seconds, resolve(origin), detail)
    for f in t.flushes:
        yield Span("flushes", f.reason, f.at - f.seconds, f.seconds, resolve(f.origin), f"{f.nodes} ops, {f.pieces} programs")
    for c in t.compiles:
        origin = c.origin
        how = "loaded from disk" if c.program.from_disk else "compiled"
        detail = f"{how}: {c.cause.kind} {c.cause.detail}".rstrip()
        yield Span("compiles", c.program.name, c.at - c.seconds, c.seconds, resolve(origin), detail)
    for s in t.syncs:
        yield Span("waits", s.kind, s.at - s.seconds, s.seconds, resolve(s.origin), f"{s.nbytes:,} bytes" if s.nbytes else "")
    for b in t.fallbacks:
        yield Span("fallbacks", b.op, b.at - b.seconds, b.seconds, resolve(b.origin), f"{b.nbytes:,} bytes moved")
    for ran in captured.ran:
        origin = _origin(ran, 0)
        ops = f"{len(ran.known.program.nodes)} ops" if ran.known.program is not None else ""
        yield Span("programs", ran.known.name, device(ran.run.start), ran.run.end - ran.run.start, resolve(origin), ops)
        for k in ran.run.kernels:
            kind, ops_of, line, module, backward = about(captured, ran, k)
            where = f" for {module}" if module else ""
            detail = f"{ran.known.name}, {kind}: {', '.join(ops_of)}{where}{', backward' if backward else ''}"
            yield Span(f"device thread {k.thread}", k.name, device(k.start), k.end - k.start, line, detail)
