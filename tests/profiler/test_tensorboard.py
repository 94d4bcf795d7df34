"""TensorBoard servers: what they show, where they listen, and that none outlives the process that started it."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.profiler.on_disk import write, write_run
from torchtpu.profiler import tensorboard
from torchtpu.profiler.tensorboard import NoProfileError, TensorBoardError, TensorBoardMissingError, running, start, stop


@pytest.fixture(autouse=True)
def none_left():
    """Every server of a test ends with it."""
    yield
    pids = [server.pid for server in running()]
    stop()
    assert running() == []
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


@pytest.fixture
def logs(tmp_path) -> Path:
    write_run(tmp_path / "logs", "a")
    return tmp_path / "logs"


def gone(pid: int) -> bool:
    """Whether a process ends within half a minute. A zombie has: who started it did not ask."""
    for _ in range(300):
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.1)
    return False


def fake_tensorboard(folder: Path, main: str, monkeypatch) -> None:
    """Let another program be the TensorBoard of processes that are started from now on."""
    (folder / "fake" / "tensorboard").mkdir(parents=True)
    (folder / "fake" / "tensorboard" / "__init__.py").write_text("")
    (folder / "fake" / "tensorboard" / "main.py").write_text(main)
    monkeypatch.setenv("PYTHONPATH", str(folder / "fake"))


def test_UP_139_it_lists_the_runs_of_the_folder_and_listens_on_loopback_alone(logs):
    write_run(logs / "train", "b")
    server = start(logs)
    assert sorted(server.runs()) == ["a", "train/b"]
    listening = [c for c in psutil.Process(server.pid).net_connections("inet") if c.status == psutil.CONN_LISTEN]
    assert [tuple(c.laddr) for c in listening] == [("127.0.0.1", server.port)]
    assert psutil.Process(server.pid).children(recursive=True) == []
    assert server.url == server.address == f"http://127.0.0.1:{server.port}/"
    assert server.profile_url("a") == f"{server.url}?run=a#profile"


def test_it_is_reused_and_sees_runs_come_and_go(logs, monkeypatch):
    server = start(logs)
    monkeypatch.chdir(logs.parent)
    later = write_run(logs, "b")
    assert start("logs/") is start(logs, port=server.port) is server
    assert sorted(server.runs()) == ["a", "b"]
    (later / "laptop.xplane.pb").unlink()
    later.rmdir()
    assert server.runs() == ["a"]
    assert running() == [server]


def test_another_folder_has_a_server_of_its_own(logs, tmp_path):
    write_run(tmp_path / "other", "z")
    one, other = start(logs), start(tmp_path / "other")
    assert one.port != other.port
    assert (one.runs(), other.runs()) == (["a"], ["z"])
    assert stop(tmp_path / "nowhere") == 0
    assert stop(tmp_path / "other") == 1
    assert running() == [one]
    assert not other.alive()


def test_a_dead_one_is_started_again(logs):
    first = start(logs)
    os.kill(first.pid, signal.SIGKILL)
    first._process.wait()
    with pytest.raises(TensorBoardError, match=f"the TensorBoard of {logs} has ended"):
        first.runs()
    second = start(logs)
    assert second is not first
    assert second.runs() == ["a"]
    assert running() == [second]


def test_a_port_that_was_asked_for(logs):
    port = tensorboard._free(None)
    assert start(logs, port=port).port == port


def test_a_taken_port_is_refused_and_says_by_whom(logs, tmp_path):
    write_run(tmp_path / "other", "z")
    server = start(logs)
    with pytest.raises(TensorBoardError, match=rf"port {server.port} is taken by a TensorBoard 2\.\d+\.\d+ of {logs}: name an"):
        start(tmp_path / "other", port=server.port)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        threading.Thread(target=lambda: other.accept()[0].close(), daemon=True).start()
        with pytest.raises(TensorBoardError, match=f"port {port} is taken by another program: name another one, or none, and"):
            start(tmp_path / "other", port=port)
    assert running() == [server]


def test_taken_ports_are_passed_over(logs, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        monkeypatch.setattr(tensorboard, "PORTS", [s.getsockname()[1] for s in (one, two)])
        assert start(logs).port not in tensorboard.PORTS


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_a_port_that_there_is_not(logs, port):
    with pytest.raises(ValueError, match=f"a port is a number from 1 to 65535: {port}"):
        start(logs, port=port)


@pytest.mark.parametrize("what", ["missing", "a file", "empty", "too deep", "inside"])
def test_a_folder_with_nothing_to_show_starts_nothing(tmp_path, what):
    path, why = tmp_path / "logs", "with torchtpu.profile"
    match what:
        case "a file":
            path.write_text("x")
            why = "name the folder that plugins/profile is in"
        case "empty":
            path.mkdir()
        case "too deep":
            write(path / "plugins" / "profile" / "a" / "b")
            why = "move it: mkdir -p"
        case "inside":
            path, why = write_run(path), f"use {path}"
    with pytest.raises(NoProfileError, match="there is nothing for TensorBoard to show: ") as error:
        start(path)
    assert why in str(error.value)
    assert running() == []


def test_neither_a_proxy_nor_the_users_own_files_are_in_the_way(logs, tmp_path, monkeypatch):
    """A company's proxy knows no loopback; a user's `random.py` beside his notebook is not the standard library's."""
    for name in ("random.py", "profile.py", "tensorboard.py"):
        (tmp_path / name).write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    assert start("logs").runs() == ["a"]


def test_one_that_dies_at_once_says_what_it_wrote(logs, tmp_path, monkeypatch):
    fake_tensorboard(tmp_path, "raise SystemExit('no such flag')", monkeypatch)
    with pytest.raises(TensorBoardError) as error:
        start(logs)
    assert str(error.value) == "TensorBoard ended at once, with status 1. The last of its output:\nno such flag"
    assert running() == []


def test_one_that_never_answers_is_ended(logs, tmp_path, monkeypatch):
    pid = tmp_path / "pid"
    main = f"import os, time\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\nprint('busy', flush=True)\ntime.sleep(600)"
    fake_tensorboard(tmp_path, main, monkeypatch)
    with pytest.raises(TensorBoardError, match=r"TensorBoard does not list a after 5 s, only nothing") as error:
        start(logs, wait=5)
    assert "busy" in str(error.value)
    assert gone(int(pid.read_text()))


def test_ctrl_c_ends_the_wait_and_the_server(logs, tmp_path, monkeypatch):
    pid = tmp_path / "pid"
    main = (
        f"import os, signal, time\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\n"
        "os.kill(os.getppid(), signal.SIGINT)\ntime.sleep(600)"
    )
    fake_tensorboard(tmp_path, main, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        start(logs)
    assert gone(int(pid.read_text()))
    assert running() == []


def test_a_plugin_that_does_not_load(logs, tmp_path, monkeypatch):
    """TensorBoard ends when one of its plugins does not load."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'xprof': raise ImportError('no xprof here')\n"
        "sys.meta_path.insert(0, Block())\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(TensorBoardError, match="no xprof here"):
        start(logs)
    assert running() == []


def test_a_tensorboard_without_the_plugin(logs, monkeypatch):
    monkeypatch.setattr(tensorboard, "plugins", dict)
    with pytest.raises(TensorBoardMissingError, match=r"no plugin for profiles \(xprof\): pip install 'torchtpu\[profile\]'"):
        start(logs)


def test_a_server_that_answers_without_the_plugin(logs, tmp_path, monkeypatch):
    main = (
        "import http.server, sys\n"
        "port = int(sys.argv[sys.argv.index('--port') + 1])\n"
        "http.server.ThreadingHTTPServer(('127.0.0.1', port), http.server.SimpleHTTPRequestHandler).serve_forever()"
    )
    fake_tensorboard(tmp_path, main, monkeypatch)
    with pytest.raises(TensorBoardMissingError, match=r"did not load: pip install 'torchtpu\[profile\]', or see %tpu doctor"):
        start(logs)
    assert running() == []


def test_no_tensorboard(logs, monkeypatch):
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name == "tensorboard" else there(name, *a))
    with pytest.raises(TensorBoardMissingError, match=r"TensorBoard is not installed: pip install 'torchtpu\[profile\]'"):
        start(logs)


KERNEL = """
import os, signal, sys, threading, time
from torchtpu.profiler import tensorboard

started = []
thread = threading.Thread(target=lambda: started.append(tensorboard.start(sys.argv[1])))
thread.start()
thread.join()  # the server is the process's, not the thread's
server, = started
print(server.pid, flush=True)
assert "IPython" not in sys.modules
while True:
    try:
        command = sys.stdin.readline().strip()
        if command == "fork":
            if (child := os.fork()) == 0:
                assert not server.alive() and tensorboard.running() == []
                sys.exit()  # runs what was registered for the end of the process
            print(os.waitpid(child, 0)[1], server.runs(), flush=True)
        elif command == "sleep":
            print("sleeping", flush=True)
            time.sleep(600)
        else:
            break
    except KeyboardInterrupt:
        print("interrupted", server.runs(), flush=True)
"""


def test_it_survives_what_its_process_does_and_ends_with_it(logs):
    """Its end by kill -9, as Jupyter ends a kernel that does not answer; the process group gets Ctrl-C, as a kernel's does."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    command = [sys.executable, "-W", "ignore", "-c", KERNEL, str(logs)]
    with subprocess.Popen(command, start_new_session=True, **pipes) as kernel:
        pid = int(kernel.stdout.readline())
        print("fork", file=kernel.stdin, flush=True)
        assert kernel.stdout.readline() == "0 ['a']\n"
        print("sleep", file=kernel.stdin, flush=True)
        assert kernel.stdout.readline() == "sleeping\n"
        os.killpg(kernel.pid, signal.SIGINT)
        assert kernel.stdout.readline() == "interrupted ['a']\n"
        kernel.kill()
    assert gone(pid)


def test_it_ends_when_its_process_ends_by_itself(logs):
    done = subprocess.run([sys.executable, "-c", KERNEL, str(logs)], input="quit\n", capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert not psutil.pid_exists(int(done.stdout))
