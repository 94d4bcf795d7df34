"""The time of a watch as one bar: an SVG picture, since inline SVG and style sheets are lost in untrusted notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torchtpu.report.chart import address

# Middle tones: each keeps a contrast of at least 3:1 on white and on JupyterLab's dark background.
COLOURS = {
    "dispatch": "#8b7bd8",
    "compile": "#d9792b",
    "run": "#2f9e6e",
    "wait": "#d2536f",
    "finish": "#b0629c",
    "the rest": "#8a8f98",
}

_WIDTH, _HEIGHT = 1000, 8


def picture(parts: Sequence[tuple[str, float]], colours: Mapping[str, str] = COLOURS) -> str:
    """Return a `data:` address of the bar; parts are (name of a colour, share)."""
    total = sum(share for _, share in parts)
    x, rectangles = 0.0, []
    for name, share in parts:
        width = _WIDTH * share / total if total > 0 else 0
        if width > 0:
            rectangles.append(f'<rect x="{x:.1f}" width="{width:.1f}" height="{_HEIGHT}" fill="{colours[name]}"/>')
        x += width
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none">'
        f"{''.join(rectangles)}</svg>"
    )
    return address(svg)
