"""Size against HBM as a picture: SVG in a `data:` address, since inline SVG is lost in untrusted notebooks."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from html import escape

from torchtpu.fit.result import Answer, FitRow
from torchtpu.report import units

WIDTH, HEIGHT = 560, 230
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 12, 14, 34
# Middle tones that show on light and dark backgrounds alike: a picture in a page does not see the page's theme.
COLOURS = ("#2f9e6e", "#8b7bd8", "#d9792b", "#3d8fc4", "#b0629c")
LIMIT = "#d2536f"
_INK, _GRID = "#7d8188", "rgba(128,128,128,0.25)"
_STYLE = (
    f"text{{font:11px system-ui,sans-serif;fill:{_INK}}}path{{fill:none}}path,circle{{stroke-width:1.5}}"
    ".e{text-anchor:end}.m{text-anchor:middle}"
)
_CLEAR = 0.5  # of the limit: if no peak comes so near, it is left out


def picture(answers: Sequence[Answer], rows: Sequence[FitRow], vary: str) -> str:
    """Draw one chip's sizes, a line for each change.

    Args:
        answers: of the chip, in the order of the colours.
        rows: of the chip, with their peaks.
        vary: what the sizes are.

    Returns:
        a `data:` address.
    """
    limit = answers[0].limit
    drawn = [[r for r in rows if r.change == a.change and r.hbm_peak] for a in answers]
    right = _reach(answers, drawn)
    peaks = [r.hbm_peak for line in drawn for r in line if r.size <= right]
    near = max(peaks, default=0) > _CLEAR * limit
    top = min(1.1 * max(peaks, default=1), 2 * limit)
    top = max(top, 1.25 * limit) if near else top
    frame = _Frame(right, top)
    parts = [*frame.grid(vary)]
    if near:
        y = frame.y(limit)
        parts.append(f'<path d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}" stroke="{LIMIT}" stroke-dasharray="5 4"/>')
        name = escape(f"{answers[0].chip}: {units.nbytes(limit)}")
        parts.append(f'<text x="{_LEFT + 6}" y="{y - 5:.1f}" style="fill:{LIMIT}">{name}</text>')
    parts.append(f'<svg x="{_LEFT}" y="0" width="{WIDTH - _LEFT - _RIGHT}" height="{HEIGHT - _BOTTOM + 5}">')  # clips
    for colour, line in zip(COLOURS, drawn, strict=False):
        parts += frame.line(sorted(line, key=lambda r: r.size), colour)
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">'
        f"<style>{_STYLE}</style>{''.join(parts)}</svg></svg>"
    )
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def _reach(answers: Sequence[Answer], drawn: Sequence[Sequence[FitRow]]) -> float:
    """Return how far to the right to draw: to what does not fit, but at most twice as far as what does."""
    largest = max(a.largest for a in answers)
    if not largest:
        return 1.1 * max((r.size for line in drawn for r in line), default=1)
    return 1.1 * max(largest, *(min(a.refused, 2 * largest) for a in answers))


class _Frame:
    """The coordinates of a picture that reaches from 0 to a size and to bytes."""

    def __init__(self, right: float, top: float) -> None:
        self._right, self._top = right, top

    def x(self, size: float) -> float:
        return _LEFT + size / self._right * (WIDTH - _LEFT - _RIGHT)

    def y(self, nbytes: float) -> float:
        return HEIGHT - _BOTTOM - nbytes / self._top * (HEIGHT - _BOTTOM - _TOP)

    def grid(self, vary: str) -> list[str]:
        """Draw the scales."""
        unit = 1024 ** min(3, int(math.log(max(self._top, 1), 1024)))
        parts = []
        for step in _steps(self._top / unit):
            y = self.y(step * unit)
            parts.append(f'<path d="M{_LEFT} {y:.1f}H{WIDTH - _RIGHT}" stroke="{_GRID}"/>')
            parts.append(f'<text class="e" x="{_LEFT - 6}" y="{y + 4:.1f}">{escape(units.nbytes(round(step * unit)))}</text>')
        for size in _steps(self._right):
            if size == int(size):
                parts.append(f'<text class="m" x="{self.x(size):.1f}" y="{HEIGHT - _BOTTOM + 15}">{int(size):,}</text>')
        parts.append(f'<text class="e" x="{WIDTH - _RIGHT}" y="{HEIGHT - 4}">{escape(units.cut(vary, 40))}</text>')
        return parts

    def line(self, rows: Sequence[FitRow], colour: str) -> list[str]:
        """Draw sizes as dots, hollow where they do not fit, and the line through them."""
        points = [(self.x(r.size) - _LEFT, self.y(r.hbm_peak), r.fits) for r in rows]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y, _ in points)
        dots = [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" stroke="{colour}" fill="{colour if fits else "none"}"/>'
            for x, y, fits in points
        ]
        return [f'<path d="M{path}" stroke="{colour}"/>', *dots] if points else []


def _steps(top: float) -> list[float]:
    """Return round numbers from 0 up to `top`, four to eight of them."""
    size = 10 ** math.floor(math.log10(top / 4)) if top > 0 else 1.0
    step = next(size * k for k in (1, 2, 5, 10) if top / (size * k) <= 8)
    return [k * step for k in range(int(top / step) + 1)]
