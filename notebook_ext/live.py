"""The line that a notebook shows while a `%%tpu_mode` cell runs; the cell's report takes its place.

A thread pushes it to the front end, which the kernel, busy with the cell, could not answer. It is plain HTML and text under
a display id: no widget, so that a file saved meanwhile opens anywhere.
"""

from __future__ import annotations

import contextvars
import threading
import time
import uuid
from dataclasses import dataclass
from html import escape
from typing import Any

from IPython.core.displaypub import CapturingDisplayPublisher, DisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

from torchtpu import compiler, hbm
from torchtpu.events import Log
from torchtpu.report import units
from torchtpu.report.table import PHRASE, QUIET

Bundle = dict[str, str]  # by MIME type

FRAME = (
    "border:1px dashed rgba(128,128,128,0.6);border-radius:6px;padding:10px 14px;margin:4px 0;"
    "font-size:13px;line-height:1.5;color:inherit"
)

_FIRST = 0.5  # seconds before a cell gets a line
_EVERY = 0.25  # seconds between two lines,
_LATER = 1.0  # and once the cell has run for
_LONG = 20.0  # seconds


@dataclass(frozen=True, slots=True)
class Now:
    """What a running cell does. All measured.

    Attributes:
        mode: the cell's.
        seconds: since it began.
        compiling: the program that has been compiling for longest, or None.
        compiled: programs compiled, or loaded from disk, by the cell so far.
        pending: ops that wait to be run.
        runs: programs run.
        live, peak: bytes of HBM that tensors hold, and the most since the start of the process or the last reset.
    """

    mode: str
    seconds: float
    compiling: compiler.Compiling | None
    compiled: int
    pending: int
    runs: int
    live: int
    peak: int

    def phrases(self) -> list[str]:
        """The figures, one phrase each."""
        phrases = [f"{self.seconds:.0f} s" if self.seconds >= 10 else f"{self.seconds:.1f} s"]
        if self.compiling is not None:
            ops = units.count(self.compiling.ops, "op")
            phrases.append(f"compiling {self.compiling.seconds:.0f} s, program {self.compiled + 1}: {ops}")
        elif self.compiled:
            phrases.append(units.count(self.compiled, "new program"))
        if self.pending:
            phrases.append(f"{units.count(self.pending, 'op')} pending")
        phrases.append(units.count(self.runs, "run"))
        phrases.append(f"HBM {units.nbytes(self.live)}, peak {units.nbytes(self.peak)}")
        return phrases

    def to_text(self) -> str:
        """One line of text."""
        return f"{self.mode} is running: {', '.join(self.phrases())}"

    def to_html(self) -> str:
        """One line of HTML, framed as the report that follows it."""
        figures = " ".join(f'<span style="{PHRASE}">{escape(p)}</span>' for p in self.phrases())
        return (
            f'<div style="{FRAME}"><b style="{PHRASE}">{escape(self.mode)}</b> '
            f'<span style="{PHRASE}">running</span> {figures} <span style="{QUIET}">measured</span></div>'
        )


def can_update(shell: InteractiveShell) -> bool:
    """Whether what a shell shows can be replaced later: in notebooks, not in a terminal."""
    return type(shell.display_pub) is not DisplayPublisher


class Live:
    """The line of one cell.

    Args:
        log: the cell's.
        shown: whether there is to be a line.
    """

    def __init__(self, shell: InteractiveShell, mode: str, log: Log, shown: bool) -> None:
        self._publisher = shell.display_pub
        self._mode, self._log = mode, log
        self._started = time.perf_counter()
        self._display_id = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._shown = False
        self._over = threading.Event()
        captured = isinstance(shell.display_pub, CapturingDisplayPublisher)  # %%capture: a list, in which nothing is replaced
        if shown and can_update(shell) and not captured:
            # The cell that an output belongs to is known by the context, in ipykernel 7.
            run = contextvars.copy_context().run
            threading.Thread(target=run, args=(self._keep_showing,), name="torchtpu live", daemon=True).start()

    def finish(self, last: Bundle | None) -> None:
        """Show no more lines: `last` takes the line's place. None: the last line stays, if there was one."""
        self._over.set()
        with self._lock:  # a line on its way goes first
            if last is None:
                if not self._shown:
                    return
                last = self._line()
            self._publish(last)

    def now(self) -> Now:
        """Look at the cell, from any thread."""
        from torchtpu import modes

        compiling = compiler.underway()
        return Now(
            mode=self._mode,
            seconds=time.perf_counter() - self._started,
            compiling=compiling[0] if compiling else None,
            compiled=len(self._log.compiles),
            pending=modes.pending(),
            runs=sum(r.count for r in list(self._log.runs.values())),
            live=hbm.usage.live,
            peak=hbm.usage.peak,
        )

    def _keep_showing(self) -> None:
        wait = _FIRST
        while not self._over.wait(wait):
            line = self._line()
            with self._lock:
                if self._over.is_set():
                    return
                self._publish(line)
            wait = _EVERY if time.perf_counter() - self._started < _LONG else _LATER

    def _line(self) -> Bundle:
        now = self.now()
        return {"text/html": now.to_html(), "text/plain": now.to_text()}

    def _publish(self, bundle: Bundle) -> None:
        options: dict[str, Any] = {}
        if self._shown or not self._over.is_set():
            options = {"transient": {"display_id": self._display_id}, "update": self._shown}
            self._shown = True
        self._publisher.publish(data=bundle, metadata={}, **options)
