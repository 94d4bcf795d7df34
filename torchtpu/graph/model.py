"""`ProgramGraph`: a program as ops, the tensors between them, the modules that made them and the kernels that run them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtpu.graph import shapes
from torchtpu.report import units
from torchtpu.report.rows import FusionRow, OpRow

if TYPE_CHECKING:
    from torchtpu.graph.tree import Group

# Ways to write a graph, by the suffix of the file.
SUFFIXES = (".svg", ".html", ".dot", ".mmd", ".json", ".py", ".stablehlo", ".hlo")


@dataclass(frozen=True)
class Edge:
    """A tensor that op `source` makes and op `target` reads; `value` is its number among the program's results."""

    source: int
    target: int
    value: int


@dataclass(frozen=True)
class Box:
    """The ops that one kernel computes: `root` is the one whose result it writes.

    Where XLA made several kernels for one op (a softmax, an op on a list of tensors), they are one box.

    Attributes:
        ops: positions; the root is one of them.
        kernels: that write the root's result.
    """

    root: int
    ops: tuple[int, ...]
    kernels: tuple[FusionRow, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that its kernels read and write (compiled)."""
        return sum(k.nbytes for k in self.kernels)


@dataclass(frozen=True)
class ProgramGraph:
    """A program to look at.

    Attributes:
        name: of the program.
        ops: its ATen ops in order.
        inputs: its arrays (`float32[8,128]`).
        results: numbers of the ops' results that it returns.
        fusions: its kernels in the order in which they run; empty where the compiler's text is not known.
        compiler: whose they are (`XLA:CPU`).
        seconds: of each op, where debug mode measured them.
        texts: what else the program can be written as, by name (`python`, `stablehlo`, `hlo`), each made when asked for.
    """

    name: str
    ops: tuple[OpRow, ...]
    inputs: tuple[str, ...]
    results: tuple[int, ...]
    fusions: tuple[FusionRow, ...]
    compiler: str
    seconds: tuple[float, ...] = ()
    texts: Mapping[str, Callable[[], str]] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def makers(self) -> tuple[int, ...]:
        """For each result, the op that makes it."""
        return tuple(k for k, op in enumerate(self.ops) for _ in op.outputs)

    @cached_property
    def values(self) -> tuple[str, ...]:
        """The ops' results (`float32[8,128]`), by number."""
        return tuple(o for op in self.ops for o in op.outputs)

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """The tensors between ops, in the order of their readers."""
        return tuple(Edge(self.makers[r], k, r) for k, op in enumerate(self.ops) for r in dict.fromkeys(op.inputs) if r >= 0)

    @cached_property
    def neighbours(self) -> tuple[tuple[int, ...], ...]:
        """For each op, those that it reads from and those that read from it."""
        found: list[list[int]] = [[] for _ in self.ops]
        for e in self.edges:
            found[e.source].append(e.target)
            found[e.target].append(e.source)
        return tuple(tuple(dict.fromkeys(near)) for near in found)

    @cached_property
    def boxes(self) -> dict[int, Box]:
        """The boxes of the kernels, by their root. Each op is in at most one, although kernels may compute it again."""
        roots = {f.root for f in self.fusions if f.root >= 0}
        members: dict[int, list[int]] = {root: [] for root in sorted(roots)}
        home: dict[int, int] = {root: root for root in roots}
        for fusion in self.fusions:
            for op in fusion.ops:
                if fusion.root >= 0:
                    home.setdefault(op, fusion.root)
        for op, root in sorted(home.items()):
            members[root].append(op)
        kernels: dict[int, list[FusionRow]] = {}
        for fusion in self.fusions:
            kernels.setdefault(fusion.root, []).append(fusion)
        return {root: Box(root, tuple(ops), tuple(kernels[root])) for root, ops in members.items()}

    @cached_property
    def box_of(self) -> dict[int, Box]:
        """The box of each op that has one."""
        return {op: box for box in self.boxes.values() for op in box.ops}

    @cached_property
    def kernels_of(self) -> dict[int, list[FusionRow]]:
        """All kernels that compute an op or a part of it, by the op."""
        found: dict[int, list[FusionRow]] = {}
        for fusion in self.fusions:
            for op in fusion.ops:
                found.setdefault(op, []).append(fusion)
        return found

    def nbytes(self, op: int) -> int:
        """Bytes of an op's results."""
        return sum(map(shapes.nbytes, self.ops[op].outputs))

    @cached_property
    def tree(self) -> Group:
        """The nesting of its ops by module and kernel."""
        from torchtpu.graph.tree import tree

        return tree(self)

    @cached_property
    def weights(self) -> tuple[float, ...]:
        """What the colours show: each op's seconds, or the bytes of the kernels that write its results, or of those."""
        if self.seconds:
            return self.seconds
        if self.fusions:
            return tuple(float(self.boxes[k].nbytes) if k in self.boxes else 0.0 for k in range(len(self.ops)))
        return tuple(float(self.nbytes(k)) for k in range(len(self.ops)))

    @property
    def weighed(self) -> str:
        """What `weights` are, and where they come from."""
        if self.seconds:
            return "to launch an op and wait for it, measured"
        return f"read and written by a kernel, compiled ({self.compiler})" if self.fusions else "of an op's results"

    def amount(self, weight: float) -> str:
        """Write a weight with its unit."""
        return units.seconds(weight) if self.seconds else units.nbytes(round(weight))

    def text(self, kind: str) -> str:
        """Return the program as `python`, `stablehlo` or `hlo`.

        Raises:
            ValueError: it is a saved graph, which does not hold that text.
        """
        if kind not in self.texts:
            raise ValueError(
                f"{self.name} was read from a file, which does not hold its {kind}: save that from the report of a running cell"
            )
        return self.texts[kind]()

    def to_python(self) -> str:
        """Return the program as Python: a function of `torch.ops.aten` calls, ready to be run."""
        return self.text("python")

    def to_svg(self) -> str:
        """Return a picture: large parts are folded, so that at most 100 nodes are drawn."""
        from torchtpu.graph.to_svg import to_svg

        return to_svg(self)

    def to_html(self) -> str:
        """Return a whole page in which parts open, and each node shows its line, shapes and code."""
        from torchtpu.graph.to_html import page

        return page(self)

    def to_dot(self) -> str:
        """Return the graph in Graphviz' language, modules and kernels as clusters."""
        from torchtpu.graph.to_dot import to_dot

        return to_dot(self)

    def to_mermaid(self) -> str:
        """Return the graph as a Mermaid flowchart, folded as in the picture."""
        from torchtpu.graph.to_mermaid import to_mermaid

        return to_mermaid(self)

    def to_json(self) -> str:
        """Return everything but StableHLO and HLO as JSON, in a versioned schema that `from_json` reads."""
        from torchtpu.graph.to_json import to_json

        return to_json(self)

    @classmethod
    def from_json(cls, text: str) -> ProgramGraph:
        """Read what `to_json` wrote.

        Raises:
            ValueError: not a graph, or one of another version of the schema.
        """
        from torchtpu.graph.to_json import from_json

        return from_json(text)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the graph to a file, as its suffix says: .svg, .html, .dot, .mmd, .json, .py, .stablehlo or .hlo.

        Raises:
            ValueError: another suffix, or a text that a saved graph does not hold.
        """
        target = Path(path)
        write = {
            ".svg": self.to_svg,
            ".html": self.to_html,
            ".dot": self.to_dot,
            ".mmd": self.to_mermaid,
            ".json": self.to_json,
            ".py": self.to_python,
            ".stablehlo": lambda: self.text("stablehlo"),
            ".hlo": lambda: self.text("hlo"),
        }.get(target.suffix.lower())
        if write is None:
            raise ValueError(f"cannot save a graph as {str(target)!r}: the name must end in {', '.join(SUFFIXES)}")
        target.write_text(write(), encoding="utf-8")
        return target

    def __repr__(self) -> str:
        return f"<torchtpu graph: {self.name}, {len(self.ops)} ops, {len(self.edges)} tensors, {len(self.fusions)} kernels>"

    def _repr_html_(self) -> str:
        from torchtpu.graph.to_html import fragment

        return fragment(self)

    def __str__(self) -> str:
        from torchtpu.graph.to_text import to_text

        return to_text(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))  # IPython, where it shows text
