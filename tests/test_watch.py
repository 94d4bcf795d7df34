"""`torchtpu.watch()` on the device."""

import gc

import pytest
import torch

import torchtpu
from torchtpu import events, hbm, modes
from torchtpu.report import WatchOpenError

MODES = [mode.label for mode in modes.EagerMode]


@pytest.fixture(params=MODES)
def mode(request):
    with modes.scope(request.param):
        yield request.param


def step(x: torch.Tensor) -> float:
    return (x * 2 + 1).sum().item()


def test_a_second_time_compiles_nothing(mode):
    x = torch.ones(8, 16, device="tpu")
    modes.flush("test")
    step(x)
    with torchtpu.watch() as report:
        assert step(x) == 384.0
    assert report.mode == mode
    assert report.compiles == 0
    assert report.runs == report.cache_hits == (1 if mode == "defer_and_fuse" else 3)
    assert report.fallbacks == ()
    assert [p.compiled for p in report.programs] == [False] * len(report.programs)


def test_each_read_is_a_sync_with_its_line():
    x = torch.ones(8, 16, device="tpu")
    with torchtpu.watch() as report:
        for _ in range(5):
            x = x * 1.5
            last = x.mean().item()
    assert last == pytest.approx(1.5**5)
    (line,) = {s.line.source for s in report.syncs}
    assert (len(report.syncs), line) == (5, "last = x.mean().item()")
    assert {s.kind for s in report.syncs} == {"item"}
    assert all(s.seconds > 0 for s in report.syncs)


def test_a_watch_is_a_boundary_for_pending_work():
    with modes.scope("defer_and_fuse"):
        x = torch.ones(4, device="tpu") + 1
        with torchtpu.watch() as report:
            y = x * 3
        with torchtpu.watch() as after:
            pass
    assert [(f.reason, f.ops) for f in report.flushes] == [("end of watch", 1)]
    assert after.runs == 0
    assert y.tolist() == [6.0] * 4


def test_memory_names_its_lines(mode):
    gc.collect()  # what earlier tests left
    with torchtpu.watch() as report:
        kept = torch.ones(256, 1024, device="tpu")
        big = torch.ones(1024, 1024, device="tpu")
        total = big.sum().item()
        del big
    assert total == 1024 * 1024
    assert report.hbm_live - report.hbm_before == kept.untyped_storage().nbytes() == 1 << 20
    assert report.hbm_peak - report.hbm_before >= 5 << 20
    peak = {b.what: b.line.source if b.line else None for b in report.hbm_peak_buffers}
    if mode == "defer_and_fuse":
        assert f"{report.programs[0].name} while it runs" in peak
    else:
        assert peak["float32[1024,1024]"] == 'big = torch.ones(1024, 1024, device="tpu")'
    assert ("float32[256,1024]", 'kept = torch.ones(256, 1024, device="tpu")') in [
        (b.what, b.line.source) for b in report.hbm_live_buffers if b.line
    ]
    for buffers, figure in ((report.hbm_peak_buffers, report.hbm_peak), (report.hbm_live_buffers, report.hbm_live)):
        assert sum(b.nbytes for b in buffers) == figure


def test_watching_holds_no_memory(mode):
    before = hbm.usage.live
    with torchtpu.watch() as report:
        x = torch.ones(256, 1024, device="tpu")
        step(x)
        del x
    assert report.hbm_live == hbm.usage.live == before


def test_backward_ops_are_at_their_forward_line():
    w = torch.ones(4, 4, device="tpu", requires_grad=True)
    with torchtpu.watch() as report:
        loss = (w @ w).tanh().sum()
        loss.backward()
    backward = [o for p in report.programs for o in p.ops if o.line is not None and o.line.backward]
    assert {o.line.source for o in backward} == {"loss = (w @ w).tanh().sum()"}
    assert "aten::mm" in {o.op for o in backward}


def test_an_error_ends_the_report_and_passes_on():
    with pytest.raises(ZeroDivisionError), torchtpu.watch() as report:
        torch.ones(2, device="tpu").sum().item()
        _ = 1 / 0
    assert report.error == "ZeroDivisionError: division by zero"
    assert len(report.syncs) == 1
    assert events.logs == []
    assert hbm.usage.trace is None


def test_figures_wait_for_the_end():
    with torchtpu.watch() as report, pytest.raises(WatchOpenError):
        _ = report.compiles
    assert report.compiles == 0


def test_nested_watches():
    x = torch.ones(3, device="tpu")
    with torchtpu.watch() as outer:
        x.sum().item()
        with torchtpu.watch() as inner:
            x.sum().item()
        x.sum().item()
    assert (len(outer.syncs), len(inner.syncs)) == (3, 1)
    assert (outer.runs, inner.runs) == (3, 1)


def test_seconds_cover_the_elapsed_time(mode):
    with torchtpu.watch() as report:
        step(torch.ones(64, 64, device="tpu"))
    s = report.seconds
    assert s.run > 0
    assert s.wait > 0
    assert s.dispatch + s.compile + s.run + s.wait + s.finish <= s.elapsed


def test_figures_are_those_of_the_compiler():
    with modes.scope("defer_and_fuse"), torchtpu.watch() as report:
        x = torch.ones(128, 128, device="tpu")
        (x @ x + 1).sum().item()
    assert report.compiler == "XLA:CPU"
    assert report.labels()["programs.temp_bytes"] == "compiled (XLA:CPU)"
    assert max(p.output_bytes for p in report.programs) >= 4
