"""From an event log to the figures of a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from torchtpu import client, events, lines, provenance
from torchtpu.causes import Kind
from torchtpu.ledger import Account
from torchtpu.lines import Line, Origin
from torchtpu.report import memory
from torchtpu.report.report import Live
from torchtpu.report.rows import (
    CompileRow,
    FallbackRow,
    FlushRow,
    OpRow,
    ProgramRow,
    Seconds,
    Storm,
    SyncRow,
)
from torchtpu.report.trace import Call, Trace

if TYPE_CHECKING:
    from torchtpu.buffer import Buffer
    from torchtpu.holders import Holder
    from torchtpu.layout import Layout
    from torchtpu.program import Node, NodeInfo, Program

Resolve = Callable[[Origin | None], Line | None]

STORM = 5  # compilations for one line, all but the first ones of its ops, that deserve a warning


def figures(
    log: events.Log, finish: float, account: Account, error: str, alive: Iterable[tuple[Buffer, list[Holder]]] = ()
) -> dict[str, Any]:
    """Return the fields of a `Report`.

    Args:
        log: a closed log.
        finish: seconds from the last line until the device was idle.
        account: of device memory.
        error: the exception that ended the watch, as text.
        alive: the buffers that have memory at the end, with who holds them.
    """
    resolve = resolver()
    rows, live = _programs(log, resolve)
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
        "compiles": sum(not c.program.from_disk for c in log.compiles),
        "disk_hits": sum(c.program.from_disk for c in log.compiles),
        "cache_hits": log.cache_hits,
        "runs": sum(r.count for r in log.runs.values()),
        "programs": rows,
        "live": live,
        "compile_events": tuple(_compile(c, resolve) for c in log.compiles),
        "flushes": tuple(
            FlushRow(f.reason, resolve(f.origin), f.nodes, f.live, f.pieces, f.seconds, f.at) for f in log.flushes
        ),
        "syncs": tuple(SyncRow(s.kind, resolve(s.origin), s.seconds, s.nbytes, s.at) for s in log.syncs),
        "fallbacks": _fallbacks(log.fallbacks, resolve),
        "trace": _trace(log.trace, resolve),
        "storms": _storms(log, resolve),
        "targets": (),
        "hbm_limit": client.memory_limit() if started else 0,
        **memory.figures(account, alive, resolve),
    }


def resolver() -> Resolve:
    """Return what resolves origins, each only once."""
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


def _programs(log: events.Log, resolve: Resolve) -> tuple[tuple[ProgramRow, ...], Live]:
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
            ops=op_rows(program.nodes, program.graph, origins, resolve),
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
            results=program.results,
            precision=program.precision,
        )

    numbers = tuple(runs_of[key][0].numbers if key in runs_of else () for key in programs)
    ops = range(log.first_op, provenance.latest() + 1)
    live = Live(tuple(programs.values()), numbers, ops, tuple(t.seconds for t in log.trace))
    return tuple(row(key, program) for key, program in programs.items()), live


def op_rows(
    infos: Iterable[NodeInfo], nodes: Iterable[Node], origins: Iterable[Origin | None], resolve: Resolve
) -> tuple[OpRow, ...]:
    """Describe the ops of a program, with their lines."""
    return tuple(
        OpRow(
            info.op,
            resolve(origin),
            _names(info.outputs),
            lines.module_of(origin),
            node.backward or (origin is not None and len(origin) > 3),
            node.refs,
            info.inputs,
        )
        for info, node, origin in zip(infos, nodes, origins, strict=False)
    )


def _trace(trace: Sequence[events.Traced], resolve: Resolve) -> Trace:
    positions: dict[tuple[int, Line | None], int] = {}
    calls: list[Call] = []
    order = []
    for t in trace:
        line = resolve(t.origin)
        key = (id(t.plan), line)
        if key not in positions:
            positions[key] = len(calls)
            plan = t.plan
            read = sum(plan.views[n].layout.nbytes for n in plan.needs)
            calls.append(Call(plan.name, line, plan.info().inputs, _names(plan.outputs), read, plan.nbytes))
        order.append(positions[key])
    return Trace(
        tuple(calls),
        tuple(order),
        tuple(t.at for t in trace),
        tuple(t.seconds for t in trace),
        tuple(t.difference.alone if t.difference is not None else None for t in trace),
        tuple(t.difference.so_far if t.difference is not None else None for t in trace),
    )


def _compile(event: events.Compile, resolve: Resolve) -> CompileRow:
    program, cause = event.program, event.cause
    return CompileRow(
        program=program.name,
        outputs=_names(program.outputs),
        line=resolve(event.origin),
        kind=str(cause.kind),
        detail=cause.detail,
        remedy=cause.remedy,
        closest=resolve(cause.closest),
        from_disk=program.from_disk,
        seconds=event.seconds,
        at=event.at,
    )


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


def _storms(log: events.Log, resolve: Resolve) -> tuple[Storm, ...]:
    runs: dict[int, int] = {}
    for r in log.runs.values():
        runs[id(r.program)] = runs.get(id(r.program), 0) + r.passes
    groups: dict[Line | None, list[events.Compile]] = {}
    for c in log.compiles:
        # A program that is used again, as one of a few sizes, was worth its compile.
        if c.cause.kind is not Kind.FIRST and runs.get(id(c.program), 0) < 2:
            groups.setdefault(resolve(c.origin), []).append(c)
    storms = [_storm(line, group) for line, group in groups.items() if len(group) >= STORM and line is not None]
    return tuple(sorted(storms, key=lambda s: -s.seconds))


def _storm(line: Line, group: list[events.Compile]) -> Storm:
    cost: dict[Kind, float] = {}
    for c in group:
        cost[c.cause.kind] = cost.get(c.cause.kind, 0.0) + c.seconds
    kind = max(cost, key=lambda k: cost[k])
    alike = [c for c in group if c.cause.kind is kind]
    # Of a line's ops, the first one is nearest to the cause.
    last = [c.cause for c in alike if _ops(c.program) == _ops(alike[0].program)][-1]
    ops = dict.fromkeys(_ops(c.program) for c in group)
    return Storm(line, ", ".join(ops), str(kind), last.detail, last.remedy, len(group), sum(c.seconds for c in group))


def _ops(program: Program) -> str:
    """Name a program by its op. Fused ones have one name: a loop that grows has a different number of ops each time."""
    return program.nodes[0].op if len(program.nodes) == 1 else "fused ops"
