"""`%tpu_tensorboard` and `%tpu doctor`: what they show, keep in the saved file, and say of bad input."""

import json
import re
import subprocess
import sys

import pytest

from tests.profiler.on_disk import write, write_run
from torchtpu import profiler
from torchtpu.profiler import links, tensorboard


@pytest.fixture(autouse=True)
def none_left():
    yield
    tensorboard.stop()


@pytest.fixture
def logs(tmp_path):
    write_run(tmp_path / "my logs", "a")
    return tmp_path / "my logs"


def shown(notebook) -> dict[str, str]:
    (output,) = notebook.shell.display_pub.outputs
    return output["data"]


def about(html: str) -> dict[str, object]:
    return json.loads(re.search(r"const about = (\{.*?\});", html)[1])


def test_it_shows_the_newest_run_with_a_link_and_no_frame_in_the_file(notebook, logs):
    assert notebook.run(f"%tpu_tensorboard '{logs}' --height 500").success
    (server,) = tensorboard.running()
    data = shown(notebook)
    assert set(data) == {"text/html", "text/plain"}
    first, link, rest = data["text/plain"].splitlines()
    assert first == f"torchtpu TensorBoard: run a of {logs}"
    assert link == f"http://127.0.0.1:{server.port}/?run=a#profile"
    assert rest.endswith(f"while the kernel runs; again: %tpu_tensorboard '{logs}'")
    static, _, script = data["text/html"].partition("<script>")
    assert f'href="{link}"' in static
    assert "<iframe" not in data["text/html"]
    values = about(script)
    assert (values["port"], values["height"], values["logdir"]) == (server.port, 500, str(logs))
    assert values["page"] == "?run=a#profile"
    again = rest.partition("again: ")[2]
    assert notebook.run(again).success
    assert tensorboard.running() == [server]


def test_runs_are_counted(notebook, logs):
    write_run(logs / "train", "b")
    notebook.run(f"%tpu_tensorboard '{logs}'")
    assert shown(notebook)["text/plain"].startswith("torchtpu TensorBoard: run train/b and 1 other of ")


def test_left_out_it_is_the_folder_of_the_last_profile(notebook, logs, monkeypatch):
    monkeypatch.setattr(profiler, "last_logdir", lambda: str(logs))
    assert notebook.run("%tpu_tensorboard").success
    assert [s.logdir for s in tensorboard.running()] == [logs]


def test_with_no_profile_at_all(notebook, monkeypatch):
    monkeypatch.setattr(profiler, "last_logdir", lambda: None)
    assert not notebook.run("%tpu_tensorboard").success
    expected = "UsageError: nothing was profiled in this session: name the log directory, as in %tpu_tensorboard logs"
    assert expected in notebook.printed


def test_stop(notebook, logs, tmp_path):
    notebook.run(f"%tpu_tensorboard '{logs}'")
    notebook.run("%tpu_tensorboard --stop")
    assert notebook.printed == "1 TensorBoard ended\n"
    assert tensorboard.running() == []
    notebook.run("%tpu_tensorboard --stop")
    assert notebook.printed == "0 TensorBoards ended\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("missing", "does not exist: capture one: with torchtpu.profile("),
        ("file", "is a file, and a log directory is a folder"),
        ("empty", "there is no profile (*.xplane.pb) below "),
        ("deep", "a level too deep, below plugins/profile/a): move it: mkdir -p "),
        ("'my logs' --port 0", "a port is a number from 1 to 65535: 0"),
        ("'my logs' --port x", "argument --port: invalid int value: 'x'"),
        ("'my logs' --height 0", "--height is in pixels, 100 or more: 0"),
        ("'my logs' more", "unrecognized arguments: more"),
    ],
)
def test_bad_input_is_one_line(notebook, logs, tmp_path, arguments, message):
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    write(tmp_path / "deep" / "plugins" / "profile" / "a" / "b")
    assert not notebook.run(f"%tpu_tensorboard {arguments}").success
    assert notebook.printed.startswith("UsageError: ")
    assert message in notebook.printed
    assert "Traceback" not in notebook.printed
    assert tensorboard.running() == []


def test_a_proxy_and_what_it_needs(notebook, logs, monkeypatch):
    monkeypatch.setattr(links.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(tensorboard, "_check_installed", lambda: None)
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/ada/")
    assert notebook.run(f"%tpu_tensorboard '{logs}'").success
    (server,) = tensorboard.running()
    text = shown(notebook)["text/plain"]
    assert f"/user/ada/proxy/{server.port}/?run=a#profile" in text
    assert text.endswith("(in the kernel's it is not installed).")
    assert about(shown(notebook)["text/html"])["direct"] is False


def test_names_of_folders_do_not_become_html(notebook, tmp_path):
    logs = tmp_path / "<b>x<" / "script>"
    write_run(logs, "a")
    assert notebook.run(f"%tpu_tensorboard '{logs}'").success
    html = shown(notebook)["text/html"]
    assert "<b>x" not in html
    assert html.count("</script>") == 1
    assert about(html)["logdir"] == str(logs)


def test_doctor(notebook, logs):
    assert notebook.run(f"%tpu doctor '{logs}'").success
    data = shown(notebook)
    assert data["text/plain"].startswith("torchtpu doctor: no problems, ")
    assert f"{logs}: 1 run, the newest a" in data["text/plain"].replace("\n", " ").replace("  ", "")
    assert "doctor</b>" in data["text/html"]


def test_doctor_without_a_folder(notebook, monkeypatch):
    monkeypatch.setattr(profiler, "last_logdir", lambda: None)
    assert notebook.run("%tpu doctor").success
    assert "none was named, and nothing was captured in this session" in shown(notebook)["text/plain"]


def test_nothing_is_imported_before_it_is_used():
    """The device needs no notebook, and loading the extension no profiler, and neither needs TensorBoard."""
    code = (
        "import sys, torchtpu, torchtpu.profiler.tensorboard, torchtpu.profiler.diagnosis\n"
        "assert not {'IPython', 'tensorboard', 'xprof', 'packaging.requirements'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
