"""The part of the conformance suite that `make test` runs: every entry of PyTorch's databases, used one way, with one sample.

Ways of use, dtypes and eager modes take turns over the entries. `make conformance` runs all of it.
"""

from __future__ import annotations

import pytest
import torch

from tests.conformance import cases, check, declared

_GROUPS = 24
# One of these for each entry, in turn; where it does not apply, the next.
_TURNS = (
    ("grad", torch.float32, "strict"),
    ("functional", torch.bfloat16, "strict"),
    ("functional", torch.float32, "defer_and_fuse"),
    ("inplace", torch.float32, "strict"),
    ("module", torch.float32, "strict"),
    ("grad", torch.float32, "defer_and_fuse"),
    ("functional", torch.int64, "strict"),
    ("out", torch.float32, "strict"),
    ("module", torch.float32, "defer_and_fuse"),
    ("error", torch.float32, "strict"),
    ("functional", torch.float32, "debug"),
    ("optimizer", torch.float32, "strict"),
    ("functional", torch.complex64, "defer_and_fuse"),
    ("functional", torch.bool, "strict"),
    ("optimizer", torch.float32, "defer_and_fuse"),
)


def _tests(group: int) -> list[cases.Test]:
    chosen = []
    for k, name in list(enumerate(cases.entries()))[group::_GROUPS]:
        turns = _TURNS[k % len(_TURNS) :] + _TURNS[: k % len(_TURNS)]
        use = next((use for use in turns if cases.applies(name, *use[:2])), None)
        if use is not None:
            chosen.append(cases.Test(use[0], name, cases.dtype_name(use[1]), use[2]))
    return chosen


@pytest.mark.parametrize("group", range(_GROUPS))
def test_agrees_with_the_cpu(group: int) -> None:
    outcomes = [check.run(test, max_samples=1) for test in _tests(group)]
    failed = [f"{o.test}: {o.failures[0][1]}" for o in outcomes if o.failures and declared.reason(o.test) is None]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("mode", ["strict", "defer_and_fuse"])
def test_second_pass_compiles_nothing(mode: str) -> None:
    tests = [
        cases.Test(variant, name, "float32", mode)
        for name in list(cases.operators())[::40]
        for variant in ("functional", "grad")
        if cases.applies(name, variant, torch.float32)
    ]
    for test in tests:
        check.run(test, max_samples=2)
    again = [check.run(test, max_samples=2) for test in tests]
    assert {str(o.test): o.compiles for o in again if o.compiles} == {}


def test_declared_entries_name_tests_that_exist() -> None:
    for entry, reason in declared.entries():
        variant, name, dtype, mode = entry.split()
        assert reason
        assert name in cases.entries(), entry
        assert variant == "*" or variant in cases.VARIANTS, entry
        assert dtype == "*" or isinstance(getattr(torch, dtype), torch.dtype), entry
        assert mode == "*" or mode in cases.MODES, entry
