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
MODELLED = "modelled"
FOR_CHIP = "compiled (libtpu)"


def measured(default: Any = 0, label: str = MEASURED) -> Any:
    """Declare a figure that was counted or timed on this device."""
    return field(default=default, metadata={"label": label})


def compiled(default: Any = 0) -> Any:
    """Declare a figure that a compiler reported."""
    return field(default=default, metadata={"label": COMPILED})


def for_chip(default: Any = 0) -> Any:
    """Declare a figure that the compiler of a TPU chip reported."""
    return field(default=default, metadata={"label": FOR_CHIP})


def modelled(default: Any = 0) -> Any:
    """Declare an estimate."""
    return field(default=default, metadata={"label": MODELLED})


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
    """One ATen op of a program.

    Attributes:
        line: the line that made it.
        outputs: its results (`float32[8,128]`), numbered through the program: the first op's come first.
        module: path of the nn.Module that made it (`GPT/blocks.0/mlp`), empty outside of any.
        backward: it belongs to a backward pass.
        inputs: for each array that it reads, the number of the result (`>= 0`) or `-1 - k` for the program's input k.
        arguments: its tensor arguments as the op sees them (`float32[128,8]`).
    """

    op: str
    line: Line | None
    outputs: tuple[str, ...]
    module: str = ""
    backward: bool = False
    inputs: tuple[int, ...] = ()
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FusionRow:
    """One kernel of a program: a fusion, or an instruction that XLA left alone.

    Attributes:
        name: of the HLO instruction.
        kind: its opcode, and the kind of a fusion: `loop fusion`, `dot`.
        ops: positions of the ATen ops that it computes, or parts of them.
        root: position of the op whose result it writes, -1 if the compiler did not say.
        nbytes: read and written.
    """

    name: str
    kind: str
    ops: tuple[int, ...]
    root: int = -1
    nbytes: int = compiled()


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
        results: numbers of the ops' results that are its outputs.
        precision: of its float32 products (`DEFAULT`, `HIGH, emulated`, `HIGHEST, excess allowed`); empty if it has none.
        fusions: its kernels in the order in which they run. Read from the compiler's text when a graph or the JSON of the
            report is asked for; empty before.
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
    results: tuple[int, ...] = ()
    precision: str = ""
    fusions: tuple[FusionRow, ...] = ()


@dataclass(frozen=True, slots=True)
class CompileRow:
    """A compilation, or a program of an earlier session taken from the disk instead.

    Attributes:
        program, outputs: what was compiled, by name and results (programs of one op share a name).
        line: the line whose op or read asked for it.
        kind: what tells it from the closest known program: `first time`, `shape`, `dtype`, `constant`, `view`,
            `different ops`, `kept value`, `graph cut`, `donation`, `precision` or `mode`.
        detail: how: `ids dim 1: 12 -> 17`.
        remedy: what to do about it; empty for a first time.
        closest: the line of that closest program.
        from_disk: it was loaded, not compiled.
        at: seconds since the start.
    """

    program: str
    outputs: tuple[str, ...]
    line: Line | None
    kind: str
    detail: str
    remedy: str
    closest: Line | None
    from_disk: bool
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
        owner: what they were for, as in `OwnerRow`.
        held_by: who held them when the watch ended (`model.fc1.weight`); empty if they were gone or nothing has a name.
    """

    what: str
    line: Line | None
    earlier: bool
    owner: str = ""
    held_by: str = ""
    count: int = measured()
    nbytes: int = measured()


@dataclass(frozen=True, slots=True)
class OwnerRow:
    """What `count` buffers were for, and their bytes together.

    Attributes:
        owner: parameters, gradients, optimizer state, activations, gradients of activations, temporaries of programs,
            copied from the host, intermediate results, a variable or output by name, unknown.
    """

    owner: str
    count: int = measured()
    nbytes: int = measured(label="measured, temporaries compiled")


@dataclass(frozen=True, slots=True)
class HoldingRow:
    """`count` buffers that one thing keeps alive, and their bytes together.

    Attributes:
        name: who holds them: `model`, `losses`, `Out[7]`, `last traceback: boom() -> x`; empty if nothing has a name.
        kind: what they are to it: parameter, gradient, optimizer state, variable, output, traceback, pending graph,
            autograd, unknown.
        what: `float32[1024,1024]`, or how many shapes.
        line: the line that made them, where it is known and one.
        free: what to type, or do, to free them; empty if nothing is known.
        also: others that hold some of them too, and must let go as well.
    """

    name: str
    kind: str
    what: str
    line: Line | None
    free: str
    also: tuple[str, ...] = ()
    count: int = measured()
    nbytes: int = measured()


@dataclass(frozen=True, slots=True)
class Storm:
    """One line that made XLA compile again and again what differs little from what it had.

    Attributes:
        ops: what was compiled: names of ops, or `fused ops`.
        kind: of most of the causes, by time; `detail` and `remedy` are those of the last one.
    """

    line: Line | None
    ops: str
    kind: str
    detail: str
    remedy: str
    compiles: int = measured()
    seconds: float = measured(0.0)
