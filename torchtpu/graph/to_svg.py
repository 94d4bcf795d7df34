"""Scenes as SVG: one markup for the picture of a saved notebook, for files, and for the page that can be used.

A picture has its own paper, as printed figures have, since inside an `<img>` it does not see the notebook's theme; where
the browser tells it of a dark one, it follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from torchtpu.graph.layout import TITLE, Wire
from torchtpu.graph.model import ProgramGraph
from torchtpu.graph.scene import DRAWN, FONT, LEVELS, Drawer, Frame, Scene, Tile

_LEGEND = 36  # height
_SWATCH = 26
_LETTER = 6.1  # width of one, in the legend

# Ink, quiet ink, paper, tile, lines of tiles, of frames, of wires; then the colour scale. Ink on each of the scale's steps
# and quiet ink on paper have a contrast of 4.5 or more.
_LIGHT = ("#1c2733", "#566270", "#ffffff", "#ffffff", "#a9b4c0", "#cfd6de", "#8c98a6")
_LIGHT_SCALE = ("#eef4f8", "#dcebf3", "#c5deed", "#a9cee4", "#8abbd8", "#6aa6ca")
_DARK = ("#e3e8ee", "#9ba7b4", "#14181d", "#1b2027", "#4a5562", "#343d47", "#6d7986")
_DARK_SCALE = ("#1d2932", "#20333f", "#233f50", "#274c63", "#2b5a77", "#306a8d")


def _rules(colours: tuple[str, ...], scale: tuple[str, ...]) -> str:
    ink, quiet, paper, tile, edge, frame, wire = colours
    steps = "".join(f".q{n}{{fill:{c}}}.r{n}{{stroke:{c}}}" for n, c in enumerate(scale))
    return (
        f".p{{fill:{paper}}}.l{{stroke:{paper}}}.t{{fill:{tile};stroke:{edge}}}.f{{fill:none;stroke:{frame}}}{steps}"
        f"text{{fill:{ink}}}.s{{fill:{quiet}}}.w{{stroke:{wire}}}.m{{fill:{wire}}}"
    )


# Every drawing has these; colours follow, so that a page can choose a theme.
SHAPES = (
    f"text{{font:{FONT}px ui-monospace,Menlo,Consolas,monospace}}.s,.h{{font-size:{FONT - 1}px}}.c{{text-anchor:middle}}"
    # Titles of frames stand on wires: a rim in the colour of the ground sets them off.
    ".l{paint-order:stroke;stroke-width:4px;stroke-linejoin:round}"
    ".w{fill:none}.t,.f{stroke-linejoin:round}"
)
LIGHT = _rules(_LIGHT, _LIGHT_SCALE)
DARK = _rules(_DARK, _DARK_SCALE)


def to_svg(graph: ProgramGraph, limit: int = DRAWN) -> str:
    """Draw a graph as a picture, folded to at most `limit` tiles."""
    scene = Drawer(graph).scene(graph.tree, limit)
    height = scene.height + _LEGEND
    width = max(scene.width, 400)
    style = f"<style>{SHAPES}{LIGHT}@media(prefers-color-scheme:dark){{{DARK}}}</style>"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_n(width)}" height="{_n(height)}" '
        f'viewBox="0 0 {_n(width)} {_n(height)}"><title>{escape(scene.title)}</title>{style}'
        f'<rect class="p" width="100%" height="100%"/>{picture(scene)}{legend(graph, scene.scale, scene.height)}</svg>'
    )


def picture(scene: Scene) -> str:
    """Draw a scene in few bytes: all that looks the same is one path."""
    shapes: dict[str, list[str]] = {}
    for f in scene.frames:
        shapes.setdefault(_frame_class(f), []).append(_box(f.x, f.y, f.width, f.height))
    wires, heads = "".join(map(_path, scene.wires)), "".join(_head(w) for w in scene.wires if w.arrow)
    behind = "".join(_box(t.x + 3, t.y + 3, t.width, t.height) for t in scene.tiles if t.folded)
    tiles: dict[str, list[str]] = {"t": [behind]} if behind else {}
    for t in scene.tiles:
        tiles.setdefault(_tile_class(t), []).append(_box(t.x, t.y, t.width, t.height))
    parts = [f'<path class="{style}" d="{"".join(boxes)}"/>' for style, boxes in shapes.items()]
    parts += [f'<path class="w" d="{wires}"/><path class="m" d="{heads}"/>', *map(_frame_title, scene.frames)]
    parts += [f'<path class="{style}" d="{"".join(boxes)}"/>' for style, boxes in tiles.items()]
    texts = "".join(_tile_text(t) for t in scene.tiles)
    return f'{"".join(parts)}<g class="c">{texts}</g>'


def markup(scene: Scene) -> str:
    """Draw a scene for a page: each tile is a group with its key, each wire names the tiles that it joins."""
    parts = [f'<path id="{f.key}" class="{_frame_class(f)}" d="{_box(f.x, f.y, f.width, f.height)}"/>' for f in scene.frames]
    for w in scene.wires:
        links = " ".join(f"{a}>{b}" for a, b in sorted(w.links))
        parts.append(f'<path class="w" d="{_path(w)}" data-e="{links}"/>')
    parts.append(f'<path class="m" d="{"".join(_head(w) for w in scene.wires if w.arrow)}"/>')
    parts += map(_frame_title, scene.frames)
    for t in scene.tiles:
        behind = f'<path class="t" d="{_box(t.x + 3, t.y + 3, t.width, t.height)}"/>' if t.folded else ""
        front = f'<path class="{_tile_class(t)}" d="{_box(t.x, t.y, t.width, t.height)}"/>'
        parts.append(f'<g class="c" id="{t.key}">{behind}{front}{_tile_text(t)}</g>')
    return "".join(parts)


def _frame_class(frame: Frame) -> str:
    return f"t q{frame.level}" if frame.level >= 0 else "f"


def _frame_title(frame: Frame) -> str:
    style = f"h l r{frame.level}" if frame.level >= 0 else "s l"
    return f'<text class="{style}" x="{_n(frame.x + 8)}" y="{_n(frame.y + TITLE - 3)}">{escape(frame.title)}</text>'


def _tile_class(tile: Tile) -> str:
    return f"t q{tile.level}" if tile.level >= 0 else "t"


def _tile_text(tile: Tile) -> str:
    name, below = map(escape, tile.lines)
    x = _n(tile.x + tile.width / 2)
    text = f'<text x="{x}" y="{_n(tile.y + (14 if below else 21))}">{name}</text>'
    return f'{text}<text class="h" x="{x}" y="{_n(tile.y + 27)}">{below}</text>' if below else text


def legend(graph: ProgramGraph, scale: Sequence[float], y: float) -> str:
    """Draw the colour scale at a height, with its unit and where the figures come from."""
    if not scale:
        return ""
    low, high = f"to {graph.amount(scale[1])}", f"from {graph.amount(scale[-1])}"
    x = 10 + len(low) * _LETTER + 8
    swatches = "".join(
        f'<rect class="t q{n}" x="{_n(x + n * _SWATCH)}" y="{_n(y + 5)}" width="{_SWATCH}" height="10"/>' for n in range(LEVELS)
    )
    after = x + LEVELS * _SWATCH + 8
    return (
        f'<text class="s" x="10" y="{_n(y + 14)}">{low}</text>{swatches}'
        f'<text class="s" x="{_n(after)}" y="{_n(y + 14)}">{high}</text>'
        f'<text class="s" x="10" y="{_n(y + 28)}">{escape(graph.weighed)}</text>'
    )


def _box(x: float, y: float, width: float, height: float) -> str:
    return f"M{_n(x)} {_n(y)}h{_n(width)}v{_n(height)}h{_n(-width)}z"


def _head(wire: Wire) -> str:
    x, y = wire.points[-1]
    return f"M{_n(x)} {_n(y)}l-3-5h6z"


def _path(wire: Wire) -> str:
    (x1, y1), (_, low), (x2, high), (_, y2) = ((round(x), round(y)) for x, y in wire.points)
    if x1 == x2:
        return f"M{x1} {y1}V{y2}"
    down = f"V{low}" if low > y1 else ""
    end = f"V{y2}" if y2 > high else ""
    middle, bottom = (high - low) // 2, high - low
    return f"M{x1} {y1}{down}c0 {middle} {x2 - x1} {middle} {x2 - x1} {bottom}{end}"


def _n(value: float) -> str:
    return str(round(value))
