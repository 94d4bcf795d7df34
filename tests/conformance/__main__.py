"""Runs samples of PyTorch's operator databases on `tpu` against the CPU, and says which way each operator takes.

Prints a line per test that fails or uses the CPU (all with --verbose) and a summary. Exit status 1: a test failed that is
not declared (tests/conformance/declared.py), or a declared one passed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

import torchtpu  # noqa: F401  (names the device)
from tests.conformance import cases, check, declared, results, table

# With --jobs, each shard is a process: that bounds the memory that compiled programs take.
_SHARDS = 40


def main() -> int:
    """Run what the arguments choose."""
    options = _arguments()
    names = _names(options.entry)
    if options.jobs:
        return _run_shards(options)
    torch.empty(1, device="tpu")  # an operator table that does not load is one error, not thousands
    index, count = map(int, options.shard.split("/"))
    dtypes = [getattr(torch, d) for d in options.dtype]
    done = {o.test for o in results.read([options.json])} if options.json and options.json.exists() else set()
    outcomes = []
    start = time.perf_counter()
    for test in cases.tests(names[index::count], dtypes, options.mode, options.variant):
        if test in done:
            continue
        if options.json:
            results.begin(options.json, test)
        outcome = check.run(test, options.max_samples)
        outcomes.append(outcome)
        if options.json:
            results.add(options.json, outcome)
        _print(outcome, options)
    return summarize(outcomes, time.perf_counter() - start, options.max_samples is None)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.conformance", description=__doc__)
    parser.add_argument("entry", nargs="*", help="OpInfos (name or name.variant), nn.Linear, optim.Adam, prefix*; none: all")
    parser.add_argument("--dtype", nargs="+", default=[cases.dtype_name(d) for d in cases.DTYPES])
    parser.add_argument("--mode", nargs="+", default=["strict"], choices=cases.MODES)
    parser.add_argument("--variant", nargs="+", default=list(cases.VARIANTS), choices=cases.VARIANTS)
    parser.add_argument("--max-samples", type=int, help="samples per test, spread evenly (default: all)")
    parser.add_argument("--shard", default="0/1", help="I/N: every N-th entry, from the I-th")
    parser.add_argument("--json", type=Path, help="append results; what the file holds already is not run again")
    parser.add_argument("--jobs", type=int, help="run in shards, this many at a time; --json then names a folder of results")
    parser.add_argument("--page", type=Path, help="with --jobs: write the table of operators")
    parser.add_argument("--verbose", action="store_true", help="print every failing sample, and the tests that pass")
    return parser.parse_args()


def _names(wanted: list[str]) -> list[str]:
    known = cases.entries()
    names: list[str] = []
    for word in wanted or ["*"]:
        if word.endswith("*"):
            found = [n for n in known if n.startswith(word[:-1])]
        else:
            found = [n for n in known if word in (n, getattr(known[n], "name", n))]
        if not found:
            sys.exit(f"PyTorch's databases have no {word}")
        names += found
    return list(dict.fromkeys(names))


def _print(outcome: check.Outcome, options: argparse.Namespace) -> None:
    notes = f" [fallback: {', '.join(outcome.fallbacks)}]" if outcome.fallbacks else ""
    reason = declared.reason(outcome.test)
    if outcome.failures:
        word = "FAIL" if reason is None else "declared"
        count = f"({len(outcome.failures)}/{outcome.samples})"
        for index, text in outcome.failures if options.verbose else outcome.failures[:1]:
            print(f"{word} {outcome.test} {count} sample {index}: {text}{notes}", flush=True)
    elif reason is not None and options.max_samples is None:
        print(f"FAIL {outcome.test} passes, and is declared: {reason}", flush=True)
    elif options.verbose or notes:
        print(f"ok   {outcome.test} ({outcome.samples}) {outcome.route}{notes}", flush=True)


def summarize(outcomes: list[check.Outcome], seconds: float, complete: bool) -> int:
    """Print the counts. Returns the exit status.

    Args:
        complete: all samples ran, so that a declared test that passes is an error.
    """
    routes = Counter(o.route for o in outcomes if o.test.variant != "error")
    failed = [o for o in outcomes if o.failures and declared.reason(o.test) is None]
    passed = [o for o in outcomes if complete and not o.failures and declared.reason(o.test) is not None]
    unexplained = {name for o in outcomes for name in o.fallbacks} - declared.FALLBACKS.keys()
    if complete and unexplained:
        print(f"on the CPU without a reason in declared.FALLBACKS: {', '.join(sorted(unexplained))}")
    print(
        f"{len(outcomes)} tests, {sum(o.samples for o in outcomes)} samples; {len(failed)} failed, "
        f"{sum(bool(o.failures) for o in outcomes) - len(failed)} failed as declared, {len(passed)} passed though declared; "
        + ", ".join(f"{routes[r]} {r}" for r in check.ROUTES)
        + f"; {sum(o.compiles for o in outcomes)} compiles, {seconds:.0f} s"
    )
    return 1 if failed or passed or (complete and unexplained) else 0


def _run_shards(options: argparse.Namespace) -> int:
    """Run in one process per shard, and go on where an earlier run of the same code was interrupted."""
    if options.json is None:
        sys.exit("--jobs needs --json FOLDER")
    folder = options.json / results.fingerprint()
    folder.mkdir(parents=True, exist_ok=True)
    shards = min(_SHARDS, len(_names(options.entry)))
    files = [folder / f"{k}.jsonl" for k in range(shards)]
    common = ["--dtype", *options.dtype, "--mode", *options.mode, "--variant", *options.variant]
    if options.max_samples:
        common += ["--max-samples", str(options.max_samples)]

    def run(k: int) -> None:
        command = [sys.executable, "-m", "tests.conformance", *options.entry, *common]
        command += ["--shard", f"{k}/{shards}", "--json", str(files[k])]
        while subprocess.run(command).returncode not in (0, 1):  # the process died: go on after the test that killed it
            pass

    start = time.perf_counter()
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(run, range(shards)))
    outcomes = list(results.read(files))
    if options.page:
        options.page.write_text(table.render(outcomes, options.max_samples))
    return summarize(outcomes, time.perf_counter() - start, options.max_samples is None)


if __name__ == "__main__":
    sys.exit(main())
