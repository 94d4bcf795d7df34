"""From a program, or the row of a saved report, to its graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torchtpu import lines, provenance
from torchtpu.graph import hlo
from torchtpu.graph.model import ProgramGraph
from torchtpu.report.rows import OpRow, ProgramRow

if TYPE_CHECKING:
    from torchtpu.program import Program


def program_graph(row: ProgramRow, compiler: str, program: Program | None = None, numbers: Sequence[Any] = ()) -> ProgramGraph:
    """Return the graph of a report's program.

    Args:
        row: the ops, their lines and modules.
        compiler: who compiled it.
        program: it itself, while its process lives: the source of its kernels and texts.
        numbers: that it took at its first run; nothing if it did not run.
    """
    if program is None:
        return ProgramGraph(row.name, row.ops, row.inputs, row.results, row.fusions, compiler)
    from torchtpu.graph.to_python import to_python

    fusions = row.fusions or hlo.fusions(program.hlo())
    texts = {
        "python": lambda: to_python(program, row.ops, numbers),
        "stablehlo": program.stablehlo,
        "hlo": program.hlo,
    }
    return ProgramGraph(row.name, row.ops, row.inputs, row.results, fusions, compiler, texts=texts)


def watched_graph(mode: str, numbers: range, seconds: Sequence[float]) -> ProgramGraph:
    """Return all ops of a watch as one graph; only the latest `provenance.KEPT` are known.

    Args:
        mode: in which they ran.
        numbers: of the ops, in `provenance`.
        seconds: of each of them (measured), or nothing.
    """
    made = [m for m in provenance.among(numbers) if m.plan is not None]
    position = {m.number: k for k, m in enumerate(made)}
    first: list[int] = []  # number of each op's first result
    count = 0
    for m in made:
        first.append(count)
        count += len(m.plan.outputs)
    rows = []
    for m in made:
        inputs = []
        for n, argument in zip(m.inputs, m.plan.needs, strict=True):
            source = position.get(n)
            if source is not None:
                # Which of the source's results it is was not noted: the first of the layout that is read.
                outputs = made[source].plan.outputs
                layout = m.plan.views[argument].layout
                inputs.append(first[source] + (outputs.index(layout) if layout in outputs else 0))
        info = m.plan.info()
        backward = m.origin is not None and len(m.origin) > 3
        module = lines.module_of(m.origin)
        outputs = tuple(map(str, info.outputs))
        rows.append(OpRow(info.op, lines.resolve(m.origin), outputs, module, backward, tuple(inputs), info.inputs))
    measured = tuple(seconds) if len(seconds) == len(rows) else ()
    return ProgramGraph(f"{mode} mode", tuple(rows), (), (), (), "", seconds=measured)
