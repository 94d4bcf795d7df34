"""A figure over time as a small picture: SVG in a `data:` address for HTML, a row of blocks for text."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

_HEIGHT = 100
_BLOCKS = " ▁▂▃▄▅▆▇█"
# Middle tones that show on light and dark backgrounds alike.
_AREA, _PEAK, _LIMIT = "#2f9e6e", "#d9792b", "#d2536f"


@dataclass(frozen=True, slots=True)
class Chart:
    """Values at equal steps of time, from 0 up.

    Attributes:
        values: what is drawn.
        caption: what it shows, with its scales, in words.
        limit: a line that the values cannot cross; drawn if they come near it. 0: none.
    """

    values: tuple[int, ...]
    caption: str
    limit: int = 0

    @property
    def near_limit(self) -> bool:
        """Whether the limit is drawn: the highest value is above half of it."""
        return 0 < self.limit <= 2 * max(self.values, default=0)


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing of any other kind.

    Attributes:
        svg: an SVG document that can do with any ground: its theme is not known.
        height: in pixels.
        alt: what it shows, for those who do not see it.
        caption: its scales and colours, in words.
        lines: what stands for it in text.
    """

    svg: str
    height: int
    alt: str
    caption: str
    lines: tuple[str, ...] = ()


def address(svg: str) -> str:
    """Return a `data:` address of an SVG document."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def picture(chart: Chart) -> str:
    """Return a `data:` address of the chart as an area that can be stretched, with its highest value marked."""
    values, width = chart.values, max(len(chart.values), 1)
    top = max(chart.limit if chart.near_limit else 0, *values, 1)
    heights = [_HEIGHT - round(v / top * (_HEIGHT - 4)) for v in values]
    line = f"M0 {heights[0] if heights else _HEIGHT}"
    for k in range(1, len(heights)):
        if heights[k] != heights[k - 1]:
            line += f"H{k}V{heights[k]}"
    peak = max(range(len(values)), key=values.__getitem__, default=0)
    limit = f'<path d="M0 4H{width}" stroke="{_LIMIT}" stroke-dasharray="4 3"/>' if chart.near_limit else ""
    # Strokes keep their width when the picture is stretched.
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {_HEIGHT}" preserveAspectRatio="none">'
        "<style>path{vector-effect:non-scaling-stroke;fill:none}</style>"
        f'<path d="{line}H{width}V{_HEIGHT}H0Z" style="fill:{_AREA};fill-opacity:0.3"/>'
        f'<path d="{line}H{width}" stroke="{_AREA}" stroke-width="1.5"/>'
        f'<path d="M{peak + 0.5} 0V{_HEIGHT}" stroke="{_PEAK}" stroke-width="1.5"/>{limit}</svg>'
    )
    return address(svg)


def blocks(values: Sequence[int], width: int) -> str:
    """Return the values as a row of block characters: the highest of each stretch."""
    top = max(*values, 1)
    count = min(width, len(values))
    edges = [round(k * len(values) / count) for k in range(count + 1)]
    heights = [max(values[a:b]) for a, b in pairwise(edges)]
    return "".join(_BLOCKS[-(-h * (len(_BLOCKS) - 1) // top)] for h in heights)
