"""defer_and_fuse: ops are collected in a graph, and compiled and run together when a value is needed.

Cuts are deterministic: a read, `synchronize`, the end of a backward pass, of an optimizer's step or of a cell, a change of
mode, a cap on pending ops and bytes. Never the clock.
"""

from __future__ import annotations

import sys
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import jax
import torch

from torchtpu import config, events, hbm, lines, schedule
from torchtpu.buffer import Buffer
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
    """

    __slots__ = ("epoch", "nodes", "origins", "key", "inputs", "slots", "numbers", "nbytes", "task", "caller")
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


_graph = Graph()


def record(plan: Plan, inputs: list[Buffer], numbers: Sequence[Any]) -> list[Buffer]:
    """Append an op to the pending graph. Returns promises of its outputs."""
    with _lock:
        graph = _graph
        if len(graph.nodes) >= config.max_pending_ops or graph.nbytes >= config.max_pending_bytes:
            del graph
            flush("cap on pending ops" if len(_graph.nodes) >= config.max_pending_ops else "cap on pending bytes")
            graph = _graph
        task = _graph_task()
        if task != graph.task and (task == -1 or graph.task == -1):
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


def record_watched(plan: Plan, inputs: list[Buffer], numbers: Sequence[Any]) -> list[Buffer]:
    """Append an op to the pending graph and note where it came from."""
    start = time.perf_counter()
    outputs = record(plan, inputs, numbers)
    origin = _graph.origins[-1] = lines.note()
    for b in outputs:
        b.origin = origin
    seconds = time.perf_counter() - start
    for log in events.logs:
        log.ops += 1
        log.dispatch_seconds += seconds
    return outputs


def _backward_ended() -> None:
    _graph.task = -1
    flush("end of backward")


def optimizer_stepped(*_: Any) -> None:
    """Cut after an optimizer's step, so that a loop makes the same programs whether and wherever it reads its loss."""
    flush("end of optimizer step")


def pending() -> int:
    """Number of ops that wait to be run."""
    return len(_graph.nodes)


def forget() -> None:
    """In a forked process: drop what is pending, which is the parent's to run, and a lock that the parent may have held."""
    global _graph, _lock
    _graph, _lock = Graph(), threading.RLock()


# Schedules by key, and what is known of graphs that differ only in shapes: how often they compiled in vain.
_schedules: dict[tuple[Any, ...], Schedule] = {}
_vain: dict[tuple[Any, ...], int] = {}
_seen: set[tuple[Any, ...]] = set()


def programs() -> list[Program]:
    """Return the fused programs compiled so far."""
    return list(schedule.programs.values())


def flush(reason: str) -> None:
    """Run what is pending.

    Raises:
        The error of the first op that failed, naming its line. Results that do not depend on it are kept.
    """
    global _graph
    with _lock:
        graph = _graph
        if not graph.nodes:
            return
        start = time.perf_counter()
        live = [b for r in graph.slots if (b := r()) is not None]
        if not live:
            _graph = Graph()
            return
        kept = tuple(b.ref for b in live)
        donated = _donatable(graph)
        key = (tuple(graph.key), kept, donated)
        plan = _schedules.get(key)
        fresh: set[int] = set()
        if plan is not None:
            if not plan.reused:
                plan.reused = True
                _vain[_family(graph)] = 0
        elif not _churns(graph, key):
            plan = _build(graph, kept, donated, reason, fresh)
            if plan is not None:
                _schedules[key] = plan
        # From here on the graph's promises are kept or broken: an interrupt before this point leaves it pending.
        _graph = Graph()
        _graph.task, _graph.caller = graph.task, graph.caller
        if plan is None:
            failure = _run_op_by_op(graph, live, {-1 - k: b for k, b in enumerate(graph.inputs)})
        else:
            failure = _run(graph, plan, live, reason, fresh)
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


def _family(graph: Graph) -> tuple[Any, ...]:
    """Say what a graph computes without its shapes."""
    return tuple((n.plan.name, tuple(n.refs)) for n in graph.nodes)


def _churns(graph: Graph, key: tuple[Any, ...]) -> bool:
    """Whether to run this graph op by op: its like compiled again and again, and it has not come back itself."""
    if len(graph.nodes) == 1:
        return False
    if _vain.get(_family(graph), 0) < config.churn_limit or key in _seen:
        return False
    if len(_seen) > 10_000:
        _seen.clear()
    _seen.add(key)
    return True


def _build(graph: Graph, kept: tuple[int, ...], donated: tuple[int, ...], reason: str, fresh: set[int]) -> Schedule | None:
    """Compile the graph; None if the compiler refuses it (then the op at fault is found by running one at a time)."""
    family = _family(graph)
    _vain[family] = _vain.get(family, 0) + 1

    def compiled(program: Program) -> None:
        fresh.add(id(program))
        if events.logs:
            origin = lines.here()
            for log in events.logs:
                log.compiles.append(
                    events.Compile(program, program.compile_seconds, f"first time ({reason})", origin, log.now())
                )

    try:
        return schedule.build(graph.nodes, kept, donated, [b.layout for b in graph.inputs], compiled)
    except Exception:
        if len(graph.nodes) == 1:
            raise
        return None


def _run(graph: Graph, plan: Schedule, live: list[Buffer], reason: str, fresh: set[int]) -> Exception | None:
    promised = {b.ref: b for b in live}
    values = {-1 - k: b for k, b in enumerate(graph.inputs)}
    for part in plan.parts:
        program = part.program
        arrays = [values[r].array for r in part.refs]
        arrays += program.wires.pack([graph.numbers[n] for n in part.numbers])
        hbm.peak_with(program.output_bytes - program.alias_bytes + program.temp_bytes, program.name)
        start = time.perf_counter()
        try:
            results = program.call(*arrays)
        except jax.errors.JaxRuntimeError:
            return _run_op_by_op(graph, live, values, part.nodes[0])
        seconds = time.perf_counter() - start
        del arrays
        for r in part.donated:
            values[r].release()
        for r in part.dead:
            del values[r]
        for slot, array in zip(part.slots, results, strict=True):
            buffer = values[slot] = promised.get(slot) or Buffer(plan.layouts[slot])
            buffer.fulfil(array)
        for log in events.logs:
            log.cache_hits += id(program) not in fresh
            log.ran(program, reason, tuple(graph.origins[k] for k in part.nodes), seconds)
        fresh.discard(id(program))
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
        error.args = (f"{error} (recorded at {line.where}: {line.source})", *error.args[1:])
    return error
