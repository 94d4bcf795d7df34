"""defer_and_fuse: ops are collected in a graph, and compiled and run together when a value is needed.

Cuts are deterministic: a read, `synchronize`, the end of a backward pass, of an optimizer's step or of a cell, a change of
mode, a cap on pending ops and bytes. Never the clock.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import torch

from torchtpu import compiler, config, errors, events, hbm, lines, ownership, provenance, schedule
from torchtpu.buffer import Buffer
from torchtpu.causes import Cause, graphs as graph_causes, ops as op_causes
from torchtpu.modes import strict
from torchtpu.plan import Plan
from torchtpu.program import Node, Program
from torchtpu.schedule import Schedule

_refcount = sys.getrefcount
_graph_task = torch._C._current_graph_task_id
_lock = threading.RLock()


class Graph:
    """Pending ops, in order.

    Attributes:
        epoch: tells this graph's buffers from those of earlier ones.
        nodes, origins: the ops and their lines.
        key: plans and references, which together say what the graph computes.
        inputs: buffers that existed before the graph.
        slots: weak references to the promised results; dead ones need not be computed.
        numbers: values of the program's number inputs, in order.
        nbytes: of all results.
        task, caller: autograd's id of the backward pass that is being recorded, and the line that called for it.
        after: what cut the graph before it; the line of that too, while somebody watches.
        interrupted: the user interrupted its compile, which was for these results kept and these inputs donated.
    """

    __slots__ = (
        "epoch", "nodes", "origins", "key", "inputs", "slots", "numbers", "nbytes", "task", "caller", "after", "interrupted",
    )  # fmt: skip
    _epochs = 0

    def __init__(self) -> None:
        Graph._epochs += 1
        self.epoch = Graph._epochs
        self.nodes: list[Node] = []
        self.origins: list[lines.Origin | None] = []
        self.key: list[Any] = []
        self.inputs: list[Buffer] = []
        self.slots: list[weakref.ref[Buffer]] = []
        self.numbers: list[Any] = []
        self.nbytes = 0
        self.task = -1
        self.caller: lines.Origin | None = None
        self.after: tuple[str, lines.Origin | None] = ("", None)
        self.interrupted: tuple[tuple[int, ...], tuple[int, ...]] | None = None


_graph = Graph()


def record(plan: Plan, inputs: list[Buffer], numbers: Sequence[Any]) -> list[Buffer]:
    """Append an op to the pending graph. Returns promises of its outputs."""
    with _lock:
        graph = _graph
        if len(graph.nodes) >= config.max_pending_ops or graph.nbytes >= config.max_pending_bytes:
            del graph
            flush(_full(_graph))
            graph = _graph
        task = _graph_task()
        if task != graph.task and (task == -1 or graph.task == -1):
            if task != -1 and graph.nbytes >= schedule.LARGE:
                del graph
                flush("start of backward")  # it runs while the backward pass is recorded
                graph = _graph
            graph.task = task
            graph.key.append(task != -1)
            if task != -1:
                graph.caller = lines.here()
                torch.autograd.Variable._execution_engine.queue_callback(_backward_ended)
        epoch = graph.epoch
        refs = []
        for b in inputs:
            if b.epoch != epoch:
                if b.array is None:
                    strict.fill(b)
                b.epoch = epoch
                graph.inputs.append(b)
                b.ref = -len(graph.inputs)
            refs.append(b.ref)
        graph.nodes.append(Node(plan, tuple(refs), graph.task != -1))
        graph.key.append(plan)
        graph.key += refs
        graph.origins.append(lines.here() if graph.task == -1 else graph.caller)
        if numbers:
            graph.numbers += numbers
        graph.nbytes += plan.nbytes
        slots = graph.slots
        outputs = []
        for layout in plan.outputs:
            b = Buffer(layout)
            b.epoch = epoch
            b.ref = len(slots)
            slots.append(weakref.ref(b))
            outputs.append(b)
        return outputs


def _full(graph: Graph) -> str:
    if graph.interrupted:
        return "interrupted compile"
    return "cap on pending ops" if len(graph.nodes) >= config.max_pending_ops else "cap on pending bytes"


def record_watched(plan: Plan, inputs: list[Buffer], numbers: Sequence[Any]) -> list[Buffer]:
    """Append an op to the pending graph and note where it came from."""
    start = time.perf_counter()
    outputs = record(plan, inputs, numbers)
    origin = _graph.origins[-1] = lines.note()
    provenance.record(plan, origin, inputs, outputs)
    ownership.record(plan, inputs, outputs)
    for b in outputs:
        b.origin = origin
    seconds = time.perf_counter() - start
    for log in events.logs:
        log.recorded(plan, origin, start, seconds)
    return outputs


def _backward_ended() -> None:
    _graph.task = -1
    with compiler.giving_up():  # the graph then stays pending
        flush("end of backward")


def optimizer_stepped(*_: Any) -> None:
    """Cut after an optimizer's step, so that a loop makes the same programs whether and wherever it reads its loss."""
    flush("end of optimizer step")
    op_causes.step_ended()


def pending() -> int:
    """Number of ops that wait to be run."""
    return len(_graph.nodes)


def graph() -> Graph:
    """Return the pending graph, to look at."""
    return _graph


def forget() -> None:
    """In a forked process: drop what is pending, which is the parent's to run, and a lock that the parent may have held."""
    global _graph, _lock
    _graph, _lock = Graph(), threading.RLock()


@dataclass(slots=True)
class _Family:
    """Graphs that differ only in shapes and constants.

    Attributes:
        vain: how many were compiled whole and have not come back.
        plans: those of the graph that was compiled last.
        latest: what ran last.
    """

    vain: int = 0
    plans: tuple[Plan, ...] = ()
    latest: Schedule | None = None


_IN_PIECES = "; in pieces, since such graphs did not come back"

# Schedules by key, families by ops and references.
_schedules: dict[tuple[Any, ...], tuple[Schedule, _Family]] = {}
_families: dict[tuple[Any, ...], _Family] = {}


def forget_schedules() -> None:
    """Let go of the programs of graphs."""
    _schedules.clear()
    for family in _families.values():
        family.latest = None


def programs() -> list[Program]:
    """Return the fused programs compiled so far."""
    return list(schedule.programs.values())


# Where nobody waits for a value. Right after an interrupt, these do not wait for the compile that was interrupted.
_BOUNDARIES = frozenset({"end of cell", "end of watch", "mode change", "precision change"})


def flush(reason: str) -> None:
    """Run what is pending.

    Raises:
        The error of the first op that failed, naming its line. Results that do not depend on it are kept.
    """
    global _graph
    with _lock:
        graph = _graph
        if not graph.nodes or (graph.interrupted and reason in _BOUNDARIES and compiler.busy()):
            return
        start = time.perf_counter()
        live = [b for r in graph.slots if (b := r()) is not None]
        if not live:
            _graph = Graph()
            _graph.after = reason, None
            return
        kept, donated = graph.interrupted or (tuple(b.ref for b in live), _donatable(graph))
        key = (tuple(graph.key), kept, donated)
        plan, family = _schedules.get(key) or (None, None)
        fresh: set[int] = set()
        if plan is None or (family.latest is plan and not plan.whole):  # twice in a row: worth a program of its own
            family = family or _family(graph)
            plan = _build(graph, key, live, reason, fresh, family, again=plan is not None)
            if plan is not None:
                _schedules[key] = plan, family
            else:
                _prepare(graph, key, live, reason)
        elif not plan.reused:
            plan.reused = True
            family.vain -= plan.whole
        family.latest = plan
        # From here on the graph's promises are kept or broken: an interrupt before this point leaves it pending.
        _graph = Graph()
        _graph.task, _graph.caller = graph.task, graph.caller
        _graph.after = reason, lines.here() if events.logs else None
        try:
            if plan is None:
                failure = _run_op_by_op(graph, live, {-1 - k: b for k, b in enumerate(graph.inputs)})
            else:
                failure = _run(graph, plan, live, reason, fresh)
        except KeyboardInterrupt:
            for b in live:
                if b.array is None:
                    b.error = b.error or errors.TorchTPUError("this value was being computed when Ctrl-C interrupted it")
            raise
        if events.logs:
            seconds = time.perf_counter() - start
            origin = lines.here()
            pieces = len(plan.parts) if plan is not None else len(graph.nodes)
            for log in events.logs:
                log.flushes.append(events.Flush(reason, origin, len(graph.nodes), len(live), seconds, log.now(), pieces))
        if failure is not None:
            raise failure


def _donatable(graph: Graph) -> tuple[int, ...]:
    """Return the positions of the inputs that nothing but the graph holds."""
    inputs = graph.inputs
    # Two references: the graph's list and getrefcount's argument.
    return tuple(k for k in range(len(inputs)) if _refcount(inputs[k]) == 2 and not inputs[k].shared)


def _family(graph: Graph) -> _Family:
    """Return what is known of graphs that compute the same as this one, whatever their shapes."""
    return _families.setdefault(tuple((n.plan.name, n.refs) for n in graph.nodes), _Family())


def _known(graph: Graph, family: _Family) -> tuple[bool, ...] | None:
    """Return which ops the graph before had too, if this one is to be cut where they meet new ones.

    That is at once if it had most of them, as in a loop where a cache grows; else after so many graphs compiled in vain.
    """
    if len(graph.nodes) == 1 or not family.plans:
        return None
    known = tuple(node.plan is plan for node, plan in zip(graph.nodes, family.plans, strict=True))
    return known if family.vain >= config.churn_limit or len(known) / 2 < sum(known) < len(known) else None


def _build(
    graph: Graph, key: graph_causes.Key, live: list[Buffer], reason: str, fresh: set[int], family: _Family, again: bool
) -> Schedule | None:
    """Compile the graph; None if the compiler refuses it (then the op at fault is found by running one at a time).

    Args:
        fresh: gets the programs that had to be compiled.
        again: it ran in pieces just now; so it is compiled whole.
    """
    known = None if again else _known(graph, family)
    _, kept, donated = key
    origin = lines.here()
    cause: Cause | None = None

    def compiled(program: Program) -> None:
        nonlocal cause
        fresh.add(id(program))
        if events.logs:
            cause = cause or graph_causes.explain(graph, key, live, reason, origin)
            if known is not None and not cause.detail.endswith(_IN_PIECES):
                cause = replace(cause, detail=cause.detail + _IN_PIECES)
            for log in events.logs:
                log.compiles.append(events.Compile(program, program.compile_seconds, cause, origin, log.now()))

    try:
        made = schedule.build(graph.nodes, kept, donated, [b.layout for b in graph.inputs], compiled, known)
        graph_causes.remember(graph, key, reason, origin)
        family.vain += made.whole
        family.plans = tuple(node.plan for node in graph.nodes)
        return made
    except KeyboardInterrupt:
        graph.interrupted = kept, donated
        graph.nbytes = sys.maxsize  # it takes no more ops: the compile that goes on is of these
        raise
    except Exception:
        if len(graph.nodes) == 1:
            raise
        return None


def _prepare(graph: Graph, key: graph_causes.Key, live: list[Buffer], reason: str) -> None:
    """Compile the ops' own programs, while an interrupt still leaves the graph pending."""
    missing = events.logs and any(node.plan.program is None for node in graph.nodes)
    because = graph_causes.explain(graph, key, live, reason, lines.here()) if missing else None
    for node, origin in zip(graph.nodes, graph.origins, strict=True):
        with contextlib.suppress(Exception):  # raised again where the op runs
            strict.ready(node.plan, origin, because)
    graph_causes.remember(graph, key, reason, lines.here())


def _run(graph: Graph, plan: Schedule, live: list[Buffer], reason: str, fresh: set[int]) -> Exception | None:
    promised = {b.ref: b for b in live}
    values = {-1 - k: b for k, b in enumerate(graph.inputs)}
    graph.inputs.clear()  # `values` alone keeps them, until their last use
    passing = ownership.Passing(graph) if events.logs and len(plan.parts) > 1 else None
    ran: set[int] = set()
    for part in plan.parts:
        program = part.program
        arrays = [values[r].array for r in part.refs]
        numbers = [graph.numbers[n] for n in part.numbers]
        arrays += program.wires.pack(numbers)
        start = time.perf_counter()
        try:
            hbm.run(program.name, program.output_bytes, program.alias_bytes, program.temp_bytes)
            results = program.call(*arrays)
        except (jax.errors.JaxRuntimeError, torch.OutOfMemoryError):
            return _run_op_by_op(graph, live, values, part.nodes[0])
        seconds = time.perf_counter() - start
        del arrays
        for r in part.donated:
            values[r].release()
        for r in part.dead:
            del values[r]
        for slot, array in zip(part.slots, results, strict=True):
            buffer = promised.get(slot)
            if buffer is None:
                buffer = Buffer(plan.layouts[slot])
                if passing is not None:
                    passing.own(buffer, slot)
            values[slot] = buffer
            buffer.fulfil(array)
        if events.logs:
            provenance.computed([values[s] for s in part.slots], program.name)
        for log in events.logs:
            log.cache_hits += id(program) not in fresh
            origins = tuple(graph.origins[k] for k in part.nodes)
            log.ran(program, reason, origins, start, seconds, numbers, id(program) in ran)
        fresh.discard(id(program))
        ran.add(id(program))
    return None


def _run_op_by_op(graph: Graph, live: list[Buffer], values: dict[int, Buffer], first: int = 0) -> Exception | None:
    """Run a graph's nodes from the first on with the ops' own programs.

    Args:
        values: the inputs, and what earlier parts of the graph made.

    Returns:
        The first error. What does not depend on it is kept.
    """
    promised = {b.ref: b for b in live}
    last_use = {r: k for k, node in enumerate(graph.nodes) for r in node.refs}
    failure: Exception | None = None
    broken: dict[int, Exception] = {}
    slot = number = 0
    for k, node in enumerate(graph.nodes):
        plan = node.plan
        numbers = graph.numbers[number : number + len(plan.wires)]
        number += len(plan.wires)
        outputs = range(slot, slot + len(plan.outputs))
        slot = outputs.stop
        if k < first:
            continue
        error = next((broken[r] for r in node.refs if r in broken), None)
        if error is None:
            try:
                results = strict.launch(plan, [values[r].array for r in node.refs], numbers)
            except Exception as raised:
                error = _located(raised, graph.origins[k])
                failure = failure or error
        for j, s in enumerate(outputs):
            buffer = promised.get(s) or Buffer(plan.outputs[j])
            if error is not None:
                broken[s] = buffer.error = error
            else:
                buffer.fulfil(results[j])
                values[s] = buffer
        results = ()
        for r in node.refs:
            if last_use[r] == k:
                values.pop(r, None)
    return failure


def _located(error: Exception, origin: lines.Origin | None) -> Exception:
    """Add to an error the line that recorded its op."""
    line = lines.resolve(origin)
    if line is not None:
        text = error.args[0] if error.args else error
        where = f"in the backward pass of {line.where}" if line.backward else f"at {line.where}"
        error.args = (f"{text} (recorded {where}: {line.source})", *error.args[1:])
    return error
