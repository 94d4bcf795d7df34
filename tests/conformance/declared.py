"""What does not pass, and why. Each entry still runs, and fails the suite on the day it passes.

An entry is "variant op dtype mode", as the suite prints a failing test; `*` stands for every variant, dtype or mode that
runs. There is no entry for a wrong value: such an operator must refuse, or run on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.conformance.cases import Test

DECLARED: dict[str, tuple[str, ...]] = {}

# Why an ATen overload runs on the CPU.
FALLBACKS: dict[str, str] = {}

# Why an overload of the reference (torch_tpu 0.2.0) has no lowering here.
OVERLOADS: dict[str, str] = {}


def entries() -> Iterator[tuple[str, str]]:
    """Yield (entry, reason)."""
    for reason, tests in DECLARED.items():
        for entry in tests:
            yield entry, reason


def reason(test: Test) -> str | None:
    """Return why a test is expected to fail, or None."""
    given = str(test).split()
    for entry, why in entries():
        if all(word in ("*", part) for word, part in zip(entry.split(), given, strict=True)):
            return why
    return None
