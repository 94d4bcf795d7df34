"""Device memory in a notebook: who holds it, freeing it with `%tpu_free`, and the memory cases that users reported."""

import gc
import json
import sys
import weakref
from pathlib import Path

import pytest
import torch

from torchtpu import hbm, holders, modes
from torchtpu.buffer import Buffer, buffer_of

MIB = 1 << 20
BOOM = ("def boom():", "    big = torch.ones(256, 1024, device='tpu'); big.sum().item()", "    raise ValueError('x')", "boom()")
MODES = [mode.label for mode in modes.EagerMode]


@pytest.fixture(params=MODES)
def mode(request, notebook):
    notebook.run(f"%tpu_mode {request.param}")
    gc.collect()
    return request.param


def shown(notebook) -> str:
    """What `%tpu_free` shows."""
    notebook.run("%tpu_free")
    (output,) = notebook.shell.display_pub.outputs
    assert "<details open " in output["data"]["text/html"]
    return output["data"]["text/plain"]


def saved(name: str) -> dict:
    """The fields of a report that a cell saved."""
    return json.loads(Path(f"{name}.json").read_text())["report"]


def rows(notebook) -> dict[str, str]:
    """The table of `%tpu_free`: bytes by holder."""
    lines = shown(notebook).splitlines()[3:]
    return {line.split("  ")[0]: line for line in lines}


def test_it_shows_who_holds_what(notebook):
    notebook.run("model = torch.nn.Linear(256, 1024).to('tpu')", "x = torch.ones(256, 1024, device='tpu')", "x * 2")
    number = notebook.shell.execution_count - 1
    text = shown(notebook)
    assert text.startswith("HBM in use: ")
    table = rows(notebook)
    assert table["x"].split()[-2:] == ["del", "x"]
    assert "1.0 MiB" in table[f"Out[{number}]"]
    assert table[f"Out[{number}]"].endswith("%tpu_free Out")
    assert table["model: parameters"].endswith("del model")


def test_showing_starts_no_device(notebook):
    before = hbm.usage.allocations
    shown(notebook)
    assert hbm.usage.allocations == before


def test_free_a_variable(notebook, mode):
    notebook.run("x = torch.ones(256, 1024, device='tpu')", "torch.tpu.synchronize()")
    live = hbm.usage.live
    notebook.run("%tpu_free x")
    assert notebook.printed == "x: freed 1.0 MiB\n"
    assert hbm.usage.live == live - MIB
    assert "x" not in notebook.shell.user_ns


def test_free_a_variable_that_others_hold_too(notebook):
    notebook.run("x = torch.ones(256, 1024, device='tpu')", "kept = [x]", "x")
    number = notebook.shell.execution_count - 1
    notebook.run("%tpu_free x")
    assert notebook.printed == f"x: freed nothing\n  1.0 MiB of it is still held by kept, Out[{number}]\n"


def test_free_outputs_leaves_the_others(notebook):
    first = notebook.run("torch.ones(256, 1024, device='tpu')").execution_count
    notebook.run("torch.tpu.synchronize()")
    live = hbm.usage.live
    second = notebook.run("'a text'").execution_count
    third = notebook.run("[torch.ones(256, 1024, device='tpu'), 1]").execution_count
    notebook.run("%tpu_free Out")
    assert notebook.printed == "Out: freed 2.0 MiB\n"
    assert hbm.usage.live == live - MIB
    out = notebook.shell.user_ns["Out"]
    assert (first in out, out[second], third in out) == (False, "a text", False)
    assert not {f"_{first}", f"_{third}"} & set(notebook.shell.user_ns)


def test_free_the_last_traceback(notebook, mode):
    notebook.run(
        "def boom():", "    big = torch.ones(256, 1024, device='tpu'); big.sum().item()", "    raise ValueError", "boom()"
    )
    assert "last traceback: boom() -> big" in shown(notebook)
    live = hbm.usage.live
    notebook.run("%tpu_free traceback")
    assert notebook.printed == "last traceback: freed 1.0 MiB\n"
    assert hbm.usage.live == live - MIB
    notebook.run("%tb")
    assert "boom()" in notebook.printed


def test_free_a_traceback_that_others_have_looked_at(notebook):
    before = hbm.usage.live
    notebook.run(*BOOM)
    assert "big" in sys.last_value.__traceback__.tb_next.tb_next.tb_frame.f_locals
    notebook.run("%tpu_free traceback")
    assert hbm.usage.live == before


def test_free_pending(notebook):
    notebook.run("%tpu_mode defer_and_fuse")
    notebook.run("x = torch.ones(256, 1024, device='tpu')")
    notebook.run("y = x.sum()", "del x", "before = torch.tpu.memory_allocated()", "%tpu_free pending")
    assert notebook.printed == "pending graph: freed 1.0 MiB\n"


def test_free_all(notebook, mode):
    notebook.run("x = torch.ones(256, 1024, device='tpu')", "x * 2")
    notebook.run("def boom(a):", "    big = a * 3; big.sum().item()", "    raise ValueError", "boom(x)")
    notebook.run("loop = [x * 4]; loop.append(loop); torch.tpu.synchronize(); del loop")
    notebook.run("%tpu_free --all")
    said = notebook.printed.splitlines()
    assert said[:3] == ["Out: freed 1.0 MiB", "last traceback: freed 1.0 MiB", "pending graph: freed nothing"]
    assert said[3].startswith("garbage: freed ")  # Python may have collected some of it by itself
    assert [h for h in rows(notebook) if h.startswith(("Out", "last"))] == []


def test_free_the_peak(notebook):
    notebook.run("torch.ones(1024, 1024, device='tpu').sum().item()")
    notebook.run("%tpu_free peak")
    assert hbm.usage.peak == hbm.usage.live
    assert notebook.printed.startswith("the HBM peak starts anew at ")


def test_mistakes_are_usage_errors(notebook):
    notebook.run("losses = []")
    notebook.run("%tpu_free losss")
    assert "no variable 'losss'" in notebook.printed
    assert "Did you mean 'losses'?" in notebook.printed
    notebook.run("%tpu_free losses[0]")
    assert "type `del losses[0]`" in notebook.printed
    notebook.run("%tpu_free losses missing")
    assert "losses" in notebook.shell.user_ns, "nothing is freed where a name is wrong"


def test_its_help_has_the_words(notebook):
    notebook.run("%tpu_free?")
    assert "traceback" in notebook.printed or "traceback" in str(notebook.shell.display_pub.outputs)


def test_unloading_takes_it_out(notebook):
    notebook.run("%unload_ext torchtpu")
    assert holders.session is holders.no_session
    assert "tpu_free" not in notebook.shell.magics_manager.magics["line"]


def test_the_extension_holds_nothing(notebook, mode):
    notebook.run(
        f"%%tpu_mode {mode}",
        "model = torch.nn.Linear(64, 64).to('tpu')",
        "optimizer = torch.optim.Adam(model.parameters())",
        "x = torch.ones(64, 64, device='tpu')",
        "loss = model(x).sum(); loss.backward(); optimizer.step()",
    )
    notebook.run("%tpu_free")
    space = notebook.shell.user_ns
    refs = [weakref.ref(space[name]) for name in ("model", "optimizer", "x", "loss")]
    buffers = [weakref.ref(b) for b in gc.get_objects() if type(b) is Buffer]
    notebook.run("del model, optimizer, x, loss")
    gc.collect()
    assert [r() for r in refs] == [None] * 4
    assert holders.names([b for b in (r() for r in buffers) if b is not None and b.layout.shape == (64, 64)]) == []


def test_the_report_of_a_cell_names_the_notebooks_variables(notebook, mode):
    notebook.run(f"%%tpu_mode {mode} --save report.json", "w = torch.ones(256, 1024, device='tpu')", "w * 2")
    text = notebook.report
    assert "HBM at the end: " in text
    assert "%tpu_free Out" in text
    assert "del w" in text
    report = saved("report")
    owners = {row["owner"]: row["nbytes"] for row in report["hbm_peak_owners"]}
    assert owners["variable w"] == MIB
    assert sum(owners.values()) == report["hbm_peak"]
    (out,) = [h for h in report["hbm_holdings"] if h["name"].startswith("Out[")]
    assert (out["kind"], out["free"], out["nbytes"]) == ("output", "%tpu_free Out", MIB)


def test_the_report_of_a_failed_cell_names_the_traceback(notebook, mode):
    notebook.run(f"%%tpu_mode {mode}", *BOOM)
    assert "last traceback: boom() -> big" in notebook.report
    assert "%tpu_free traceback" in notebook.report


def test_out_of_memory_in_a_cell_leaves_the_kernel(notebook, mode):
    notebook.run("cache = {k: torch.ones(256, 1024, device='tpu') for k in 'ab'}", "torch.tpu.synchronize()")
    result = notebook.run(
        "with torchtpu.config.options(memory_limit=torch.tpu.memory_allocated() + 2**20):",
        "    print(torch.ones(1024, 1024, device='tpu').sum().item())",
    )
    assert isinstance(result.error_in_exec, torch.OutOfMemoryError)
    assert "tpu out of memory" in notebook.printed
    assert "2.0 MiB  cache" in notebook.printed
    assert "frees it: del cache" in notebook.printed
    assert notebook.run("(cache['a'] + 1).sum().item()").result == 2 * 256 * 1024


# Cases that users reported (tests/cases/cases.json).


def test_running_a_cell_again_does_not_grow_memory_UP_112(notebook, mode):
    cell = "net = torch.nn.Linear(1024, 1024).to('tpu'); y = net(torch.ones(256, 1024, device='tpu')); y.sum().backward()"
    used = []
    for n in range(20):
        watched = [f"%%tpu_mode {mode}"] if n in (2, 19) else []
        assert notebook.run(*watched, cell).success
        used.append(hbm.usage.live)
    assert used[-1] == pytest.approx(used[1], rel=0.05)


def test_an_exception_does_not_pin_memory_unnoticed_UP_113(notebook, mode):
    before = hbm.usage.live
    notebook.run(*(line.replace("256, 1024", "64, 1024, 1024") for line in BOOM))
    assert hbm.usage.live - before == 256 * MIB
    (line,) = [line for name, line in rows(notebook).items() if name.startswith("last traceback: boom() -> big")]
    assert "256 MiB" in line
    notebook.run("%tpu_free traceback")
    assert hbm.usage.live == before


def test_the_peak_can_be_reset_and_is_one_per_cell_UP_115(notebook, mode):
    notebook.run(f"%%tpu_mode {mode} --save first.json", "a = torch.ones(64, 1024, 1024, device='tpu').sum().item()")
    notebook.run("%tpu_free peak")
    before = hbm.usage.live
    notebook.run(f"%%tpu_mode {mode} --save second.json", "c = torch.ones(1024, device='tpu').sum().item()")
    assert hbm.usage.peak < before + 16 * MIB
    first, second = saved("first")["hbm_peak"], saved("second")["hbm_peak"]
    if mode == "defer_and_fuse":  # the 256 MiB never exist: the sum is fused with what fills them
        assert first < 16 * MIB
    else:
        assert first >= 256 * MIB
    assert second == hbm.usage.peak


def test_used_limit_and_peak_are_always_answerable_UP_116(notebook, mode):
    result = notebook.run(
        "used = torch.tpu.memory_allocated",
        "i0 = used(); t = torch.zeros(1024, 1024, device='tpu'); t.sum().item(); i1 = used(); del t; i2 = used()",
        "free, total = torch.tpu.mem_get_info()",
        "(i1 - i0, i2 - i0, free <= total, total > 0, torch.tpu.max_memory_allocated() >= i1)",
    ).result
    assert result == (4 * MIB, 0, True, True, True)


def test_outputs_are_shown_as_held_by_the_notebook_UP_118(notebook, mode):
    before = hbm.usage.live
    number = notebook.run("torch.ones(32, 1024, 1024, device='tpu') * 2").execution_count
    tensor = weakref.ref(buffer_of(notebook.shell.user_ns["Out"][number]))
    line = rows(notebook)[f"Out[{number}]"]
    assert "128 MiB" in line
    assert line.endswith("%tpu_free Out")
    notebook.run("%tpu_free Out")
    assert tensor() is None
    assert hbm.usage.live == before


def test_a_long_loop_without_a_read_stays_flat_UP_119(notebook, mode):
    steps = 5_000 if mode == "defer_and_fuse" else 1_200  # 10,000 ops are five times the cap
    notebook.run("import resource", "resident = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss")
    result = notebook.run(
        "x = torch.full((128,), 3., device='tpu'); h = []",
        f"for i in range({steps}):",
        "    x = x * 0.999 + 0.001",
        f"    if i % {steps // 4} == 0: h.append((torch.tpu.memory_allocated(), resident()))",
        "x.sum().item()",
    ).result
    held, resident = zip(*notebook.shell.user_ns["h"][1:], strict=True)
    assert max(held) - min(held) <= 4096
    assert resident[-1] <= 1.1 * resident[0]
    expected = torch.full((128,), 3.0)
    for _ in range(steps):
        expected = expected * 0.999 + 0.001
    assert result == pytest.approx(expected.sum().item(), rel=1e-4)
