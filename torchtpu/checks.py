"""Debug mode's checks of one op: indices in range, NaN or Inf appearing, agreement with the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from torchtpu import lines
from torchtpu.buffer import Buffer
from torchtpu.errors import NumericsError
from torchtpu.plan import Plan
from torchtpu.transfer import as_host_view


def indices(plan: Plan, inputs: Sequence[Buffer]) -> None:
    """Check that every index that an op takes is in range.

    Raises:
        IndexError: with the value, the size and the line.
    """
    for position, low, high in plan.bounds:
        index = _host(plan, inputs, position)
        if index is None or index.dtype == torch.bool or index.numel() == 0:
            continue
        lowest, highest = int(index.min()), int(index.max())
        if lowest < low or highest > high:
            wrong = lowest if lowest < low else highest
            raise IndexError(f"{plan.name}: index {wrong} is out of bounds for dimension with size {high + 1}{_at()}")


def finite(plan: Plan, before: Sequence[Any], numbers: Sequence[Any], results: Sequence[Buffer]) -> None:
    """Check that no NaN or Inf appears: none in the results where there was none in the inputs.

    Raises:
        NumericsError: with the op, how many, the inputs' ranges and the line.
    """
    found = [(np.isnan(a).sum(), np.isinf(a).sum(), a.size) for a in _floats(b.array for b in results)]
    nans, infs, count = (sum(column) for column in zip(*found, strict=True)) if found else (0, 0, 0)
    if not nans and not infs:
        return
    inputs = list(_floats(before))
    if not all(np.isfinite(a).all() for a in inputs) or not all(_finite(n) for n in numbers):
        return
    ranges = ", ".join(f"[{a.min():.4g}, {a.max():.4g}]" for a in inputs if a.size) or "none"
    raise NumericsError(
        f"{plan.name} made {nans} NaN and {infs} Inf among {count} values from finite inputs (ranges {ranges}){_at()}"
    )


def agrees_with_cpu(plan: Plan, before: Sequence[torch.Tensor], numbers: Sequence[Any], results: Sequence[Buffer]) -> None:
    """Run an op on the CPU too and compare, to torch.testing's tolerances. Random ops are not compared.

    Raises:
        NumericsError: with the op, the difference and the line.
    """
    if plan.replay is None:
        return
    tensors = [t.clone() for t in before]
    expected = plan.replay.run(tensors, numbers)
    fresh = [e for e in (expected if isinstance(expected, (tuple, list)) else [expected]) if isinstance(e, torch.Tensor)]
    pairs = [
        (e, as_host_view(np.asarray(b.array), spec.dtype, spec.size, spec.stride, 0))
        for e, spec, b in zip(fresh, plan.specs, results, strict=False)
    ]
    rewritten = dict(zip(plan.writes, results[len(plan.specs) :], strict=True))
    for position in plan.replay.written:
        if position in rewritten:
            view = plan.views[position]
            actual = as_host_view(np.asarray(rewritten[position].array), view.dtype, view.size, view.stride, view.offset)
            pairs.append((tensors[position], actual))
    for wanted, actual in pairs:
        try:
            torch.testing.assert_close(actual, wanted, equal_nan=True, check_stride=False)
        except AssertionError as error:
            summary = " ".join(str(error).split())
            raise NumericsError(f"{plan.name} disagrees with the CPU: {summary}{_at()}") from None


def host_tensors(plan: Plan, inputs: Sequence[Buffer]) -> list[torch.Tensor]:
    """Return CPU copies of an op's tensors as they are before it runs (zeros where it does not read them)."""
    copies = []
    for position, view in enumerate(plan.views):
        host = _host(plan, inputs, position)
        copies.append(host if host is not None else torch.zeros(view.size, dtype=view.dtype))
    return copies


def _host(plan: Plan, inputs: Sequence[Buffer], position: int) -> torch.Tensor | None:
    if position not in plan.needs:
        return None
    array = inputs[plan.needs.index(position)].array
    view = plan.views[position]
    if array is None:  # unfilled memory
        return torch.zeros(view.size, dtype=view.dtype)
    return as_host_view(np.asarray(array), view.dtype, view.size, view.stride, view.offset).clone()


def _floats(arrays: Any) -> list[np.ndarray]:
    hosts = [np.asarray(a) for a in arrays if a is not None]
    # numpy's own functions do not know bfloat16 and float8 (kind "V"), which are exact in float32.
    return [h.astype(np.float32) if h.dtype.kind == "V" else h for h in hosts if h.dtype.kind in "fcV"]


def _finite(number: Any) -> bool:
    return not isinstance(number, (float, complex)) or bool(np.isfinite(number))


def _at() -> str:
    line = lines.resolve(lines.note())
    if line is None:
        return ""
    backward = "backward of " if line.backward else ""
    return f" ({backward}{line.where}: {line.source})"
