"""Run many random programs: `python -m tests.views --examples 20000`.

They run in processes of 500: a process cannot hold more than some ten thousand programs of XLA:CPU. The same numbers give
the same programs, so that a failing part is found again with `--first`.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys

from tests.views.runs import FIXED, run_part


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.views", description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=20_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first part")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    parts = range(options.first, options.first + -(-options.examples // FIXED.max_examples))
    failed = 0
    with multiprocessing.get_context("spawn").Pool(options.jobs, maxtasksperchild=1) as pool:
        for part, failure in zip(parts, pool.imap(run_part, parts), strict=True):
            failed += failure is not None
            print(f"part {part}: {failure or f'{FIXED.max_examples} programs without a difference'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
