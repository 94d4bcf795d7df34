"""`python -m tests.bench [NAME ...]`: measure, print the table, and (when everything ran) write results.md beside this."""

from __future__ import annotations

import platform
import sys
from importlib.metadata import version
from pathlib import Path

import jax
import torch

import torchtpu  # noqa: F401 - registers the device
from tests.bench import dispatch, generation, steps
from tests.bench.clock import Row

BENCHMARKS = {
    "dispatch": dispatch.cached_multiply,
    "import": dispatch.import_time,
    "elementwise": steps.elementwise,
    "mlp": steps.mlp_step,
    "gpt": steps.gpt_step,
    "generate": generation.generation,
}


def table(rows: list[Row]) -> str:
    """Return the rows as a Markdown table."""
    lines = ["| measured | value | promised | holds |", "| --- | ---: | --- | --- |"]
    for row in rows:
        holds = {None: "", True: "yes", False: "**no**"}[row.holds]
        lines.append(f"| {row.what} | {row.value:.3g} {row.unit} | {row.bound} | {holds} |")
    return "\n".join(lines) + "\n"


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all. Returns 1 if a promise does not hold."""
    unknown = set(names) - set(BENCHMARKS)
    if unknown:
        print(f"unknown benchmark {', '.join(sorted(unknown))}: use {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    torch.randn(1, device="tpu")
    rows = [row for name in names or BENCHMARKS for row in BENCHMARKS[name]()]
    text = table(rows)
    print(text)
    if not names:
        versions = f"torch {torch.__version__}, jax {jax.__version__}, Python {platform.python_version()}"
        head = (
            "# Benchmarks\n\nMedians of interleaved rounds in one process; `make bench` writes this file. Times are of one\n"
            f"noisy machine: trust the ratios. HBM peaks: tensors measured, temporaries as compiled by XLA.\n\n"
            f"{platform.machine()}, {torch.get_num_threads()} threads, {torch.tpu.get_device_name()}, {versions}, "
            f"torchtpu {version('torchtpu')}.\n\n"
        )
        Path(__file__).with_name("results.md").write_text(head + text)
    return int(any(row.holds is False for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
