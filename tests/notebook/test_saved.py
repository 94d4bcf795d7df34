"""Notebooks run by a real kernel, and what is in the file that they leave."""

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbconvert import HTMLExporter

from torchtpu.report import Report, units

pytestmark = pytest.mark.slow


def notebook_of(*cells: str) -> nbformat.NotebookNode:
    setup = "%load_ext torchtpu\nimport torch, torchtpu"
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in (setup, *cells)])


def run_all(book: nbformat.NotebookNode, folder: Path, **options) -> nbformat.NotebookNode:
    return NotebookClient(
        book, timeout=120, kernel_name="python3", resources={"metadata": {"path": folder}}, **options
    ).execute()


@pytest.fixture(scope="module")
def executed(tmp_path_factory) -> tuple[nbformat.NotebookNode, Report]:
    """A notebook that has run, and the report that its cell 2 saved."""
    folder = tmp_path_factory.mktemp("executed")
    work = """%%tpu_mode defer_and_fuse --save report.json
x = torch.arange(512.0, device="tpu")
y = (x * 2 + 1).sqrt()
total = y.sum().item()
z = y - 1
round(total)"""
    many = """%%tpu_mode strict
x = torch.zeros((), device="tpu")
for _ in range(10000):
    x = x + 1
x.item()"""
    interrupted = """%%tpu_mode defer_and_fuse
import os, signal, time
os.kill(os.getpid(), signal.SIGINT)
time.sleep(60)"""
    mode = "torchtpu.modes.current().label"
    asynchronous = """%%tpu_mode debug
import asyncio
async def f():
    await asyncio.sleep(0)
    return 41
await f() + 1"""
    cells = notebook_of("function = 1", work, many, interrupted, mode, asynchronous)
    book = run_all(cells, folder, allow_errors=True)
    return book, Report.from_json((folder / "report.json").read_text())


def bundles(cell: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [output.data for output in cell.outputs if output.output_type == "display_data"]


def value(cell: nbformat.NotebookNode) -> str:
    """The value of a cell's last expression, as text."""
    (shown,) = [output.data["text/plain"] for output in cell.outputs if output.output_type == "execute_result"]
    return shown


def test_a_watched_cell_has_its_output_and_one_report(executed):
    cell = executed[0].cells[2]
    # The report is where the running line was: above what the cell shows later.
    assert sorted(output.output_type for output in cell.outputs) == ["display_data", "execute_result"]
    assert value(cell) == "10923"
    assert set(bundles(cell)[0]) == {"text/html", "text/plain"}


def test_lines_are_named_after_their_cells(executed):
    book, report = executed
    assert [(s.kind, s.line.where) for s in report.syncs] == [("item", "In[3], line 4")]
    assert [(f.reason, f.line.where if f.line else None) for f in report.flushes] == [
        ("item", "In[3], line 4"),
        ("end of cell", None),
    ]
    assert {o.line.where for p in report.programs for o in p.ops} >= {"In[3], line 3", "In[3], line 4", "In[3], line 5"}
    assert "In[3], line 4" in bundles(book.cells[2])[0]["text/plain"]


def test_the_saved_page_has_the_figures_of_the_report_as_text(executed, tmp_path):
    book, report = executed
    page, _ = HTMLExporter().from_notebook_node(book)
    page = page[page.index("defer_and_fuse</b>") :]  # below the cell's own source
    visible = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    for figure in (
        units.count(len(report.programs), "program"),
        units.count(report.compiles, "compile"),
        units.count(report.runs, "run"),
        f"1 sync ({units.seconds(report.seconds.wait)})",
        f"HBM peak {units.nbytes(report.hbm_peak)}",
        f"compile {units.seconds(report.seconds.compile)}",
        f"HBM at the end: {units.nbytes(report.hbm_live)}",
        *(p.name for p in report.programs if len(p.ops) > 1),
        *(units.nbytes(p.argument_bytes) for p in report.programs),
        "sqrt",
        "In[3], line 4",
    ):
        assert figure in visible, figure
    (tmp_path / "page.html").write_text(page)


def test_ten_thousand_ops_are_one_small_output(executed):
    cell = executed[0].cells[3]
    assert value(cell) == "10000.0"
    assert len(cell.outputs) == 2
    assert sum(len(text) for text in bundles(cell)[0].values()) < 60_000


LATE = """%%tpu_mode debug
from torchtpu import modes
def flush(reason):
    if reason == "end of cell":
        raise RuntimeError("it did not fit")
modes.flush = flush"""


@pytest.mark.parametrize(
    ("cell", "error", "reports"),
    [
        ("%%tpu_mode debug\nx = 1\n1 / 0", "ZeroDivisionError: division by zero", 1),
        ("%%tpu_mode debgu\nx = 1", "UsageError: unknown eager mode 'debgu'", 0),
        (LATE, "RuntimeError: it did not fit", 1),
    ],
    ids=["error", "unknown mode", "pending work fails"],
)
def test_run_all_stops_at_a_cell_that_fails(tmp_path, cell, error, reports):
    book = notebook_of(cell, "later = 1")
    with pytest.raises(CellExecutionError) as stopped:
        run_all(book, tmp_path)
    assert error in re.sub(r"\x1b\[[0-9;]*m", "", str(stopped.value))
    failed, later = book.cells[1:]
    assert later.execution_count is None
    assert len(bundles(failed)) == reports


def test_an_interrupted_cell_is_reported_and_leaves_its_mode(executed):
    interrupted, mode = executed[0].cells[4:6]
    assert [o.ename for o in interrupted.outputs if o.output_type == "error"] == ["KeyboardInterrupt"]
    assert "! Ended by KeyboardInterrupt" in bundles(interrupted)[0]["text/plain"]
    assert mode.outputs[0].data["text/plain"] == "'strict'"


def test_await_in_a_kernel(executed):
    cell = executed[0].cells[6]
    assert value(cell) == "42"
    assert bundles(cell)[0]["text/plain"].startswith("torchtpu debug: ")
