"""`Report`: what the device did while it was watched."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from torchtpu.errors import TorchTPUError, did_you_mean
from torchtpu.report.rows import (
    BufferRow,
    CompileRow,
    FallbackRow,
    FlushRow,
    ProgramRow,
    Seconds,
    Storm,
    SyncRow,
    measured,
)


class WatchOpenError(TorchTPUError):
    """A field of a report was read before the watch was over."""


@dataclass(frozen=True, slots=True, repr=False)
class Report:
    """What the device did while it was watched.

    `torchtpu.watch()` hands it out empty and fills it when the `with` block ends; reading a field before that raises
    `WatchOpenError`. `labels()` says of each figure whether it is measured, compiled or modelled.

    Attributes:
        mode: the eager mode at the start: strict, debug or defer_and_fuse.
        device: torch's name of the device.
        platform: XLA's platform: "cpu", "tpu", ...; empty if the device was never started.
        compiler: whose figures the compiled ones are ("XLA:CPU").
        error: the exception that ended the block, as text; empty if none did.
        seconds: where the time went.
        ops: ATen ops dispatched to the device.
        compiles: programs compiled.
        cache_hits: runs that found their program compiled.
        runs: programs launched.
        programs: each program compiled or run, with its ops, lines, times and bytes.
        compile_events, flushes, syncs, fallbacks: what happened, in order.
        storms: lines that compiled the same ops again and again, the most expensive first.
        hbm_before: bytes that tensors held at the start.
        hbm_peak: the most bytes held at once, with the temporaries (compiled) of the programs running then.
        hbm_live: bytes that tensors held at the end.
        hbm_limit: bytes that the device has; 0 if it was never started.
        hbm_peak_buffers, hbm_live_buffers: what held them, largest first; the rows add up to the figure.
    """

    mode: str
    device: str
    platform: str
    compiler: str
    error: str
    seconds: Seconds
    programs: tuple[ProgramRow, ...]
    compile_events: tuple[CompileRow, ...]
    flushes: tuple[FlushRow, ...]
    syncs: tuple[SyncRow, ...]
    fallbacks: tuple[FallbackRow, ...]
    storms: tuple[Storm, ...]
    hbm_peak_buffers: tuple[BufferRow, ...]
    hbm_live_buffers: tuple[BufferRow, ...]
    ops: int = measured()
    compiles: int = measured()
    cache_hits: int = measured()
    runs: int = measured()
    hbm_before: int = measured()
    hbm_peak: int = measured(label="measured, temporaries compiled")
    hbm_live: int = measured()
    hbm_limit: int = measured()

    @classmethod
    def unfinished(cls) -> Report:
        """Return a report without figures, for a watch that begins."""
        return object.__new__(cls)

    @property
    def finished(self) -> bool:
        """Whether the watch is over."""
        try:
            object.__getattribute__(self, "seconds")
        except AttributeError:
            return False
        return True

    def __getattr__(self, name: str) -> Any:
        # Only reached for names without a value: a field of an open watch, or a mistake.
        if name in _FIELDS and not self.finished:
            raise WatchOpenError(f"the watch is still open: read report.{name} after its `with` block has ended")
        raise AttributeError(f"a report has no {name!r}.{'' if name.startswith('_') else did_you_mean(name, _FIELDS)}")

    def labels(self) -> dict[str, str]:
        """Say of each figure, by its path (`programs.temp_bytes`), where it comes from: `measured`, `compiled (XLA:CPU)`."""
        from torchtpu.report.to_json import labels

        return labels(self)

    def to_text(self, width: int = 110) -> str:
        """Return the report as plain text, `width` columns wide."""
        from torchtpu.report.to_text import to_text

        return to_text(self, width)

    def to_html(self) -> str:
        """Return the report as static HTML that also survives in an untrusted notebook."""
        from torchtpu.report.to_html import to_html

        return to_html(self)

    def to_json(self) -> str:
        """Return everything as JSON, in a versioned schema that `from_json` reads."""
        from torchtpu.report.to_json import to_json

        return to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Read what `to_json` wrote.

        Raises:
            ValueError: not a report, or one of another version of the schema.
        """
        from torchtpu.report.to_json import from_json

        return from_json(text)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the report to a file, as its suffix says: .json, .html or .txt.

        Raises:
            ValueError: another suffix.
        """
        target = check_path(path)
        match target.suffix.lower():
            case ".json":
                text = self.to_json()
            case ".html":
                from torchtpu.report.to_html import page

                text = page(self)
            case _:
                text = self.to_text()
        target.write_text(text, encoding="utf-8")
        return target

    def __str__(self) -> str:
        return self.to_text() if self.finished else repr(self)

    def __repr__(self) -> str:
        if not self.finished:
            return "<torchtpu report: the watch is still open>"
        return (
            f"<torchtpu report: {self.mode}, {len(self.programs)} programs, {self.compiles} compiles, {self.runs} runs, "
            f"{len(self.syncs)} syncs, {self.seconds.elapsed:.3f} s>"
        )

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))  # IPython, where it shows text

    def _repr_html_(self) -> str | None:
        return self.to_html() if self.finished else None


_FIELDS = frozenset(f.name for f in fields(Report))


def fill(report: Report, figures: dict[str, Any]) -> None:
    """Give an unfinished report its figures: all its fields."""
    for name in _FIELDS:
        object.__setattr__(report, name, figures[name])


SUFFIXES = (".json", ".html", ".txt")


def check_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a report to be saved, if its suffix names a format.

    Raises:
        ValueError: it does not.
    """
    target = Path(path)
    if target.suffix.lower() not in SUFFIXES:
        raise ValueError(f"cannot save a report as {str(target)!r}: the name must end in {', '.join(SUFFIXES)}")
    return target
