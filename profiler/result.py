"""`Profile`: what one capture found. (Not named profile.py: `torchtpu.profiler.profile` is the function.)"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchtpu.profiler.rows import IdleRow, KernelTime, OpTime, ProgramTime, Spans, StepRow
from torchtpu.report import Report, units
from torchtpu.report.rows import measured

SUFFIXES = (".html", ".json", ".txt", ".trace.json", ".trace.json.gz", ".stacks.txt")


@dataclass(frozen=True, slots=True, repr=False)
class Profile:
    """What one capture found: where the time went, on the device and on the host, line by line.

    Attributes:
        run: name of the run, as TensorBoard lists it.
        folder: where its files are: `<logdir>/plugins/profile/<run>`.
        host: name of this machine, and of the files.
        began: when, in seconds since 1970.
        modelled: the figures of the device are a model's, and not measured (a run whose name says so).
        report: what the device did meanwhile, as `torchtpu.watch()` reports it: programs, compiles and their causes, waits,
            fallbacks, memory.
        elapsed: wall time.
        busy: of that, the device ran something.
        steps: found from the optimizer, or marked with `step()`.
        programs, kernels, ops: by the time that they took on the device, longest first.
        idle: when the device had nothing to do, and why, longest first.
        spans: everything that took time, in order of its start.
        peak_flops, peak_bandwidth: floating-point operations and bytes per second that the device can do: measured on a CPU
            with one large product and one large copy, published for a chip; 0 if not known.
        peaks_from: how these two are known.
        dropped: spans that were left out because there were too many.
    """

    run: str
    folder: str
    host: str
    began: float
    modelled: bool
    report: Report
    steps: tuple[StepRow, ...]
    programs: tuple[ProgramTime, ...]
    kernels: tuple[KernelTime, ...]
    ops: tuple[OpTime, ...]
    idle: tuple[IdleRow, ...]
    spans: Spans = field(default_factory=Spans)
    elapsed: float = measured(0.0)
    busy: float = measured(0.0)
    peak_flops: float = measured(0.0)
    peak_bandwidth: float = measured(0.0)
    peaks_from: str = ""
    dropped: int = measured()

    @property
    def step_seconds(self) -> float:
        """The median time of a step; 0 without steps. The first step is left out where there are more: it compiles."""
        times = sorted(s.seconds for s in (self.steps[1:] or self.steps))
        return times[len(times) // 2] if times else 0.0

    @property
    def compiler(self) -> str:
        """Whose the compiled programs are: XLA's for this device, or that of the chip that is modelled."""
        return "libtpu" if self.modelled else self.report.compiler

    def labels(self) -> dict[str, str]:
        """Say of each figure, by its path (`ops.flops`), where it comes from: `measured`, `compiled (XLA:CPU)`, `modelled`."""
        from torchtpu.profiler.to_json import labels

        return labels(self)

    def to_text(self, width: int = 110) -> str:
        """Return the profile as plain text, `width` columns wide."""
        from torchtpu.profiler.to_text import to_text

        return to_text(self, width)

    def to_html(self) -> str:
        """Return the profile as static HTML that also survives in an untrusted notebook."""
        from torchtpu.profiler.to_html import to_html

        return to_html(self)

    def to_json(self) -> str:
        """Return everything as JSON, in a versioned schema that `from_json` reads."""
        from torchtpu.profiler.to_json import to_json

        return to_json(self)

    @classmethod
    def from_json(cls, text: str) -> Profile:
        """Read what `to_json` wrote.

        Raises:
            ValueError: not a profile, or one of another version of the schema.
        """
        from torchtpu.profiler.to_json import from_json

        return from_json(text)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read a profile that was captured earlier.

        Args:
            path: the folder of a run, `<logdir>/<run>`, a log directory with one run, or a saved file (.json, .json.gz).

        Raises:
            FileNotFoundError: there is no such run.
            ValueError: several runs to choose from, a run that another tool captured, or a file of another version.
        """
        from torchtpu.profiler.stored import load

        return load(path)

    def to_perfetto(self) -> str:
        """Return the timeline as Chrome trace events (JSON), which Perfetto and chrome://tracing open."""
        from torchtpu.profiler.to_perfetto import to_perfetto

        return to_perfetto(self)

    def to_stacks(self) -> str:
        """Return the time of the kernels as collapsed stacks: line, module, op, kernel, and microseconds."""
        from torchtpu.profiler.to_stacks import to_stacks

        return to_stacks(self)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the profile to a file, as its suffix says.

        Args:
            path: .html: a page with everything; .json, .txt; .trace.json or .trace.json.gz: the timeline for Perfetto;
                .stacks.txt: for speedscope or flamegraph.pl. A timeline that is too large for a page is written beside it.

        Raises:
            ValueError: another suffix.
        """
        from torchtpu.profiler.save import save

        return save(self, path)

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        steps = f"{units.count(len(self.steps), 'step')} of {units.seconds(self.step_seconds)}" if self.steps else "no steps"
        busy = self.busy / self.elapsed if self.elapsed else 0.0
        return f"<torchtpu profile {self.run}: {steps}, {self.elapsed:.3f} s, device busy {busy:.0%}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))  # IPython, where it shows text

    def _repr_html_(self) -> str:
        return self.to_html()
