"""Why the device had nothing to do: what the host did in each gap between kernels."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from torchtpu.lines import Line, Origin
from torchtpu.profiler.captured import Captured
from torchtpu.profiler.intervals import Intervals
from torchtpu.profiler.rows import IdleRow
from torchtpu.profiler.timeline import STEP_OF_TORCH

# Between two ops of which nothing else is known, up to this many seconds are PyTorch's and torchtpu's own.
_BETWEEN_OPS = 1e-4

_Spans = list[tuple[float, float, Origin | None]]


def rows(captured: Captured) -> tuple[IdleRow, ...]:
    """Return the causes, longest first. Where several things went on at once, the first of `_causes` counts."""
    left = captured.busy.gaps(0.0, captured.elapsed)
    found: dict[tuple[str, Line | None], list[float]] = {}

    def add(cause: str, line: Line | None, seconds: float) -> None:
        if seconds > 0:
            row = found.setdefault((cause, line), [0, 0.0])
            row[0] += 1
            row[1] += seconds

    causes = list(_causes(captured))
    for cause, spans in causes:
        reach = 0.0
        for start, end, origin in sorted(spans, key=lambda s: (s[0], -s[1])):
            add(cause, captured.resolve(origin), left.within(max(start, reach), end))  # what two share counts for the outer
            reach = max(reach, end)
        left = left.without(Intervals((start, end) for start, end, _ in spans))
    events = sorted(((start, origin) for _, spans in causes for start, _, origin in spans), key=lambda event: event[0])
    starts = [start for start, _ in events]
    annotations = _Annotations(captured)
    for start, end in left:
        following = bisect_left(starts, end - 1e-9)
        line = captured.resolve(events[following][1]) if following < len(events) else None
        if end - start < _BETWEEN_OPS and following < len(events):
            add("dispatch", line, end - start)
        else:
            inside = annotations.at((start + end) / 2)
            add(f"Python in {inside}" if inside else "Python", line, end - start)
    ordered = sorted(found.items(), key=lambda item: -item[1][1])
    return tuple(IdleRow(cause, line, int(count), seconds) for (cause, line), (count, seconds) in ordered)


def _causes(captured: Captured) -> Iterable[tuple[str, _Spans]]:
    t = captured.timeline
    yield "compile", [(e.at - e.seconds, e.at, e.origin) for e in t.compiles]
    yield "fallback", [(e.at - e.seconds, e.at, e.origin) for e in t.fallbacks]
    yield "wait", [(e.at - e.seconds, e.at, e.origin) for e in t.syncs]
    dispatch: _Spans = [(captured.on_host(n.start), captured.on_host(n.start) + n.seconds, n.origin) for n in t.notes]
    dispatch += [(e.at - e.seconds, e.at, e.origin) for e in t.flushes]
    for launch in t.launches:
        if len(launch.origins) == 1:  # strict and debug; others are inside a flush
            start = captured.on_host(launch.start)
            dispatch.append((start, start + launch.seconds, launch.origins[0]))
    yield "dispatch", dispatch


class _Annotations:
    """Finds the innermost annotation at a time."""

    def __init__(self, captured: Captured) -> None:
        found = [a for a in captured.timeline.annotations if not a.name.startswith(STEP_OF_TORCH)]
        # Those of the same start: the longest, which is the outermost, first.
        found.sort(key=lambda a: (a.start, -a.end))
        self._starts = [captured.on_host(a.start) for a in found]
        self._ends = [captured.on_host(a.end) for a in found]
        self._names = [a.name for a in found]
        self._outer: list[int] = []  # of each, the annotation around it, -1 for none
        stack: list[int] = []
        for k, start in enumerate(self._starts):
            while stack and self._ends[stack[-1]] <= start:
                stack.pop()
            self._outer.append(stack[-1] if stack else -1)
            stack.append(k)

    def at(self, time: float) -> str:
        k = bisect_right(self._starts, time) - 1
        while k >= 0 and self._ends[k] < time:
            k = self._outer[k]
        return self._names[k] if k >= 0 else ""
