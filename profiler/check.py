"""What TensorBoard will show of a run, read back from the file that was written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtpu.profiler import wire
from torchtpu.profiler.planes import HOST, METADATA
from torchtpu.report import units

if TYPE_CHECKING:
    from torchtpu.profiler.result import Profile

# XLA's tracer keeps so many events of a capture and drops the rest without a word (openxla/xla tsl/profiler).
XLA_CAP = 1_000_000


@dataclass(frozen=True, slots=True)
class ToolRow:
    """A tool of XProf: whether it has something to show, and if not, why and what to do."""

    tool: str
    filled: bool
    why: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """What was read back.

    Attributes:
        path: the file; nbytes: its size.
        events, kernels, steps, allocations, programs: in it.
        tools: what each tool of XProf will show.
        truncated: what is missing because there was too much of it; empty if nothing is.
    """

    path: str
    nbytes: int
    events: int
    kernels: int
    steps: int
    allocations: int
    programs: int
    tools: tuple[ToolRow, ...]
    truncated: str = ""

    def to_text(self) -> str:
        """Say it in a few lines."""
        empty = [t for t in self.tools if not t.filled]
        filled = ", ".join(t.tool for t in self.tools if t.filled)
        lines = [
            f"{self.path} ({units.nbytes(self.nbytes)}): {units.count(self.events, 'event')}, "
            f"{units.count(self.kernels, 'kernel')}, "
            f"{units.count(self.steps, 'step')}, {units.count(self.programs, 'program')}, "
            f"{units.count(self.allocations, 'allocation')}",
            f"TensorBoard will show: {filled}" if filled else "TensorBoard will show nothing of it",
        ]
        lines += [f"  empty: {t.tool}: {t.why}" for t in empty]
        if self.truncated:
            lines.append(f"  incomplete: {self.truncated}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.to_text()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self.to_text())


def look(path: Path, profile: Profile) -> Check:
    """Read a run back.

    Raises:
        OSError, ValueError: the file is not there, or is no profile.
    """
    from jax.profiler import ProfileData

    data = path.read_bytes()
    events = kernels = steps = allocations = largest = 0
    for plane in ProfileData.from_serialized_xspace(data).planes:
        for line in plane.lines:
            count = 0
            for event in line.events:
                count += 1
                if plane.name == HOST and event.name.startswith("Memory"):
                    allocations += 1
            events += count
            if plane.name == HOST and not line.name.startswith("torchtpu"):
                largest += count
            elif plane.name.startswith("/device:"):
                kernels += count if line.name == "XLA Ops" else 0
                steps += count if line.name == "Steps" else 0
    programs = _programs(data)
    no_kernels = "nothing ran on the device inside the capture"
    no_programs = "XLA hands out no HLO of the programs" if profile.programs else no_kernels
    no_steps = "no step was found: step an optimizer, or call step() of the profile at the end of each step"
    tools = (
        ToolRow("trace_viewer", events > 0, "" if events else "there is no event"),
        ToolRow("overview_page", steps > 0 and kernels > 0, no_steps if kernels else no_kernels),
        *(
            ToolRow(name, kernels > 0, no_kernels)
            for name in ("hlo_stats", "op_profile", "roofline_model", "framework_op_stats")
        ),
        ToolRow("memory_profile", allocations > 0, "no tensor was made or freed inside the capture"),
        *(ToolRow(name, programs > 0, no_programs) for name in ("memory_viewer", "graph_viewer")),
    )
    tools = tuple(ToolRow(t.tool, t.filled, "" if t.filled else t.why) for t in tools)
    truncated = []
    if largest >= XLA_CAP:
        truncated.append(f"XLA's tracer stops at {XLA_CAP:,} events; capture fewer steps (steps=5)")
    if profile.dropped:
        truncated.append(f"{profile.dropped:,} spans were left out of torchtpu's own page; capture fewer steps (steps=5)")
    return Check(str(path), len(data), events, kernels, steps, allocations, programs, tools, "; ".join(truncated))


def _programs(data: bytes) -> int:
    """Count the programs whose HLO is there: `ProfileData` does not show a plane's metadata."""
    for number, plane in wire.fields(data):
        if number == 1 and isinstance(plane, bytes):
            parts = list(wire.fields(plane))
            if (2, METADATA.encode()) in parts:
                return sum(1 for field, _ in parts if field == 4)
    return 0
