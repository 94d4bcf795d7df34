"""A graph where there is only text: the program as Python, cut where it gets long."""

from __future__ import annotations

from torchtpu.graph.model import ProgramGraph
from torchtpu.report import units

_LINES = 120


def to_text(graph: ProgramGraph, lines: int = _LINES) -> str:
    """Write the program as Python, at most `lines` lines of it; a list of its ops where its calls are not known."""
    if "python" in graph.texts:
        text = graph.to_python().splitlines()
    else:
        text = [repr(graph)]
        for k, row in enumerate(graph.ops):
            where = f"  # {row.line.where}" if row.line is not None else ""
            text.append(f"{k:>5} {row.op.removeprefix('aten::')} -> {', '.join(row.outputs)}{where}")
    if len(text) <= lines:
        return "\n".join(text)
    more = units.count(len(text) - lines, "more line")
    return "\n".join([*text[:lines], f"# {more}: graph.save('program.py') writes them all"])
