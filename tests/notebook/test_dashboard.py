"""`%tpu dashboard`, and the history behind it."""

import gc
import sys
import weakref

import pytest

from tests.test_report import busy_log, finished
from torchtpu.notebook_ext import dashboard, session
from torchtpu.notebook_ext.history import CellFigures, History, Totals
from torchtpu.report import Report


def figures(k: int = 1, **changed) -> CellFigures:
    values = dict(
        cell=f"In[{k}]", mode="strict", seconds=2.0 * k, compiles=3, compile_seconds=1.0 * k, cache_hits=6, runs=8, syncs=2,
        hbm_peak=k << 20, hbm_live=1 << 10, failed=False,
    )  # fmt: skip
    return CellFigures(**(values | changed))


def panels(notebook) -> list[str]:
    outputs = [output["data"]["text/plain"] for output in notebook.shell.display_pub.outputs]
    return [text for text in outputs if text.startswith("torchtpu session")]


def test_totals_go_on_when_cells_are_dropped():
    history = History()
    for k in range(1, 511):
        history.add(figures(k))
    assert [c.cell for c in history][::499] == ["In[11]", "In[510]"]
    totals = history.totals
    assert (totals.cells, totals.runs, totals.compiles, totals.hbm_peak) == (510, 4080, 1530, 510 << 20)
    assert totals.hit_rate == 0.75
    assert Totals().hit_rate is None


def test_the_history_keeps_figures_and_no_report():
    report = finished(busy_log(), finish=0.25)
    row = CellFigures.of("In[3]", report)
    assert (row.mode, row.runs, row.compiles, row.seconds) == (
        report.mode, report.runs, report.compiles, report.seconds.elapsed
    )  # fmt: skip
    assert not any(isinstance(o, Report) for o in gc.get_referents(row))


def test_a_session_is_drawn_with_the_same_figures_everywhere():
    history = History()
    history.add(figures(1))
    history.add(figures(2, failed=True, cell="In[<b>]"))
    now = session.look(history, None)
    for drawn in (now.to_text(), now.to_html(), str(now.state())):
        for figure in ("2 cells", "6 compiles", "compile 3 s", "75% of runs found their program", "16 runs", "4 s", "2.0 MiB"):
            assert figure in drawn, figure
    assert [row[0] for row in now.rows()] == ["In[<b>] failed", "In[1]"]
    assert "In[&lt;b&gt;] failed" in now.to_html()
    for lost in ("<svg", "<style", "<script", "<iframe"):
        assert lost not in now.to_html()


def test_a_long_session_stays_small():
    history = History()
    for k in range(600):
        history.add(figures(k))
    now = session.look(history, None)
    assert len(now.to_html()) < 40_000
    assert "485 earlier cells" in now.to_html()


def test_the_panel_follows_the_cells(notebook):
    notebook.run("%%tpu_mode strict --quiet", "x = torch.ones(3, device='tpu')")
    notebook.run("%tpu dashboard")
    assert "1 cell," in panels(notebook)[0]
    notebook.run("%%tpu_mode debug", "x + 1")
    last = panels(notebook)[-1]
    assert "2 cells," in last
    cells = [line.split()[1] for line in last.splitlines() if line.startswith("In[")]
    assert cells == ["debug", "strict"]


def test_opened_again_the_old_panel_stays_as_it_is(notebook):
    notebook.run("%tpu dashboard")
    first = notebook.shell.display_pub.outputs[0]["transient"]
    notebook.run("%tpu dashboard")
    notebook.run("%%tpu_mode strict", "1")
    updated = [output["transient"] for output in notebook.shell.display_pub.outputs if output["transient"]]
    assert updated
    assert first not in updated


def test_unload_closes_the_panel(notebook):
    notebook.run("%tpu dashboard")
    notebook.run("%unload_ext torchtpu")
    assert not notebook.run("%%tpu_mode strict", "1").success
    assert panels(notebook) == []


def test_a_running_cell_is_shown_while_it_runs(notebook):
    notebook.run("%tpu dashboard")
    notebook.run("%%tpu_mode strict", "import time; time.sleep(1.2)")
    running = [text for text in panels(notebook) if "\nrunning: strict, " in text]
    assert running
    assert "running: " not in panels(notebook)[-1]


@pytest.fixture
def front_end(monkeypatch):
    """A widget in place of anywidget's, which needs a kernel."""

    class Widget:
        model_id = "the-model"
        states: list[dict] = []  # noqa: RUF012

        def __setattr__(self, name: str, value: object) -> None:
            assert name == "state"
            Widget.states.append(value)

    monkeypatch.setattr(dashboard, "new_widget", Widget)
    return Widget


def test_the_widget_is_there_only_while_a_cell_runs(notebook, front_end):
    notebook.run("%tpu dashboard")
    notebook.run("%%tpu_mode strict --quiet", "import time; time.sleep(1.7)")
    first, *later = notebook.shell.display_pub.outputs
    assert set(first["data"]) == {"application/vnd.jupyter.widget-view+json", "text/plain"}
    assert later
    assert all(set(output["data"]) == {"text/html", "text/plain"} and output["update"] for output in later)
    assert len(front_end.states) >= 2
    assert front_end.states[-1]["running"][0] == "strict"


def test_colab_gets_no_widget_that_it_would_have_to_allow(monkeypatch):
    monkeypatch.setitem(sys.modules, "google.colab", sys)
    assert dashboard.new_widget() is None


def test_a_closed_panel_is_let_go(notebook):
    notebook.run("%tpu dashboard")
    (extension,) = [o for o in gc.get_objects() if type(o) is dashboard.Dashboard and o._shell is notebook.shell]
    panel = weakref.ref(extension._panel)
    extension.close()
    for _ in range(100):
        if panel() is None:
            break
        gc.collect()
        dashboard.threading.Event().wait(0.02)
    assert panel() is None
