"""The steps as columns: on the left what the device did, on the right what the host did meanwhile."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from torchtpu.profiler.rows import StepRow
from torchtpu.report import bar, units
from torchtpu.report.chart import Picture, blocks

_WIDTH, _HEIGHT = 720, 132
_TOP, _BOTTOM = 22, 8
_COLUMNS = 90
_SLOT = 28  # pixels of a step, at most
_BLOCKS = 80
_GREY = "#7a7a7a"
_FONT = "font-family='system-ui,sans-serif' font-size='11'"
# What the device and the host did: two columns, since they work at the same time.
_DEVICE = (("device busy", bar.COLOURS["run"]),)
_HOST = (
    ("host compiles", bar.COLOURS["compile"]),
    ("host waits", bar.COLOURS["wait"]),
    ("host does the rest", bar.COLOURS["the rest"]),
)


def picture(steps: Sequence[StepRow], middle: float) -> Picture:
    """Draw one step or more. A step that takes far longer than all others is cut off, and the caption says so.

    Args:
        middle: the median step, in seconds: drawn as a line.
    """
    shown = _shown(steps)
    times = [s.seconds for s in steps]
    top = _top(times, middle)
    slot = min(_SLOT, (_WIDTH - 8) / len(shown))
    parts = [part for k, step in enumerate(shown) for part in _columns(step, 4 + k * slot, slot, top)]
    height = _y(middle, top)
    parts += [
        f"<path d='M0 {height:.1f}H{_WIDTH}' fill='none' stroke='{_GREY}' stroke-dasharray='3 3'/>",
        *_legend(middle),
    ]
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}">'
    figures = f"median {units.seconds(middle)}, slowest {units.seconds(max(times))}"
    return Picture(
        f"{svg}{''.join(parts)}</svg>",
        _HEIGHT,
        f"{units.count(len(steps), 'step')}: {figures}",
        _caption(steps, len(shown), top),
        (blocks([round(min(s, top) * 1e9) for s in times], _BLOCKS),),
    )


def _shown(steps: Sequence[StepRow]) -> list[StepRow]:
    """The steps, or of each of some 90 stretches the slowest one."""
    size = math.ceil(len(steps) / _COLUMNS)
    return [max(steps[k : k + size], key=lambda s: s.seconds) for k in range(0, len(steps), size)]


def _top(times: Sequence[float], middle: float) -> float:
    """The end of the scale: the slowest step, without those that dwarf the others."""
    usual = max((s for s in times if s <= 3 * middle), default=middle)
    return usual if usual == max(times) else 1.25 * usual


def _caption(steps: Sequence[StepRow], shown: int, top: float) -> str:
    cut = [s for s in steps if s.seconds > top]
    parts = [f"each step: the device on the left, the host on the right; scale 0 to {units.seconds(top)}"]
    if shown < len(steps):
        parts.append(f"of each {math.ceil(len(steps) / _COLUMNS):,} the slowest")
    if cut:
        which = ", ".join(f"{s.number} ({units.seconds(s.seconds)})" for s in cut[:4])
        more = f" and {len(cut) - 4:,} more" if len(cut) > 4 else ""
        parts.append(f"cut off: {'step' if len(cut) == 1 else 'steps'} {which}{more}")
    return "; ".join(parts)


def _y(seconds: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - min(1.0, seconds / top if top > 0 else 0.0) * (_HEIGHT - _TOP - _BOTTOM)


def _columns(step: StepRow, left: float, slot: float, top: float) -> Iterator[str]:
    wide = max(0.8, (slot - min(4.0, slot / 4)) / 2)
    rest = max(0.0, step.seconds - step.compile - step.wait)
    yield from _stack(left, wide, [(_DEVICE[0][1], step.busy)], top)
    yield from _stack(
        left + wide, wide, [(c, s) for (_, c), s in zip(_HOST, (step.compile, step.wait, rest), strict=True)], top
    )
    if step.seconds > top:  # a mark across the column's head
        yield f"<path d='M{left:.1f} {_TOP - 3}h{2 * wide:.1f}' stroke='{_GREY}' stroke-width='2' stroke-dasharray='2 1'/>"


def _stack(left: float, wide: float, parts: Sequence[tuple[str, float]], top: float) -> Iterator[str]:
    below = 0.0
    for colour, seconds in parts:
        low, high = _y(below, top), _y(below + seconds, top)
        if low - high > 0.05:
            yield f"<rect x='{left:.1f}' y='{high:.1f}' width='{wide:.1f}' height='{low - high:.1f}' fill='{colour}'/>"
        below += seconds


def _legend(middle: float) -> Iterator[str]:
    at = 4
    for name, colour in (*_DEVICE, *_HOST):
        yield f"<rect x='{at}' y='4' width='9' height='9' fill='{colour}'/>"
        yield f"<text x='{at + 14}' y='12' {_FONT} fill='{_GREY}'>{name}</text>"
        at += 24 + 6 * len(name)
    yield f"<path d='M{at} 8.5h16' fill='none' stroke='{_GREY}' stroke-dasharray='3 3'/>"
    yield f"<text x='{at + 21}' y='12' {_FONT} fill='{_GREY}'>median {units.seconds(middle)}</text>"
