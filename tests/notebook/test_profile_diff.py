"""`%tpu_profile_diff`."""

import pytest

from tests.profiler import made
from torchtpu.profiler import stored


@pytest.fixture
def ready(notebook, tmp_path):
    """A notebook with two profiles, one of them in a run's folder."""
    notebook.shell.user_ns["first"] = made.profile()
    folder = tmp_path / "runs" / "plugins" / "profile" / "second"
    folder.mkdir(parents=True)
    stored.write(made.profile(run="second", steps=()), folder)
    return notebook


@pytest.mark.parametrize(
    ("name", "shown"), [("runs/plugins/profile/second", "second"), ("runs/second", "second"), ("'runs'", "runs")]
)
def test_it_compares_a_variable_and_a_run(ready, name, shown):
    assert ready.run(f"%tpu_profile_diff first {name}").success
    (data,) = ready.reports
    assert data["text/plain"].startswith(f"torchtpu profile difference: before first, after {shown} (measured)")
    assert set(data) == {"text/html", "text/plain"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("first runs/secnd", "no run at runs/secnd. runs has second. Did you mean 'second'?"),
        ("first fist", "no run at fist. No variable holds one either. Did you mean 'first'?"),
        ("first torch", "torch is a module: %tpu_profile_diff takes the folder of a run, LOGDIR/RUN, a saved .json"),
        ("first", "the following arguments are required: after"),
    ],
)
def test_what_it_cannot_compare_is_said(ready, arguments, message):
    assert not ready.run(f"%tpu_profile_diff {arguments}").success
    assert message in ready.printed
    assert "Traceback" not in ready.printed


def test_a_capture_of_the_notebook_is_compared_with_itself(notebook):
    work = "with torchtpu.profiler.profile('runs') as p:\n    (torch.ones(64, device='tpu') + 1).sum().item()"
    assert notebook.run("import torchtpu.profiler\n" + work).success
    assert notebook.run("%tpu_profile_diff p runs").success
    assert notebook.report.startswith("torchtpu profile difference: before p, after runs (measured)")
    assert "In[3], line 3: (torch.ones(64, device='tpu') + 1)" in notebook.report
