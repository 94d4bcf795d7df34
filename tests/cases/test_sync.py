"""Cases from public bug reports, kind SYNC: each wait is listed with its line and what asked for it."""

from __future__ import annotations

import math

import pytest
import torch

import torchtpu
from torchtpu import errors, modes


def reads(report):
    return [s for s in report.syncs if s.kind not in ("debug", "synchronize")]


def test_UP_107_a_read_each_step_runs_nothing_twice(mode):
    w = torch.randn(32, 32, device="tpu")
    compiles = []
    for _ in range(5):
        with torchtpu.watch() as report:
            w = (w @ w).tanh()
            last = w.mean().item()  # the read
        (read,) = reads(report)
        assert (read.kind, read.line.source, read.nbytes) == ("item", "last = w.mean().item()  # the read", 4)
        assert sum(p.runs for p in report.programs for op in p.ops if op.op == "aten::mm") == 1
        compiles.append(len(report.compile_events))
    assert compiles[1:] == [0] * 4
    assert abs(last) <= 1


def test_UP_109_truth_tests_are_waits(mode):
    n = torch.tensor([2.0], device="tpu")
    one = torch.ones(1, device="tpu")
    with torchtpu.watch() as report:
        a = n or 5
        c = 1 if n > 0 else 0
        d = max(n, one)
        e = float(n)
        f = n.tolist()
    assert (a is n, c, d is n, e, f) == (True, 1, True, 2.0, [2.0])
    assert [(s.kind, s.line.source) for s in reads(report)] == [
        ("bool", "a = n or 5"),
        ("bool", "c = 1 if n > 0 else 0"),
        ("bool", "d = max(n, one)"),
        ("float", "e = float(n)"),
        ("tolist", "f = n.tolist()"),
    ]
    torch.tpu.set_sync_debug_mode("error")
    try:
        for read, kind in (
            (lambda: n or 5, "bool"),
            (lambda: max(n, one), "bool"),
            (lambda: float(n), "float"),
            (lambda: n.tolist(), "tolist"),
        ):
            with pytest.raises(errors.SyncError, match=rf"{kind} waits for the device \(test_sync.py:\d+: .*\. Instead: "):
                read()
    finally:
        torch.tpu.set_sync_debug_mode("default")


def test_UP_110_hidden_waits_have_lines_and_advice(mode):
    x = torch.full((3,), 4.0, device="tpu")
    with torchtpu.watch() as report:
        y = math.sqrt(x.mean())
        z = int(x[0])
        m = f"{x.sum():.2f}"
    assert (y, z, m) == (2.0, 4, "12.00")
    assert [(s.kind, s.line.source) for s in reads(report)] == [
        ("float", "y = math.sqrt(x.mean())"),
        ("int", "z = int(x[0])"),
        ("format", 'm = f"{x.sum():.2f}"'),
    ]
    html = report.to_html()
    assert "torch.sqrt(x) in place of math.sqrt(x)" in html
    assert "log every N steps" in html


def test_a_scope_that_forbids_waits_ends():
    from torchtpu import reads as engine

    x = torch.ones(2, device="tpu")
    with pytest.raises(errors.SyncError), engine.forbidden():
        x.tolist()
    assert x.tolist() == [1, 1]


def test_what_waits_for_nothing_is_allowed(mode):
    from torchtpu import reads as engine

    x = torch.ones(2, device="tpu", requires_grad=True)
    with engine.forbidden():
        (x * 2).sum().backward()
        modes.flush("test")
        torch.tpu.synchronize()
    assert x.grad.tolist() == [2, 2]
