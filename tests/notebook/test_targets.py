"""`%tpu_target`, `--target` and `%tpu_fit` in a notebook: what is shown, when it is replaced, and what is refused."""

from __future__ import annotations

import importlib.metadata
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import torchtpu
from torchtpu import ahead
from torchtpu.ahead import process
from torchtpu.errors import UnknownChipError
from torchtpu.notebook_ext import targets
from torchtpu.report import Report
from torchtpu.report.target_sections import tables
from torchtpu.report.targets import TargetRow
from torchtpu.report.to_html import section_html

WORK = ["x = torch.ones(8, 256, device='tpu')", "y = (x * 3).tanh()", "y.sum().item()"]


def shown(notebook, of: str = "") -> list[str]:
    """What the last cell displayed for chips, and what a thread has displayed since."""
    texts = [output["data"]["text/plain"] for output in notebook.shell.display_pub.outputs]
    return [text for text in texts if not text.startswith("torchtpu ") and " is running: " not in text and of in text]


def ids(notebook) -> set[str]:
    outputs = [o for o in notebook.shell.display_pub.outputs if "torchtpu " not in o["data"]["text/plain"]]
    return {o["transient"]["display_id"] for o in outputs}


@pytest.mark.parametrize("mode", ["strict", "debug", "defer_and_fuse"])
def test_a_cell_is_compiled_in_the_background_and_the_table_takes_the_lines_place(notebook, mode):
    notebook.run(f"%%tpu_mode {mode} --target v5e --save report.json", *WORK)
    line = shown(notebook)[0]
    assert line.startswith("for v5e: compiling 1 of ")
    line_id = ids(notebook)
    notebook.run("%tpu_target wait")
    last = shown(notebook)[-1]
    assert last.startswith("Compiled for v5e: ")
    assert "libtpu " in last
    assert "modelled" in last
    assert ids(notebook) == line_id
    saved = Report.from_json(Path("report.json").read_text())
    assert len(saved.targets) == len(saved.programs)
    assert all(
        row.fits and row.chip == "v5e" and 0 < row.peak < row.limit == ahead.chip("v5e").hbm_bytes for row in saved.targets
    )
    assert {row.line.where for row in saved.targets} <= {f"In[3], line {n}" for n in (2, 3, 4)}
    assert "Compiled for v5e: " in saved.to_text()
    assert saved.labels()["targets.temp_bytes"] == "compiled (libtpu)"
    assert saved.labels()["targets.roofline"] == "modelled"
    assert saved.labels()["programs.temp_bytes"] == "compiled (XLA:CPU)"


def test_the_sessions_chips_and_a_cells_own(notebook):
    notebook.run("%tpu_target v5e")
    notebook.run("%tpu_target")
    assert notebook.printed == "target: v5e, effort memory\n"
    notebook.run("%%tpu_mode defer_and_fuse", *WORK)
    assert shown(notebook)[0].startswith("for v5e: ")
    notebook.run("%%tpu_mode defer_and_fuse --target v6e", *WORK)
    assert shown(notebook, "for v6e: ")
    notebook.run("%tpu_target wait")
    for line in ("%%tpu_mode defer_and_fuse --target off", "%%tpu_mode defer_and_fuse --quiet"):
        notebook.run(line, *WORK)
        assert shown(notebook) == []
    notebook.run("%tpu_target off")
    notebook.run("%%tpu_mode defer_and_fuse", *WORK)
    assert shown(notebook) == []


def test_nothing_is_loaded_or_started_without_a_target(notebook, monkeypatch):
    monkeypatch.setattr(targets, "Compilation", None)
    before = threading.active_count()
    assert notebook.run("%%tpu_mode defer_and_fuse --quiet", *WORK).success
    assert threading.active_count() == before


def test_a_cell_that_ran_no_program_says_so(notebook):
    notebook.run("%%tpu_mode strict --target v5e,v6e", "1 + 1")
    assert shown(notebook) == ["for v5e, v6e: the cell ran no program"]


def test_a_cell_that_fails_is_compiled_as_far_as_it_came(notebook):
    notebook.run("%%tpu_mode strict --target v5e", WORK[0], "1 / 0")
    assert shown(notebook)[0].startswith("for v5e: ")


def test_several_chips_are_one_table(notebook):
    notebook.run("%%tpu_mode defer_and_fuse --target v5e,v6e", *WORK)
    notebook.run("%tpu_target wait")
    last = shown(notebook)[-1]
    assert last.startswith("On 2 chips: all fit")
    assert "Compiled for v5e, v6e: all fit" in last


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("%tpu_target v6", "unknown chip 'v6': use one of v4, v5e, v5p, v6e, tpu7x. Did you mean 'v6e'?"),
        ("%tpu_target --effort full", "--effort goes with chips"),
        ("%%tpu_mode strict --target v9\n1", "unknown chip 'v9'"),
        ("%tpu_mode strict --target v5e", "--target is for one cell: use it with %%tpu_mode, or %tpu_target"),
        ("%%tpu_mode strict --effort full\n1", "--effort says how hard to compile for --target"),
        ("%%tpu_mode strict --quiet --target v5e\n1", "--target adds to the report, which --quiet hides"),
        ("%tpu_fit step --target v6\n", "unknown chip 'v6'"),
        ("%tpu_fit step --hbm much", "--hbm takes a size, as in --hbm 8GiB"),
        ("%tpu_fit step --vary size", "step has no parameter 'size' to vary: it has batch"),
        ("%tpu_fit step --try remat", "no change is called 'remat'"),
        ("%tpu_fit nothing", "name 'nothing' is not defined"),
    ],
)
def test_what_is_refused(notebook, line, says):
    notebook.run("def step(batch): return torch.ones(batch, device='tpu') + 1")
    assert not notebook.run(*line.split("\n")).success
    assert says in notebook.printed
    notebook.run("%tpu_target")
    assert notebook.printed == "target: off\n"


def test_without_libtpu_the_cell_runs_and_says_how_to_get_it(notebook, monkeypatch):
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    process.version.cache_clear()
    monkeypatch.setattr(process.importlib.metadata, "version", version)
    assert not notebook.run("%tpu_target v5e").success
    assert "pip install 'torchtpu[tpu]'" in notebook.printed
    assert notebook.run("%%tpu_mode defer_and_fuse --target v5e", *WORK).result == pytest.approx(2037.9, rel=1e-3)
    notebook.run("%tpu_target wait")
    assert "CompilerMissingError: the TPU compiler (libtpu) is not installed" in shown(notebook)[-1]
    monkeypatch.undo()
    process.version.cache_clear()


@pytest.fixture
def waiting(monkeypatch):
    """Compilers that are at the second of three programs until they are let go, or told to stop."""
    made = []

    class Compilation:
        def __init__(self, report: Report, chips: list, effort: str) -> None:
            self.go = threading.Event()
            self.total, self.underway, self.error = 3, "fused<b>", None
            made.append(self)

        def wait(self, timeout: float) -> bool:
            return self.go.wait(timeout)

        def collect(self) -> tuple[TargetRow, ...]:
            return (row("v5e"),)

        cancel = property(lambda self: self.go.set)

    monkeypatch.setattr(targets, "Compilation", Compilation)
    yield made
    for compilation in made:
        compilation.go.set()


def row(chip: str, **changed) -> TargetRow:
    values = dict(
        program="fused_<b>#1", outputs=("float32[8]",), line=None, chip=chip, compiler="libtpu 1", effort="memory", fits=True,
        reason="", refused=False, limit=16 << 30, runs=2, argument_bytes=1 << 20, output_bytes=2 << 20, alias_bytes=1 << 20,
        temp_bytes=3 << 20, held=5 << 20, flops=1e9, bytes_accessed=1e6, bound="compute", roofline=1e-3, seconds=2.0,
    )  # fmt: skip
    return TargetRow(**(values | changed))


def test_stopped_what_is_there_stays(notebook, waiting):
    notebook.run("%%tpu_mode defer_and_fuse --target v5e", *WORK)
    assert shown(notebook)[-1].startswith("for v5e: compiling 1 of 3")
    notebook.run("%tpu_target")
    assert "compiling" in shown(notebook)[-1]
    notebook.run("%tpu_target stop")
    last = shown(notebook)[-1]
    assert last.startswith("Compiled for v5e: it fits")
    assert "! 2 of 3 were not compiled: run the cell again for them" in last


def test_a_program_is_named_while_it_is_compiled_and_the_kernel_is_free(notebook, waiting):
    notebook.run("%%tpu_mode defer_and_fuse --target v5e", *WORK)
    assert notebook.run("import time; time.sleep(0.8); 7").result == 7
    lines = shown(notebook, "fused<b>")
    assert lines[0].startswith("for v5e: compiling 2 of 3, fused<b>, ")
    html = [o["data"]["text/html"] for o in notebook.shell.display_pub.outputs if "fused<b>" in o["data"]["text/plain"]]
    assert "fused&lt;b&gt;" in html[0]


def test_ctrl_c_ends_the_wait_and_loses_nothing(notebook, waiting):
    notebook.run("%%tpu_mode defer_and_fuse --target v5e", *WORK)
    interrupt = "import signal, threading; threading.Timer(0.3, lambda: signal.raise_signal(signal.SIGINT)).start()"
    assert isinstance(notebook.run(interrupt, "%tpu_target wait").error_in_exec, KeyboardInterrupt)
    waiting[0].go.set()
    notebook.run("%tpu_target wait")
    assert shown(notebook)[-1].startswith("Compiled for v5e: it fits")


def test_unloading_stops_it(notebook, waiting):
    notebook.run("%%tpu_mode defer_and_fuse --target v5e", *WORK)
    notebook.run("%unload_ext torchtpu")
    assert waiting[0].go.is_set()


def test_in_a_script_a_report_is_compiled_by_a_method():
    x = torch.ones(8, 256, device="tpu")
    with torchtpu.watch() as report:
        (x * 3).tanh()
    rows = report.compile_for("v5e")
    assert rows == report.targets
    assert [r.program for r in rows] == [p.name for p in report.programs]
    small = report.compile_for("v5e", hbm=1 << 10)
    assert [r.fits for r in small] == [False, False]
    assert all(r.reason and r.peak > r.limit for r in small)
    with pytest.raises(UnknownChipError):
        report.compile_for("v5")
    with pytest.raises(ValueError, match="read from a file"):
        Report.from_json(report.to_json()).compile_for("v5e")


def test_what_does_not_fit_comes_first_with_its_reason():
    small = [row("v6e", program=f"aten_mul#{k}", temp_bytes=k << 10) for k in range(20)]
    bad = row("v5e", fits=False, reason="it needs <17> GiB", temp_bytes=16 << 30)
    refused = row("v5e", refused=True, fits=False, reason="no lowering", compiler="")
    chips, programs = tables([*small, bad, refused])
    assert chips.title == "On 2 chips: 2 of 22 programs do not fit"
    assert [r[:2] for r in chips.rows] == [("v6e", "yes"), ("v5e", "no: 0 of 2")]
    assert [programs.rows[k][3].text for k in (0, 1)] == ["refused", "no"]
    assert programs.more.startswith("10 more rows, all fit")
    html = section_html(programs)
    assert "it needs &lt;17&gt; GiB" in html
    assert "fused_&lt;b&gt;#1" in html
    for lost in ("<svg", "<style", "<script", "<iframe"):
        assert lost not in html


def test_fit_draws_and_returns_the_answer(notebook, monkeypatch):
    def compile(self, target: str, *, effort: str, hbm: int | None, progress) -> SimpleNamespace:
        progress("", 2.0)
        peak = 1024 * self.outputs[0].shape[0]
        return SimpleNamespace(
            fits=peak <= hbm, hbm_peak=peak, limit=hbm, seconds=1.0, from_disk=False, compiler="libtpu 1", effort=effort
        )

    monkeypatch.setattr(ahead.Captured, "compile", compile)
    notebook.run("def step(batch): return torch.ones(batch, device='tpu') + 1")
    result = notebook.run("found = %tpu_fit step --target v5e,v6e --try none --hbm 1.5MiB", "found")
    assert result.result.largest("v6e") == 1536
    first, *_, last = shown(notebook, "fit of step: ")
    assert first.startswith("fit of step: v5e, as it is: batch 8, compiling")
    assert last.startswith("fit of step: 8 programs, ")
    assert "largest batch that fits is 1,536" in notebook.printed


def test_an_interrupted_fit_shows_what_it_found(notebook, monkeypatch):
    def compile(self, target: str, *, progress, **options) -> SimpleNamespace:
        if self.outputs[0].shape[0] > 8:
            raise KeyboardInterrupt
        progress("", 2.0)
        return SimpleNamespace(fits=True, hbm_peak=9, limit=99, seconds=1.0, from_disk=False, compiler="libtpu 1")

    monkeypatch.setattr(ahead.Captured, "compile", compile)
    notebook.run("def step(batch): return torch.ones(batch, device='tpu') + 1")
    assert isinstance(notebook.run("%tpu_fit step").error_in_exec, KeyboardInterrupt)
    last = shown(notebook)[-1]
    assert last.startswith("fit of step: interrupted, 1 program, ")
    assert "batch 8 fits" in last
