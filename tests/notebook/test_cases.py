"""Cases from public bug reports, kind NOTEBOOK."""

from __future__ import annotations

import os
import time

import pytest

from torchtpu import errors
from torchtpu.program import Program
from torchtpu.report import Report


def test_UP_121_a_failure_is_an_exception_and_the_kernel_lives(notebook):
    process = os.getpid()
    result = notebook.run("torch.ones(2, device='tpu') @ torch.ones(3, device='tpu')")
    assert type(result.error_in_exec) is RuntimeError
    assert "expected tensor [2] and src [3] to have the same number of elements" in str(result.error_in_exec)
    assert ".cpp" not in str(result.error_in_exec)
    assert notebook.run("(torch.ones(2, device='tpu') + 1).sum().item()").result == 4
    assert notebook.run("import os; os.getpid()").result == process


@pytest.mark.parametrize("mode", ["strict", "debug", "defer_and_fuse"])
def test_UP_122_a_shape_error_is_at_the_line_that_made_it(notebook, mode):
    body = ["a = torch.ones(3, 6, device='tpu'); c = torch.ones(4, 2, device='tpu')", "d = a @ c", "e = a + 1", "e.cpu()"]
    result = notebook.run(f"%%tpu_mode {mode}", *body)
    assert str(result.error_in_exec) == "mat1 and mat2 shapes cannot be multiplied (3x6 and 4x2)"
    assert "----> 3 d = a @ c" in notebook.printed
    assert "e" not in notebook.shell.user_ns


@pytest.fixture
def refused(monkeypatch):
    """Let the compiler refuse programs with an op."""
    real = Program.__init__

    def refuse(op):
        def init(self, name, nodes, *rest):
            if any(n.op == op for n in nodes):
                raise errors.CompileError(f"no {op} today")
            real(self, name, nodes, *rest)

        monkeypatch.setattr(Program, "__init__", init)

    return refuse


def test_UP_122_an_error_found_later_names_the_cell_and_line_that_recorded_it(notebook, refused):
    refused("aten::sinh")
    result = notebook.run(
        "%%tpu_mode defer_and_fuse", "a = torch.ones(5, device='tpu')", "b = a.sinh()", "e = a + 1", "b.cpu()"
    )
    number = result.execution_count
    assert str(result.error_in_exec) == f"no aten::sinh today (recorded at In[{number}], line 3: b = a.sinh())"
    assert "----> 5 b.cpu()" in notebook.printed
    assert notebook.run("e.tolist()").result == [2] * 5


def test_UP_122_an_error_of_a_backward_op_names_the_forward_line(notebook, refused):
    refused("aten::tanh_backward")
    result = notebook.run(
        "%%tpu_mode defer_and_fuse",
        "a = torch.ones(5, device='tpu', requires_grad=True)",
        "loss = a.tanh().sum()",
        "loss.backward()",
    )
    where = f"In[{result.execution_count}], line 3: loss = a.tanh().sum()"
    assert str(result.error_in_exec) == f"no aten::tanh_backward today (recorded in the backward pass of {where})"


def test_UP_122_pending_work_that_fails_at_the_end_of_the_cell_fails_the_cell(notebook, refused):
    refused("aten::sinh")
    result = notebook.run("%%tpu_mode defer_and_fuse", "b = torch.ones(6, device='tpu').sinh()")
    assert f"recorded at In[{result.execution_count}], line 2: b = torch.ones(6, device='tpu').sinh()" in notebook.printed
    assert isinstance(result.error_in_exec, errors.CompileError)


def test_UP_127_a_cell_of_10_000_ops_does_not_flood_the_output(notebook):
    start = time.perf_counter()
    result = notebook.run(
        "%%tpu_mode strict", "x = torch.zeros((), device='tpu')", "for _ in range(10000): x = x + 1", "x.item()"
    )
    seconds = time.perf_counter() - start
    assert result.result == 10_000
    outputs = notebook.shell.display_pub.outputs
    assert len(outputs) < 10 * seconds + 2
    assert sum(len(text) for output in outputs for text in output["data"].values() if isinstance(text, str)) < 200_000


def test_UP_131_the_report_tells_the_truth_about_asynchronous_work(notebook, tmp_path):
    notebook.run("y = torch.randn(256, 256, device='tpu')", "(y @ y * 1e-3).sum().item()")
    notebook.run("%%tpu_mode strict --save timed.json", "%%time", "for _ in range(50): y = y @ y * 1e-3")
    assert "Wall time" in notebook.printed
    s = Report.from_json((tmp_path / "timed.json").read_text()).seconds
    assert s.compile == s.wait == 0
    assert s.run > 0
    assert s.finish > 0
    assert s.elapsed >= s.run + s.finish
    waits = [sentence for sentence in notebook.report.splitlines() if "after the last line" in sentence]
    assert len(waits) <= 1  # the advice is given once


def test_UP_133_data_loader_workers_beside_a_watched_device_do_not_hang(notebook):
    result = notebook.run(
        "%%tpu_mode strict",
        "rows = torch.utils.data.TensorDataset(torch.arange(32.).view(16, 2))",
        "torch.ones(1, device='tpu').item()",
        "loader = torch.utils.data.DataLoader(rows, batch_size=4, num_workers=2, timeout=30)",
        "sum(batch.to('tpu').sum().item() for (batch,) in loader)",
    )
    assert result.result == 496


@pytest.mark.parametrize("mode", ["strict", "debug", "defer_and_fuse"])
def test_UP_134_inspecting_variables_makes_the_device_do_nothing(notebook, mode):
    notebook.run(f"%tpu_mode {mode}")
    notebook.run("t = torch.ones(50, 50, device='tpu') @ torch.ones(50, 50, device='tpu')")
    result = notebook.run(
        "with torchtpu.watch() as report:",
        "    t.shape; t.dtype; t.device; type(t); dir(t); t.is_floating_point(); hasattr(t, '__array_interface__')",
        "    get_ipython().complete('t.s'); get_ipython().complete('t[0].me')",
        "(report.compiles, len(report.syncs), report.ops)",
    )
    assert result.result == (0, 0, 0)
