"""A function's ops, recorded and not run."""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import torch

from torchtpu import client, events, lines, modules
from torchtpu.buffer import Buffer
from torchtpu.errors import ValueUnknownError
from torchtpu.modes import state
from torchtpu.plan import Plan
from torchtpu.program import Node

_graph_task = torch._C._current_graph_task_id
_epochs = count(-1, -1).__next__  # apart from those of `deferred.Graph`


class Tape:
    """Recorded ops, in order.

    Attributes:
        nodes, origins: the ops and their lines. References are as in `Node`.
        inputs: buffers that existed before; they need no array.
        slots: weak references to the results.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.origins: list[lines.Origin | None] = []
        self.inputs: list[Buffer] = []
        self.slots: list[weakref.ref[Buffer]] = []
        self._epoch = _epochs()
        self._refs: dict[int, int] = {}  # of the inputs, by identity
        self._lock = threading.Lock()  # the backward pass runs in autograd's thread

    def record(self, plan: Plan, inputs: list[Buffer], numbers: Sequence[Any]) -> list[Buffer]:
        """Note an op. Its results are buffers that never get a value: who asks for one gets an error."""
        with self._lock:
            refs = tuple(b.ref if b.epoch == self._epoch else self._input(b) for b in inputs)
            self.nodes.append(Node(plan, refs, _graph_task() != -1))
            self.origins.append(lines.note())
            return [self._result(Buffer(layout)) for layout in plan.outputs]

    def _input(self, buffer: Buffer) -> int:
        ref = self._refs.get(id(buffer))
        if ref is None:
            self.inputs.append(buffer)
            ref = self._refs[id(buffer)] = -len(self.inputs)
        return ref

    def _result(self, buffer: Buffer) -> Buffer:
        buffer.epoch, buffer.ref, buffer.error = self._epoch, len(self.slots), unknown()
        self.slots.append(weakref.ref(buffer))
        return buffer

    def live(self) -> list[int]:
        """Return the results that something still holds, as slots."""
        return [slot for slot, ref in enumerate(self.slots) if ref() is not None]

    def freed(self, kept: dict[int, Buffer]) -> list[int]:
        """Return the positions of the inputs that nothing holds any more.

        Args:
            kept: by the identity of each buffer that is held only so that it can be put back.
        """
        inputs = self.inputs
        # Two references: the list of inputs and getrefcount's argument.
        return [
            k for k in range(len(inputs)) if sys.getrefcount(inputs[k]) == 2 + (id(inputs[k]) in kept) and not inputs[k].shared
        ]


def unknown() -> ValueUnknownError:
    """Build the error for reading a value that is never computed."""
    return ValueUnknownError(
        "this needs the value of a tensor, which is not known while a function is recorded to be compiled for another chip: "
        "leave reads (item(), print, if x > 0), shapes that depend on values, and ops that run on the CPU out of it"
    )


@contextlib.contextmanager
def recording(tape: Tape) -> Iterator[None]:
    """Send every op to the tape, whatever the eager mode.

    Raises:
        ValueUnknownError: with the line that needs a value.
    """
    watched = bool(events.logs)
    if not watched:
        modules.watch()
    client.nothing_allocated = True
    state.recorder = tape.record
    state.select()
    try:
        yield
    except ValueUnknownError as error:
        raise _located(error) from None
    finally:
        client.nothing_allocated = False
        state.recorder = None
        state.select()
        if not watched and not events.logs:
            modules.unwatch()


def _located(error: ValueUnknownError) -> ValueUnknownError:
    """Name the user's line that asked for a value."""
    line = None
    traceback = error.__traceback__
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if lines.is_users(code.co_filename):
            line = lines.resolve((code, traceback.tb_lasti))
        traceback = traceback.tb_next
    where = f" ({line.where}: {line.source})" if line is not None else ""
    return ValueUnknownError(f"{error}{where}").with_traceback(error.__traceback__)
