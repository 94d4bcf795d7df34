"""Programs of a report, compiled for TPU chips that need not be there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtpu.lines import Line
from torchtpu.report.rows import ProgramRow, for_chip, measured, modelled

if TYPE_CHECKING:
    from torchtpu.ahead import Chip, Compiled
    from torchtpu.report.report import Report


@dataclass(frozen=True, slots=True)
class TargetRow:
    """A program, compiled for a chip.

    Attributes:
        program: its name in XLA.
        outputs: its results (programs of one op share a name).
        line: the line of its first op.
        chip: the chip's name (`v6e`).
        compiler: `libtpu 0.0.42.1`.
        effort: `memory` (a fast compile) or `full`.
        fits: its peak is within `limit`.
        reason: why it does not fit, or why the compiler refuses it; else empty.
        refused: the compiler cannot compile it: there are no figures.
        limit: bytes of HBM that a program may use on the chip.
        runs: of the program, while watched.
        argument_bytes, output_bytes, alias_bytes, temp_bytes: device memory, padded for the chip.
        code_bytes: of its instructions.
        held: bytes that the session held beside the program's arguments.
        flops, bytes_accessed: of a run, as the compiler counts them.
        bound: which of the chip's published peaks it would meet first: `compute` or `memory`.
        roofline: seconds that a run takes at that peak.
        seconds: of compiling for the chip, whenever that was.
        from_disk: the result of an earlier compile was taken.
    """

    program: str
    outputs: tuple[str, ...]
    line: Line | None
    chip: str
    compiler: str
    effort: str
    fits: bool
    reason: str
    refused: bool
    limit: int
    runs: int = measured()
    argument_bytes: int = for_chip()
    output_bytes: int = for_chip()
    alias_bytes: int = for_chip()
    temp_bytes: int = for_chip()
    code_bytes: int = for_chip()
    held: int = measured()
    flops: float = modelled(0.0)
    bytes_accessed: float = modelled(0.0)
    bound: str = ""
    roofline: float = modelled(0.0)
    seconds: float = measured(0.0)
    from_disk: bool = False

    @property
    def peak(self) -> int:
        """Bytes of HBM in use while it runs: arguments + outputs - aliased + temporaries + code + held."""
        return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temp_bytes + self.code_bytes + self.held


class Compilation:
    """The programs of a report on their way through a compiler, in the background; what is there is in `report.targets`.

    The largest programs go first, each for all chips.

    Args:
        report: a finished one, of this process.
        chips: what to compile for.
        effort: `memory` or `full`.
        hbm: bytes that a program may use, if not what the chip has.
    """

    def __init__(self, report: Report, chips: Sequence[Chip], effort: str = "memory", hbm: int | None = None) -> None:
        from torchtpu.ahead import compile_programs

        programs = report.live_programs()
        order = sorted(range(len(programs)), key=lambda k: -_size(report.programs[k]))
        self._report, self._chips = report, tuple(chips)
        self._rows = [report.programs[k] for k in order]
        self._before = tuple(r for r in report.targets if r.chip not in {c.name for c in chips})
        self._job = compile_programs([programs[k] for k in order], self._chips, rows=self._rows, effort=effort, hbm=hbm)

    @property
    def total(self) -> int:
        """Number of results that there will be."""
        return self._job.total

    @property
    def underway(self) -> str:
        """The program that is being compiled; empty if none is."""
        return self._job.underway

    @property
    def done(self) -> bool:
        """Whether nothing more will come."""
        return self._job.done

    @property
    def error(self) -> Exception | None:
        """What ended it early."""
        return self._job.error

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is done, or for some seconds; then take what is there. Returns whether it is done."""
        done = self._job.wait(timeout)
        self.collect()
        return done

    def collect(self) -> tuple[TargetRow, ...]:
        """Put the results so far into `report.targets`, and return them."""
        results = tuple(self._job.results)
        rows = tuple(self._row(self._rows[k // len(self._chips)], result) for k, result in enumerate(results))
        object.__setattr__(self._report, "targets", self._before + rows)
        return rows

    def cancel(self) -> None:
        """Compile nothing more."""
        self._job.cancel()

    def _row(self, program: ProgramRow, result: Compiled) -> TargetRow:
        memory, roofline = result.memory, result.roofline
        # What the device held before or after, and this program neither read nor made.
        before, after = self._report.hbm_before, self._report.hbm_live - program.output_bytes + program.alias_bytes
        held = 0 if result.refused else max(0, max(before, after) - program.argument_bytes)
        return TargetRow(
            program=program.name,
            outputs=program.outputs,
            line=next((op.line for op in program.ops if op.line is not None), None),
            chip=result.chip.name,
            compiler=result.compiler,
            effort=result.effort,
            fits=result.fits and memory.peak + held <= result.limit,
            reason=result.reason,
            refused=result.refused,
            limit=result.limit,
            runs=program.runs,
            argument_bytes=memory.arguments,
            output_bytes=memory.outputs,
            alias_bytes=memory.aliased,
            temp_bytes=memory.temporaries,
            code_bytes=memory.code,
            held=held,
            flops=result.flops,
            bytes_accessed=result.bytes_accessed,
            bound=roofline.bound,
            roofline=roofline.seconds,
            seconds=result.seconds,
            from_disk=result.from_disk,
        )


def _size(program: ProgramRow) -> int:
    return program.argument_bytes + program.output_bytes + program.temp_bytes
