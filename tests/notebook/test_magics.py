"""`%tpu`, `%tpu_mode`, and what the magics say about themselves."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    "name", ["debug", "DEBUG", "Defer-Never-And-Launch-Blocking", "EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING"]
)
def test_mode_names_are_read_generously(notebook, name):
    assert notebook.run(f"%tpu_mode {name}").success
    notebook.run("%tpu_mode")
    assert notebook.printed == "debug\n"


@pytest.mark.parametrize(
    "cell", [["%tpu_mode debgu"], ["%%tpu_mode debgu", "ran = 1"], ["ran = 0", "%tpu_mode debgu", "ran = 1"]]
)
def test_an_unknown_mode_stops_the_cell(notebook, cell):
    result = notebook.run(*cell)
    assert not result.success
    expected = "UsageError: unknown eager mode 'debgu': use one of strict, debug, defer_and_fuse. Did you mean 'debug'?"
    assert expected in notebook.printed
    assert notebook.shell.user_ns.get("ran", 0) == 0
    assert notebook.reports == []


def test_unknown_options_stop_the_cell(notebook):
    assert not notebook.run("%%tpu_mode strict --quite", "ran = 1").success
    assert "UsageError: unrecognized arguments: --quite" in notebook.printed
    assert "ran" not in notebook.shell.user_ns


def test_options_of_a_report_need_a_cell(notebook):
    assert not notebook.run("%tpu_mode strict --quiet").success
    assert "UsageError: --quiet, --save and --graph belong to a report: use them with %%tpu_mode" in notebook.printed


def test_the_mode_stays_set(notebook):
    notebook.run("%tpu_mode defer_and_fuse")
    assert notebook.printed == ""
    assert notebook.run("torchtpu.modes.current().label").result == "defer_and_fuse"


def test_status(notebook):
    notebook.run("x = torch.ones(1024, 256, device='tpu')", "x.sum().item()")
    notebook.run("%tpu")
    rows = dict(line.split("  ", 1) for line in notebook.printed.splitlines())
    assert list(rows) == ["device", "platform", "mode", "HBM in use", "HBM peak", "HBM limit", "programs"]
    assert rows["device"].strip() == "tpu:0"
    assert rows["platform"].strip() == "cpu"
    assert rows["mode"].strip() == "strict"
    assert rows["HBM in use"].strip().endswith("MiB")
    assert int(rows["programs"].split()[0].replace(",", "")) >= 1


def test_status_takes_no_arguments(notebook):
    assert not notebook.run("%tpu strict").success
    expected = (
        "UsageError: %tpu takes no arguments, `dashboard`, or `doctor` and a log directory; the mode is set with %tpu_mode"
    )
    assert expected in notebook.printed


@pytest.mark.parametrize("question", ["%%tpu_mode?", "%tpu_mode?", "?%%tpu_mode", "%tpu?"])
def test_help(notebook, question):
    assert notebook.run(question).success
    assert notebook.reports == []
    assert "HBM" in notebook.printed or "%%tpu_mode: save the report too" in notebook.printed


def test_listed_and_completed(notebook):
    lines, cells = (notebook.shell.magics_manager.lsmagic()[kind] for kind in ("line", "cell"))
    assert {"tpu", "tpu_mode"} <= lines.keys()
    assert "tpu_mode" in cells
    assert "%%tpu_mode" in notebook.shell.complete("%%tpu_")[1]


def test_a_terminal_shows_text(tmp_path):
    code = "%load_ext torchtpu\n_ = get_ipython().run_cell('%%tpu_mode debug\\n41 + 1')"
    out = subprocess.run(
        [sys.executable, "-m", "IPython", "--no-banner", "--colors=NoColor", f"--ipython-dir={tmp_path}", "-c", code],
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.startswith("Out[0]: 42\ntorchtpu debug: 0 programs")


def test_loading_prints_nothing_and_starts_no_device():
    code = """
import sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell()
for line in ("%load_ext torchtpu", "x = 1", "%tpu"):
    assert shell.run_cell(line).success
    if line != "%tpu":
        print("-")
from torchtpu import client
assert not client.started() and "jax" not in sys.modules
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stderr == ""
    assert out.stdout.startswith("-\n-\ndevice      tpu:0\nplatform    not started yet")
