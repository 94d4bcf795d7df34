"""Every op computed on the CPU too: alone, and as the CPU would have got there.

An op *alone* runs on the CPU with the device's own inputs: how far it is off is its own doing. What the CPU would have by
now, had it run everything since the check began, is kept beside each buffer: how far the device is off from that is the
error *so far*, which grows along the graph.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch

from torchtpu import client
from torchtpu.buffer import Buffer
from torchtpu.checks.finding import at, found
from torchtpu.checks.host import HostTensors
from torchtpu.errors import NumericsError
from torchtpu.lines import Origin
from torchtpu.plan import Plan
from torchtpu.precision import Precision
from torchtpu.transfer import as_host_view


class Difference(NamedTuple):
    """How far an op's results are off from the CPU's: the largest difference, divided by the CPU's largest value.

    Sums and products may cancel: theirs is divided by the largest value that they read, if that is larger.

    Attributes:
        alone: the op with the device's inputs.
        so_far: everything since the check began.
        error: the op alone is beyond the tolerance.
    """

    alone: float
    so_far: float
    error: NumericsError | None = None


# What the CPU has in place of a buffer.
_on_cpu: WeakKeyDictionary[Buffer, torch.UntypedStorage] = WeakKeyDictionary()


def against_cpu(
    plan: Plan, origin: Origin | None, inputs: Sequence[Buffer], numbers: Sequence[Any], results: Sequence[Buffer]
) -> Difference | None:
    """Run an op on the CPU too and compare.

    Elements may differ by torch.testing's tolerances for the coarsest dtype of the op's tensors; those of products and sums,
    whose terms may cancel, by the tolerance for the largest of them, and by what their precision allows. Random ops are not
    compared: the CPU goes on with the device's results.

    Returns:
        the differences; None where the CPU cannot run the op.
    """
    actual = [_storage(b) for b in results]
    if plan.replay is None:
        return None
    replayed = _replay(plan, numbers, {n: _storage(b) for n, b in zip(plan.needs, inputs, strict=True)})
    if replayed is None:
        return None
    alone, dtypes = replayed
    dtypes += [view.dtype for view in plan.views]
    read = _largest_read(plan, inputs)
    ours, theirs = _values(plan, actual), _values(plan, alone)
    off = so_far = _off(ours, theirs, read)
    error = None
    for k, mine, other in zip(ours, ours.values(), theirs.values(), strict=True):
        if error is None and not _close(mine, other, read, dtypes, _error_of_passes(plan)):
            finding = found(plan.name, origin, inputs, [results[k].array], numbers)
            error = NumericsError(
                f"{plan.name} disagrees with the CPU{at(origin)}: {_worst(mine, other)}; {off:.1e} of the largest value\n"
                f"{finding}",
                finding,
            )
    known = {n: _on_cpu.get(b) for n, b in zip(plan.needs, inputs, strict=True)}
    if any(storage is not None for storage in known.values()):
        given = {n: _storage(b) if known[n] is None else known[n].clone() for n, b in zip(plan.needs, inputs, strict=True)}
        alone, _ = _replay(plan, numbers, given) or replayed
        so_far = _off(ours, _values(plan, alone), read)
    for buffer, storage in zip(results, alone, strict=True):
        _on_cpu[buffer] = storage
    return Difference(off, so_far, error)


def forget() -> None:
    """Let the CPU begin anew from what the device has."""
    _on_cpu.clear()


def _storage(buffer: Buffer) -> torch.UntypedStorage:
    """Return a private copy of a buffer's bytes; zeros if it has none yet."""
    layout = buffer.layout
    array = np.asarray(buffer.array) if buffer.array is not None else np.zeros(layout.shape, layout.dtype)
    return as_host_view(array, torch.uint8, (layout.nbytes,), (1,), 0).clone().untyped_storage()


def _replay(
    plan: Plan, numbers: Sequence[Any], given: dict[int, torch.UntypedStorage]
) -> tuple[list[torch.UntypedStorage], list[torch.dtype]] | None:
    """Run an op on the CPU.

    Args:
        given: for each of `plan.needs`, the storage that it reads, and writes.

    Returns:
        a storage for each of the plan's outputs, and the dtype that the CPU made it in; None where it has no such kernel.
    """
    tensors = []
    for position, view in enumerate(plan.views):
        storage = given.setdefault(plan.key.aliases[position], _zeros(view.layout.nbytes))
        tensors.append(torch.empty(0, dtype=view.dtype).set_(storage, view.offset, view.size, view.stride))
    try:
        returned = plan.replay.run(tensors, numbers)
    except (RuntimeError, NotImplementedError, TypeError):
        return None
    values = returned if isinstance(returned, (tuple, list)) else [returned]
    argument = plan.replay.signature.returns_argument
    fresh = [v for k, v in enumerate(values) if isinstance(v, torch.Tensor) and argument(k) is None]
    if [tuple(v.shape) for v in fresh] != [spec.size for spec in plan.specs]:  # statistics that nobody asked for, say
        return None
    made = []
    for spec, value in zip(plan.specs, fresh, strict=True):
        storage = _zeros(spec.layout.nbytes)
        torch.empty(0, dtype=spec.dtype).set_(storage, 0, spec.size, spec.stride).copy_(value)
        made.append(storage)
    rewritten = [given[w] for w in plan.writes]
    return made + rewritten, [v.dtype for v in fresh] + [plan.views[w].dtype for w in plan.writes]


def _zeros(nbytes: int) -> torch.UntypedStorage:
    return torch.zeros(nbytes, dtype=torch.uint8).untyped_storage()


def _values(plan: Plan, storages: Sequence[torch.UntypedStorage]) -> dict[int, torch.Tensor]:
    """Return the outputs by number, in one dimension each; without indices beside values (`sort`), since ties are free."""
    dtypes = [s.dtype for s in plan.specs] + [plan.views[w].dtype for w in plan.writes]
    floats = any(_is_float(d) for d in dtypes)
    return {
        k: torch.empty(0, dtype=dtype).set_(storage, 0, (storage.nbytes() // dtype.itemsize,), (1,))
        for k, (dtype, storage) in enumerate(zip(dtypes, storages, strict=True))
        if _is_float(dtype) or not floats
    }


def _is_float(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex


def _wide(values: torch.Tensor) -> torch.Tensor:
    return values.to(torch.complex128 if values.is_complex() else torch.float64)


def _largest_read(plan: Plan, inputs: Sequence[Buffer]) -> float:
    """Return the largest value that a sum or product reads; 0 for other ops."""
    if not plan.product and plan.nbytes >= sum(plan.views[n].layout.nbytes for n in plan.needs):
        return 0.0
    tensors = HostTensors(plan, inputs)
    floats = (tensors[n] for n in plan.needs if _is_float(plan.views[n].dtype))
    return max((_largest(_wide(t)) for t in floats if t.numel()), default=0.0)


def _off(ours: dict[int, torch.Tensor], theirs: dict[int, torch.Tensor], read: float) -> float:
    """Return the largest difference in an op's results, divided by the largest value in them, or read by a sum."""
    off, largest = 0.0, read
    for mine, other in zip(ours.values(), theirs.values(), strict=True):
        if not mine.numel():
            continue
        mine, other = _wide(mine), _wide(other)
        same = (mine == other) | (mine.isnan() & other.isnan())
        difference = torch.where(same, 0, mine - other).abs().max()
        off = max(off, float(difference) if difference.isfinite() else math.inf)
        largest = max(largest, _largest(other))
    return off / largest if largest else off


def _largest(values: torch.Tensor) -> float:
    return float(torch.where(values.isfinite(), values, 0).abs().max())


def _error_of_passes(plan: Plan) -> float:
    """Return the relative error that float32 products may have because they are made of bfloat16 ones; 0 where they are not."""
    setting = plan.key.precision
    if setting is None or setting.precision is Precision.HIGHEST:
        return 0.0
    exact = setting.numerics == "native" and client.device().platform == "cpu"
    return 0.0 if exact else 4 * 2.0 ** (-8 * setting.precision.parts)


def _close(
    ours: torch.Tensor, theirs: torch.Tensor, read: float, dtypes: Sequence[torch.dtype], error_of_passes: float
) -> bool:
    if not _is_float(ours.dtype):
        return torch.equal(ours, theirs)
    # The coarsest dtype counts: the CPU may compute a float32 statistic of bfloat16 values in bfloat16.
    rtol, atol = torch.testing._comparison.default_tolerances(ours.dtype, *dtypes)
    rtol = max(rtol, error_of_passes)
    ours, theirs = _wide(ours), _wide(theirs)
    if read and theirs.numel():
        atol += rtol * max(read, _largest(theirs))
    return torch.allclose(ours, theirs, rtol=rtol, atol=atol, equal_nan=True)


def _worst(ours: torch.Tensor, theirs: torch.Tensor) -> str:
    difference = (_wide(ours) - _wide(theirs)).abs()
    worst = int(torch.where(difference.isnan(), torch.inf, difference).argmax())
    return f"{ours[worst].item():.6g} instead of {theirs[worst].item():.6g} at element {worst:,} of {ours.numel():,}"
