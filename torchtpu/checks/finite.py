"""NaN and Inf where they appear."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from torchtpu import provenance
from torchtpu.buffer import Buffer
from torchtpu.checks.finding import at, found
from torchtpu.errors import NumericsError
from torchtpu.lines import Origin
from torchtpu.plan import Plan


def finite(
    plan: Plan, origin: Origin | None, inputs: Sequence[Buffer], numbers: Sequence[Any], results: Sequence[Buffer]
) -> None:
    """Check that an op makes no NaN and no Inf: none of a kind in the results where there was none in the inputs.

    NaNs that were there before (in the weights, in a batch) are found where the first op reads them. Those that the
    program asks for by a number (`masked_fill(mask, -inf)`) are no finding.

    Raises:
        NumericsError: with the op, the line, the inputs' values and where they came from.
    """
    nans, infs, count = _counts(results)
    if not nans and not infs:
        return
    if not all(_finite(n) for n in numbers):
        return _meant(results)
    nan_inputs = [b for b in inputs if _counts([b])[0]]
    inf_inputs = [b for b in inputs if _counts([b])[1]]
    if not nan_inputs and (nans or not inf_inputs):
        source = "inputs with Inf but no NaN" if inf_inputs else "finite inputs"
    elif nans and nan_inputs and not any((made := provenance.maker(b)) and made.meant for b in nan_inputs):
        source = "NaNs that were there before"
    else:
        return _meant(results)
    finding = found(plan.name, origin, inputs, [b.array for b in results], numbers)
    raise NumericsError(
        f"{plan.name} made {nans:,} NaN and {infs:,} Inf among {count:,} values from {source}{at(origin)}\n{finding}", finding
    ) from None


def _meant(results: Sequence[Buffer]) -> None:
    for b in results:
        made = provenance.maker(b)
        if made is not None:
            made.meant = True


def _counts(buffers: Sequence[Buffer]) -> tuple[int, int, int]:
    """Count NaNs, Infs and elements."""
    nans = infs = count = 0
    for b in buffers:
        host = np.asarray(b.array) if b.array is not None else np.zeros(0)
        count += host.size
        if host.dtype.kind not in "fcV":
            continue
        if host.dtype.kind == "V":  # numpy's own functions do not know bfloat16 and float8, which are exact in float32
            host = host.astype(np.float32)
        if not np.isfinite(host).all():
            nans += int(np.isnan(host).sum())
            infs += int(np.isinf(host).sum())
    return nans, infs, count


def _finite(number: Any) -> bool:
    return not isinstance(number, (float, complex)) or bool(np.isfinite(number))
