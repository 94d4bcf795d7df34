"""`%%tpu_mode --graph`: the programs of a cell as graphs, below its report."""

import re

import pytest


def graphs(notebook):
    """The bundles below the last cell that are no reports."""
    bundles = [output["data"] for output in notebook.shell.display_pub.outputs]
    return [data for data in bundles if "<iframe" in data.get("text/html", "")]


TRAINING = (
    "from torch import nn",
    "net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).to('tpu')",
    "x = torch.rand(4, 8, device='tpu')",
    "net(x).square().mean().backward()",
)


@pytest.mark.parametrize("mode", ["strict", "debug", "debug --trace", "defer_and_fuse"])
def test_a_cell_shows_its_programs(notebook, mode):
    result = notebook.run(f"%%tpu_mode {mode} --graph", *TRAINING)
    assert result.success, notebook.printed
    (data,) = graphs(notebook)
    assert data["text/html"].count("<img ") == data["text/html"].count("<iframe ")
    assert "In[3]" in notebook.report
    if mode == "defer_and_fuse":
        assert "aten.addmm.default(" in data["text/plain"]
        assert "# Sequential.0, In[3], line 5: net(x).square().mean().backward()" in data["text/plain"]
    else:
        assert f"{mode.split()[0]} mode, " in data["text/plain"]
    assert len(data["text/html"]) < 140_000


def test_several_programs_are_folded_below_the_largest(notebook):
    notebook.run("%%tpu_mode defer_and_fuse --graph", *TRAINING, "(x + 1).tanh().sum().item()", "(x * 2).sum().item()")
    (data,) = graphs(notebook)
    sizes = [int(n) for n in re.findall(r'<iframe title="fused_(\d+)_ops', data["text/html"])]
    assert len(sizes) == 3
    assert sizes == sorted(sizes, reverse=True)
    assert data["text/html"].count("<details") == 2


def test_a_cell_that_runs_nothing_shows_no_graph(notebook):
    assert notebook.run("%%tpu_mode strict --graph", "1 + 1").success
    assert graphs(notebook) == []
    assert notebook.report


def test_many_programs_stay_small(notebook):
    notebook.run(
        "%%tpu_mode defer_and_fuse --graph",
        "for n in range(1, 13):",
        "    y = torch.ones(n, device='tpu')",
        "    for _ in range(n):",
        "        y = (y + 1).tanh() * y",
        "    y.sum().item()",
    )
    (data,) = graphs(notebook)
    assert len(data["text/html"]) < 140_000
    assert "smaller programs not shown" in data["text/html"]


def test_a_graph_as_the_value_of_a_cell(notebook):
    notebook.run(
        "with torch.tpu.set_eager_mode('defer_and_fuse'), torchtpu.watch() as report:",
        "    (torch.ones(3, device='tpu') + 1).tanh().sum().item()",
    )
    formats, _ = notebook.shell.display_formatter.format(notebook.run("report.graph()").result)
    assert "<iframe" in formats["text/html"]
    assert "aten.tanh.default(" in formats["text/plain"]
