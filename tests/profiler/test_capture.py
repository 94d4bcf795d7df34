"""Captures: what is in them, line by line; what goes wrong inside; and what is never lost."""

from __future__ import annotations

import errno
import inspect
import shutil
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest
import torch
from jax.profiler import ProfileData
from torch import nn

import torchtpu
from torchtpu import profiler
from torchtpu.profiler import check, stored, timeline


def model() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)).to("tpu")
    return net, torch.optim.AdamW(net.parameters())


def line_of(text: str, function) -> str:
    """Where a line of a test's function is, as reports name it."""
    source, first = inspect.getsourcelines(function)
    (found,) = [k for k, line in enumerate(source) if text in line and "line_of(" not in line]
    return f"{Path(__file__).name}:{first + found}"


def files(logdir: Path) -> list[Path]:
    return sorted(logdir.glob("plugins/profile/*/*.xplane.pb"))


def kernels_in(capture) -> list[dict]:
    """What the trace says of each kernel on the device's row."""
    (file,) = Path(capture.folder).glob("*.xplane.pb")
    planes = ProfileData.from_file(str(file)).planes
    return [
        dict(event.stats)
        for plane in planes
        if plane.name.startswith("/device:")
        for line in plane.lines
        if line.name == "XLA Ops"
        for event in line.events
    ]


def test_a_forward_op_its_backward_op_and_a_fusion_are_found_at_their_lines(tmp_path, mode):
    net, optimizer = model()
    x = torch.randn(16, 32, device="tpu")
    with torchtpu.profile(tmp_path) as p:
        hidden = net[0](x)
        loss = (torch.tanh(hidden) * 0.5).sum()
        loss.backward()
        optimizer.step()
    here = test_a_forward_op_its_backward_op_and_a_fusion_are_found_at_their_lines
    forward, fused = line_of("hidden = net", here), line_of("torch.tanh(hidden) * 0.5", here)
    kernels = kernels_in(p)
    assert any("aten::addmm" in k["aten_ops"] and k["line"] == forward and "pass" not in k for k in kernels if "line" in k)
    assert any("aten::mm" in k["aten_ops"] and k["line"] == forward and k["pass"] == "backward" for k in kernels if "pass" in k)
    assert any("aten::tanh_backward" in k["aten_ops"] for k in kernels if "pass" in k)
    at_line = [k["aten_ops"] for k in kernels if k.get("line") == fused and "pass" not in k]
    if mode == "defer_and_fuse":  # a fusion computes several ops, and is found at the line of the one whose result it writes
        assert "aten::tanh, aten::addmm" in at_line
    else:
        assert {"aten::tanh", "aten::mul.Tensor"} <= set(at_line)
    rows = {(o.op, str(o.line), o.backward) for o in p.ops}
    assert ("aten::addmm", forward, False) in rows and ("aten::mm", forward, True) in rows


def test_steps_are_those_of_the_optimizer(tmp_path, mode):
    net, optimizer = model()
    with torchtpu.profile(tmp_path) as p:
        for _ in range(4):
            optimizer.zero_grad()
            net(torch.ones(8, 32, device="tpu")).sum().backward()
            optimizer.step()
    assert [s.number for s in p.steps] == [0, 1, 2, 3]
    assert sum(s.runs for s in p.steps) == p.report.runs
    assert sum(s.compiles for s in p.steps) == len(p.report.compile_events)
    assert all(s.seconds >= s.busy >= 0 for s in p.steps)
    assert p.steps[-1].at + p.steps[-1].seconds <= p.elapsed
    assert p.check.steps == 4


def test_marked_steps_are_counted_instead(tmp_path, mode):
    net, optimizer = model()
    with torchtpu.profile(tmp_path) as p:
        for _ in range(2):
            for _ in range(3):  # gradient accumulation by hand
                net(torch.ones(8, 32, device="tpu")).sum().backward()
                optimizer.step()
            p.step()
    assert len(p.steps) == 2


def test_it_stops_after_so_many_steps(tmp_path, mode):
    net, optimizer = model()
    with torchtpu.profile(tmp_path, steps=2) as p:
        for _ in range(5):
            net(torch.ones(8, 32, device="tpu")).sum().backward()
            optimizer.step()
        p.step()  # too late, and no error
    assert len(p.steps) == 2
    assert sum(o.calls for o in p.ops if o.op == "aten::gelu") == 2


def test_the_figures_agree_with_each_other(tmp_path, mode):
    net, optimizer = model()
    with torchtpu.profile(tmp_path) as p:
        for _ in range(3):
            net(torch.ones(64, 32, device="tpu")).sum().backward()
            optimizer.step()
    assert 0 < p.busy <= p.elapsed
    assert p.busy + sum(i.seconds for i in p.idle) == pytest.approx(p.elapsed, rel=1e-6)
    assert sum(o.seconds for o in p.ops) == pytest.approx(sum(k.seconds for k in p.kernels))
    assert sum(k.count for k in p.kernels) == p.check.kernels
    assert sum(r.runs for r in p.programs) == p.report.runs
    assert {r.name for r in p.programs if r.ops} == {r.name for r in p.report.programs}
    assert p.check.programs == len([r for r in p.programs if r.ops])
    assert p.peak_flops > 0 and p.peak_bandwidth > 0
    assert all(t.filled for t in p.check.tools), p.check


def test_idle_time_has_a_cause_and_a_line(tmp_path, mode):
    x = torch.ones(8, 8, device="tpu")
    (x * 3).sum().item()
    with torchtpu.profile(tmp_path) as p:
        for _ in range(3):
            time.sleep(0.05)
            y = x * 3  # after the sleep
            y.sum().item()
        with torch.profiler.record_function("load the data"):
            time.sleep(0.1)
    after = line_of("y = x * 3", test_idle_time_has_a_cause_and_a_line)
    seconds = {(i.cause, str(i.line) if i.line else ""): i.seconds for i in p.idle}
    assert seconds["Python", after] >= 0.14
    assert seconds["Python in load the data", ""] >= 0.09


def test_a_compile_is_a_cause(tmp_path, mode):
    with torchtpu.profile(tmp_path) as p:
        torch.ones(3, 517 + len(mode), device="tpu").cosh().sum().item()
    compiling = sum(i.seconds for i in p.idle if i.cause == "compile")
    assert compiling > 0
    assert compiling <= sum(c.seconds for c in p.report.compile_events) * 1.001
    causes = [s.detail for s in p.spans if s.track == "compiles"]
    assert len(causes) == len(p.report.compile_events) and all(p.report.compile_events[0].kind in c for c in causes[:1])


def test_an_exception_is_the_users_and_nothing_is_lost(tmp_path, mode):
    x = torch.ones(8, 8, device="tpu")
    with pytest.raises(ZeroDivisionError), torchtpu.profile(tmp_path) as p:
        (x + 1).sum().item()
        1 / 0  # noqa: B018
    assert p.report.error == "ZeroDivisionError: division by zero"
    assert p.check.kernels > 0
    with pytest.raises(KeyboardInterrupt), torchtpu.profile(tmp_path) as p:
        (x + 1).sum().item()
        raise KeyboardInterrupt
    with torchtpu.profile(tmp_path) as p:
        (x + 1).sum().item()
    assert p.report.error == ""
    assert len(files(tmp_path)) == 3


def test_an_unclosed_profile_is_named_and_can_be_closed(tmp_path):
    left = profiler.start(tmp_path)
    with pytest.raises(profiler.ProfileOpenError, match=left._folder.name):
        profiler.start(tmp_path)
    with pytest.raises(profiler.ProfileOpenError, match="still open"):
        left.steps  # noqa: B018
    assert profiler.stop() is left
    assert left.finished and left.steps == ()
    with pytest.raises(profiler.ProfileOpenError, match="no profile is open"):
        profiler.stop()


def test_a_profile_of_jax_is_in_the_way(tmp_path):
    jax.profiler.start_trace(tmp_path / "jax")
    try:
        with pytest.raises(profiler.ProfileOpenError, match="stop_trace"):
            profiler.start(tmp_path)
    finally:
        jax.profiler.stop_trace()
    with torchtpu.profile(tmp_path) as p:
        torch.ones(3, device="tpu").sum().item()
    assert p.finished
    assert files(tmp_path) == list(Path(p.folder).glob("*.pb"))  # the refused one left nothing


def test_a_logdir_that_cannot_be_written_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "file").write_text("")
    ran = []
    with pytest.raises(NotADirectoryError, match="is a file"), torchtpu.profile(tmp_path / "file"):
        ran.append(1)
    with pytest.raises(OSError, match="no profile can be written to /proc/none"), torchtpu.profile("/proc/none"):
        ran.append(1)
    with pytest.raises(ValueError, match="steps=0"), torchtpu.profile(tmp_path, steps=0):
        ran.append(1)
    assert not ran


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_an_error_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "write_whole", full)
    with pytest.raises(OSError, match="No space left"), torchtpu.profile(tmp_path):
        torch.ones(3, device="tpu").sum().item()
    with pytest.raises(KeyError) as raised, torchtpu.profile(tmp_path):
        raise KeyError("mine")
    assert "is not complete: OSError" in raised.value.__notes__[-1]
    monkeypatch.undo()
    with torchtpu.profile(tmp_path) as p:
        torch.ones(3, device="tpu").sum().item()
    assert [f.parent for f in files(tmp_path)] == [Path(p.folder)]


def test_what_is_too_much_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(timeline, "KEPT", 5)
    monkeypatch.setattr(check, "XLA_CAP", 20)
    x = torch.ones(8, 8, device="tpu")
    with torchtpu.profile(tmp_path) as p:
        for _ in range(10):
            x = x * 1.5
        x.sum().item()
    assert p.dropped > 0
    assert "XLA's tracer stops at 20 events" in p.check.truncated
    assert "left out" in p.check.truncated and "incomplete" in p.check.to_text()


def test_ranges_by_push_and_pop(tmp_path, mode):
    x = torch.ones(8, 8, device="tpu")
    with torchtpu.profile(tmp_path) as p:
        assert torch.tpu.profiler.range_push("outer") == 0
        with profiler.range("inner"):
            (x + 1).sum().item()
        assert profiler.range_pop() == 0
        assert profiler.range_pop() == -1
    found = {s.name: s for s in p.spans if s.track == "annotations"}
    inner, outer = found["inner"], found["outer"]
    assert outer.at <= inner.at and inner.at + inner.seconds <= outer.at + outer.seconds


def test_a_capture_of_nothing_says_what_will_be_empty(tmp_path, capsys):
    torch.ones(1, device="tpu").item()
    with torchtpu.profile(tmp_path) as p:
        pass
    empty = {t.tool: t.why for t in p.check.tools if not t.filled}
    assert empty["hlo_stats"] == "nothing ran on the device inside the capture"
    assert "roofline_model" in empty and "trace_viewer" not in empty
    assert "empty in TensorBoard: overview_page, hlo_stats" in capsys.readouterr().err


def test_torchs_profiler_captures_the_device(tmp_path, mode):
    net, optimizer = model()
    handler = profiler.tensorboard_trace_handler(tmp_path)
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, schedule=schedule, on_trace_ready=handler, acc_events=True) as theirs:
        for _ in range(8):
            net(torch.ones(8, 32, device="tpu")).sum().backward()
            optimizer.step()
            theirs.step()
    assert [len(p.steps) for p in handler.profiles] == [2, 2]
    assert len(files(tmp_path)) == 2
    assert theirs.key_averages()  # their own trace goes on


def test_the_references_configuration_is_understood(tmp_path):
    from torch.tpu.profiler import TpuProfilerConfig

    config = TpuProfilerConfig(host_tracer_level=2, python_tracer_level=0, run_dir=tmp_path)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], experimental_config=config):
        torch.ones(8, device="tpu").sum().item()
    assert len(files(tmp_path)) == 1
    with pytest.raises(ValueError, match="host_tracer_level=9"):
        TpuProfilerConfig(host_tracer_level=9)
    with pytest.raises(ValueError, match="experimental_options"):
        TpuProfilerConfig(experimental_options={"a": [1]})
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):  # without one, nothing of ours
        torch.ones(8, device="tpu").sum().item()
    assert len(files(tmp_path)) == 1


def test_the_user_who_never_profiles_loads_nothing_of_it():
    code = "import sys, torchtpu; assert not [m for m in sys.modules if m.startswith('torchtpu.profiler')]; torchtpu.profile"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_block_may_change_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    with torchtpu.profile("runs") as p:
        torch.ones(3, device="tpu").sum().item()
        monkeypatch.chdir(tmp_path / "elsewhere")
    assert files(tmp_path / "runs") == list(Path(p.folder).glob("*.xplane.pb"))


def test_torchs_profiler_inside_a_profile_is_refused_and_stops(tmp_path):
    theirs = torch.profiler.profile(on_trace_ready=profiler.tensorboard_trace_handler(tmp_path))
    with torchtpu.profile(tmp_path), pytest.raises(profiler.ProfileOpenError), theirs:
        pass
    assert not torch.autograd._profiler_enabled()


def test_a_trace_of_jax_inside_a_profile_is_refused_when_it_begins(tmp_path):
    with torchtpu.profile(tmp_path) as p:
        with pytest.raises(RuntimeError, match="already been started"):
            jax.profiler.start_trace(tmp_path / "jax")
        torch.ones(3, device="tpu").sum().item()
    assert p.check.kernels > 0
    jax.profiler.start_trace(tmp_path / "jax")
    jax.profiler.stop_trace()


def test_a_folder_that_is_gone_is_named(tmp_path):
    with pytest.raises(OSError, match="the profile cannot be written to"), torchtpu.profile(tmp_path / "runs") as p:
        shutil.rmtree(tmp_path / "runs")
    assert not p.finished
