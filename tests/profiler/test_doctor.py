"""`doctor` names the cause, and what to do; and whatever it meets, it does not raise."""

import importlib.metadata
import os
import shutil
import socket
import sys
from collections import namedtuple

import pytest

from tests.profiler.on_disk import write, write_run
from torchtpu.profiler import diagnosis, tensorboard
from torchtpu.profiler.diagnosis import Diagnosis, Row, doctor

LOADS = "in a process of its own, as TensorBoard's is"


@pytest.fixture
def quick(monkeypatch):
    """Without the process that loads the plugin, which takes a second."""
    monkeypatch.setattr(diagnosis, "_loads", lambda: iter(()))


def rows(found: Diagnosis, check: str) -> list[Row]:
    return [row for row in found.rows if row.check == check]


def trouble(found: Diagnosis, check: str) -> list[Row]:
    return [row for row in rows(found, check) if row.state != "ok"]


def test_here_all_is_well(tmp_path):
    write_run(tmp_path, "a")
    found = doctor(tmp_path)
    assert [(r.check, r.state) for r in found.rows if r.check not in ("address", "embedding")] == [
        ("Python", "ok"),
        ("packages", "ok"),
        ("profile plugin", "ok"),
        ("plugin loads", "ok"),
        ("log directory", "ok"),
        ("disk", "ok"),
        ("port", "ok"),
        ("Google Charts", "warning"),  # only the browser knows
    ]
    (packages,) = rows(found, "packages")
    for name in ("jax", "jaxlib", "protobuf", "tensorboard", "xprof"):
        assert f"{name} {importlib.metadata.version(name)}" in packages.found
    (logdir,) = rows(found, "log directory")
    assert logdir.found.startswith(f"{tmp_path}: 1 run, the newest a (")
    assert all(row.do for row in found.rows if row.state == "problem")


@pytest.mark.parametrize("make", ["missing", "misplaced", "inside", "empty run"])
def test_a_log_directory_that_shows_nothing(quick, tmp_path, make):
    path = tmp_path / "logs"
    match make:
        case "misplaced":
            write(path / "a")
        case "inside":
            path = write_run(path)
        case "empty run":
            (path / "plugins" / "profile" / "a").mkdir(parents=True)
    (row,) = trouble(doctor(path), "log directory")
    assert row.state == "problem"
    assert str(path) in row.found
    assert row.do


def test_a_fault_beside_a_run_is_a_warning(quick, tmp_path):
    write_run(tmp_path, "a")
    write(tmp_path / "b")
    found = doctor(tmp_path)
    assert [row.state for row in rows(found, "log directory")] == ["ok", "warning"]


def without(monkeypatch, *names: str) -> None:
    there = diagnosis._version
    monkeypatch.setattr(diagnosis, "_version", lambda name: None if name in names else there(name))


def test_no_tensorboard(quick, monkeypatch):
    without(monkeypatch, "tensorboard")
    row = trouble(doctor(), "packages")[0]
    assert (row.state, row.found, row.do) == ("problem", "TensorBoard is not installed", "pip install 'torchtpu[profile]'")


def test_versions_that_do_not_fit(quick, monkeypatch):
    there = diagnosis._version
    monkeypatch.setattr(diagnosis, "_version", lambda name: {"xprof": "2.20.0", "jaxlib": "0.1.0"}.get(name) or there(name))
    found = trouble(doctor(), "packages")
    needs = {row.found: row.do for row in found}
    plugin = importlib.metadata.version("tensorboard-plugin-profile")
    assert needs[f"tensorboard-plugin-profile {plugin} needs xprof=={plugin}, and 2.20.0 is installed"] == (
        f"pip install 'xprof=={plugin}', or pip install 'torchtpu[profile]'"
    )
    assert any(text.startswith("jax ") and "needs jaxlib" in text and "0.1.0 is installed" in text for text in needs)


def test_a_dependency_that_is_not_there(quick, monkeypatch):
    without(monkeypatch, "Werkzeug", "werkzeug")
    found = [row.found for row in trouble(doctor(), "packages")]
    version = importlib.metadata.version("tensorboard")
    assert f"tensorboard {version} needs werkzeug, which is not installed" in found


def test_two_distributions_of_one_package(quick, monkeypatch):
    there = diagnosis._version
    monkeypatch.setattr(diagnosis, "_version", lambda name: "2.22.0a1" if name == "tb-nightly" else there(name))
    (row,) = trouble(doctor(), "packages")
    assert row.found == "tensorboard and tb-nightly overwrite each other's files"
    assert row.do == "keep one: pip uninstall -y tensorboard tb-nightly && pip install tensorboard"


OLD = "tensorboard_plugin_profile.profile_plugin_loader:ProfilePluginLoader"
NEW = "xprof.profile_plugin_loader:ProfilePluginLoader"


@pytest.mark.parametrize(
    ("registered", "found", "do"),
    [
        ({}, "none is registered with TensorBoard", "pip install 'torchtpu[profile]'"),
        (
            {"tensorboard_plugin_profile": OLD, "xprof": NEW},
            "each register one",
            "pip uninstall -y tensorboard_plugin_profile &&",
        ),
        ({"xprof": NEW, "xprof-nightly": NEW}, "each register one", "pip uninstall -y xprof-nightly &&"),
        ({"tensorflow": "x:Y", "tbp-nightly": OLD}, "each register one", "pip uninstall -y tbp-nightly &&"),
        ({"tensorboard_plugin_profile": OLD}, "is from before XProf", "pip uninstall -y tensorboard_plugin_profile &&"),
    ],
)
def test_plugins_that_are_not_one_xprof(quick, monkeypatch, registered, found, do):
    monkeypatch.setattr(tensorboard, "plugins", lambda: registered)
    (row,) = rows(doctor(), "profile plugin")
    assert row.state == "problem"
    assert found in row.found
    assert row.do.startswith(do)


def test_a_plugin_that_does_not_load(tmp_path, monkeypatch):
    """As protobuf does, when the code it made is newer than itself."""
    (tmp_path / "google" / "protobuf").mkdir(parents=True)
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.startswith('xprof.protobuf'): raise ImportError('gencode 9.0 runtime 7.0')\n"
        "sys.meta_path.insert(0, Block())\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    (row,) = rows(doctor(), "plugin loads")
    assert row.state == "problem"
    assert row.found == "it does not: ImportError: gencode 9.0 runtime 7.0"


def test_a_disk_that_is_full(quick, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    for free, state in ((50 << 20, "problem"), (500 << 20, "warning"), (50 << 30, "ok")):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, free=free: usage(1 << 40, 0, free))
        (row,) = rows(doctor(tmp_path / "not" / "yet"), "disk")
        assert row.state == state
        assert str(tmp_path) in row.found


def test_a_folder_that_cannot_be_written_to(quick, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)  # root may write anywhere
    (row,) = trouble(doctor(tmp_path), "disk")
    assert row.found == f"{tmp_path} cannot be written to"


def test_who_has_the_port(quick, tmp_path, monkeypatch):
    write_run(tmp_path / "logs", "a")
    with socket.create_server(("127.0.0.1", 0)) as other:
        monkeypatch.setattr(tensorboard, "PORTS", [other.getsockname()[1]])
        monkeypatch.setattr(tensorboard, "owner_of", lambda port: "a TensorBoard 2.21.0 of /theirs")
        (row,) = rows(doctor(), "port")
        assert "is taken by a TensorBoard 2.21.0 of /theirs, which is not of this session" in row.found
    server = tensorboard.start(tmp_path / "logs")
    try:
        found = doctor()
        (row,) = rows(found, "server")
        assert row.found == f"of {tmp_path / 'logs'}, at {server.url}: 1 run"
        assert rows(found, "address")[0].found == f"this machine: port {server.port} is at {server.url}"
    finally:
        server.stop()


def test_the_address_and_what_it_needs(quick, monkeypatch):
    monkeypatch.setenv("JUPYTERHUB_SERVICE_PREFIX", "/user/ada/")
    found = doctor()
    (row,) = rows(found, "address")
    assert row.state == "warning"
    assert row.found == "JupyterHub (by JUPYTERHUB_SERVICE_PREFIX): port 6006 is at /user/ada/proxy/6006/"
    assert row.do.startswith("it needs jupyter-server-proxy")
    assert rows(found, "embedding") == []


def test_it_never_raises(monkeypatch):
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(tensorboard, "plugins", broken)
    monkeypatch.setattr(tensorboard, "running", broken)
    monkeypatch.setattr(tensorboard, "owner_of", broken)
    monkeypatch.setattr(diagnosis.subprocess, "run", broken)
    monkeypatch.setattr(diagnosis.logdirs, "look", broken)
    monkeypatch.setattr(diagnosis.links, "route", broken)
    monkeypatch.setitem(sys.modules, "packaging", None)
    found = doctor("/")
    broken_ones = {r.check for r in found.rows if r.state == "warning" and r.found.endswith("RuntimeError: broken")}
    assert broken_ones == {"profile plugin", "plugin loads", "log directory", "port", "address", "browser"}


def test_it_is_drawn_as_text_and_as_html():
    rows = (
        Row("Python", "ok", "3.13.0"),
        Row("log directory", "problem", "<b> is a file " + "and so on " * 20, "type: rm -r '/a b'/c-d"),
        Row("charts", "warning", "not known"),
    )
    found = Diagnosis(rows)
    assert found.title == "1 problem, 1 warning"
    text = found.to_text(80)
    assert text.splitlines()[:2] == ["torchtpu doctor: 1 problem, 1 warning", "ok       Python         3.13.0"]
    assert "                        -> type: rm -r '/a b'/c-d" in text
    assert max(map(len, text.splitlines())) <= 80
    html = found.to_html()
    assert "&lt;b&gt; is a file" in html
    assert "<b> is" not in html
    assert Diagnosis(()).title == "no problems, no warnings"
    assert str(found) == found.to_text()
    assert repr(found) == "<torchtpu doctor: 1 problem, 1 warning>"
