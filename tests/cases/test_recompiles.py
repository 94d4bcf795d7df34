"""Cases from public bug reports, kind RECOMPILE: what compiles, how often, and what the report says about it.

The code is the reports' own. It may call `compiles()`, the number of programs made so far, and `len(syncs)`.
"""

from __future__ import annotations

import json
import linecache
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import torchtpu
from torchtpu import config, events, modes

CODE = {c["id"]: c["code"] for c in json.loads(Path(__file__).with_name("cases.json").read_text())}


@pytest.fixture
def log() -> Iterator[events.Log]:
    log = events.Log("test")
    modes.start_log(log)
    try:
        yield log
    finally:
        modes.flush("test")
        modes.stop_log(log)


def run(case: str, log: events.Log | None = None) -> dict[str, Any]:
    """Execute a case as a file of its own, whose lines reports can quote. Returns its variables."""
    scope: dict[str, Any] = {"torch": torch, "__name__": "case"}
    if log is not None:
        scope |= {"compiles": lambda: len(log.compiles), "syncs": lambda: log.syncs}
    code = CODE[case]
    linecache.cache[case] = (len(code), None, code.splitlines(keepends=True), case)
    torch.manual_seed(0)
    exec(compile(code, case, "exec"), scope)
    return scope


def test_UP_094_a_learning_rate_schedule_compiles_nothing(log, mode):
    n = run("UP-094", log)["n"]
    assert n[-1] == n[3]


def test_UP_095_equal_scalars_are_one_program(log, mode):
    n = run("UP-095", log)["n"]
    assert n[1:] == [n[1]] * 5


def test_UP_097_a_new_length_is_told_with_its_dimension_and_sizes(mode):
    # Lengths of this mode alone: the modes before have compiled the others.
    first = {"strict": 112, "debug": 212, "defer_and_fuse": 312}[mode]
    second, third = first + 5, first + 11
    CODE["longer"] = CODE["UP-097"].replace("(12, 12, 17, 12, 23)", f"({first}, {first}, {second}, {first}, {third})")
    with config.options(churn_limit=1000), torchtpu.watch() as report:
        run("longer")
    shapes = [c for c in report.compile_events if c.kind == "shape"]
    for old, new in ((first, second), (second, third)):
        told = [c for c in shapes if f"dim 1: {old} -> {new}" in c.detail]
        assert told
        assert {c.line.where for c in told} == {"longer:3"}
        assert {c.remedy for c in told} == {"pad to one size, or round up to one of a few sizes (buckets)"}
        assert all(c.seconds > 0 for c in told)
    runs = sorted(p.runs for p in report.programs if any("embedding" in o.op for o in p.ops))
    assert runs == [1, 1, 3]  # the second and the fourth pass found their programs


def test_UP_098_a_ragged_last_batch_compiles_once(log, mode):
    n = run("UP-098", log)["n"]
    assert n[0] == n[1] == n[2]


def test_UP_098_a_ragged_last_batch_is_told_once(log):
    CODE["ragged"] = CODE["UP-098"].replace("torch.randn(10, 4)", "torch.randn(905, 4)").replace("split(4)", "split(451)")
    with torchtpu.watch() as report:
        run("ragged", log)
    told = [c for c in report.compile_events if c.detail.startswith("bt dim 0") or "dim 0: 451 -> 3" in c.detail]
    assert len([c for c in told if c.program == "aten_addmm"]) == 1
    assert told[0].remedy == "drop the ragged last batch (DataLoader(drop_last=True)), or pad it to full size"


def test_UP_100_loading_an_optimizers_state_changes_nothing(log, mode):
    scope = run("UP-100", log)
    assert scope["k"] == scope["k2"]
    waits = [s.kind for s in log.syncs[scope["s0"] : scope["s1"]]]
    assert set(waits) <= ({"debug"} if mode == "debug" else set())
    (state,) = scope["o"].state.values()
    assert state["step"].device.type == "cpu"


def test_UP_101_one_op_at_one_shape_compiles_once(log, mode):
    scope = run("UP-101", log)
    assert scope["k1"] - scope["k0"] <= 3


def test_UP_103_programs_survive_a_restart(tmp_path):
    code = f"""
        import time, torch, torchtpu
        with torchtpu.watch() as report, torch.tpu.set_eager_mode("defer_and_fuse"):
            exec({CODE["UP-103"].partition(chr(10))[2].replace("2, 2, 128", "1, 1, 128")!r})
        print(report.compiles, report.disk_hits, report.seconds.compile)
        print(str(report).splitlines()[0])
    """
    first, second = (
        subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "TORCHTPU_CACHE_DIR": str(tmp_path / "programs")},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.splitlines()
        for _ in range(2)
    )
    compiles, disk_hits, seconds = first[0].split()
    assert int(compiles) >= 1
    assert second[0].split()[:2] == ["0", str(int(compiles) + int(disk_hits))]
    assert float(second[0].split()[2]) < float(seconds)
    assert f"0 compiles, {second[0].split()[1]} loaded from disk" in second[1]


@pytest.mark.parametrize("eager", ["strict", "defer_and_fuse"])
def test_UP_104_a_storm_is_one_warning(eager):
    with modes.scope(eager), torchtpu.watch() as report:
        run("UP-104")
    (storm,) = report.storms
    assert (storm.line.where, storm.kind) == ("UP-104:2", "shape")
    assert storm.compiles >= 36
    assert "dim 0: 38 -> 39" in storm.detail
    text = report.to_text(200)
    assert text.count("\n! ") == 1
    assert f"! UP-104:2 compiled {storm.ops[:20]}" in text
    assert "pad to one size, or round up to one of a few sizes (buckets)" in text


def test_UP_106_torch_compile_on_the_cpu_is_left_alone():
    torch.compiler.reset()
    with torchtpu.watch() as report:
        y = torch.compile(lambda t: t * 2 + 1, backend="eager")(torch.ones(3))
    assert (y.tolist(), y.device.type) == ([3.0, 3.0, 3.0], "cpu")
    assert (report.compile_events, report.runs) == ((), 0)
