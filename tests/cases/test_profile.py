"""Cases about profiles: the code of each public report runs as it is, and what was asked for is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from jax.profiler import ProfileData

import torchtpu
from torchtpu import program
from torchtpu.profiler import tensorboard

CASES = {c["id"]: c for c in json.loads(Path(__file__).with_name("cases.json").read_text()) if c["category"] == "PROFILE"}


@pytest.fixture
def run(tmp_path):
    """Executes a case with its folders in a temporary one."""

    def execute(identity: str) -> dict[str, Any]:
        scope: dict[str, Any] = {"torch": torch, "torchtpu": torchtpu}
        code = CASES[identity]["code"].replace("/tmp/", f"{tmp_path}/")
        exec(compile(code, f"{identity}.py", "exec"), scope)
        return scope

    yield execute
    tensorboard.stop()


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("plugins/profile/*/*.xplane.pb"))


def events(folder: Path) -> list[tuple[str, str, str, dict[str, Any]]]:
    """Plane, line, name and figures of every event of the one run in a folder."""
    (file,) = files(folder)
    planes = ProfileData.from_file(str(file)).planes
    return [(p.name, line.name, e.name, dict(e.stats)) for p in planes for line in p.lines for e in line.events]


def test_every_case_is_here():
    assert CASES.keys() == {"UP-139", "UP-140", "UP-142", "UP-143", "UP-145", "UP-146", "UP-148"}


def test_the_profile_is_where_tensorboard_looks(run, tmp_path, mode):
    found = run("UP-139")["f"]
    (file,) = found
    assert Path(file).stat().st_size > 0
    if mode == "strict":  # one server is enough
        assert tensorboard.start(tmp_path / "tb").runs() == [Path(file).parent.name]


def test_two_captures_in_a_second_do_not_meet(run, tmp_path, mode):
    run("UP-140")
    assert len({f.parent for f in files(tmp_path / "tb2")}) == 2


@pytest.mark.parametrize("cached", [False, True], ids=["compiled", "from disk"])
def test_annotations_and_lines_reach_the_device(run, tmp_path, mode, cached):
    if cached:
        torch.randn(128, 128, device="tpu")
        run("UP-142")
        program.forget()
        for file in files(tmp_path / "tb4"):
            file.unlink()
    run("UP-142")
    if cached:
        assert torchtpu.profiler.last().report.disk_hits > 0
    noted = events(tmp_path / "tb4")
    assert any(plane == "/host:CPU" and name.startswith("my_block") for plane, _, name, _ in noted)
    kernels = [stats for plane, line, _, stats in noted if plane.startswith("/device:") and line == "XLA Ops"]
    assert kernels
    of_ops = [stats for stats in kernels if stats.get("aten_ops")]
    assert any("mm" in stats["aten_ops"] for stats in of_ops)
    assert all(stats["line"] in ("UP-142.py:1", "UP-142.py:2") for stats in of_ops)


def test_memory_is_filled(run, tmp_path, mode):
    run("UP-143")
    profile = torchtpu.profiler.last()
    noted = [stats for _, _, name, stats in events(tmp_path / "tb5") if name == "MemoryAllocation"]
    peak = max(stats["peak_bytes_in_use"] for stats in noted)
    assert peak >= 64 << 20
    assert peak == pytest.approx(profile.report.hbm_peak, rel=0.05)
    large = [stats for stats in noted if stats["allocation_bytes"] >= 64 << 20 and stats["region_type"] == "output"]
    assert {stats["shape"] for stats in large} == {"float32[16,1024,1024]"}
    assert all(stats["tf_op"] == "UP-143.py:2" for stats in large)


def test_links_go_through_the_proxy(run, tmp_path, monkeypatch):
    run("UP-139")
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/jo/")
    shown = torchtpu.show_profile(tmp_path / "tb")
    assert "/user/jo/proxy/" in shown.url
    tensorboard.stop()
    monkeypatch.setenv("TENSORBOARD_PROXY_URL", "https://hub.example.org/proxy/%PORT%/")
    shown = torchtpu.show_profile(tmp_path / "tb")
    assert shown.url.startswith("https://hub.example.org/proxy/")
    assert shown.xplane.name.endswith(".xplane.pb") and shown.trace.exists() and shown.page.exists()
    assert str(shown.trace) in shown._repr_html_() and str(shown.xplane) in shown._repr_html_()


def test_without_the_internet_the_figures_are_there(run, tmp_path):
    run("UP-139")
    run("UP-146")
    shown = torchtpu.show_profile(tmp_path / "tb")
    text = shown.to_text()
    assert "from the internet" in text
    assert "Ops by time" in text and "HBM at the peak" in text
    assert "default-src 'none'" in shown.page.read_text()  # it loads nothing


def test_an_exception_closes_the_profile(run, tmp_path, mode):
    run("UP-148")
    first, second = files(tmp_path / "tb7")
    assert torchtpu.profiler.Profile.load(first.parent).report.error == "KeyError: 'a'"
    assert torchtpu.profiler.Profile.load(second.parent).report.error == ""
    nested = pytest.raises(torchtpu.profiler.ProfileOpenError, match="cannot be nested")
    with torchtpu.profile(tmp_path / "outer"), nested, torchtpu.profile(tmp_path / "inner"):
        pass
    assert not (tmp_path / "inner").exists()
