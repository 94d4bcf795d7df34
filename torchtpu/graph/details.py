"""What a page says of an op or a group: its line, shapes, kernels and code, as rows of text."""

from __future__ import annotations

from functools import cached_property
from posixpath import commonpath
from typing import Any

from torchtpu.graph import hlo
from torchtpu.graph.model import ProgramGraph
from torchtpu.graph.scene import Drawer
from torchtpu.graph.tree import Group
from torchtpu.report import units

_LISTED = 4  # kernels
_NAMED = 8  # kinds of ops
_CODE_LINES = 24
_CODE_WIDTH = 200


class Details:
    """Describes the nodes of a graph. Each description is data for JSON.

    `title` and `where` stand in lists, `rows` are (name, value), `code` is (name, text), `find` is what a search looks in.
    """

    def __init__(self, graph: ProgramGraph, drawer: Drawer) -> None:
        self.graph, self.drawer = graph, drawer

    def op(self, op: int, code: bool) -> dict[str, Any]:
        """Describe an op, with what it became where `code` is asked for."""
        graph = self.graph
        row = graph.ops[op]
        module = row.module.replace("/", ".")
        where = f"{row.line.where}{' (backward)' if row.backward else ''}" if row.line is not None else ""
        source = row.line.source if row.line is not None else ""
        rows = [
            ("line", f"{where}\n{source}" if source else where),
            ("module", module),
            ("arguments", ", ".join(row.arguments)),
            ("results", ", ".join(row.outputs)),
            ("bytes", f"{units.nbytes(graph.nbytes(op))} of results"),
            ("time", f"{units.seconds(graph.seconds[op])} {graph.weighed}" if graph.seconds else ""),
            *self._kernels(op),
        ]
        return {
            "title": row.op,
            "where": where,
            "rows": [r for r in rows if r[1]],
            "code": self._code.get(op, []) if code else [],
            "find": f"{row.op} {module} {where} {source}".lower(),
        }

    def group(self, group: Group) -> dict[str, Any]:
        """Describe a group by what is in it."""
        graph, ops = self.graph, tuple(group.ops)
        names: dict[str, int] = {}
        for k in ops:
            name = graph.ops[k].op.removeprefix("aten::")
            names[name] = names.get(name, 0) + 1
        listed = sorted(names.items(), key=lambda n: -n[1])[:_NAMED]
        within = commonpath(graph.ops[k].module for k in ops)
        kernels = sum(len(graph.boxes[k].kernels) for k in ops if k in graph.boxes)
        rows = [
            ("module", within.replace("/", ".")),
            ("ops", f"{len(ops):,}"),
            ("kernels", f"{kernels:,}" if kernels else ""),
            ("time" if graph.seconds else "bytes", f"{graph.amount(self.drawer.weight(ops))} {graph.weighed}"),
            ("most", ", ".join(f"{name} x{n}" if n > 1 else name for name, n in listed)),
        ]
        title = self.drawer.title(group)
        count = units.count(len(ops), "op")
        return {"title": title, "where": count, "rows": [r for r in rows if r[1]], "code": [], "find": title.lower()}

    def _kernels(self, op: int) -> list[tuple[str, str]]:
        graph = self.graph
        box = graph.box_of.get(op)
        if box is None:
            return [("kernel", "none: nothing is left of it")] if graph.fusions else []
        own = [f"{k.name} ({k.kind})" for k in box.kernels]
        together = [f"{graph.ops[k].op.removeprefix('aten::')} #{k}" for k in box.ops if k != op]
        parts = sorted({k for kernel in box.kernels for k in kernel.ops} - set(box.ops))
        split = [f"{graph.ops[k].op.removeprefix('aten::')} #{k}" for k in parts if k < len(graph.ops)]
        again = [k.name for k in graph.kernels_of.get(op, ()) if k.root != box.root]
        return [
            ("kernel", f"{_listed(own, chr(10))}\n{units.nbytes(box.nbytes)} read and written (compiled)"),
            ("fused with", _listed(together, ", ")),
            ("with parts of", _listed(split, ", ")),
            ("also in", _listed(again, ", ")),
        ]

    @cached_property
    def _code(self) -> dict[int, list[tuple[str, str]]]:
        """Each op's StableHLO and its instructions in the optimized HLO."""
        found: dict[int, list[tuple[str, str]]] = {}
        forms = (("stablehlo", "StableHLO", hlo.stablehlo_by_op), ("hlo", "HLO, optimized", hlo.lines_by_op))
        for kind, title, read in forms:
            for op, text in read(self.graph.text(kind)).items() if kind in self.graph.texts else ():
                shown = [units.cut(t, _CODE_WIDTH) for t in text[:_CODE_LINES]]
                more = [f"({len(text) - _CODE_LINES:,} more)"] if len(text) > _CODE_LINES else []
                found.setdefault(op, []).append((title, "\n".join([*shown, *more])))
        return found


def _listed(names: list[str], between: str) -> str:
    more = [f"and {len(names) - _LISTED:,} more"] if len(names) > _LISTED else []
    return between.join([*names[:_LISTED], *more])
