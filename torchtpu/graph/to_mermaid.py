"""A graph as a Mermaid flowchart, folded as the picture is: Mermaid refuses large ones."""

from __future__ import annotations

from torchtpu.graph.model import ProgramGraph
from torchtpu.graph.scene import DRAWN, Drawer, group_key, op_key, op_name
from torchtpu.graph.tree import Group, unfolded


def to_mermaid(graph: ProgramGraph, limit: int = DRAWN) -> str:
    """Write the graph with at most `limit` nodes; `A["add"] -- 3 --> B` stands for three tensors."""
    root = graph.tree
    node_of: dict[int, str] = {}
    lines = ["flowchart TD"]
    _group(graph, Drawer(graph), root, unfolded(root, limit), "  ", lines, node_of)
    counts: dict[tuple[str, str], int] = {}
    for e in graph.edges:
        pair = node_of[e.source], node_of[e.target]
        if pair[0] != pair[1]:
            counts[pair] = counts.get(pair, 0) + 1
    lines += [f"  {a} {f'-- {n} ' if n > 1 else ''}--> {b}" for (a, b), n in counts.items()]
    return "\n".join([*lines, ""])


def _group(
    graph: ProgramGraph,
    drawer: Drawer,
    group: Group,
    opened: frozenset[str],
    indent: str,
    lines: list[str],
    node_of: dict[int, str],
) -> None:
    for child in group.children:
        if not isinstance(child, Group):
            row = graph.ops[child]
            node_of[child] = op_key(child)
            lines.append(f"{indent}{op_key(child)}[{_quoted(' '.join([op_name(row.op), *row.outputs[:1]]))}]")
            continue
        key = group_key(child).replace(".", "_")
        if child.key in opened:
            lines.append(f"{indent}subgraph {key}[{_quoted(drawer.title(child))}]")
            _group(graph, drawer, child, opened, indent + "  ", lines, node_of)
            lines.append(f"{indent}end")
        else:
            ops = tuple(child.ops)
            node_of.update(dict.fromkeys(ops, key))
            lines.append(f"{indent}{key}[[{_quoted(f'{drawer.title(child)}: {len(ops)} ops')}]]")


def _quoted(text: str) -> str:
    """A label: Mermaid renders HTML and Markdown in it, so that all of their signs go as entities."""
    return '"' + "".join(c if c.isalnum() or c in " _.,:-()[]" else f"#{ord(c)};" for c in text) + '"'
