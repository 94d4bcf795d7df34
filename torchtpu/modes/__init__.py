"""Eager modes: when an op's work is done. One mode a module; this one chooses.

The mode belongs to the process, not to a thread: autograd runs the backward pass in a thread of its own, which must see
the same one. `set_eager_mode` sets it for a scope.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

from torchtpu import client, config, errors, events, modules
from torchtpu.events import Log


class EagerMode(Enum):
    """When ops run. The names are those of Google's torch_tpu; `label` is what we show.

    DEFER_NEVER: strict: each op is launched at once, asynchronously.
    DEFER_NEVER_AND_LAUNCH_BLOCKING: debug: each op is launched, waited for and checked.
    DEFER_AND_FUSE: ops are collected and compiled together when a value is needed.
    """

    DEFER_NEVER = "strict"
    DEFER_NEVER_AND_LAUNCH_BLOCKING = "debug"
    DEFER_AND_FUSE = "defer_and_fuse"

    @property
    def label(self) -> str:
        """The short name: strict, debug or defer_and_fuse."""
        return self.value

    @classmethod
    def parse(cls, mode: EagerMode | str) -> EagerMode:
        """Return the mode of a name; case and `-` or `_` do not matter.

        Raises:
            ValueError: there is no such mode (with the closest name).
        """
        if isinstance(mode, cls):
            return mode
        known = {m.label: m for m in cls} | {m.name.lower(): m for m in cls}
        word = str(mode).strip().lower().replace("-", "_").removeprefix("eagermode.")
        if word not in known:
            raise ValueError(
                f"unknown eager mode {mode!r}: use one of {', '.join(m.label for m in cls)}.{errors.did_you_mean(word, known)}"
            )
        return known[word]


class State:
    """What the process does with an op now.

    Attributes:
        mode: the eager mode.
        execute: takes (plan, input buffers, numbers) and returns the output buffers. Set once the device has started.
        recorder: what takes its place, whatever the mode, while a function is only recorded.
    """

    __slots__ = ("mode", "execute", "recorder")

    def __init__(self) -> None:
        try:
            self.mode = EagerMode.parse(config.eager_mode)
        except ValueError as error:
            raise ValueError(f"TORCHTPU_EAGER_MODE: {error}") from None
        self.execute: Callable[..., list[Any]] = _not_started
        self.recorder: Callable[..., list[Any]] | None = None

    def select(self) -> None:
        """Choose the engine's entry for the mode, in its recording variant while somebody watches."""
        if not engine_loaded():
            return
        if client.in_bad_fork():
            self.execute = _refuse
            return
        if self.recorder is not None:
            self.execute = self.recorder
            return
        from torchtpu.modes import debug, deferred, strict

        watched = bool(events.logs)
        match self.mode:
            case EagerMode.DEFER_NEVER:
                self.execute = strict.run_watched if watched else strict.run
            case EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING:
                self.execute = debug.run
            case EagerMode.DEFER_AND_FUSE:
                self.execute = deferred.record_watched if watched else deferred.record


def _not_started(*_: Any) -> list[Any]:
    raise RuntimeError("the tpu device has not started")


def engine_loaded() -> bool:
    """Whether jax and the engine are loaded (the first tensor on `tpu` does that)."""
    return "torchtpu.modes.deferred" in sys.modules


def _refuse(*_: Any) -> list[Any]:
    raise client.forked()


def _after_fork() -> None:
    if client.in_bad_fork():
        state.select()
        if engine_loaded():
            from torchtpu.modes import deferred

            deferred.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def current() -> EagerMode:
    """Return the mode in force."""
    return state.mode


def set(mode: EagerMode | str) -> None:
    """Change the mode of the process; pending work is run first."""
    wanted = EagerMode.parse(mode)
    if wanted is not state.mode:
        try:
            flush("mode change")
        finally:
            state.mode = wanted
            state.select()


@contextlib.contextmanager
def scope(mode: EagerMode | str) -> Iterator[None]:
    """Use a mode inside a `with` block, and the former one after it, also after an error."""
    before = state.mode
    set(mode)
    try:
        yield
    finally:
        set(before)


def flush(reason: str) -> None:
    """Run pending work, if there is any. Returns when it is launched, not when it is done."""
    if engine_loaded():
        from torchtpu.modes import deferred

        deferred.flush(reason)


def pending() -> int:
    """Number of ops that wait to be run."""
    if not engine_loaded():
        return 0
    from torchtpu.modes import deferred

    return deferred.pending()


def start_log(log: Log) -> None:
    """Send events to `log` too."""
    events.logs.append(log)
    modules.watch()
    state.select()


def stop_log(log: Log) -> None:
    """Stop sending events to `log`."""
    events.logs.remove(log)
    if not events.logs:
        modules.unwatch()
    state.select()


state = State()
