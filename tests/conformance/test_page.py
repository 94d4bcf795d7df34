"""docs/ops.md, as the last run wrote it: what it covers, and what it promises."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conformance import cases, declared

PAGE = (Path(__file__).parents[2] / "docs" / "ops.md").read_text()
_MAIN_USES = ("functional", "module", "optimizer")


def test_every_operator_and_module_has_a_row() -> None:
    listed = set(re.findall(r"^\| `([^`]+)` \| (?:native|decomposed|CPU fallback|refused)", PAGE, re.MULTILINE))
    # Without one: what the CPU does not run with a dtype of the default ones; jiterator, which CUDA alone has.
    known = {n for n in cases.entries() if any(cases.applies(n, v, d) for v in _MAIN_USES for d in cases.DTYPES)}
    assert {n for n in known - listed if not n.startswith("jiterator")} == set()


def test_nearly_all_pairs_are_native_or_decomposed() -> None:
    (native, decomposed) = re.findall(r"^\| \d+ \(([\d.]+) %\) \| \d+ \(([\d.]+) %\) \|", PAGE, re.MULTILINE)[0]
    assert float(native) + float(decomposed) >= 97


def test_every_fallback_is_explained_and_no_test_failed() -> None:
    on_cpu = PAGE.partition("## On the CPU")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(aten::[^`]+)`", on_cpu, re.MULTILINE)) <= declared.FALLBACKS.keys()
    tested = PAGE.partition("## What is tested")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in tested.splitlines() if line.startswith("| `")]
    assert rows
    assert {row[-1].rstrip(" |") for row in rows} == {"0"}
