"""Debug mode: every op is waited for, and checked where the user asked for it. Errors stop at the user's line."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from torchtpu import checks, config, events, lines
from torchtpu.buffer import Buffer
from torchtpu.modes import strict
from torchtpu.plan import Plan


def run(plan: Plan, inputs: list[Buffer], numbers: Sequence[Any]) -> list[Buffer]:
    """Run one op, wait for it, and check its results.

    Raises:
        NumericsError: `config.debug_nan` or `config.debug_compare_cpu` found something.
        IndexError: `config.debug_index` found an index out of range.
    """
    if config.debug_index:
        checks.indices(plan, inputs)
    before = [np.array(b.array) for b in inputs if b.array is not None] if config.debug_nan else []
    copies = checks.host_tensors(plan, inputs) if config.debug_compare_cpu else []
    results = (strict.run_watched if events.logs else strict.run)(plan, inputs, numbers)
    start = time.perf_counter()
    try:
        for b in results:
            b.array.block_until_ready()
    except jax.errors.JaxRuntimeError as error:
        raise strict.run_error(plan, error) from None
    if events.logs:
        seconds = time.perf_counter() - start
        origin = lines.note()
        for log in events.logs:
            log.syncs.append(events.Sync("debug", origin, seconds, plan.nbytes, log.now()))
    if config.debug_nan:
        checks.finite(plan, before, numbers, results)
    if config.debug_compare_cpu:
        checks.agrees_with_cpu(plan, copies, numbers, results)
    return results
