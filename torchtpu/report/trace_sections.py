"""The trace of a report arranged for reading: what was slow, what differs from the CPU, and the ops in order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from torchtpu.report import units
from torchtpu.report.report import Report
from torchtpu.report.sections import Column, Section, place
from torchtpu.report.trace import Call, Trace, TraceRow

_ROWS = 10
_LISTED = 300  # ops, some 110 characters each
_POINTS = 60
_BARS = "▁▂▃▄▅▆▇█"


def traced(report: Report) -> Section:
    """The calls that took the most time, and the first ops in order."""
    trace = report.trace
    groups: dict[int, list[float]] = {}
    for call, seconds in zip(trace.order, trace.seconds, strict=True):
        groups.setdefault(call, []).append(seconds)
    ordered = sorted(groups.items(), key=lambda g: -sum(g[1]))
    rest = [seconds for _, times in ordered[_ROWS:] for seconds in times]

    def row(call: Call, times: list[float]) -> tuple:
        total = sum(times)
        return (
            call.op.removeprefix("aten::"),
            place(call.line),
            f"{len(times):,}",
            units.seconds(total),
            units.seconds(total / len(times)),
            units.nbytes(call.read),
            units.nbytes(call.written),
        )

    columns = (
        Column("op"), Column("line"), Column("times", True), Column("together", True), Column("each", True),
        Column("reads", True), Column("writes", True),
    )  # fmt: skip
    more = f"{units.count(len(rest), 'more op')}, {units.seconds(sum(rest))} together. " if rest else ""
    if len(trace) > _LISTED:
        more += f"Below, the first {_LISTED} of {len(trace):,}; report.trace has all, report.trace.save('ops.csv') writes them."
    return Section(
        f"Trace: {units.count(len(trace), 'op')}, {units.seconds(sum(trace.seconds))}",
        "each op launched and waited for, compiling not counted; measured",
        columns,
        tuple(row(trace.calls[k], times) for k, times in ordered[:_ROWS]),
        more.strip(),
        listing(trace),
    )


def compared(report: Report) -> Section:
    """The ops that differ most from the CPU, and how the difference has grown."""
    trace = report.trace
    rows = [r for r in trace if r.alone is not None] if trace.compared else []
    worst = sorted(rows, key=lambda r: -(r.alone or 0.0))[:_ROWS]
    columns = (Column("#", True), Column("op"), Column("line"), Column("alone", True), Column("so far", True))
    return Section(
        f"Compared with the CPU: {units.count(len(rows), 'op')}",
        "largest difference / largest value: the op alone, and everything computed so far; measured",
        columns,
        tuple((f"{r.number:,}", r.op.removeprefix("aten::"), place(r.line), _error(r.alone), _error(r.so_far)) for r in worst),
        "" if len(rows) <= _ROWS else f"the {_ROWS} that differ most of {len(rows):,}",
        tuple(_growth(rows)),
    )


def _error(error: float | None) -> str:
    return "" if error is None else f"{error:.1e}" if error else "0"


def _growth(rows: Sequence[TraceRow]) -> Iterator[str]:
    """Draw the error so far along the ops, on a logarithmic scale."""
    errors = [r.so_far or 0.0 for r in rows]
    positive = [e for e in errors if 0 < e < math.inf]
    if not positive:
        return
    size = max(1, math.ceil(len(errors) / _POINTS))
    points = [max(errors[k : k + size]) for k in range(0, len(errors), size)]
    low, high = math.log10(min(positive)), math.log10(max(positive))
    step = (high - low) / (len(_BARS) - 1) or 1.0

    def bar(error: float) -> str:
        if error <= 0:
            return " "
        return _BARS[-1] if error == math.inf else _BARS[min(len(_BARS) - 1, round((math.log10(error) - low) / step))]

    reach = f"op {rows[0].number:,} to {rows[-1].number:,}"
    yield f"error so far, {reach}, {min(positive):.0e} to {max(positive):.0e} on a logarithmic scale:"
    yield "".join(map(bar, points))


def listing(trace: Trace) -> tuple[str, ...]:
    """Return the first ops, a line of text each, under a line of titles."""
    errors = trace.compared
    places = [f"{r.line.where}{' (backward)' if r.line.backward else ''}" if r.line else "" for r in trace[:_LISTED]]
    wide = max(map(len, places), default=0)
    title = f"{'so far':>8}" if errors else ""
    lines = [f"{'#':>6} {'time':>8} {'reads':>10} {'writes':>10}{title}  {'line':<{wide}}  op"]
    for r, where in zip(trace[:_LISTED], places, strict=True):
        arrays = f"{', '.join(r.inputs)} -> {', '.join(r.outputs)}".strip()
        error = f"{_error(r.so_far):>8}" if errors else ""
        name = r.op.removeprefix("aten::")
        text = units.cut(f"{name} {arrays}", 76)
        figures = f"{units.seconds(r.seconds):>8} {units.nbytes(r.read):>10} {units.nbytes(r.written):>10}"
        lines.append(f"{r.number:>6} {figures}{error}  {where:<{wide}}  {text}")
    return tuple(lines)
