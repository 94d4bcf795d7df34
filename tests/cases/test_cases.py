"""Cases from public bug reports: the same value, or the same exception, as PyTorch on the CPU.

Each runs in every mode, as it is and with a forced read between its lines.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

CASES = json.loads(Path(__file__).with_name("cases.json").read_text())
VALUES = [c for c in CASES if c["kind"] == "value"]
RAISES = [c for c in CASES if c["kind"] == "raises"]


def by_id(case: dict[str, Any]) -> str:
    return case["id"]


def run(case: dict[str, Any], device: str, read_between: bool) -> Any:
    """Execute a case and return its `out`. With `read_between`, every tensor is printed after each top-level statement."""
    scope: dict[str, Any] = {"torch": torch, "D": device, "__name__": "case"}
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for statement in ast.parse(case["code"]).body:
            exec(compile(ast.Module([statement], []), case["id"], "exec"), scope)
            if read_between:
                for value in list(scope.values()):
                    if isinstance(value, torch.Tensor):
                        str(value)
    return scope.get("out")


def assert_same(actual: Any, expected: Any, tolerance: float | None) -> None:
    if isinstance(expected, torch.Tensor):
        assert isinstance(actual, torch.Tensor)
        assert actual.shape == expected.shape
        assert actual.dtype == expected.dtype
        exact = not (expected.dtype.is_floating_point or expected.dtype.is_complex)
        default = 0.0 if exact else 1e-6 if expected.dtype.itemsize >= 4 else 1e-2
        rtol = tolerance if tolerance is not None else default
        torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=rtol, atol=rtol, equal_nan=True)
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key in expected:
            assert_same(actual[key], expected[key], tolerance)
    elif isinstance(expected, (tuple, list)):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            assert_same(a, e, tolerance)
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, rel=tolerance or 1e-6, nan_ok=True)
    elif isinstance(expected, torch.device):
        assert actual == torch.device("tpu", 0) or actual == expected
    else:
        assert actual == expected


@pytest.mark.parametrize("read_between", [False, True], ids=["as-is", "read-between"])
@pytest.mark.parametrize("case", VALUES, ids=by_id)
def test_value(case, read_between, mode):
    tolerance = case.get("tolerance")
    if isinstance(tolerance, str):
        tolerance = float(re.search(r"[\d.]+(e-?\d+)?", tolerance).group())
    assert_same(run(case, "tpu", read_between), run(case, "cpu", False), tolerance)


# What only debug mode can know at once: the index is on the device, and the other modes do not wait for it.
NEEDS_A_READ = {"UP-080"}


@pytest.mark.parametrize("case", RAISES, ids=by_id)
def test_raises(case, mode):
    if case["id"] in NEEDS_A_READ and mode != "debug":
        run(case, "tpu", False)  # no crash, and nothing outside the tensor is read
        return
    with pytest.raises(Exception) as expected:
        run(case, "cpu", False)
    with pytest.raises(expected.type):
        run(case, "tpu", False)
        torch.tpu.synchronize()
