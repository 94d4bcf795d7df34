"""However it is loaded, there is exactly one set of hooks."""

import signal

import pytest

from torchtpu import lines


def hooks(shell) -> dict[str, int]:
    """Count what of ours hangs in a shell."""
    ours = {f"{event}": 0 for event in ("pre_run_cell", "post_run_cell", "post_execute")}
    for event in ours:
        ours[event] = sum(f.__module__ == "torchtpu.notebook_ext.cells" for f in shell.events.callbacks[event])
    ours["transformers"] = sum(f.__module__ == "torchtpu.notebook_ext.first_line" for f in shell.input_transformers_cleanup)
    ours["tpu_mode"] = sum("tpu_mode" in shell.magics_manager.magics[kind] for kind in ("line", "cell"))
    ours["other magics"] = min(1, sum(_is_ours(f) for kind in ("line", "cell") for f in _magics(shell, kind)))
    return ours


def _magics(shell, kind: str) -> list:
    return [f for name, f in shell.magics_manager.magics[kind].items() if name != "tpu_mode"]


def _is_ours(magic) -> bool:
    return type(getattr(magic, "__self__", None)).__module__.startswith("torchtpu.")


ONCE = {"pre_run_cell": 1, "post_run_cell": 1, "post_execute": 1, "transformers": 1, "tpu_mode": 2, "other magics": 1}
GONE = dict.fromkeys(ONCE, 0)


@pytest.mark.parametrize(
    "cells",
    [
        [],
        ["%load_ext torchtpu"],
        ["%reload_ext torchtpu"],
        ["%reload_ext torchtpu", "%reload_ext torchtpu"],
        ["%reset -f", "%load_ext torchtpu"],
        ["%reset -f", "%reload_ext torchtpu"],
        ["%unload_ext torchtpu", "%load_ext torchtpu"],
        ["import torchtpu", "torchtpu.load_ipython_extension(get_ipython())"],
    ],
)
def test_UP_128_one_set_of_hooks(notebook, cells):
    for cell in cells:
        assert notebook.run(cell).success
    assert hooks(notebook.shell) == ONCE
    notebook.run("%%tpu_mode debug", "1")
    assert len(notebook.reports) == 1


def test_unload_removes_everything_and_keeps_the_device(notebook):
    notebook.run("x = torch.ones(2, device='tpu')")
    notebook.run("%unload_ext torchtpu")
    assert hooks(notebook.shell) == GONE
    assert lines.label_of_file is lines.no_label
    assert notebook.run("x.sum().item()").result == 2.0
    assert not notebook.run("%%tpu_mode debug", "1").success
    assert "UsageError: Cell magic `%%tpu_mode` not found" in notebook.printed


def test_reload_keeps_tensors(notebook):
    notebook.run("x = torch.ones(2, device='tpu')")
    assert notebook.run("%reload_ext torchtpu").success
    assert notebook.run("(x + 1).sum().item()").result == 4.0


@pytest.mark.parametrize("magic", ["%unload_ext torchtpu", "%reload_ext torchtpu"])
def test_a_running_cell_is_closed(notebook, magic):
    notebook.run("%%tpu_mode defer_and_fuse", magic, "torchtpu.modes.current().label")
    assert "Out" in notebook.printed
    assert "'strict'" in notebook.printed
    assert len(notebook.reports) == 1


@pytest.mark.parametrize("magic", ["%unload_ext torchtpu", "%reload_ext torchtpu"])
def test_nothing_listens_for_ctrl_c_afterwards(notebook, magic):
    """The cell that unloads has begun to listen, and its end is no longer heard of."""
    notebook.run(magic)
    assert signal.set_wakeup_fd(-1) == -1


def test_two_shells_do_not_share_hooks(notebook, new_notebook):
    other = new_notebook()
    assert hooks(other.shell) == hooks(notebook.shell) == ONCE
    other.run("%unload_ext torchtpu")
    assert hooks(other.shell) == GONE
    assert hooks(notebook.shell) == ONCE


def test_lines_of_cells_have_their_names(notebook):
    result = notebook.run(
        "%%tpu_mode strict", "x = torch.ones(3, device='tpu')", "def f(t):", "    return t.sum().item()", "f(x)"
    )
    assert f"In[{result.execution_count}], line 4" in notebook.report
    later = notebook.run("%%tpu_mode strict", "f(x)")
    assert f"In[{result.execution_count}], line 4" in notebook.report
    assert f"In[{later.execution_count}]" not in notebook.report


def test_a_shown_value_is_read_by_the_line_that_shows_it(notebook):
    result = notebook.run("%%tpu_mode strict", "x = torch.ones(3, device='tpu')", "", "x")
    (row,) = [line for line in notebook.report.splitlines() if line.startswith("print ")]
    assert f"In[{result.execution_count}], line 4: x " in row


def test_lines_under_time(notebook):
    result = notebook.run("%%time", "%%tpu_mode strict", "x = torch.ones(3, device='tpu')", "x.sum().item()")
    assert f"In[{result.execution_count}] under %%time, line 3" in notebook.report
