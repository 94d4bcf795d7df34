"""Two reports compared, and saved ones read without a device."""

import subprocess
import sys

import pytest
import torch

import torchtpu
from torchtpu.report import Report, diff
from torchtpu.report.__main__ import main


def watched(mode: str, n: int = 3) -> Report:
    x = torch.ones(n, device="tpu")
    with torchtpu.modes.scope(mode), torchtpu.watch() as report:
        y = x * 2 + 1
        y.sum().item()
        y.cpu()
    return report


@pytest.fixture(scope="module")
def reports() -> tuple[Report, Report]:
    watched("strict"), watched("defer_and_fuse")
    return watched("strict"), watched("defer_and_fuse")


def test_figures_and_programs(reports):
    found = diff(*reports)
    changes = {c.figure: (c.before, c.after) for c in found.changes}
    assert changes["runs"] == (3, 1)
    assert changes["ops"] == (3, 3)
    assert changes["HBM peak"] == (reports[0].hbm_peak, reports[1].hbm_peak)
    assert [(p.runs_before, p.runs_after) for p in found.programs] == [(1, 0)] * 3 + [(0, 1)]
    assert found.programs[-1].program.startswith("fused_3_ops")
    assert found.programs[0].line.startswith("test_difference.py")


def test_the_same_report_differs_in_nothing(reports):
    found = diff(reports[0], reports[0])
    assert all(c.before == c.after for c in found.changes)
    assert found.programs == ()
    assert (found.before, found.after) == ("strict (before)", "strict (after)")


def test_drawn(reports):
    found = diff(*reports, names=("<b>.json", "b.json"))
    text, page = found.to_text(), found.to_html()
    for drawn in (text, page):
        assert "0.33 x" in drawn
        assert "Programs that ran a different number of times: 4" in drawn
    assert "<b>.json" in text
    assert "&lt;b&gt;.json" in page
    assert str(found) == text


@pytest.fixture
def saved(reports, tmp_path) -> list[str]:
    return [str(report.save(tmp_path / f"{report.mode}.json")) for report in reports]


def test_a_saved_report_is_shown_without_a_device(reports, saved):
    code = "import sys, runpy, torchtpu; sys.argv = sys.argv[1:]\n"
    code += "try: runpy.run_module('torchtpu.report', run_name='__main__')\n"
    code += "finally: assert 'jax' not in sys.modules"
    out = subprocess.run([sys.executable, "-W", "error", "-c", code, "report", saved[0]], capture_output=True, text=True)
    assert out.stderr == ""
    assert out.stdout == reports[0].to_text() + "\n"


def test_the_command_line(reports, saved, tmp_path, capsys):
    assert main(saved) == 0
    assert capsys.readouterr().out.startswith("torchtpu difference: ")
    assert main([saved[1], "--html", str(tmp_path / "page.html")]) == 0
    assert reports[1].to_html() in (tmp_path / "page.html").read_text()
    (tmp_path / "other.json").write_text("[1]")
    assert main([str(tmp_path / "other.json")]) == 1
    assert "this JSON is not a torchtpu.report" in capsys.readouterr().err
    assert main([str(tmp_path / "absent.json")]) == 1


def test_magics(notebook, reports, saved):
    notebook.run(f"%tpu_diff {saved[0]} '{saved[1]}'")
    (output,) = notebook.shell.display_pub.outputs
    assert output["data"]["text/plain"] == diff(*reports, names=("strict.json", "defer_and_fuse.json")).to_text()
    assert set(output["data"]) == {"text/html", "text/plain"}
    assert notebook.run(f"%tpu_report {saved[0]}").result == reports[0]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("%tpu_report", "%tpu_report takes a file"),
        ("%tpu_report absent.json", "cannot read absent.json: No such file or directory"),
        ("%tpu_report notes.json", "notes.json: this JSON is not a torchtpu.report"),
        ("%tpu_diff notes.json", "the following arguments are required: after"),
    ],
)
def test_magics_given_something_else(notebook, tmp_path, line, error):
    (tmp_path / "notes.json").write_text("{}")
    assert not notebook.run(line).success
    assert f"UsageError: {error}" in notebook.printed
