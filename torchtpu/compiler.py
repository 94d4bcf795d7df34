"""XLA's compiler, asked in a thread of its own: what it compiles now can be seen, and Ctrl-C gets through.

XLA cannot be stopped once it has begun. A compile that the user interrupts goes on in its thread, and whoever asks for
the same program again gets its result.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torchtpu import disk_cache

_POLL = 0.05  # seconds between two looks at signals, in threads that Python sends none to


@dataclass(frozen=True, slots=True)
class Compiling:
    """A compile under way: the program's name and number of ops, and `time.perf_counter()` when it began."""

    program: str
    ops: int
    since: float

    @property
    def seconds(self) -> float:
        """How long it has taken so far (measured)."""
        return time.perf_counter() - self.since


class CompileInterrupted(KeyboardInterrupt):
    """The user interrupted the wait for a compile. What was pending still is."""


class _Job:
    """A program in XLA's hands."""

    def __init__(self, about: Compiling, key: str, lowered: Any, options: dict[str, Any]) -> None:
        self.about = about
        self.compiled: Any = None
        self.error: BaseException | None = None
        self.done = threading.Event()
        # Not a daemon: XLA aborts the process when Python ends under it.
        self._thread = threading.Thread(target=self._run, args=(key, lowered, options), name="torchtpu compile")

    def begin(self) -> None:
        """Start the compile, if it has not begun: Ctrl-C may have come before."""
        if self._thread.ident is None:
            self._thread.start()

    def _run(self, key: str, lowered: Any, options: dict[str, Any]) -> None:
        try:
            self.compiled = lowered.compile(compiler_options=options)
            disk_cache.save(key, self.compiled)
        except BaseException as error:
            self.error = error
        finally:
            self.done.set()


_announced: list[Compiling] = []
_jobs: dict[str, _Job] = {}


def underway() -> list[Compiling]:
    """Return the compiles under way, the longest first; among them those that were interrupted and go on."""
    left = [job.about for job in list(_jobs.values()) if not job.done.is_set()]
    return sorted({*_announced, *left}, key=lambda c: c.since)


def busy() -> bool:
    """Whether XLA compiles something now."""
    return bool(underway())


@contextlib.contextmanager
def announce(program: str, ops: int) -> Iterator[Compiling]:
    """Let `underway` show a program while it is traced, lowered and compiled."""
    about = Compiling(program, ops, time.perf_counter())
    _announced.append(about)
    try:
        yield about
    finally:
        _announced.remove(about)


def compile(about: Compiling, lowered: Any, options: dict[str, Any]) -> tuple[Any, bool]:
    """Compile a lowered program, or take it from the disk.

    Returns:
        the compiled program, and whether it came from the disk.

    Raises:
        CompileInterrupted: by Ctrl-C. The compile goes on, and asking again takes its result.
        jax.errors.JaxRuntimeError: XLA's.
    """
    key = disk_cache.key_of(lowered.as_text(debug_info=True), options)
    job = _jobs.get(key)
    if job is None:
        compiled = disk_cache.load(key)
        if compiled is not None:
            return compiled, True
        job = _jobs[key] = _Job(about, key, lowered, options)
    try:
        job.begin()
        _wait(job)
    except KeyboardInterrupt:
        raise CompileInterrupted(
            f"{about.program} is still being compiled, in the background: run this again to use the result"
        ) from None
    _jobs.pop(key, None)
    if job.error is not None:
        raise job.error
    return job.compiled, False


def _wait(job: _Job) -> None:
    if not getattr(_here, "gives_up", False):
        job.done.wait()  # in the main thread, Ctrl-C ends it
        return
    while not job.done.wait(_POLL):
        if interrupts.seen():
            raise KeyboardInterrupt


_here = threading.local()


@contextlib.contextmanager
def giving_up() -> Iterator[None]:
    """Outside the main thread: let Ctrl-C end the wait for a compile, and with it this block, silently.

    Python delivers the Ctrl-C itself to the main thread, as soon as that runs Python code again: the caller returns to it.
    """
    if threading.current_thread() is threading.main_thread():
        yield
        return
    interrupts.forget()
    _here.gives_up = True
    try:
        yield
    except CompileInterrupted:
        pass
    finally:
        _here.gives_up = False


class Interrupts:
    """Tells threads of a Ctrl-C that the main thread cannot see: it waits for autograd, outside Python.

    Python's signal handler writes the signal's number to a socket at once, whatever the main thread does.
    """

    def __init__(self) -> None:
        self._sockets: tuple[socket.socket, socket.socket] | None = None

    def listen(self) -> bool:
        """Begin, in the main thread. Returns False where another library listens already: then nobody is told."""
        if self._sockets is not None or threading.current_thread() is not threading.main_thread():
            return False
        sockets = socket.socketpair()
        for s in sockets:
            s.setblocking(False)
        other = signal.set_wakeup_fd(sockets[1].fileno(), warn_on_full_buffer=False)
        if other != -1:
            signal.set_wakeup_fd(other)
            _close(sockets)
            return False
        self._sockets = sockets
        return True

    def stop(self) -> None:
        """End, in the main thread."""
        if self._sockets is not None and threading.current_thread() is threading.main_thread():
            ours = self._sockets[1].fileno()
            current = signal.set_wakeup_fd(-1)
            if current != ours:  # somebody took it over meanwhile
                signal.set_wakeup_fd(current)
            _close(self._sockets)
            self._sockets = None

    def seen(self) -> bool:
        """Whether Ctrl-C was pressed since this was asked last."""
        if self._sockets is None:
            return False
        try:
            return signal.SIGINT in self._sockets[0].recv(4096)
        except BlockingIOError:
            return False

    def forget(self) -> None:
        """Drop what came before now."""
        self.seen()


def _close(sockets: tuple[socket.socket, socket.socket]) -> None:
    for s in sockets:
        s.close()


interrupts = Interrupts()
