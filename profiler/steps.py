"""Steps: from the ends that a capture noted to rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from torchtpu.profiler.intervals import Intervals
from torchtpu.profiler.rows import StepRow


def rows(
    ends: Sequence[float],
    busy: Intervals,
    compiling: Intervals,
    waiting: Intervals,
    launched: Sequence[float],
    compiled: Sequence[float],
) -> tuple[StepRow, ...]:
    """Return the steps.

    Args:
        ends: of the steps, in seconds since the capture began.
        busy, compiling, waiting: when the device ran something, when the host compiled, and when it waited.
        launched, compiled: when programs were launched, and when compiles ended.
    """
    found = []
    start = 0.0
    for number, end in enumerate(ends):
        found.append(
            StepRow(
                number,
                start,
                end - start,
                busy.within(start, end),
                compiling.within(start, end),
                waiting.within(start, end),
                _count(launched, start, end),
                _count(compiled, start, end),
            )
        )
        start = end
    return tuple(found)


def _count(times: Sequence[float], start: float, end: float) -> int:
    first, last = np.searchsorted(np.asarray(times, dtype=float), (start, end))
    return int(last - first)
