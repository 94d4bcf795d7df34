"""Graphs to test with: of real programs, and made up from ops and edges alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

import torchtpu
from torchtpu import modes
from torchtpu.graph import ProgramGraph
from torchtpu.report import Report
from torchtpu.report.rows import FusionRow, OpRow


def watched(run: Callable[[], object], mode: str = "defer_and_fuse") -> Report:
    """Run a function in a mode and report on it. What it returns is alive when the watch ends."""
    with modes.scope(mode), torchtpu.watch() as report:
        kept = run()
    del kept
    return report


@pytest.fixture
def graph_of() -> Callable[[Callable[[], object]], ProgramGraph]:
    """Fuse what a function does, and return the graph of it."""
    return lambda run: watched(run).graph()


def made_up(
    inputs: Sequence[Sequence[int]], modules: Sequence[str] = (), fusions: Sequence[Sequence[int]] = (), backward: int = 10**9
) -> ProgramGraph:
    """A graph of ops with one result each, that read the results of `inputs`; the last op of a fusion is its root."""
    ops = tuple(
        OpRow("aten::add.Tensor", None, ("float32[8]",), modules[k] if modules else "", k >= backward, tuple(read))
        for k, read in enumerate(inputs)
    )
    rows = tuple(FusionRow(f"fusion.{n}", "loop fusion", tuple(f), f[-1], 64 * (n + 1)) for n, f in enumerate(fusions))
    return ProgramGraph("made up", ops, (), (len(ops) - 1,), rows, "XLA:CPU")
