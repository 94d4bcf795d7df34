"""What `--graph` shows below a report: the programs of the cell as graphs."""

from __future__ import annotations

from html import escape

from torchtpu.graph import ProgramGraph, to_html, to_text
from torchtpu.report import Report, units

_BUDGET = 130_000  # bytes of HTML: the report above it may take as many as are left to 200,000
_TEXTS = 3  # programs written out where there is only text


def bundle(report: Report) -> dict[str, str]:
    """Return the graphs of a report by MIME type, the largest program opened; empty if it ran nothing."""
    graphs = report.graphs()
    if not graphs:
        return {}
    first, *rest = graphs
    parts = [to_html.fragment(first)]
    left = _BUDGET - len(parts[0])
    shown = 1
    for graph in rest:
        part = _folded(graph)
        if len(part) > left:
            break
        parts.append(part)
        left -= len(part)
        shown += 1
    if shown < len(graphs):
        more = units.count(len(graphs) - shown, "smaller program")
        parts.append(
            f'<div style="opacity:0.7">{more} not shown: watch the code with torchtpu.watch() as report, then '
            "report.graph(name)</div>"
        )
    texts = [to_text.to_text(graph) for graph in graphs[:_TEXTS]]
    return {"text/html": "".join(parts), "text/plain": "\n\n".join(texts)}


def _folded(graph: ProgramGraph) -> str:
    title = escape(f"{graph.name}: {to_html.summary(graph)}")
    return (
        f'<details style="margin:4px 0"><summary style="cursor:pointer;font-size:13px">{title}</summary>'
        f"{to_html.fragment(graph)}</details>"
    )
