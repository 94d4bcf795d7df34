"""Writes docs/targets-table.md: `python -m tests.ahead` (about ten minutes; results on disk are used)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
from jax._src.interpreters import mlir

from tests.ahead.by_hand import CASES
from torchtpu import ahead
from torchtpu.ahead import process
from torchtpu.report import units

CHIPS = ("v5e", "v5p", "v6e", "tpu7x")
PAGE = Path(__file__).parents[2] / "docs" / "targets-table.md"
HEAD = """# Targets: compared with jax

Peaks of device memory, as `torchtpu.compile_for` finds them and as the same program has them, written by hand in jax and
compiled for the same chip with the same options (effort `memory`). All are compiled, none is measured. `python -m tests.ahead`
writes this page.

| Program | Chip | torchtpu | jax | difference |
| --- | --- | --- | --- | --- |
"""


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
    return answer["arguments"] + answer["outputs"] - answer["aliased"] + answer["temporaries"]


def main() -> None:
    """Compile every program for every chip, in both ways."""
    rows = []
    for name, case in CASES.items():
        function, hand, arrays, donated = case()
        captured = ahead.capture(function)
        for chip in CHIPS:
            ours, theirs = captured.compile(chip).hbm_peak, by_hand(hand, arrays, donated, chip)
            row = f"| {name} | {chip} | {units.nbytes(ours)} | {units.nbytes(theirs)} | {ours / theirs - 1:+.1%} |"
            print(row, flush=True)
            rows.append(row)
    PAGE.write_text(HEAD + "\n".join(rows) + "\n")
    process.shared.stop()


if __name__ == "__main__":
    main()
