"""Strict mode: one program per op, launched at once and not waited for."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch

from torchtpu import client, errors, events, hbm, lines, ownership, provenance
from torchtpu.buffer import Buffer
from torchtpu.causes import Cause, ops as op_causes
from torchtpu.plan import Plan
from torchtpu.program import Program

_refcount = sys.getrefcount
# What refers to an input buffer that only its storage holds: the storage, the list of inputs, getrefcount's argument.
_STORAGE_ONLY = 3


def run(plan: Plan, inputs: list[Buffer], numbers: Sequence[Any]) -> list[Buffer]:
    """Run one op. Returns a buffer per output of the plan."""
    arrays = []
    for b in inputs:
        a = b.array
        arrays.append(a if a is not None else fill(b))
    b = None  # a reference here would keep an input from being donated
    program = None if plan.donatable else plan.program
    if program is None:
        program = select(plan, inputs)
    if numbers:
        arrays += plan.packing.pack(numbers)
    try:
        if program.temp_bytes:
            hbm.run(program.name, program.output_bytes, 0, program.temp_bytes)
        results = program.call(*arrays)
    except jax.errors.JaxRuntimeError as error:
        raise run_error(plan, error) from None
    except torch.OutOfMemoryError:
        for b in inputs:
            if not b.nbytes:  # `select` took it off the account, but nothing has taken its memory
                b.fulfil(b.array)
        raise
    if len(results) == 1:
        return [Buffer(plan.outputs[0], results[0])]
    return [Buffer(layout, array) for layout, array in zip(plan.outputs, results, strict=True)]


def run_watched(plan: Plan, inputs: list[Buffer], numbers: Sequence[Any]) -> list[Buffer]:
    """Run one op and record it."""
    origin = lines.note()
    for b in inputs:
        if b.array is None:
            fill(b)
    b = None
    known = plan.program, plan.donating
    select(plan, inputs, reserve=False)
    start = time.perf_counter()
    hbm.usage.origin = origin
    try:
        results = run(plan, inputs, numbers)
    finally:
        hbm.usage.origin = None
    seconds = time.perf_counter() - start
    program = plan.last
    provenance.record(plan, origin, inputs, results, program.name)
    ownership.record(plan, inputs, results)
    for log in events.logs:
        log.ops += 1
        log.cache_hits += program in known
        log.ran(program, log.mode, (origin,), start, seconds, numbers)
    return results


def select(plan: Plan, inputs: list[Buffer], reserve: bool = True) -> Program:
    """Return the program for these inputs, compiled on first use.

    Where an op rewrites a storage and nothing else holds the old array, it is the variant that reuses its memory; the
    account then gives the bytes up before the output takes them (`reserve`).
    """
    if not plan.donatable:
        if plan.program is None:
            plan.program = _compile(plan, (), inputs)
        plan.last = plan.program
        return plan.program
    for p in plan.donatable:
        if inputs[p].shared or _refcount(inputs[p]) > _STORAGE_ONLY:
            if plan.program is None:
                plan.program = _compile(plan, (), inputs)
            plan.last = plan.program
            return plan.program
    if plan.donating is None:
        plan.donating = _compile(plan, plan.donatable, inputs)
    if reserve:
        for p in plan.donatable:
            inputs[p].release()
    plan.last = plan.donating
    return plan.donating


def _compile(
    plan: Plan,
    donate: tuple[int, ...],
    inputs: Sequence[Buffer] = (),
    recorded_at: lines.Origin | None = None,
    because: Cause | None = None,
) -> Program:
    program = plan.compile(donate)
    origin = recorded_at or (lines.note() if events.logs else lines.here())
    cause = op_causes.compiled(plan, donate, inputs, origin, recorded_at is not None, because)
    for log in events.logs:
        log.compiles.append(events.Compile(program, program.compile_seconds, cause, origin, log.now()))
    return program


def ready(plan: Plan, recorded_at: lines.Origin | None = None, because: Cause | None = None) -> Program:
    """Return a plan's program, compiled on first use.

    Args:
        plan: the op.
        recorded_at: its line, if it was recorded in a graph that is now run op by op.
        because: what would have made that graph compile, while somebody watches.
    """
    if plan.program is None:
        plan.program = _compile(plan, (), (), recorded_at, because)
    return plan.program


def launch(plan: Plan, arrays: list[Any], numbers: Sequence[Any]) -> Sequence[Any]:
    """Run one op on arrays, outside any account.

    Raises:
        torch.OutOfMemoryError: its results do not fit.
    """
    hbm.check(plan.nbytes, plan.name)
    try:
        return ready(plan).call(*arrays, *plan.packing.pack(numbers))
    except jax.errors.JaxRuntimeError as error:
        raise run_error(plan, error) from None


def fill(buffer: Buffer) -> Any:
    """Return the array of a buffer that has none yet.

    Promises are kept by a flush; memory from `torch.empty` becomes zeros.

    Raises:
        The error with which the buffer's op failed, if it did.
    """
    if buffer.error is not None:
        raise buffer.error
    if buffer.epoch:
        from torchtpu.modes import deferred

        deferred.flush("read")
        if buffer.error is not None:
            raise buffer.error
    else:
        buffer.fulfil(client.put(np.zeros(buffer.layout.shape, buffer.layout.dtype)))
    return buffer.array


def run_error(plan: Plan, error: Exception) -> Exception:
    """Turn a failed launch into an exception that a user can act on."""
    text = str(error)
    if "RESOURCE_EXHAUSTED" in text or "Out of memory" in text:
        return errors.out_of_memory(plan.nbytes, hbm.usage.live, client.memory_limit(), plan.name)
    return errors.TorchTPUError(f"{plan.name} failed on the device: {text.splitlines()[0]}")
