"""Runs architectures of transformers and timm on `tpu` against the CPU, and writes the table of all of them.

Each runs in a process of its own, so that its counts are its own and a crash is one row. Exit status 1: more than 5 % do not
pass in some mode.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

from tests.zoo import ARCHITECTURES, check, libraries, table
from tests.zoo.architecture import Architecture

# Children start with the libraries imported; elsewhere forking is not safe.
_CONTEXT = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")


def main() -> int:
    """Run what the arguments choose."""
    parser = argparse.ArgumentParser("python -m tests.zoo", description=__doc__)
    parser.add_argument("name", nargs="*", help="architectures, as the table names them (default: all)")
    parser.add_argument("--json", type=Path, help="append rows; of those that the file has, none is run again")
    parser.add_argument("--page", type=Path, help="write the table of the rows")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one architecture")
    options = parser.parse_args()
    known = {a.name: a for a in ARCHITECTURES}
    unknown = [name for name in options.name if name not in known]
    if unknown:
        sys.exit(f"no architecture {', '.join(unknown)}: use {', '.join(known)}")
    for library in sorted({a.library for a in ARCHITECTURES}):
        if reason := libraries.missing(library):
            sys.exit(reason)
        libraries.load(library)
    done = _read(options.json, known)
    for name in options.name or known:
        if name in done:
            continue
        start = time.perf_counter()
        row = done[name] = table.Row(known[name], _alone(known[name], options.timeout))
        print(f"{row} ({time.perf_counter() - start:.0f} s)", flush=True)
        if options.json:
            with options.json.open("a") as file:
                file.write(row.to_json() + "\n")
    rows = [done[name] for name in known if name in done]
    print(table.summary(rows))
    if options.page:
        options.page.write_text(table.render(rows, ARCHITECTURES))
    return int(any(table.share(rows, mode) < 0.95 for mode in check.MODES))


def _read(path: Path | None, known: dict[str, Architecture]) -> dict[str, table.Row]:
    if path is None or not path.exists():
        return {}
    rows = [table.Row.from_json(line, known) for line in path.read_text().splitlines()]
    return {row.architecture.name: row for row in rows}


def _alone(architecture: Architecture, timeout: float) -> dict[str, check.Outcome]:
    """Run an architecture in a process of its own."""
    ours, theirs = _CONTEXT.Pipe(duplex=False)
    process = _CONTEXT.Process(target=_child, args=(architecture.name, theirs))
    process.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(timeout) else _failed(f"it took more than {timeout:.0f} s")
    except EOFError:
        process.join()
        return _failed(f"the process ended with status {process.exitcode}")
    finally:
        process.kill()
        process.join()


def _child(name: str, answers: Connection) -> None:
    try:
        answers.send(check.run(next(a for a in ARCHITECTURES if a.name == name)))
    except Exception as error:
        answers.send(_failed(f"on the CPU: {type(error).__name__}: {error}"))


def _failed(error: str) -> dict[str, check.Outcome]:
    return {mode: check.Outcome(error) for mode in check.MODES}


if __name__ == "__main__":
    sys.exit(main())
