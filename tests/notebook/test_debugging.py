"""The debugging options of `%%tpu_mode`: --nan, --check, --trace, --break, --no-sync, and `%tpu_explain`."""

from __future__ import annotations

import builtins

import pytest

from torchtpu import errors
from torchtpu.checks import cpu
from torchtpu.report import Report


@pytest.fixture
def typed(monkeypatch):
    """Sets what the user types into the debugger."""

    def type_(*lines):
        answers = iter(lines)
        monkeypatch.setattr(builtins, "input", lambda prompt="": next(answers))

    return type_


def test_nan_stops_at_the_line_and_shows_no_other(notebook):
    result = notebook.run("%%tpu_mode debug --nan", "x = torch.ones(3, device='tpu')", "x = x - 1", "y = x.log()", "after = 1")
    assert type(result.error_in_exec) is errors.NumericsError
    assert "----> 4 y = x.log()" in notebook.printed
    assert "  x: float32[3], 0 to 0, mean 0; 3 zero of 3" in notebook.printed
    assert f"from aten::sub.Tensor  In[{result.execution_count}], line 3: x = x - 1" in notebook.printed
    assert "kernel.py" not in notebook.printed
    assert "! Ended by NumericsError: aten::log made 0 NaN and 3 Inf" in notebook.report
    assert "after" not in notebook.shell.user_ns
    assert notebook.run("x.log().tolist()").result == [float("-inf")] * 3


def test_debug_opens_at_the_line_afterwards(notebook, typed):
    notebook.run("def f(v):", "    inside = v * 0", "    return 1 / inside")
    notebook.run("%%tpu_mode debug --nan", "f(torch.ones(2, device='tpu'))")
    typed("p inside.shape", "q")
    notebook.run("%debug")
    assert "torch.Size([2])" in notebook.printed
    assert "return 1 / inside" in notebook.printed


def test_a_nan_in_backward_names_the_forward_line(notebook):
    result = notebook.run(
        "%%tpu_mode debug --nan",
        "x = torch.zeros(2, device='tpu', requires_grad=True)",
        "loss = x.sqrt().sum()",
        "loss.backward()",
    )
    here = f"In[{result.execution_count}], line"
    assert f"(backward of {here} 3: loss = x.sqrt().sum())" in notebook.printed
    assert f"called by the backward pass of {here} 4: loss.backward()" in notebook.printed
    assert "----> 4 loss.backward()" in notebook.printed


def test_check_compares_each_op(notebook):
    notebook.run(
        "%%tpu_mode debug --check cpu",
        "model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 1)).to('tpu')",
        "model(torch.ones(2, 4, device='tpu')).sum().backward()",
    )
    assert "Compared with the CPU: " in notebook.report
    assert "gelu_backward" in notebook.report
    assert len(cpu._on_cpu) == 0  # nothing is kept


def test_trace_lists_each_op(notebook, tmp_path):
    notebook.run("%%tpu_mode debug --trace --save ops.json", "x = torch.ones(8, 4, device='tpu')", "y = (x @ x.t()).sum()")
    (number,) = {line.split("[")[1].split("]")[0] for line in notebook.report.splitlines() if " mm float32[8,4]" in line}
    assert "Trace: 3 ops" in notebook.report
    assert f"In[{number}], line 3  mm float32[8,4], float32[4,8] -> float32[8,8]" in notebook.report
    saved = Report.from_json((tmp_path / "ops.json").read_text())
    assert [r.op for r in saved.trace] == ["aten::fill_.Scalar", "aten::mm", "aten::sum"]


def test_a_trace_of_many_ops_stays_small(notebook):
    notebook.run("x = torch.zeros((), device='tpu')")
    notebook.run("%%tpu_mode debug --trace", "for _ in range(10_000): x = x + 1")
    (data,) = notebook.reports
    assert "Trace: 10,000 ops" in data["text/plain"]
    assert "the first 300 of 10,000; report.trace has all" in data["text/html"]
    assert len(data["text/html"]) + len(data["text/plain"]) < 120_000


def test_a_trace_of_a_few_ops_is_small(notebook):
    notebook.run("x = torch.zeros(64, 64, device='tpu')")
    notebook.run("%%tpu_mode debug --trace", "for _ in range(100): x = (x + 1).relu()")
    assert len(notebook.reports[0]["text/html"]) < 60_000


def test_break_at_an_op_opens_the_debugger_at_the_line(notebook, typed):
    typed("p before", "c")
    notebook.run("x = torch.ones(2, 2, device='tpu')")
    result = notebook.run("%%tpu_mode debug --break mm --quiet", "before = 41 + 1", "y = x @ x", "after = 1")
    assert f"stopped before aten::mm (In[{result.execution_count}], line 3: y = x @ x)" in notebook.printed
    assert "----> 3 y = x @ x" in notebook.printed
    assert "\n42\n" in notebook.printed
    assert notebook.shell.user_ns["after"] == 1


def test_break_at_a_line_of_the_cell(notebook, typed):
    typed("p k", "c", "q")
    notebook.run("x = torch.ones(2, device='tpu')")
    result = notebook.run("%%tpu_mode debug --break 3 --quiet", "for k in (7, 8):", "    x = x * k", "after = 1")
    assert type(result.error_in_exec).__name__ == "BdbQuit"
    assert notebook.printed.count("stopped at the first op of") == 2
    assert "\n7\n" in notebook.printed
    assert "after" not in notebook.shell.user_ns
    assert notebook.run("x.tolist()").result == [7, 7]


@pytest.mark.parametrize(("where", "why"), [("3", "no op ran on line 3"), ("mm", "no op named mm ran")])
def test_a_break_that_never_stops_says_so(notebook, where, why):
    notebook.run(f"%%tpu_mode debug --break {where} --quiet", "x = torch.ones(2, device='tpu')", "y = 1")
    assert f"--break {where} never stopped: {why}" in notebook.printed


@pytest.mark.parametrize("mode", ["strict", "debug", "defer_and_fuse"])
def test_no_sync_refuses_reads_until_the_cell_ends(notebook, mode):
    result = notebook.run(f"%%tpu_mode {mode} --no-sync --quiet", "x = torch.ones(2, device='tpu') * 2", "x.tolist()")
    assert type(result.error_in_exec) is errors.SyncError
    assert f"tolist waits for the device (In[{result.execution_count}], line 3: x.tolist())" in notebook.printed
    assert "----> 3 x.tolist()" in notebook.printed
    assert "transfer.py" not in notebook.printed
    assert notebook.run("x.tolist()").result == [2, 2]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("strict --nan", "this cell's mode is strict: use %%tpu_mode debug --nan"),
        ("--check cpu", "this cell's mode is strict: use %%tpu_mode debug --check"),
        ("defer_and_fuse --trace", "this cell's mode is defer_and_fuse: use %%tpu_mode debug --trace"),
        ("strict --break mm", "this cell's mode is strict: use %%tpu_mode debug --break"),
        ("debug --check gpu", "argument --check: invalid choice: 'gpu'"),
        ("debug --break mmm", "--break: ATen has no op 'mmm' to break at. Did you mean 'mm'?"),
        ("debug --quiet --trace", "--trace adds to the report, which --quiet hides: leave out one of them, or --save"),
    ],
)
def test_what_does_not_go_together_is_refused(notebook, line, words):
    assert not notebook.run(f"%%tpu_mode {line}", "ran = 1").success
    assert words in notebook.printed
    assert "UsageError: " in notebook.printed
    assert "ran" not in notebook.shell.user_ns
    assert notebook.reports == []


def test_they_are_for_cells(notebook):
    assert not notebook.run("%tpu_mode debug --nan").success
    assert "UsageError: --nan is for one cell: use it with %%tpu_mode" in notebook.printed
    notebook.run("%tpu_mode")
    assert notebook.printed == "strict\n"


class TestExplain:
    def test_a_pending_tensor(self, notebook):
        notebook.run("%tpu_mode defer_and_fuse")
        notebook.run("x = torch.ones(3, device='tpu')", "torch.tpu.synchronize()")
        result = notebook.run("y = x * 2", "%tpu_explain y", "torchtpu.modes.pending()")
        assert result.result == 1
        (shown,) = [o["data"] for o in notebook.shell.display_pub.outputs]
        assert "value       pending, one of 1 op that run at the next flush" in shown["text/plain"]
        assert (
            f"aten::mul.Tensor float32[3] (pending) <- 1 made before anybody watched In[{result.execution_count}], line 1"
            in (shown["text/plain"])
        )
        assert "held by     y" in shown["text/plain"]

    def test_a_tensor_of_a_watched_cell_is_known_later(self, notebook):
        made = notebook.run("%%tpu_mode strict --quiet", "x = torch.ones(3, device='tpu') * 2")
        notebook.run("%tpu_explain x[1:]")
        (shown,) = [o["data"] for o in notebook.shell.display_pub.outputs]
        assert f"In[{made.execution_count}], line 2: x = torch.ones(3, device=&#x27;tpu&#x27;) * 2" in shown["text/html"]
        assert "<style" not in shown["text/html"]

    @pytest.mark.parametrize(
        ("line", "words"),
        [
            ("", "%tpu_explain takes a tensor: %tpu_explain x"),
            ("41", "%tpu_explain takes a tensor on tpu; 41 is a int"),
            ("torch.ones(1)", "torch.ones(1) is a tensor on cpu"),
        ],
    )
    def test_it_takes_a_tensor_on_the_device(self, notebook, line, words):
        assert not notebook.run(f"%tpu_explain {line}").success
        assert words in notebook.printed


def test_unloading_leaves_tracebacks_and_magics_as_they_were(notebook):
    notebook.run("%unload_ext torchtpu")
    assert notebook.shell.custom_exceptions == ()
    assert not notebook.run("%tpu_explain 1").success
    assert "UsageError: Line magic function `%tpu_explain` not found" in notebook.printed


def test_a_handler_of_the_users_own_stays(notebook):
    notebook.run("%unload_ext torchtpu")
    notebook.shell.set_custom_exc((KeyError,), lambda *a, **k: None)
    notebook.run("%load_ext torchtpu")
    notebook.run("%unload_ext torchtpu")
    assert notebook.shell.custom_exceptions == (KeyError,)
