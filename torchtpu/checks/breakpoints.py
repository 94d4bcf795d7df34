"""Stops before an op, in a debugger at the user's frame (`config.debug_break`)."""

from __future__ import annotations

import bdb
import os
import pdb
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType

import torch

from torchtpu import config, lines
from torchtpu.checks.finding import at
from torchtpu.errors import did_you_mean
from torchtpu.lines import Origin
from torchtpu.plan import Plan

# A notebook has its own kind of debugger.
debugger: Callable[[], pdb.Pdb] = pdb.Pdb

# How often a debugger was opened.
stops = 0


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """Where to stop: before every op of a name, or when a line of a file comes to an op."""

    op: str
    file: str = ""
    line: int = 0

    @classmethod
    @lru_cache(maxsize=64)
    def parse(cls, text: str) -> Breakpoint:
        """Read `mm`, `aten::add.Tensor` or `train.py:12`.

        Raises:
            ValueError: no op has this name (with the closest one), or it is a line without its file.
        """
        file, _, number = text.rpartition(":")
        if number.isdigit():
            if not file:
                raise ValueError(f"break at line {number} of which file? Write it as train.py:{number}")
            return cls("", file, int(number))
        op = text.removeprefix("aten::")
        known = {name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")}
        known |= {name.partition(".")[0] for name in known}
        if op not in known:
            raise ValueError(f"ATen has no op {text!r} to break at.{did_you_mean(op, known)}")
        return cls(op)

    def names(self, plan: Plan) -> bool:
        """Whether this is the op."""
        return self.op in (plan.scope, plan.scope.partition(".")[0])


_arrived: tuple[CodeType, int, int] | None = None  # the line of the latest op, and where in it


def before_op(plan: Plan, origin: Origin | None) -> None:
    """Open a debugger at the user's frame if this op, or the line that has come to it, is the one to stop at.

    Raises:
        bdb.BdbQuit: the user typed `q`.
    """
    global _arrived
    point = Breakpoint.parse(config.debug_break)
    if point.op:
        if point.names(plan):
            _open(f"before {plan.name}{at(origin)}")
        return
    here = lines.here()
    if here is None:
        return
    code, lasti = here[0], here[1]
    number = lines.line_of(code, lasti)
    former, _arrived = _arrived, (code, number, lasti)
    # The ops of a line come one after another; an instruction at or before the last one begins the next round of a loop.
    again = former is None or former[:2] != (code, number) or lasti <= former[2]
    if number == point.line and _same_file(code.co_filename, point.file) and again:
        _open(f"at the first op of {lines.resolve(here)}: {plan.name}")


def _same_file(file: str, wanted: str) -> bool:
    return file == wanted or file.endswith(os.sep + wanted)


def _open(what: str) -> None:
    global stops
    frame = lines.frame()
    if frame is None:
        return
    stops += 1
    prompt = debugger()
    prompt.message(f"stopped {what}")
    prompt.reset()
    prompt.botframe = frame
    prompt.interaction(frame, None)
    if prompt.quitting:
        raise bdb.BdbQuit from None
    # `n`, `s` and the like go on from here. Those of another thread's frame (in a backward pass) only go on.
    if prompt.stoplineno != -1 and threading.current_thread() is threading.main_thread():
        frame.f_trace = prompt.trace_dispatch
        sys.settrace(prompt.trace_dispatch)
