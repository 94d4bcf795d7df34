"""Writes docs/targets-table.md: `python -m tests.ahead` (half an hour; results on disk are used)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import torch
from jax._src.interpreters import mlir
from torch.nn import functional as F

import torchtpu
from tests.ahead.by_hand import CASES, GPT, LENGTH, VOCABULARY, gpt
from torchtpu import ahead, disk_cache
from torchtpu.ahead import process
from torchtpu.ahead.compile import memory_of
from torchtpu.report import units

CHIPS = ("v5e", "v5p", "v6e", "tpu7x")
PAGE = Path(__file__).parents[2] / "docs" / "targets-table.md"
PEAKS = """# Targets: compared with jax

Peaks of device memory, as `torchtpu.compile_for` finds them and as the same program has them, written by hand in jax and
compiled for the same chip with the same options (effort `memory`). All are compiled, none is measured. `python -m tests.ahead`
writes this page.

| Program | Chip | torchtpu | jax | difference |
| --- | --- | --- | --- | --- |"""
EFFORTS = """
## The two efforts

Four of these programs for a v5e with effort `memory`, which is fast, and with `full`, which is what a TPU would run. `full`
keeps in VMEM what fits there, which takes no HBM, and has more code.

| Program | `memory` | code of it | `full` | code of it | `memory` against `full` |
| --- | --- | --- | --- | --- | --- |"""
TOO_LARGE = """
## A step that is too large for a v5e

A training step of a GPT of one layer, with AdamW, on sequences of {length} tokens: what `torchtpu.fit` answers for a v5e, and
what single compiles say of the two batches it names. v5p is the same step on a chip that has room for it.

| Asked | Batch | Chip | Effort | Fits | HBM peak |
| --- | --- | --- | --- | --- | --- |"""


def by_hand(function: Any, arrays: Any, donated: tuple[int, ...], name: str) -> int:
    """Return the peak of a jax function on a chip, in bytes."""
    with jax.default_matmul_precision("highest"):
        traced = jax.jit(function, donate_argnums=donated).trace(*arrays)
        module = mlir.module_to_bytecode(traced.lower(lowering_platforms=("tpu",)).compiler_ir("stablehlo"))
    chip = ahead.chip(name)
    request = {
        "module": module,
        "topology": chip.topology,
        "bounds": chip.chips_per_host_bounds,
        "effort": "memory",
        "limit": chip.hbm_bytes,
        "least": 0,
        "excess": False,
    }
    answer, _ = process.compile(request, lambda seconds: None)
    return memory_of(answer).peak


def peaks() -> Iterator[str]:
    """Compile every program for every chip, in both ways."""
    for name, case in CASES.items():
        function, hand, arrays, donated = case()
        captured = ahead.capture(function)
        for chip in CHIPS:
            ours, theirs = captured.compile(chip).hbm_peak, by_hand(hand, arrays, donated, chip)
            yield f"| {name} | {chip} | {units.nbytes(ours)} | {units.nbytes(theirs)} | {ours / theirs - 1:+.1%} |"


def efforts() -> Iterator[str]:
    """Compile the small programs with both efforts. `too_large` has a training step."""
    for name, case in CASES.items():
        if case is gpt:
            continue
        captured = ahead.capture(case()[0])
        fast, full = (captured.compile("v5e", effort=effort) for effort in ("memory", "full"))
        sizes = (fast.hbm_peak, fast.memory.code, full.hbm_peak, full.memory.code)
        yield f"| {name} | {' | '.join(map(units.nbytes, sizes))} | {fast.hbm_peak / full.hbm_peak - 1:+.1%} |"


def too_large() -> Iterator[str]:
    """Look for the largest batch, and compile it and the next one that was tried on their own."""
    with torch.device("meta"):
        model = GPT(layers=1)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch: int) -> torch.Tensor:
        ids, targets = (torch.randint(0, VOCABULARY, (batch, LENGTH), device="tpu") for _ in range(2))
        loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def row(asked: str, batch: int, chip: str, effort: str, fits: bool, peak: int | None) -> str:
        return f"| {asked} | {batch:,} | {chip} | {effort} | {'yes' if fits else 'no'} | {units.nbytes(peak or 0)} |"

    fit = torchtpu.fit(step, target="v5e", tries=(), first=512, multiple=64)
    answer = fit.answer()
    yield row("`torchtpu.fit`: the largest", answer.largest, "v5e", "memory", True, fit.peak(answer.largest))
    yield row("`torchtpu.fit`: does not fit", answer.refused, "v5e", "memory", False, fit.peak(answer.refused))
    disk_cache.folder = lambda: None  # on their own: what the search has compiled is of no use
    reason = ""
    for batch, chip, effort in (
        (answer.largest, "v5e", "memory"),
        (answer.largest, "v5e", "full"),
        (answer.refused, "v5e", "memory"),
        (answer.refused, "v5p", "memory"),
    ):
        result = ahead.capture(step, batch).compile(chip, effort=effort)
        reason = result.reason or reason
        yield row("a compile", batch, chip, effort, result.fits, result.hbm_peak)
    yield f"\nWhy {answer.refused:,} does not fit, as torchtpu says it: {reason}."


def main() -> None:
    """Write the page. Rows are printed as they come."""
    lines = []
    for head, rows in ((PEAKS, peaks), (EFFORTS, efforts), (TOO_LARGE.format(length=LENGTH), too_large)):
        lines.append(head)
        for row in rows():
            print(row, flush=True)
            lines.append(row)
    PAGE.write_text("\n".join(lines) + "\n")
    process.shared.stop()


if __name__ == "__main__":
    main()
