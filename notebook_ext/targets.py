"""Cells for chips that need not be there: `%tpu_target`, and `--target` of `%%tpu_mode`.

When a cell has ended, what it ran is compiled for the chips in another process. A thread shows how far that is in a line below
the cell's report, under a display id, as plain HTML and text; the table takes its place.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
import time
import uuid
from collections import deque
from dataclasses import dataclass
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell

from torchtpu.errors import UnknownChipError
from torchtpu.notebook_ext.live import FRAME, Bundle, can_update
from torchtpu.report import Report, TargetRow
from torchtpu.report.table import PHRASE, QUIET, WARNING
from torchtpu.report.target_sections import tables
from torchtpu.report.targets import Compilation
from torchtpu.report.to_html import section_html
from torchtpu.report.to_text import section_text

_EVERY = 0.5  # seconds between two lines
_POLL = 0.1  # seconds between two looks for Ctrl-C
_KEPT = 50  # cells
_WIDTH = 110  # columns
EFFORTS = ("memory", "full")


@dataclass(frozen=True, slots=True)
class Target:
    """What to compile for: names of chips, and the effort. No chips: nothing is compiled."""

    chips: tuple[str, ...] = ()
    effort: str = "memory"

    @classmethod
    def parse(cls, names: str, effort: str | None = None) -> Target:
        """Read `v5e,v6e`, `all` or `off`.

        Raises:
            UsageError: there is no such chip.
        """
        if names.strip().lower() == "off":
            return cls()
        from torchtpu.ahead import parse

        try:
            return cls(tuple(chip.name for chip in parse(names.strip("'\""))), effort or EFFORTS[0])
        except UnknownChipError as error:
            raise UsageError(str(error)) from None

    def __str__(self) -> str:
        return f"{', '.join(self.chips)}, effort {self.effort}" if self.chips else "off"


class Targets:
    """What one shell's cells are compiled for, and what is under way."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._shown: deque[_Shown] = deque(maxlen=_KEPT)
        self.target = Target()

    def compile(self, report: Report, target: Target, save: Path | None, shown: bool) -> None:
        """Begin to compile what a cell ran. The kernel stays free.

        Args:
            report: the cell's.
            save: a file that the report was saved to: saved again with what comes.
            shown: whether to display it.
        """
        self._shown.append(_Shown(self._shell, report, target, save, shown))

    def wait(self) -> None:
        """Wait for what is under way. Ctrl-C ends the wait alone."""
        for shown in self._shown:
            while not shown.over.wait(_POLL):
                pass

    def cell_ended(self) -> None:
        """Show once more what was finished while no cell ran: nbclient takes no updates then."""
        for shown in self._shown:
            if shown.over.is_set() and not shown.settled:
                shown.settled = True
                shown.publish(update=True)

    def last(self) -> list[Bundle]:
        """Return what is under way, or else the last that was finished."""
        running = [s for s in self._shown if not s.over.is_set()]
        return [s.bundle() for s in running or list(self._shown)[-1:]]

    def stop(self) -> None:
        """Compile nothing more; what is there stays."""
        for shown in self._shown:
            shown.stop()


class _Shown:
    """The display of one cell's programs.

    Attributes:
        over: set when nothing more will come.
        settled: the last state was shown while a cell ran.
    """

    def __init__(self, shell: InteractiveShell, report: Report, target: Target, save: Path | None, shown: bool) -> None:
        self.over = threading.Event()
        self.settled = False
        self._publisher = shell.display_pub if shown else None
        self._update = can_update(shell)
        self._display_id = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._chips = ", ".join(target.chips)
        self._started = time.perf_counter()
        self._rows: tuple[TargetRow, ...] = ()
        self._total = 0
        self._underway = ""
        self._error: Exception | None = None
        self._compilation: Compilation | None = None
        try:
            if report.programs:
                from torchtpu.ahead import chip

                self._compilation = Compilation(report, [chip(name) for name in target.chips], target.effort)
                self._total = self._compilation.total
        except Exception as error:  # the cell has done its work
            self._error = error
        if self._compilation is None:
            self.over.set()
            self.settled = True
        self.publish(update=False)
        if self._compilation is not None:
            # The cell that an output belongs to is known by the context, in ipykernel 7.
            follow = partial(contextvars.copy_context().run, self._follow, self._compilation, report, save)
            threading.Thread(target=follow, name="torchtpu target", daemon=True).start()

    def stop(self) -> None:
        compilation = self._compilation
        if compilation is not None:
            compilation.cancel()
            self.over.wait(1)

    def bundle(self) -> Bundle:
        """Return what there is to see, by MIME type."""
        if not self.over.is_set():
            phrases = [f"compiling {len(self._rows) + 1} of {self._total}", self._underway, self._seconds()]
            return self._line([p for p in phrases if p], "in the background")
        remarks = [f"{type(self._error).__name__}: {self._error}"] if self._error is not None else []
        if len(self._rows) < self._total:
            remarks.append(f"{self._total - len(self._rows)} of {self._total} were not compiled: run the cell again for them")
        if not self._rows:
            return self._line(remarks or ["the cell ran no program"], "")
        parts = tables(self._rows)
        html = "".join(map(section_html, parts)) + "".join(f'<div style="{WARNING}">{escape(r)}</div>' for r in remarks)
        text = "\n\n".join([*(section_text(part, _WIDTH) for part in parts), *(f"! {r}" for r in remarks)])
        return {"text/html": html, "text/plain": text}

    def publish(self, update: bool) -> None:
        """Show it, where it is to be shown."""
        if self._publisher is None or (update and not self._update):
            return
        with self._lock:
            options: dict[str, Any] = {}
            if self._update:
                options = {"transient": {"display_id": self._display_id}, "update": update}
            self._publisher.publish(data=self.bundle(), metadata={}, **options)

    def _follow(self, compilation: Compilation, report: Report, save: Path | None) -> None:
        shown = ""
        while not compilation.wait(_EVERY):
            self._rows, self._underway = compilation.collect(), compilation.underway
            text = self.bundle()["text/plain"]
            if text != shown:  # the seconds change once a second
                self.publish(update=True)
                shown = text
        self._rows, self._error = compilation.collect(), compilation.error
        self._compilation = None  # it has the programs and the report, which nobody needs any more
        if save is not None and save.exists():
            with contextlib.suppress(OSError):
                report.save(save)
        with self._lock:
            self.over.set()
        self.publish(update=True)

    def _seconds(self) -> str:
        return f"{time.perf_counter() - self._started:.0f} s"

    def _line(self, phrases: list[str], quiet: str) -> Bundle:
        figures = " ".join(f'<span style="{PHRASE}">{escape(p)}</span>' for p in phrases)
        html = f'<div style="{FRAME}"><b style="{PHRASE}">for {escape(self._chips)}</b> {figures} <span style="{QUIET}">{quiet}'
        text = f"for {self._chips}: {', '.join(phrases)}"
        if quiet and not self._update:
            text += "; %tpu_target shows the result"
        return {"text/html": f"{html}</span></div>", "text/plain": text}
