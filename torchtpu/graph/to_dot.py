"""A graph in Graphviz' language: modules and kernels are clusters, ops are nodes, tensors are edges."""

from __future__ import annotations

from torchtpu.graph.model import ProgramGraph
from torchtpu.graph.scene import Drawer, op_name
from torchtpu.graph.tree import Group


def to_dot(graph: ProgramGraph) -> str:
    """Write the whole graph, whatever its size."""
    drawer = Drawer(graph)
    lines = [
        f"digraph {_quoted(graph.name)} {{",
        '  graph [fontname="monospace", fontsize=10, color="#a9b4c0"];',
        '  node [shape=box, fontname="monospace", fontsize=11, color="#a9b4c0"];',
        '  edge [color="#8c98a6", arrowsize=0.6];',
    ]
    _group(graph, drawer, graph.tree, "  ", lines)
    for e in graph.edges:
        lines.append(f"  n{e.source} -> n{e.target} [tooltip={_quoted(graph.values[e.value])}];")
    return "\n".join([*lines, "}", ""])


def _group(graph: ProgramGraph, drawer: Drawer, group: Group, indent: str, lines: list[str]) -> None:
    for child in group.children:
        if isinstance(child, Group):
            style = ' style=filled; fillcolor="#eef4f8";' if child.kind == "kernel" else ""
            name = _quoted(f"cluster_{child.key}")
            lines.append(f"{indent}subgraph {name} {{ label={_quoted(drawer.title(child))};{style}")
            _group(graph, drawer, child, indent + "  ", lines)
            lines.append(f"{indent}}}")
        else:
            row = graph.ops[child]
            label = _quoted("\n".join([op_name(row.op), *row.outputs[:1]]))
            where = f", tooltip={_quoted(row.line.where)}" if row.line is not None else ""
            lines.append(f"{indent}n{child} [label={label}{where}];")


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
