"""Debug mode: every op is waited for, and checked where the user asked for it. Errors stop at the user's line."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import jax

from torchtpu import checks, config, events, lines, provenance
from torchtpu.buffer import Buffer
from torchtpu.modes import strict
from torchtpu.plan import Plan


def run(plan: Plan, inputs: list[Buffer], numbers: Sequence[Any]) -> list[Buffer]:
    """Run one op, wait for it, and check its results.

    Raises:
        NumericsError: `config.debug_nan` or `config.debug_compare_cpu` found something.
        IndexError: `config.debug_index` found an index out of range.
        bdb.BdbQuit: the user left the debugger that `config.debug_break` had opened.
    """
    origin = lines.note()
    if config.debug_break:
        checks.before_op(plan, origin)
    if config.debug_index:
        checks.indices(plan, origin, inputs)
    # A second reference to each input keeps its memory from being reused for a result: the checks read it afterwards.
    before = list(inputs) if config.debug_nan or config.debug_compare_cpu else []
    logs = events.logs
    compiled = len(logs[0].compiles) if logs else 0
    start = time.perf_counter()
    results = (strict.run_watched if logs else strict.run)(plan, inputs, numbers)
    launched = time.perf_counter()
    try:
        for b in results:
            b.array.block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        raise strict.run_error(plan, error) from None
    ended = time.perf_counter()
    for log in logs:
        log.syncs.append(events.Sync("debug", origin, ended - launched, plan.nbytes, log.now()))
    if not logs:
        provenance.record(plan, origin, inputs, results, plan.last.name if plan.last is not None else None)
    difference = checks.against_cpu(plan, origin, before, numbers, results) if config.debug_compare_cpu else None
    for log in logs:
        if log.tracing or config.debug_compare_cpu:
            seconds = ended - start - sum(c.seconds for c in logs[0].compiles[compiled:])
            log.trace.append(events.Traced(plan, origin, seconds, start - log.started, difference))
    if difference is not None and difference.error is not None:
        raise difference.error from None
    if config.debug_nan:
        checks.finite(plan, origin, before, numbers, results)
    return results
