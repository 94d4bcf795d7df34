"""TensorBoard servers of this process: one for a log directory, on loopback, and gone when the process is.

server = start("logs")
server.url      # for a browser, through the proxy that the notebook is served by
server.runs()   # what the profile plugin lists
"""

from __future__ import annotations

import atexit
import gzip
import importlib.metadata
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import IO, Any

from torchtpu.errors import TorchTPUError
from torchtpu.profiler import links, logdir as logdirs
from torchtpu.profiler.links import LOOPBACK, Route

INSTALL = "pip install 'torchtpu[profile]'"

PORTS = range(6006, 6016)  # TensorBoard's own: those that people forward by habit
_WAIT = 60.0  # seconds
_POLL = 0.05  # seconds
_TAIL = 2_000  # bytes of its output that an error shows
_ATTEMPTS = 3  # at a port that was free a moment ago

# Ends the server when its parent is no longer there, whichever way that ended: nobody is left to say so. The process that
# started it is asked for and not the thread, as Linux's PR_SET_PDEATHSIG would; and macOS has no such thing.
_PROGRAM = """
import os, runpy, signal, sys, threading, time
def watch(parent):
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)
    os._exit(1)
threading.Thread(target=watch, args=(int(sys.argv.pop(1)),), daemon=True).start()
runpy.run_module("tensorboard.main", run_name="__main__", alter_sys=True)
"""

_open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open  # a company's proxy knows no loopback


class TensorBoardError(TorchTPUError):
    """TensorBoard did not start, or does not answer. The text holds the last of its output."""


class TensorBoardMissingError(TensorBoardError):
    """TensorBoard, or the plugin that shows profiles, is not installed."""


class NoProfileError(TorchTPUError):
    """There is no profile where TensorBoard would look. The text says why, and what to do."""


class Server:
    """A TensorBoard that this process started. `start` makes them.

    Attributes:
        logdir: the folder that it shows.
        port: on loopback.
        route: the way to it from a browser.
    """

    def __init__(self, logdir: Path, port: int, process: subprocess.Popen[bytes], output: IO[bytes]) -> None:
        self.logdir, self.port = logdir, port
        self.route: Route = links.route(port)
        self._process, self._output = process, output
        self._owner = os.getpid()
        self._last_output = ""

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return self._process.pid

    @property
    def url(self) -> str:
        """Where a browser finds it; see `torchtpu.profiler.links`."""
        return self.route.url

    @property
    def address(self) -> str:
        """Where a program on this machine finds it."""
        return f"http://{LOOPBACK}:{self.port}/"

    def profile_url(self, run: str | None = None, tool: str | None = None) -> str:
        """Where a browser finds a run, in a tool; see `links.profile_url`."""
        return links.profile_url(self.url, run, tool)

    def alive(self) -> bool:
        """Whether the server's process is there, and this process's own: a fork has none."""
        return self._owner == os.getpid() and self._process.poll() is None

    def runs(self) -> list[str]:
        """Return the runs that the profile plugin lists, the last name first.

        Raises:
            TensorBoardMissingError: it has no profile plugin.
            TensorBoardError: it does not answer.
        """
        try:
            return get_json(f"{self.address}data/plugin/profile/runs")
        except urllib.error.HTTPError as error:
            if error.code == 404:
                raise TensorBoardMissingError(_no_plugin(self.output())) from None
            raise TensorBoardError(f"TensorBoard answers {error.code} when asked for runs{self._tail()}") from None
        except (OSError, ValueError) as error:
            state = "does not answer" if self.alive() else "has ended"
            raise TensorBoardError(f"the TensorBoard of {self.logdir} {state} ({error}){self._tail()}") from None

    def output(self) -> str:
        """Return the last of what it wrote."""
        if not self._output.closed:
            size = os.fstat(self._output.fileno()).st_size
            # The server writes where the offset is, which is shared: do not move it.
            tail = os.pread(self._output.fileno(), _TAIL, max(0, size - _TAIL))
            self._last_output = tail.decode(errors="replace").strip()
        return self._last_output

    def stop(self) -> None:
        """End it."""
        with _lock:
            if self in _servers:
                _servers.remove(self)
        if self.alive():
            self._process.terminate()
            try:
                self._process.wait(5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self.output()
        self._output.close()

    def _tail(self) -> str:
        text = self.output()
        return f". The last of its output:\n{text}" if text else ""

    def __repr__(self) -> str:
        return f"<TensorBoard of {self.logdir} at {self.url}{'' if self.alive() else ', ended'}>"


_servers: list[Server] = []
_lock = threading.RLock()


def start(logdir: str | os.PathLike[str], port: int | None = None, wait: float = _WAIT) -> Server:
    """Start a TensorBoard for a log directory, or return the one that this process has started for it.

    It listens on 127.0.0.1 alone, and ends with this process, however that ends.

    Args:
        logdir: the folder that `plugins/profile` is in.
        port: to listen at. None: that of the running one, else the first free one from 6006, which is TensorBoard's own.
        wait: seconds, for it to list every run that is there.

    Raises:
        NoProfileError: there is no profile that it could show. It says why.
        TensorBoardMissingError: TensorBoard or its profile plugin is not installed.
        TensorBoardError: the port is taken, TensorBoard has ended, or does not list the runs in time.
        ValueError: there is no such port.
    """
    if port is not None and not 1 <= port <= 65535:
        raise ValueError(f"a port is a number from 1 to 65535: {port}")
    found = logdirs.look(logdir)
    if not found.runs:
        raise NoProfileError(f"there is nothing for TensorBoard to show: {found.why_nothing()}")
    expected = {run.name for run in found.runs}
    with _lock:
        server = _running(found.path, port)
        if server is not None:
            _wait(server, expected, wait)
            return server
        _check_installed()
        for attempt in range(_ATTEMPTS):
            server = _launch(found.path, _free(port))
            try:
                _wait(server, expected, wait)
                _servers.append(server)
                return server
            except BaseException as error:  # Ctrl-C too: nobody would know of it any more
                taken = not server.alive() and owner_of(server.port) is not None
                server.stop()
                if not (port is None and taken and isinstance(error, TensorBoardError) and attempt < _ATTEMPTS - 1):
                    raise
        raise AssertionError  # the loop returns or raises


def running() -> list[Server]:
    """Return the servers of this process that have not ended."""
    with _lock:
        for server in list(_servers):
            if not server.alive():
                server.stop()
        return list(_servers)


def stop(logdir: str | os.PathLike[str] | None = None) -> int:
    """End the servers of a log directory, or all of this process. Returns how many."""
    path = None if logdir is None else logdirs.absolute(logdir)
    ended = [s for s in running() if path is None or s.logdir == path]
    for server in ended:
        server.stop()
    return len(ended)


atexit.register(stop)


def owner_of(port: int) -> str | None:
    """Say who listens at a port of loopback: "a TensorBoard of /logs", "another program"; None: nobody."""
    with socket.socket() as probe:
        probe.settimeout(2)
        if probe.connect_ex((LOOPBACK, port)) != 0:
            return None
    try:
        about = get_json(f"http://{LOOPBACK}:{port}/data/environment", timeout=5)
        return f"a TensorBoard {about['version']} of {about['data_location'] or 'no folder'}"
    except (OSError, ValueError, TypeError, KeyError):
        return "another program"


def get_json(url: str, timeout: float = 30) -> Any:
    """Read JSON from a server of this machine. XProf sends gzip, whether one asks for it or not.

    Raises:
        OSError: urllib's, when nobody answers or with an error.
        ValueError: what came is no JSON.
    """
    try:
        with _open(url, timeout=timeout) as answer:
            body = answer.read()
    except urllib.error.URLError:
        raise
    except Exception as error:  # http.client's: what answers speaks no HTTP
        raise OSError(f"{url}: {error!r}") from None
    try:
        return json.loads(gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body)
    except (OSError, EOFError) as error:
        raise ValueError(str(error)) from None


def plugins() -> dict[str, str]:
    """Return the distributions that register a profile plugin with TensorBoard, each with its module."""
    entries = importlib.metadata.entry_points(group="tensorboard_plugins")
    return {e.dist.name if e.dist else "?": e.value for e in entries if e.name == "profile"}


def _running(path: Path, port: int | None) -> Server | None:
    return next((s for s in running() if s.logdir == path and port in (None, s.port)), None)


def _check_installed() -> None:
    if importlib.util.find_spec("tensorboard") is None:
        raise TensorBoardMissingError(f"TensorBoard is not installed: {INSTALL}")
    if not plugins():
        raise TensorBoardMissingError(f"TensorBoard has no plugin for profiles (xprof): {INSTALL}")


def _no_plugin(output: str) -> str:
    said = f". The last of its output:\n{output}" if output else ""
    return f"TensorBoard runs, but its profile plugin (xprof) did not load: {INSTALL}, or see %tpu doctor{said}"


def _free(port: int | None) -> int:
    """Return a port that nobody listens at."""
    if port is not None:
        if (error := _cannot_listen(port)) is not None:
            owner = owner_of(port)
            who = f"is taken by {owner}" if owner else f"cannot be listened at ({error.strerror})"
            raise TensorBoardError(f"port {port} {who}: name another one, or none, and a free one is found")
        return port
    for candidate in PORTS:
        if _cannot_listen(candidate) is None:
            return candidate
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return probe.getsockname()[1]


def _cannot_listen(port: int) -> OSError | None:
    with socket.socket() as probe:
        # As TensorBoard does: a port whose last connections are still closing is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError as error:
            return error
    return None


def _launch(path: Path, port: int) -> Server:
    # -P: the user's own `profile.py` or `random.py`, in the folder of his notebook, is not the standard library's.
    command = [sys.executable, "-P", "-c", _PROGRAM, str(os.getpid()), "--logdir", str(path)]
    # Without its own data server, which is one more process, and which profiles do not need.
    command += ["--host", LOOPBACK, "--port", str(port), "--load_fast", "false"]
    # It has no name, so that nothing is left behind. The server that writes there keeps it open.
    output = tempfile.TemporaryFile(prefix="torchtpu-tensorboard-")  # noqa: SIM115
    try:
        # In a session of its own: interrupting a cell sends Ctrl-C to the kernel's whole process group.
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
    except OSError as error:
        output.close()
        raise TensorBoardError(f"{shutil.which(sys.executable) or sys.executable} cannot be started: {error}") from None
    return Server(path, port, process, output)


def _wait(server: Server, expected: set[str], seconds: float) -> None:
    """Wait until a server lists runs. Ctrl-C ends it."""
    deadline = time.monotonic() + seconds
    listed: set[str] = set()
    while True:
        if not server.alive():
            code = server._process.returncode
            raise TensorBoardError(f"TensorBoard ended at once, with status {code}{server._tail()}")
        try:
            listed = set(server.runs())
        except TensorBoardMissingError:
            raise
        except TensorBoardError:
            pass
        if expected <= listed:
            return
        if time.monotonic() > deadline:
            missing = ", ".join(sorted(expected - listed))
            raise TensorBoardError(
                f"TensorBoard does not list {missing} after {seconds:.0f} s, only {', '.join(sorted(listed)) or 'nothing'}"
                f"{server._tail()}"
            )
        time.sleep(_POLL)
