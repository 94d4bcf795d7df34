"""The TPU compiler, asked in a process of its own: what happens to it, or in it, costs the session nothing.

The process starts with the first compile and stays. Results are kept on disk, beside the device's own programs.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib.metadata
import os
import pickle
import queue
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from torchtpu import disk_cache
from torchtpu.ahead import worker
from torchtpu.errors import CompilerDiedError, CompilerMissingError

_POLL = 0.1  # seconds between two looks at whether to go on
_INSTALL = "install it with: pip install 'torchtpu[tpu]'"

# What to call while waiting, with the seconds waited. It may raise, to give up.
Waiting = Callable[[float], None]


@cache
def version() -> str:
    """Return libtpu's version.

    Raises:
        CompilerMissingError: it is not installed, or not in the version that jax works with.
    """
    wanted = next((r for r in importlib.metadata.requires("jax") or () if re.match(r"libtpu\s*==", r)), "libtpu==")
    pin = re.split(r"==|;", wanted)[1].strip()
    try:
        found = importlib.metadata.version("libtpu")
    except importlib.metadata.PackageNotFoundError:
        platform = "" if sys.platform == "linux" else f" It exists for Linux only, and this is {sys.platform}."
        raise CompilerMissingError(f"the TPU compiler (libtpu) is not installed: {_INSTALL}.{platform}") from None
    if not found.startswith(pin.removesuffix("*")):
        raise CompilerMissingError(
            f"libtpu {found} is installed, but jax {importlib.metadata.version('jax')} works with {pin}: {_INSTALL}"
        )
    return found


def compile(request: dict[str, Any], waiting: Waiting) -> tuple[dict[str, Any], bool]:
    """Compile a module for a chip, or take the result from the disk.

    Args:
        request: as in `worker.compile`.
        waiting: called some ten times a second.

    Returns:
        What `worker.compile` returns or, where the compiler refuses, `error`; and whether it was on disk.

    Raises:
        CompilerMissingError: there is no libtpu of the right version.
        CompilerDiedError: its process ended.
        Whatever `waiting` raises, and KeyboardInterrupt: the compile is given up.
    """
    key = _key(request)
    known = disk_cache.read(key, pickle.loads)
    if known is not None:
        return known, True
    answer = shared.ask(request, waiting)
    if "trouble" in answer:
        raise CompilerDiedError(
            f"the TPU compiler has no room to work: {answer['trouble']}. Free memory or disk, and try again."
        )
    if "error" not in answer:
        disk_cache.write(key, pickle.dumps(answer))
    return answer, False


def _key(request: dict[str, Any]) -> str:
    versions = f"libtpu {version()}, jax {importlib.metadata.version('jax')}, {worker.FORMAT}, {worker.EFFORTS}"
    digest = hashlib.sha256(versions.encode())
    digest.update(repr(sorted((k, v) for k, v in request.items() if k != "module")).encode())
    digest.update(request["module"])
    return f"tpu-{digest.hexdigest()}"


class Process:
    """A process of the compiler, for one compile at a time."""

    def __init__(self) -> None:
        self._popen: subprocess.Popen[bytes] | None = None
        self._complaints: Any = None  # the file that the process' errors go to

    @property
    def pid(self) -> int | None:
        """The process's number, while it runs."""
        return self._popen.pid if self._popen is not None and self._popen.poll() is None else None

    def ask(self, request: dict[str, Any], look: Callable[[], None]) -> dict[str, Any]:
        """Send a request and wait for its answer, calling `look` now and then."""
        stays = False
        try:
            popen = self._started()
            with contextlib.suppress(BrokenPipeError):  # it ended: that shows below
                worker.write(popen.stdin, request)
            while not select.select([popen.stdout], [], [], _POLL)[0]:
                look()
            answer = worker.read(popen.stdout)
            if answer is None:
                raise self._died(popen.wait())
            stays = not answer.pop("last")
            return answer
        finally:
            if not stays:
                self.stop()

    def _started(self) -> subprocess.Popen[bytes]:
        if self.pid is None:
            self.stop()  # what is left of one that ended while nobody asked
            self._complaints = tempfile.TemporaryFile()  # noqa: SIM115  (as long as the process)
            self._popen = subprocess.Popen(
                [sys.executable, "-P", str(Path(worker.__file__))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._complaints,
                start_new_session=True,  # Ctrl-C in a terminal, or Jupyter's interrupt, is for this process alone
            )
        return self._popen

    def stop(self) -> None:
        """End the process; the next compile starts another."""
        popen, self._popen = self._popen, None
        if popen is not None:
            popen.kill()
            popen.wait()
            for file in (popen.stdin, popen.stdout, self._complaints):
                with contextlib.suppress(OSError):
                    file.close()

    def _died(self, code: int) -> CompilerDiedError:
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        self._complaints.seek(0)
        checks = _CHECK.findall(self._complaints.read().decode(errors="replace"))
        why = f": {checks[-1]}" if checks else ""
        memory = " Perhaps the machine ran out of memory: compile a smaller program, or close others." if code == -9 else ""
        return CompilerDiedError(
            f"the TPU compiler's process {how} before it answered{why}.{memory} The next compile starts another."
        )


# libtpu's last words: `F0000 00:00:1796161127.866137   16625 file.cc:554] Check failed: ...`
_CHECK = re.compile(r"^F\d{4} .*?\] (.*)$", re.MULTILINE)


class Pool:
    """A few processes; which one compiles does not matter. Where all are busy, a compile waits for its turn."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._all = [Process() for _ in range(size)]
        self._free: queue.LifoQueue[Process] = queue.LifoQueue()  # so that one is enough for compiles one by one
        for process in self._all:
            self._free.put(process)

    @property
    def pids(self) -> list[int]:
        """The numbers of the processes that run."""
        return [process.pid for process in self._all if process.pid is not None]

    def ask(self, request: dict[str, Any], waiting: Waiting) -> dict[str, Any]:
        """Send a request to a free process and wait for its answer."""
        version()
        began = time.perf_counter()

        def look() -> None:
            waiting(time.perf_counter() - began)

        process = None
        while process is None:
            try:
                process = self._free.get(timeout=_POLL)
            except queue.Empty:
                look()
        try:
            return process.ask(request, look)
        finally:
            self._free.put(process)

    def stop(self) -> None:
        """End the processes; the next compile starts another."""
        for process in self._all:
            process.stop()

    def close(self) -> None:
        """End the processes that compile nothing, before Python ends. One that a thread waits for ends with its input."""
        with contextlib.suppress(queue.Empty):
            while True:
                self._free.get_nowait().stop()


shared = Pool(min(2, os.cpu_count() or 1))
atexit.register(shared.close)
