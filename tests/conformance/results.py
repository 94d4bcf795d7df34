"""Results on disk: one JSON line per test, so that a run can be cut in shards, interrupted and resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from tests.conformance.cases import Test
from tests.conformance.check import Outcome


def fingerprint() -> str:
    """Return a name for this version of torchtpu and of the suite: results of another say nothing about it."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[2]
    for folder in ("torchtpu", "tests/conformance"):
        for file in sorted((root / folder).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def read(paths: Iterable[Path]) -> Iterator[Outcome]:
    """Yield the outcomes in some files. A test that was begun and has no outcome killed its process."""
    for path in paths:
        begun: Test | None = None
        for line in path.read_text().splitlines():
            row = json.loads(line)
            if "begin" in row:
                if begun is not None:
                    yield _died(begun)
                begun = Test(**row["begin"])
            else:
                begun = None
                yield Outcome(**{**row, "test": Test(**row["test"]), "failures": [tuple(f) for f in row["failures"]]})
        if begun is not None:
            yield _died(begun)


def _died(test: Test) -> Outcome:
    return Outcome(test, samples=1, failures=[(0, "the process died")], route="refused")


def begin(path: Path, test: Test) -> None:
    """Note that a test is about to run."""
    _append(path, {"begin": asdict(test)})


def add(path: Path, outcome: Outcome) -> None:
    """Note what came of it."""
    _append(path, asdict(outcome))


def _append(path: Path, row: object) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
