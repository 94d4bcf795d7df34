"""`--numerics tpu`: a cell, or a session, that multiplies float32 numbers as a TPU does."""

import pytest

from torchtpu import config

SETUP = (
    "import torch",
    "x = torch.linspace(1, 2, 64).reshape(8, 8)",
    "exact = x.double() @ x.double()",
    "def error(y): return float(((y.cpu().double() - exact) / exact).abs().max())",
)


@pytest.mark.parametrize("mode", ["strict", "debug", "defer_and_fuse"])
def test_a_cell_shows_what_the_passes_do(notebook, mode):
    notebook.run(*SETUP)
    cell = (
        "with torch.tpu.precision('DEFAULT'):",
        "    e = error(x.to('tpu') @ x.to('tpu'))",
    )
    assert notebook.run(f"%%tpu_mode {mode} --numerics tpu", *cell).success
    assert "emulated" in notebook.report
    (html,) = (data["text/html"] for data in notebook.reports)
    assert "DEFAULT, emulated" in html
    assert 2**-10 < notebook.shell.user_ns["e"] < 2**-7
    assert config.numerics == "native"
    assert notebook.run(f"%%tpu_mode {mode}", *cell).success
    assert "exactly unless they are emulated" in " ".join(notebook.report.split())
    assert notebook.shell.user_ns["e"] < 2**-20


def test_the_session_can_have_it_and_a_cell_can_leave_it(notebook):
    notebook.run(*SETUP)
    try:
        assert notebook.run("%tpu_mode --numerics tpu").success
        assert (notebook.printed, config.numerics) == ("", "tpu")
        assert notebook.run("%%tpu_mode --numerics native --quiet", "seen = torchtpu.config.numerics").success
        assert (notebook.shell.user_ns["seen"], config.numerics) == ("native", "tpu")
        assert notebook.run("%%tpu_mode --quiet", "seen = torchtpu.config.numerics").success
        assert notebook.shell.user_ns["seen"] == "tpu"
    finally:
        config.numerics = "native"


def test_an_error_in_the_cell_ends_it_too(notebook):
    assert not notebook.run("%%tpu_mode --numerics tpu --quiet", "1 / 0").success
    assert config.numerics == "native"


@pytest.mark.parametrize("cell", [["%tpu_mode --numerics tup"], ["%%tpu_mode strict --numerics tup", "ran = 1"]])
def test_another_value_stops_the_cell(notebook, cell):
    assert not notebook.run(*cell).success
    assert "UsageError: numerics='tup': use one of native, tpu. Did you mean 'tpu'?" in notebook.printed
    assert "ran" not in notebook.shell.user_ns
