"""From an event log to the figures of a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from torchtpu import client, events, lines
from torchtpu.ledger import Account, Held
from torchtpu.lines import Line, Origin
from torchtpu.report.rows import (
    BufferRow,
    CompileRow,
    FallbackRow,
    FlushRow,
    OpRow,
    ProgramRow,
    Seconds,
    Storm,
    SyncRow,
)

if TYPE_CHECKING:
    from torchtpu.layout import Layout
    from torchtpu.program import Program

Resolve = Callable[[Origin | None], Line | None]

STORM = 5  # compilations of the same ops for one line that deserve a warning
_MAX_BUFFERS = 50


def figures(log: events.Log, finish: float, account: Account, error: str) -> dict[str, Any]:
    """Return the fields of a `Report`.

    Args:
        log: a closed log.
        finish: seconds from the last line until the device was idle.
        account: of device memory.
        error: the exception that ended the watch, as text.
    """
    resolve = _resolver()
    started = client.started()
    platform = client.device().platform if started else ""
    return {
        "mode": log.mode,
        "device": "tpu:0",
        "platform": platform,
        "compiler": f"XLA:{platform.upper()}" if platform else "XLA",
        "error": error,
        "seconds": _seconds(log, finish),
        "ops": log.ops,
        "compiles": len(log.compiles),
        "cache_hits": log.cache_hits,
        "runs": sum(r.count for r in log.runs.values()),
        "programs": _programs(log, resolve),
        "compile_events": tuple(
            CompileRow(c.program.name, _names(c.program.outputs), resolve(c.origin), c.cause, c.seconds, c.at)
            for c in log.compiles
        ),
        "flushes": tuple(
            FlushRow(f.reason, resolve(f.origin), f.nodes, f.live, f.pieces, f.seconds, f.at) for f in log.flushes
        ),
        "syncs": tuple(SyncRow(s.kind, resolve(s.origin), s.seconds, s.nbytes, s.at) for s in log.syncs),
        "fallbacks": _fallbacks(log.fallbacks, resolve),
        "storms": _storms(log.compiles, resolve),
        "hbm_before": account.before,
        "hbm_peak": account.peak,
        "hbm_live": account.live,
        "hbm_limit": client.memory_limit() if started else 0,
        "hbm_peak_buffers": _buffers(account.held_at_peak, resolve),
        "hbm_live_buffers": _buffers(account.held_at_end, resolve),
    }


def _resolver() -> Resolve:
    # By the identity of the code: code objects of two cells with the same statement are equal.
    known: dict[tuple[Any, ...], Line | None] = {}

    def resolve(origin: Origin | None) -> Line | None:
        if origin is None:
            return None
        key = (id(origin[0]), *origin[1:])
        if key not in known:
            known[key] = lines.resolve(origin)
        return known[key]

    return resolve


def _seconds(log: events.Log, finish: float) -> Seconds:
    ended = log.ended if log.ended is not None else log.started
    return Seconds(
        dispatch=log.dispatch_seconds,
        compile=sum(c.seconds for c in log.compiles),
        run=log.run_seconds,
        wait=sum(s.seconds for s in log.syncs),
        finish=finish,
        elapsed=ended - log.started + finish,
    )


def _programs(log: events.Log, resolve: Resolve) -> tuple[ProgramRow, ...]:
    runs_of: dict[int, list[events.Runs]] = {}
    programs: dict[int, Program] = {}
    for compile in log.compiles:  # a program whose first run failed shows too
        programs[id(compile.program)] = compile.program
    compiled = set(programs)
    for runs in log.runs.values():
        programs[id(runs.program)] = runs.program
        runs_of.setdefault(id(runs.program), []).append(runs)
    origin_of = {id(c.program): c.origin for c in log.compiles}

    def row(key: int, program: Program) -> ProgramRow:
        runs = sorted(runs_of.get(key, ()), key=lambda r: r.first)
        origins = runs[0].origins if runs else (origin_of.get(key),) * len(program.nodes)
        return ProgramRow(
            name=program.name,
            ops=tuple(
                OpRow(node.op, resolve(origin), _names(node.outputs))
                for node, origin in zip(program.nodes, origins, strict=False)
            ),
            inputs=_names(program.inputs),
            outputs=_names(program.outputs),
            reason=", ".join(dict.fromkeys(r.reason for r in runs)),
            compiled=key in compiled,
            compile_seconds=program.compile_seconds,
            runs=sum(r.count for r in runs),
            run_seconds=sum(r.seconds for r in runs),
            argument_bytes=program.argument_bytes,
            output_bytes=program.output_bytes,
            temp_bytes=program.temp_bytes,
            alias_bytes=program.alias_bytes,
        )

    return tuple(row(key, program) for key, program in programs.items())


def _names(layouts: Iterable[Layout]) -> tuple[str, ...]:
    return tuple(map(str, layouts))


def _fallbacks(fallbacks: Iterable[events.Fallback], resolve: Resolve) -> tuple[FallbackRow, ...]:
    groups: dict[tuple[str, Line | None], list[events.Fallback]] = {}
    for f in fallbacks:
        groups.setdefault((f.op, resolve(f.origin)), []).append(f)
    return tuple(
        FallbackRow(op, line, len(group), sum(f.seconds for f in group), sum(f.nbytes for f in group))
        for (op, line), group in groups.items()
    )


def _storms(compiles: Iterable[events.Compile], resolve: Resolve) -> tuple[Storm, ...]:
    groups: dict[tuple[Line | None, str], list[events.Compile]] = {}
    for c in compiles:
        # Fused programs of one line count together: a loop that grows has a different number of ops each time.
        ops = c.program.nodes[0].op if len(c.program.nodes) == 1 else "fused ops"
        groups.setdefault((resolve(c.origin), ops), []).append(c)
    storms = [
        Storm(line, ops, group[-1].cause, len(group), sum(c.seconds for c in group))
        for (line, ops), group in groups.items()
        if len(group) >= STORM and line is not None
    ]
    return tuple(sorted(storms, key=lambda s: -s.seconds))


def _buffers(held: Iterable[Held], resolve: Resolve) -> tuple[BufferRow, ...]:
    groups: dict[tuple[str, Line | None, bool], list[int]] = {}
    for h in held:
        what = f"{h.what} while it runs" if isinstance(h.what, str) else str(h.what)
        groups.setdefault((what, resolve(h.origin), h.earlier), []).append(h.nbytes)
    rows = [BufferRow(what, line, earlier, len(sizes), sum(sizes)) for (what, line, earlier), sizes in groups.items()]
    rows.sort(key=lambda r: -r.nbytes)
    rest = rows[_MAX_BUFFERS:]
    if rest:
        rows[_MAX_BUFFERS:] = [BufferRow("smaller ones", None, False, sum(r.count for r in rest), sum(r.nbytes for r in rest))]
    return tuple(rows)
