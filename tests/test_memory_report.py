"""The account of device memory in a report: whose it was at the peak, who holds it at the end, and out of memory."""

import gc

import pytest
import torch
from torch import nn

import torchtpu
from torchtpu import config, hbm, holders, modes, ownership
from torchtpu.report import memory
from torchtpu.report.chart import Chart, blocks, picture
from torchtpu.report.holdings import Holdings
from torchtpu.timeline import Timeline

MIB = 1 << 20


@pytest.fixture(autouse=True, scope="module")
def no_garbage():
    gc.collect()


def training(width: int = 64):
    """A model of 2 + 2 parameters, an optimizer with state, an input of 512 KiB, and a step."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters())
    x = torch.ones(2048, width, device="tpu")

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(x) ** 2).sum()
        loss.backward()
        optimizer.step()
        return loss.detach()

    step()
    torch.tpu.synchronize()
    return model, optimizer, x, step


def owners(report) -> dict[str, int]:
    return {r.owner: r.nbytes for r in report.hbm_peak_owners}


@pytest.fixture
def left_over() -> int:
    """Bytes that other tests of this process have left behind, and that nothing is known of."""
    with torchtpu.watch() as report:
        pass
    return owners(report).get("unknown", 0)


def test_owners_at_the_peak_of_a_training_step(mode, left_over):
    model, optimizer, x, step = training()
    earlier = hbm.usage.live
    with torchtpu.watch() as report:
        loss = step()
    found = owners(report)
    parameters = sum(p.nbytes for p in model.parameters())
    assert found["parameters"] == parameters
    assert found["optimizer state"] == 2 * parameters  # the step counts are on the CPU
    assert found["variable x in test_owners_at_the_peak_of_a_training_step()"] == x.nbytes
    assert sum(found.values()) == report.hbm_peak == sum(b.nbytes for b in report.hbm_peak_buffers)
    if mode == "defer_and_fuse":
        assert found["temporaries of programs"] > x.nbytes
        assert found["gradients"] == parameters
    else:
        assert found["activations"] >= 2 * x.nbytes  # what ReLU and the square saved
        assert found["gradients of activations"] >= x.nbytes
    assert found.get("unknown", 0) == left_over
    assert report.hbm_live == earlier + loss.nbytes == sum(r.nbytes for r in report.hbm_holdings)
    assert optimizer.state


def test_names_and_lines_of_the_buffers_at_the_peak(mode):
    model, optimizer, _, step = training()
    with torchtpu.watch() as report:
        step()
    held_by = {b.held_by for b in report.hbm_peak_buffers if b.owner == "optimizer state"}
    assert any(name.startswith(("optimizer.state[0.weight].exp_avg", "optimizer.state[2.weight].exp_avg")) for name in held_by)
    rows = [b for b in report.hbm_peak_buffers if b.owner in ("activations", "gradients")]
    assert {b.line.source for b in rows if b.line} <= {"loss = (model(x) ** 2).sum()", "loss.backward()"}
    assert rows
    assert optimizer.state
    assert len(list(model.parameters())) == 4


def test_owners_are_known_when_everything_is_gone(mode):
    def work():
        model, optimizer, x, step = training()
        del x
        for _ in range(2):
            step()
        assert model and optimizer

    work()
    gc.collect()
    with torchtpu.watch() as report:
        work()
        gc.collect()
    found = owners(report)
    parameters = 2 * (64 * 64 + 64) * 4
    assert found["parameters"] == parameters
    assert found["optimizer state"] == 2 * parameters
    assert sum(found.values()) == report.hbm_peak
    assert found.get("unknown", 0) == sum(b.nbytes for b in report.hbm_peak_buffers if b.earlier and b.owner == "unknown")


def test_activations_that_pass_between_programs():
    with modes.scope("defer_and_fuse"):
        torch.manual_seed(0)
        model = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(256, 256), nn.ReLU())]).to("tpu")
        x = torch.ones(8192, 256, device="tpu")
        with torchtpu.watch() as report:
            model(x).sum().backward()
        found = owners(report)
        assert report.runs > 1
        assert found["activations"] >= 3 * x.nbytes
        assert sum(found.values()) == report.hbm_peak


def test_checkpointing_lowers_the_activations():
    from torch.utils.checkpoint import checkpoint

    torch.manual_seed(0)
    blocks_ = nn.ModuleList(nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)) for _ in range(4)).to("tpu")
    x = torch.ones(1024, 64, device="tpu")

    def run(again: bool):
        out = x
        for block in blocks_:
            out = checkpoint(block, out, use_reentrant=False) if again else block(out)
        out.sum().backward()

    peaks = []
    for again in (False, True):
        run(again)
        with torchtpu.watch() as report:
            run(again)
        peaks.append(owners(report)["activations"])
    assert peaks[1] < peaks[0]


def test_what_was_copied_from_the_host_and_what_ops_made():
    with torchtpu.watch() as report:
        a = torch.ones(256, 1024).to("tpu")
        b = a * 2
        del a, b
    assert owners(report)["copied from the host"] == MIB
    assert owners(report)["intermediate results"] == MIB


def test_a_variable_that_is_replaced_in_place_keeps_its_owner(mode, left_over):
    x = torch.ones(256, 1024, device="tpu")
    torch.tpu.synchronize()
    with torchtpu.watch() as report:
        for _ in range(3):
            x.mul_(2)
    found = owners(report)
    assert found["variable x in test_a_variable_that_is_replaced_in_place_keeps_its_owner()"] == MIB
    assert found.get("unknown", 0) == left_over


def test_holders_at_the_end_have_their_command(mode):
    cache = {}
    with torchtpu.watch() as report:
        cache["k"] = torch.ones(256, 1024, device="tpu")
        for n in range(3):
            cache[n] = torch.full((4,), float(n), device="tpu")
    place = " in test_holders_at_the_end_have_their_command()"
    rows = {r.name: r for r in report.hbm_holdings}
    row = rows[f"cache{place}"]
    assert (row.kind, row.count, row.nbytes, row.free) == ("variable", 4, MIB + 48, f"del cache{place}")
    assert sum(r.nbytes for r in report.hbm_holdings) == report.hbm_live


def test_the_timeline_has_the_peak(mode):
    with torchtpu.watch() as report:
        x = torch.ones(256, 1024, device="tpu")
        torch.tpu.synchronize()
        del x
        y = torch.ones(4, device="tpu") + 1
    assert 0 < len(report.hbm_timeline) <= 256
    assert max(report.hbm_timeline) == report.hbm_peak
    assert report.hbm_timeline[int(report.hbm_peak_at / report.hbm_span)] == report.hbm_peak
    assert report.hbm_span * len(report.hbm_timeline) >= report.hbm_peak_at
    assert torchtpu.report.Report.from_json(report.to_json()).hbm_timeline == report.hbm_timeline
    assert y is not None


def test_a_timeline_of_any_length_keeps_every_top():
    line = Timeline(5)
    for second in range(100_000):
        line.add(second, 100 + second % 7, second % 7)
    line.add(100_000, 999, 3)
    span, tops = line.close(100_001.0)
    assert len(tops) <= 256
    assert tops[0] >= 106
    assert max(tops) == 999
    assert tops[int(100_000 / span)] == 999


def test_quiet_spans_hold_what_was_there():
    line = Timeline(7)
    line.add(0.5e-4, 40, 20)
    _, tops = line.close(1e-4)
    assert tops == (7, 7, 7, 7, 7, 40, 20, 20, 20, 20, 20)[: len(tops)]
    assert len(tops) >= 10


def test_the_chart_is_a_small_picture_and_a_row_of_blocks():
    chart = Chart(tuple(range(256)), "bytes", limit=300)
    address = picture(chart)
    assert address.startswith("data:image/svg+xml;base64,")
    assert len(address) < 8000
    assert chart.near_limit
    assert not Chart((1, 2), "bytes", limit=1000).near_limit
    assert blocks((0, 1, 8, 4), 4) == " ▁█▄"
    assert len(blocks(range(1000), 80)) == 80
    assert picture(Chart((0,), "nothing"))


def test_text_and_html_show_the_account(mode):
    _, _, x, step = training()
    with torchtpu.watch() as report:
        step()
    text = report.to_text(200)
    assert "HBM at the peak: " in text
    assert "optimizer state" in text
    assert "█" in text
    assert "The buffers, and the lines that made them:" in text
    assert "del x in test_text_and_html_show_the_account()" in text
    html = report.to_html()
    assert html.count('<img alt="" src="data:image/svg+xml;base64,') == 1
    assert len(html) < 60_000
    assert x.nbytes


def test_nested_watches_account_for_their_own_parts(mode):
    with torchtpu.watch() as outer:
        a = torch.ones(256, 1024, device="tpu")
        with torchtpu.watch() as inner:
            b = torch.ones(512, 1024, device="tpu") * 2
    for report in (outer, inner):
        assert sum(r.nbytes for r in report.hbm_peak_owners) == report.hbm_peak
        assert sum(r.nbytes for r in report.hbm_holdings) == report.hbm_live
    assert a.nbytes + b.nbytes == outer.hbm_live - outer.hbm_before


def test_a_failed_optimizer_step_does_not_colour_what_follows():
    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            raise ValueError("no")

    model = nn.Linear(4, 4).to("tpu")
    with pytest.raises(ValueError, match="no"):
        Failing(model.parameters(), lr=1.0).step()
    with torch.no_grad(), torchtpu.watch() as report:
        x = torch.ones(256, 1024, device="tpu") * 2
        del x
    assert "intermediate results" in owners(report)
    assert ownership.FORWARD


# Out of memory


@pytest.fixture
def limit():
    """Lets a test use some bytes more than are in use."""
    gc.collect()  # the errors that earlier tests caught

    def more(nbytes: int):
        return config.options(memory_limit=hbm.usage.live + nbytes)

    return more


def test_out_of_memory_says_who_holds_what(mode, limit):
    kept = [torch.ones(256, 1024, device="tpu") for _ in range(3)]
    torch.tpu.synchronize()
    with limit(2 * MIB), pytest.raises(torch.OutOfMemoryError) as caught:
        x = torch.ones(256, 1024, device="tpu")
        (x.repeat(4, 1) * 2).sum().item()
    error = caught.value
    assert sum(r.nbytes for r in error.holdings.rows) == error.holdings.live
    assert error.holdings.live <= error.holdings.limit
    assert error.holdings.rows[0].nbytes == 3 * MIB
    assert error.holdings.rows[0].name == "kept in test_out_of_memory_says_who_holds_what()"
    text = str(error)
    assert "tpu out of memory: " in text
    assert "MiB are in use." in text
    assert "3.0 MiB  kept in test_out_of_memory_says_who_holds_what()" in text
    assert "frees it: del kept in " in text
    assert text.endswith("Free some of it, use a smaller batch, or checkpoint activations.")
    assert error.holdings.rows == caught.value.holdings.rows
    # The process lives, with the same values.
    assert (kept[0] + 1).sum().item() == 2 * 256 * 1024


def test_out_of_memory_in_a_fused_program_names_its_line(limit):
    with modes.scope("defer_and_fuse"):
        x = torch.ones(256, 1024, device="tpu")
        torch.tpu.synchronize()
        with limit(MIB // 2), pytest.raises(torch.OutOfMemoryError, match=r"recorded at test_memory_report.py:\d+: y = x \* 2"):
            y = x * 2
            torch.tpu.synchronize()
        with pytest.raises(torch.OutOfMemoryError):
            y.sum().item()
        assert (x * 3).sum().item() == 3 * 256 * 1024


def test_a_program_that_does_not_fit_is_not_run(mode, limit):
    x = torch.ones(256, 1024, device="tpu")
    torch.tpu.synchronize()
    live, peak = hbm.usage.live, hbm.usage.peak
    with limit(MIB), pytest.raises(torch.OutOfMemoryError):
        x.repeat(8, 1).sum().item()
    assert hbm.usage.live == live
    assert hbm.usage.peak <= max(peak, live + MIB)
    assert x.sum().item() == 256 * 1024


def test_an_in_place_op_out_of_memory_leaves_its_tensor(limit):
    x = torch.randn(512, 512, device="tpu")
    total = x.sum().item()
    live = hbm.usage.live
    with limit(1000), pytest.raises(torch.OutOfMemoryError):
        x += x.sort(0).values
    assert x.sum().item() == total
    assert hbm.usage.live == live


def test_memory_fraction_and_limit():
    free, total = torch.tpu.mem_get_info()
    assert 0 < free <= total
    try:
        torch.tpu.set_per_process_memory_fraction(0.5)
        assert torch.tpu.mem_get_info()[1] == int(total * 0.5)
        with pytest.raises(ValueError, match=r"invalid memory fraction 1\.5"):
            torch.tpu.set_per_process_memory_fraction(1.5)
    finally:
        config.memory_limit = 0
    assert torch.tpu.mem_get_info()[1] == total


def test_the_limit_never_exceeds_the_device():
    total = torch.tpu.mem_get_info()[1]
    with config.options(memory_limit=1 << 60):
        assert torch.tpu.mem_get_info()[1] == total


def test_holdings_are_values_without_tensors():
    gc.collect()
    x = torch.ones(256, 1024, device="tpu")
    found = Holdings.now()
    live = hbm.usage.live
    del x
    gc.collect()
    assert hbm.usage.live == live - MIB
    assert "x in test_holdings_are_values_without_tensors()" in found.to_text(200)
    assert found.title.startswith("HBM in use: ")
    assert repr(found).startswith("<HBM in use")
    assert "<details open " in found.to_html()


def test_hostile_names_are_escaped(monkeypatch):
    monkeypatch.setattr(holders, "session", lambda: holders.Session({"d": {"<script>": torch.ones(4, device="tpu")}}, {}))
    html = Holdings.now().to_html()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_many_holders_stay_few_rows(monkeypatch):
    space = {f"variable_{n}": torch.ones(4, device="tpu") for n in range(200)}
    monkeypatch.setattr(holders, "session", lambda: holders.Session(space, {}))
    rows = memory.holdings()
    assert len(rows) <= 51
    assert sum(r.nbytes for r in rows) == hbm.usage.live
    assert len(Holdings.now().to_html()) < 10_000
