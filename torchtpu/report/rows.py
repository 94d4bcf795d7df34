"""The rows of a report: plain frozen dataclasses. Times are in seconds, sizes in bytes.

Each figure's field says where the figure comes from: `measured` on this device, `compiled` (reported by the compiler
that `Report.compiler` names) or `modelled` (an estimate).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torchtpu.lines import Line

MEASURED = "measured"
COMPILED = "compiled"


def measured(default: Any = 0, label: str = MEASURED) -> Any:
    """Declare a figure that was counted or timed on this device."""
    return field(default=default, metadata={"label": label})


def compiled(default: Any = 0) -> Any:
    """Declare a figure that a compiler reported."""
    return field(default=default, metadata={"label": COMPILED})


@dataclass(frozen=True, slots=True)
class Seconds:
    """Where the time of a watch went; what is left of `elapsed` is the user's own Python.

    Attributes:
        dispatch: host time in torchtpu, planning and recording ops.
        compile: tracing, lowering and XLA.
        run: host time inside launches (XLA:CPU runs small programs there).
        wait: the host waited for a value.
        finish: from the last line until the device had nothing left to do.
        elapsed: wall time, `finish` included.
    """

    dispatch: float = measured(0.0)
    compile: float = measured(0.0)
    run: float = measured(0.0)
    wait: float = measured(0.0)
    finish: float = measured(0.0)
    elapsed: float = measured(0.0)

    @property
    def rest(self) -> float:
        """The user's own Python, and what no other figure covers."""
        return max(0.0, self.elapsed - self.dispatch - self.compile - self.run - self.wait - self.finish)


@dataclass(frozen=True, slots=True)
class OpRow:
    """One ATen op of a program, the line that made it, and its results (`float32[8,128]`)."""

    op: str
    line: Line | None
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ProgramRow:
    """A program that was compiled or run.

    Attributes:
        name: its name in XLA.
        ops: its ATen ops in order, with the lines of its first run.
        inputs, outputs: its arrays (`float32[8,128]`).
        reason: why it ran: the flush reason, or the mode for programs of one op.
        compiled: whether it was compiled while watched (else it was cached).
        compile_seconds: what compiling it took, whenever that was.
        runs, run_seconds: while watched.
        argument_bytes, output_bytes, temp_bytes: device memory as the compiler planned it.
        alias_bytes: of the outputs, those that reuse an argument's memory.
    """

    name: str
    ops: tuple[OpRow, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    reason: str
    compiled: bool
    compile_seconds: float = measured(0.0)
    runs: int = measured()
    run_seconds: float = measured(0.0)
    argument_bytes: int = compiled()
    output_bytes: int = compiled()
    temp_bytes: int = compiled()
    alias_bytes: int = compiled()


@dataclass(frozen=True, slots=True)
class CompileRow:
    """A compilation.

    Attributes:
        program, outputs: what was compiled, by name and results (programs of one op share a name).
        line: the line whose op or read asked for it.
        cause: why no cached program would do.
        at: seconds since the start.
    """

    program: str
    outputs: tuple[str, ...]
    line: Line | None
    cause: str
    seconds: float = measured(0.0)
    at: float = measured(0.0)


@dataclass(frozen=True, slots=True)
class FlushRow:
    """Pending ops were run, as `pieces` programs. `live`: results kept; `seconds`: host time; `at`: since the start."""

    reason: str
    line: Line | None
    ops: int = measured()
    live: int = measured()
    pieces: int = measured(1)
    seconds: float = measured(0.0)
    at: float = measured(0.0)


@dataclass(frozen=True, slots=True)
class SyncRow:
    """The host waited `seconds` for a value of `nbytes`. `kind`: item, to_host, bool, synchronize, ..."""

    kind: str
    line: Line | None
    seconds: float = measured(0.0)
    nbytes: int = measured()
    at: float = measured(0.0)


@dataclass(frozen=True, slots=True)
class FallbackRow:
    """An op that ran `count` times on the CPU for a line. `seconds` with both copies, `nbytes` moved."""

    op: str
    line: Line | None
    count: int = measured()
    seconds: float = measured(0.0)
    nbytes: int = measured()


@dataclass(frozen=True, slots=True)
class BufferRow:
    """`count` buffers of one kind that one line made, and their bytes together.

    Attributes:
        what: `float32[1024,1024]`, or in words what else takes the bytes.
        line: the line that made them, where it is known.
        earlier: made before the watch began.
    """

    what: str
    line: Line | None
    earlier: bool
    count: int = measured()
    nbytes: int = measured()


@dataclass(frozen=True, slots=True)
class Storm:
    """One line that made XLA compile the same ops again and again. `cause`: of the last time."""

    line: Line | None
    ops: str
    cause: str
    compiles: int = measured()
    seconds: float = measured(0.0)
