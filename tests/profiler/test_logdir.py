"""What TensorBoard finds below a folder, and what it does not: every mistake is named, with the command that mends it."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.profiler.on_disk import write, write_run
from torchtpu.profiler import logdir
from torchtpu.profiler.logdir import look


def test_runs_are_found_at_every_depth_and_the_newest_is_last(tmp_path):
    first, second = write_run(tmp_path, "b"), write_run(tmp_path / "train", "a")
    write(second, "other_host.xplane.pb")
    os.utime(first / "laptop.xplane.pb", (1e9, 1e9))
    found = look(tmp_path)
    assert [run.name for run in found.runs] == ["b", "train/a"]
    assert found.newest.path == second
    assert [file.name for file in found.newest.files] == ["laptop.xplane.pb", "other_host.xplane.pb"]
    assert found.newest.nbytes == sum(file.stat().st_size for file in second.iterdir())
    assert found.runs[0].modified == 1e9
    assert found.faults == ()
    assert found.why_nothing() == ""


def test_a_path_is_read_as_a_user_writes_it(tmp_path, monkeypatch):
    write_run(tmp_path / "logs")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert look("~/logs").path == look("logs/").path == look(tmp_path / "x" / ".." / "logs").path == tmp_path / "logs"
    assert len(look("~/logs").runs) == 1


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda p: None, "there is no profile (*.xplane.pb) below {p}"),
        (lambda p: p.rmdir(), "{p} does not exist"),
        (lambda p: (p.rmdir(), p.write_text("x")), "{p} is a file, and a log directory is a folder"),
        (
            lambda p: (p / "host.123.pt.trace.json").write_text("{}"),
            "{p} holds traces of torch.profiler (host.123.pt.trace.json), which XProf does not read",
        ),
    ],
    ids=["empty", "missing", "file", "torch.profiler"],
)
def test_where_there_is_no_profile(tmp_path, make, what):
    path = tmp_path / "logs"
    path.mkdir()
    make(path)
    found = look(path)
    assert found.runs == ()
    assert [fault.what for fault in found.faults] == [what.format(p=path)]
    assert found.why_nothing() == str(found.faults[0])
    if not path.is_file():
        assert f"with torchtpu.profile({str(path)!r}): ..." in found.faults[0].do


@pytest.mark.parametrize("inside", ["plugins", "plugins/profile", "plugins/profile/a", "plugins/profile/a/laptop.xplane.pb"])
def test_a_path_inside_a_log_directory(tmp_path, inside):
    write_run(tmp_path / "logs", "a")
    found = look(tmp_path / "logs" / inside)
    assert found.runs == ()
    (fault,) = found.faults
    assert fault.do == f"use {tmp_path / 'logs'}"
    assert len(look(fault.do.removeprefix("use ")).runs) == 1


@pytest.mark.parametrize(
    ("place", "why", "run"),
    [
        ("", "there is no plugins/profile/<run> above it", "laptop"),
        ("a", "there is no plugins/profile/<run> above it", "a"),
        ("train/a", "there is no plugins/profile/<run> above it", "a"),
        ("profile/a", "the folder `plugins` is missing above `profile`", "a"),
        ("plugins/profile", "the folder of the run is missing, below plugins/profile", "laptop"),
        ("plugins/profile/a/more", "a level too deep, below plugins/profile/a", "a_more"),
        ("plugins/profile/a/b/c", "2 levels too deep, below plugins/profile/a", "a_b_c"),
        ("train/plugins/profile/a/more", "a level too deep, below plugins/profile/a", "train/a_more"),
        ("with space/a", "there is no plugins/profile/<run> above it", "a"),
    ],
)
@pytest.mark.parametrize("hosts", [1, 2])
def test_a_profile_in_the_wrong_place_and_the_command_that_moves_it(tmp_path, place, why, run, hosts):
    for k in range(hosts):
        write(tmp_path / place, "laptop.xplane.pb" if k == 0 else f"host{k}.xplane.pb")
    found = look(tmp_path)
    (fault,) = found.faults
    assert found.runs == ()
    assert f"where TensorBoard does not look ({why})" in fault.what
    assert str(tmp_path / place) in fault.what
    subprocess.run(re.sub(r"^move (it|them): ", "", fault.do), shell=True, check=True)
    mended = look(tmp_path)
    assert [len(r.files) for r in mended.runs] == [hosts]
    assert mended.newest.name in (run, run.replace("laptop", "host1"))
    assert [f for f in mended.faults if "does not look" in f.what] == []


def test_a_lone_profile_is_named_by_its_path(tmp_path):
    file = write(tmp_path)
    (fault,) = look(file).faults
    subprocess.run(fault.do.removeprefix("move it: "), shell=True, check=True)
    assert [run.name for run in look(tmp_path).runs] == ["laptop"]


def test_an_empty_profile(tmp_path):
    (write_run(tmp_path, "a") / "laptop.xplane.pb").write_bytes(b"")
    (fault,) = look(tmp_path).faults
    assert fault.what.startswith(f"{tmp_path}/plugins/profile/a/laptop.xplane.pb is empty")


def test_a_run_without_a_profile(tmp_path):
    (tmp_path / "plugins" / "profile" / "a").mkdir(parents=True)
    write_run(tmp_path, "b")
    found = look(tmp_path)
    assert [run.name for run in found.runs] == ["b"]
    (fault,) = found.faults
    assert "holds no .xplane.pb file" in fault.what
    subprocess.run(fault.do.removeprefix("delete it: "), shell=True, check=True)
    assert look(tmp_path).faults == ()


def test_a_run_that_was_replaced_after_xprof_had_kept_its_figures(tmp_path):
    """XProf shows what it kept, and does not look at the profile again: seen with 2.24.2."""
    from xprof.convert import raw_to_tool_data

    run = write_run(tmp_path)
    profile = run / "laptop.xplane.pb"
    raw_to_tool_data.xspace_to_tool_data([str(profile)], "overview_page", {})
    assert look(tmp_path).faults == ()
    kept = [file for file in run.iterdir() if file != profile]
    assert kept
    later = profile.stat().st_mtime + 3600
    os.utime(profile, (later, later))
    (fault,) = look(tmp_path).faults
    assert "was replaced after XProf had shown it" in fault.what
    subprocess.run(fault.do, shell=True, check=True)
    assert list(run.iterdir()) == [profile]
    assert look(tmp_path).faults == ()


def test_a_whole_disk_is_not_searched(tmp_path, monkeypatch):
    for k in range(30):
        (tmp_path / f"{k:02}").mkdir()
    write_run(tmp_path, "a")
    monkeypatch.setattr(logdir, "_FOLDERS", 20)
    found = look(tmp_path)
    assert found.runs == ()
    assert found.faults[0].what == f"{tmp_path} has more than 20 folders, and only those were searched"


def test_hidden_folders_are_left_alone(tmp_path):
    write(tmp_path / ".ipynb_checkpoints" / "a")
    assert [fault.what for fault in look(tmp_path).faults] == [f"there is no profile (*.xplane.pb) below {tmp_path}"]


def test_nothing_is_written(tmp_path):
    write_run(tmp_path)
    before = sorted(map(str, Path(tmp_path).rglob("*")))
    look(tmp_path)
    assert sorted(map(str, Path(tmp_path).rglob("*"))) == before
