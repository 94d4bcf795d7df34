"""Streams and events: XLA runs programs in order in one queue, which is the only stream.

Waiting for a stream or an event on the device is therefore always satisfied already; only the host ever waits.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import torch

from torchtpu import client


def _wait() -> None:
    if client.started():
        from torchtpu import transfer

        transfer.synchronize()


def _done() -> bool:
    if not client.started():
        return True
    from torchtpu import modes

    modes.flush("query")  # otherwise a loop that waits for True would never end
    return all(array.is_ready() for array in client.device().client.live_arrays())


class Stream(torch.Stream):
    """The device's queue."""

    def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Stream:
        """Return the queue; the priority is of no consequence."""
        return super().__new__(cls, device="tpu")

    def synchronize(self) -> None:
        """Run what is pending and wait for it."""
        _wait()

    def query(self) -> bool:
        """Whether the device has nothing left to do."""
        return _done()

    def wait_event(self, event: torch.Event) -> None:
        """Nothing: what comes later in the queue runs later."""

    def wait_stream(self, stream: torch.Stream) -> None:
        """Nothing: there is one queue."""

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event, or a new one."""
        event = event or Event()
        event.record(self)
        return event


class Event(torch.Event):
    """A point in the device's queue.

    With `enable_timing`, `record` waits for the device: XLA has no clock in the queue, and a time that is shown is
    measured.
    """

    def __new__(cls, device: Any = None, *, enable_timing: bool = False, **kwargs: Any) -> Event:
        """Make an event that has not been recorded."""
        event = super().__new__(cls, device="tpu")
        event._timing, event._at = enable_timing, None
        return event

    def record(self, stream: torch.Stream | None = None) -> None:
        """Put the event behind all work so far."""
        if self._timing:
            _wait()
        self._at = time.perf_counter()

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Nothing: what comes later in the queue runs later."""

    def query(self) -> bool:
        """Whether the work before the event is done."""
        return self._at is None or _done()

    def synchronize(self) -> None:
        """Run what is pending and wait for it."""
        if self._at is not None:
            _wait()

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds between two recorded events (measured on the host, after waiting for the device at each).

        Raises:
            RuntimeError: an event was made without `enable_timing`, or has not been recorded.
        """
        for event in (self, end_event):
            if not event._timing or event._at is None:
                raise RuntimeError("elapsed_time needs two events made with enable_timing=True and recorded")
        return (end_event._at - self._at) * 1e3


def current_stream(device: Any = None) -> Stream:
    """Return the device's one stream."""
    return Stream()


default_stream = current_stream


def set_stream(stream: torch.Stream) -> None:
    """Nothing: there is one stream."""


@contextlib.contextmanager
def stream(stream: torch.Stream | None) -> Iterator[None]:
    """Work on a stream inside a `with` block. There is one, so nothing changes."""
    yield


def record_stream(tensor: torch.Tensor, stream: torch.Stream) -> None:
    """`aten::record_stream`: nothing, since memory is given back in the order of the one stream."""
