"""A graph as a page to move about in, and as the fragment that a notebook keeps.

The page stands in an `<iframe srcdoc>` over the picture, and needs neither network nor kernel. An untrusted notebook drops
the frame and shows the picture. The page's script runs by its digest only, so that no name in a graph can become one.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import cache
from html import escape
from itertools import islice
from pathlib import Path

from torchtpu.graph.details import Details
from torchtpu.graph.model import ProgramGraph
from torchtpu.graph.scene import DRAWN, Drawer, Scene, group_key, op_key
from torchtpu.graph.to_svg import DARK, LIGHT, SHAPES, legend, markup, to_svg
from torchtpu.graph.tree import Group
from torchtpu.report import units

_HEIGHT = 520  # of a fragment, at most
_SMALL = 320  # and at least, so that the page has room for what it says of a node
BUDGET = 96_000  # bytes of a fragment
_INSIDE = 12  # drawings in a fragment: of the program and of folded groups


def page(graph: ProgramGraph, limit: int = DRAWN) -> str:
    """Write the whole graph as a page for a file, with each op's code, and at most `limit` nodes in a drawing."""
    drawer = Drawer(graph)
    return _page(graph, drawer, _payload(graph, Details(graph, drawer), tuple(_scenes(drawer, limit)), code=True))


def fragment(graph: ProgramGraph, budget: int = BUDGET) -> str:
    """Write a graph for a notebook's output: a picture, and over it the page.

    Args:
        budget: bytes that both may take. What does not fit is left out, code first, and left to `save`.
    """
    drawer = Drawer(graph)
    details = Details(graph, drawer)
    html = ""
    for limit in (DRAWN, DRAWN // 2, DRAWN // 4):
        picture = to_svg(graph, limit)
        scenes = tuple(islice(_scenes(drawer, limit), _INSIDE))
        for count, code in ((_INSIDE, True), (_INSIDE, False), (_INSIDE // 3, False), (1, False)):
            html = _layered(graph, picture, scenes[0], _page(graph, drawer, _payload(graph, details, scenes[:count], code)))
            if len(html) <= budget:
                return html
    return html


def summary(graph: ProgramGraph) -> str:
    """Say in a line how large a graph is."""
    kernels = f", {units.count(len(graph.fusions), 'kernel')} (compiled, {graph.compiler})" if graph.fusions else ""
    return f"{units.count(len(graph.ops), 'op')}, {units.count(len(graph.edges), 'tensor')}{kernels}"


def _layered(graph: ProgramGraph, picture: str, scene: Scene, page: str) -> str:
    height = min(_HEIGHT, max(_SMALL, round(scene.height) + 40))
    source = base64.b64encode(picture.encode()).decode()
    about = escape(f"{graph.name}: {summary(graph)}")
    inner = page.replace("&", "&amp;").replace("'", "&#39;")  # single quotes around it, since it is full of double ones
    return (
        f'<div style="position:relative;height:{height}px"><div style="overflow:auto;height:{height}px">'
        f'<img alt="{about}" style="max-width:none" src="data:image/svg+xml;base64,{source}"></div>'
        f"<iframe title=\"{escape(graph.name)}\" srcdoc='{inner}' "
        'style="position:absolute;left:0;top:0;width:100%;height:100%;border:0"></iframe></div>'
    )


@cache
def _file(name: str) -> str:
    """Read a part of the page, without comments and indentation."""
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    lines = map(str.strip, text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))


def _page(graph: ProgramGraph, drawer: Drawer, payload: str) -> str:
    script = _file("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><title>{escape(graph.name)}</title>'
        f'<style>{_file("page.css")}{SHAPES}{LIGHT}</style><style id="dark" media="not all">{DARK}</style></head><body>'
        '<header><nav id="trail" aria-label="Opened"></nav>'
        '<input id="search" type="search" placeholder="Search (/)" aria-label="Search">'
        '<button id="out" aria-label="Zoom out">&minus;</button><button id="in" aria-label="Zoom in">+</button>'
        '<button id="fit">Fit</button></header>'
        '<main><div id="view" tabindex="0" role="application" aria-label="Graph"><div id="scene"></div>'
        f'<svg id="legend" aria-hidden="true">{legend(graph, drawer.scale, 2)}</svg></div>'
        '<aside id="about" aria-live="polite"></aside></main>'
        f'<script type="application/octet-stream" id="graph">{payload}</script><script>{script}</script></body></html>\n'
    )


def _scenes(drawer: Drawer, limit: int) -> Iterator[Scene]:
    """Yield the scene of the program, then those of its folded groups, and of theirs."""
    waiting = [drawer.graph.tree]
    while waiting:
        group = waiting.pop(0)
        scene = drawer.scene(group, limit)
        yield scene
        folded = {t.key for t in scene.tiles if t.folded}
        waiting += [g for g in _groups(group) if group_key(g) in folded]


def _groups(group: Group) -> Iterator[Group]:
    for child in group.children:
        if isinstance(child, Group):
            yield child
            yield from _groups(child)


def _payload(graph: ProgramGraph, details: Details, scenes: Sequence[Scene], code: bool) -> str:
    """Pack what the page shows: its scenes, and what there is to say of each op and group in them."""
    parents = {t.key: s.key for s in scenes for t in s.tiles if t.folded}
    shown = {t.key for s in scenes for t in s.tiles}
    nodes = {op_key(k): details.op(k, code) for k in range(len(graph.ops)) if op_key(k) in shown}
    nodes |= {group_key(g): details.group(g) for g in _groups(graph.tree) if group_key(g) in shown}
    data = {
        "name": graph.name,
        "summary": summary(graph),
        "root": scenes[0].key,
        "scenes": {
            s.key: {
                "title": s.title,
                "parent": parents.get(s.key),
                "width": s.width,
                "height": s.height,
                "holds": [t.key for t in s.tiles],
                "svg": markup(s),
            }
            for s in scenes
        },
        "nodes": nodes,
    }
    return base64.b64encode(gzip.compress(json.dumps(data).encode(), 9, mtime=0)).decode()
