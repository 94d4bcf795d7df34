"""The roofline: what each kernel reached, against what its operations per byte allow on this device.

S. Williams, A. Waterman, D. Patterson: Roofline: an insightful visual performance model, CACM 52(4), 2009. A kernel that
computes `i` operations per byte can reach `min(peak_flops, i * peak_bandwidth)`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtpu.report import units
from torchtpu.report.chart import Picture

if TYPE_CHECKING:
    from torchtpu.profiler.result import Profile
    from torchtpu.profiler.rows import KernelTime

# Below this share of both roofs neither of them is what a kernel waits for: it starts, ends and runs over short arrays.
REACHED = 0.1
COLOURS = {"memory": "#3d85c6", "compute": "#d9792b", "overhead": "#8a8f98", "": "#2f9e6e"}

_WIDTH, _HEIGHT = 680, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 76, 12, 24, 36
_DOTS = 150
_NUMBERED = 10
_GREY, _ROOF = "#7a7a7a", "#d2536f"
_FONT = "font-family='system-ui,sans-serif'"


@dataclass(frozen=True, slots=True)
class Point:
    """A kernel in the roofline.

    Attributes:
        kernel: its row.
        flops, bandwidth: operations and bytes per second that it reached.
        of_roof: share of what its intensity allows; 0 if the peaks are not known.
        bound: `memory`, `compute`, `overhead`; empty if the peaks are not known.
    """

    kernel: KernelTime
    flops: float
    bandwidth: float
    of_roof: float
    bound: str

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.kernel.flops / self.kernel.nbytes if self.kernel.nbytes else 0.0


def points(profile: Profile) -> tuple[Point, ...]:
    """Return the kernels that compute or move something, by their time, longest first."""
    rows = (k for k in profile.kernels if k.seconds > 0 and (k.flops > 0 or k.nbytes > 0))
    return tuple(_point(k, profile) for k in sorted(rows, key=lambda k: -k.seconds))


def _point(kernel: KernelTime, profile: Profile) -> Point:
    flops, bandwidth = kernel.flops / kernel.seconds, kernel.nbytes / kernel.seconds
    if not (profile.peak_flops and profile.peak_bandwidth):
        return Point(kernel, flops, bandwidth, 0.0, "")
    of_compute, of_memory = flops / profile.peak_flops, bandwidth / profile.peak_bandwidth
    bound = "overhead" if max(of_compute, of_memory) < REACHED else "memory" if of_memory >= of_compute else "compute"
    # flops / min(peak_flops, intensity * peak_bandwidth), which also holds for a kernel that only moves bytes.
    return Point(kernel, flops, bandwidth, max(of_compute, of_memory), bound)


def picture(profile: Profile, found: Sequence[Point]) -> Picture | None:
    """Draw the kernels that compute something as dots under the two roofs; None if there are none.

    Both axes are logarithmic. A dot's area is its kernel's time; the first few have the numbers that they have in `found`.
    """
    dots = [(k, p) for k, p in enumerate(found, 1) if p.flops > 0 and p.intensity > 0][:_DOTS]
    if not dots:
        return None
    ridge = profile.peak_flops / profile.peak_bandwidth if profile.peak_bandwidth else 0.0
    x = _Axis(_LEFT, _WIDTH - _RIGHT, [p.intensity for _, p in dots] + ([ridge] if ridge else []))
    y = _Axis(_HEIGHT - _BOTTOM, _TOP, [p.flops for _, p in dots] + ([profile.peak_flops] if ridge else []))
    parts = [*_grid(x, y), *_dots(dots, x, y), *_roofs(profile, x, y, ridge), *_legend(profile, {p.bound for _, p in dots})]
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}">'
    counts = {bound: sum(p.bound == bound for p in found) for bound in ("memory", "compute", "overhead")}
    bounds = ", ".join(f"{units.count(n, 'kernel')} bound by {bound}" for bound, n in counts.items() if n)
    return Picture(
        f"{svg}{''.join(parts)}</svg>",
        _HEIGHT,
        f"Roofline of {units.count(len(dots), 'kernel')}{f': {bounds}' if bounds else ''}",
        f"operations per second over operations per byte, both logarithmic; area of a dot: time; {_peaks(profile)}",
    )


def _peaks(profile: Profile) -> str:
    if not (profile.peak_flops and profile.peak_bandwidth):
        return "no roofs: the device's peaks are not known"
    peaks = f"{units.scaled(profile.peak_flops, 'FLOP/s')} and {units.scaled(profile.peak_bandwidth, 'B/s')}"
    return f"roofs: {peaks}{f', {profile.peaks_from}' if profile.peaks_from else ''}"


class _Axis:
    """A logarithmic axis over whole decades."""

    def __init__(self, start: float, end: float, values: Sequence[float]) -> None:
        self.start, self.end = start, end
        self.low, self.high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        self.high = max(self.high, self.low + 1)

    def __call__(self, value: float) -> float:
        share = (math.log10(value) - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> Iterator[float]:
        """Whole decades, at most some ten of them."""
        return (10.0**k for k in range(self.low, self.high + 1, max(1, (self.high - self.low) // 8)))


def _text(x: float, y: float, text: str, anchor: str = "start", size: int = 11) -> str:
    return f"<text x='{x:.1f}' y='{y:.1f}' {_FONT} font-size='{size}' text-anchor='{anchor}' fill='{_GREY}'>{text}</text>"


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f"<path d='M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}' fill='none' {style}/>"


def _grid(x: _Axis, y: _Axis) -> Iterator[str]:
    style = f"stroke='{_GREY}' stroke-opacity='0.25'"
    for tick in x.ticks():
        yield _line(x(tick), y.start, x(tick), y.end, style)
        yield _text(x(tick), y.start + 16, f"{tick:g}" if 1e-3 <= tick < 1e5 else f"{tick:.0e}", "middle")
    for tick in y.ticks():
        yield _line(x.start, y(tick), x.end, y(tick), style)
        yield _text(x.start - 6, y(tick) + 4, units.scaled(tick, "FLOP/s"), "end")
    yield _text((x.start + x.end) / 2, _HEIGHT - 6, "FLOP per byte", "middle")


def _roofs(profile: Profile, x: _Axis, y: _Axis, ridge: float) -> Iterator[str]:
    if not ridge:
        return
    style = f"stroke='{_ROOF}' stroke-width='1.5'"
    # The slope starts where it enters the drawing: at the left edge, or at the lower one.
    start = max(10.0**x.low, 10.0**y.low / profile.peak_bandwidth)
    yield _line(x(start), y(start * profile.peak_bandwidth), x(ridge), y(profile.peak_flops), style)
    yield _line(x(ridge), y(profile.peak_flops), x.end, y(profile.peak_flops), style)


def _dots(dots: Sequence[tuple[int, Point]], x: _Axis, y: _Axis) -> Iterator[str]:
    longest = max(p.kernel.seconds for _, p in dots)
    places = [(k, p, x(p.intensity), y(p.flops), 3 + 9 * math.sqrt(p.kernel.seconds / longest)) for k, p in dots]
    for bound, colour in COLOURS.items():
        drawn = (f"<circle cx='{a:.0f}' cy='{d:.0f}' r='{r:.1f}'/>" for _, p, a, d, r in places if p.bound == bound)
        yield f"<g fill='{colour}' fill-opacity='0.45' stroke='{colour}'>{''.join(drawn)}</g>"
    taken: list[tuple[float, float]] = []
    for k, _, across, down, radius in places[:_NUMBERED]:
        gap = radius + 4
        # Beside the dot where there is room; a number on top of another would be worse than none.
        for left, up in ((gap + 4, 4), (-gap - 4, 4), (0, -gap), (0, gap + 8)):
            at = across + left, down + up
            inside = _LEFT < at[0] < _WIDTH - _RIGHT and _TOP < at[1] < _HEIGHT - _BOTTOM
            if inside and all(abs(at[0] - a) > 14 or abs(at[1] - b) > 11 for a, b in taken):
                taken.append(at)
                yield _text(*at, str(k), "middle")
                break


def _legend(profile: Profile, bounds: set[str]) -> Iterator[str]:
    at = _LEFT + 6
    for bound in ("memory", "compute", "overhead"):
        if bound in bounds:
            yield f"<circle cx='{at}' cy='10' r='5' fill='{COLOURS[bound]}'/>"
            yield _text(at + 10, 14, f"bound by {bound}")
            at += 130
    if profile.peak_flops and profile.peak_bandwidth:
        peaks = f"{units.scaled(profile.peak_bandwidth, 'B/s')}, {units.scaled(profile.peak_flops, 'FLOP/s')}"
        yield _line(at - 5, 10, at + 7, 10, f"stroke='{_ROOF}' stroke-width='1.5'")
        yield _text(at + 12, 14, f"roofs: {peaks}")
