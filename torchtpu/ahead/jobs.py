"""`torchtpu.compile_for`, and the compiling of programs in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import repeat
from typing import Any

from torchtpu.ahead import chips as known, process
from torchtpu.ahead.captured import Captured, capture
from torchtpu.ahead.chips import Chip
from torchtpu.ahead.compile import EFFORTS, Progress, refused, try_source
from torchtpu.ahead.compiled import Compiled
from torchtpu.ahead.source import Source, least_bytes
from torchtpu.errors import CompilerDiedError
from torchtpu.program import Program
from torchtpu.report.build import op_rows
from torchtpu.report.rows import ProgramRow


def compile_for(
    function: Callable[..., Any],
    *args: Any,
    target: str | Chip | Sequence[str | Chip],
    effort: str = "memory",
    hbm: int | None = None,
    held: int = 0,
    progress: Progress | None = None,
    **kwargs: Any,
) -> Compiled | tuple[Compiled, ...]:
    """Say what a function would be on a TPU chip: whether it fits, its memory, its kernels. No TPU is needed.

    The function is recorded, not run (`torchtpu.ahead.capture` says how), and the TPU compiler compiles it as one program,
    in a process of its own. Ctrl-C gives the compile up. Results are kept on disk.

    Args:
        function: of tensors or modules: a model, a loss, a whole training step with backward and optimizer.
        args, kwargs: of its call. Tensors and modules may be on `tpu`, the CPU, or `meta`, where they need no memory.
        target: a chip (`"v6e"`; `torchtpu.targets()` lists them), or several (`"v5e,v6e"`, `("v5e", "v6e")`, `"all"`).
        effort: `"memory"` compiles fast: it keeps in HBM what `"full"` may keep in VMEM, and its kernels are not those that
            would run. `"full"` is what a TPU would run.
        hbm: bytes of memory, to pretend that the chip has less.
        held: bytes that lie on the chip beside the program, in other tensors.
        progress: called while waiting, with what is compiled and the seconds so far.

    Returns:
        What the compiler says: one `Compiled`, or one for each target where there are several.

    Raises:
        UnknownChipError: there is no such chip.
        ValueUnknownError: the function needs the value of a tensor.
        CompileError: the compiler refuses the program; what is only too large for a chip is a result.
        CompilerMissingError: libtpu is not installed, or in another version than jax needs.
        CompilerDiedError: the compiler's process ended.
    """
    single = isinstance(target, Chip) or (isinstance(target, str) and "," not in target and target.strip().lower() != "all")
    if isinstance(target, (str, Chip)):
        wanted = (known.chip(target),) if single else known.parse(target)
    else:
        wanted = tuple(map(known.chip, target))
    captured = capture(function, *args, **kwargs)
    if single:
        return captured.compile(wanted[0], effort=effort, hbm=hbm, held=held, progress=progress)
    return _together(captured, wanted, effort, hbm, held, progress)


def _together(
    captured: Captured, chips: Sequence[Chip], effort: str, hbm: int | None, held: int, progress: Progress | None
) -> tuple[Compiled, ...]:
    """Compile for several chips, a few at a time."""
    given_up = threading.Event()
    underway: dict[Chip, tuple[str, float]] = {}

    def one(to: Chip) -> Compiled:
        def note(what: str, seconds: float) -> None:
            if given_up.is_set():
                raise _Cancelled
            underway[to] = what, seconds

        try:
            return captured.compile(to, effort=effort, hbm=hbm, held=held, progress=note)
        finally:
            underway.pop(to, None)

    with ThreadPoolExecutor(process.shared.size, "torchtpu targets") as pool:
        results = [pool.submit(one, to) for to in chips]
        try:
            while wait(results, timeout=0.1).not_done:
                for what, seconds in list(underway.values()):
                    if progress is not None:
                        progress(what, seconds)
        except BaseException:  # Ctrl-C, or what `progress` raised
            given_up.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return tuple(result.result() for result in results)


class Job:
    """Programs that are compiled for chips in the background, one after another.

    Attributes:
        total: how many results there will be.
        results: those that there are, program by program. What the compiler refuses is among them (`Compiled.refused`).
        underway: what is compiled now (`fused_12_ops#3 for v6e`); empty before and after.
        error: what ended the job early: there is no compiler.
    """

    def __init__(
        self,
        sources: Sequence[tuple[Source, Chip]],
        effort: str,
        hbm: int | None,
        held: int,
        done: Callable[[Compiled], None] | None,
    ) -> None:
        self.total = len(sources)
        self.results: list[Compiled] = []
        self.underway = ""
        self.error: Exception | None = None
        self._cancelled = threading.Event()
        self._thread = threading.Thread(
            target=self._run, args=(sources, effort, hbm, held, done), name="torchtpu targets", daemon=True
        )
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether nothing more will come."""
        return not self._thread.is_alive()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is done, or for so many seconds. Returns whether it is. Ctrl-C ends the wait, not the job."""
        self._thread.join(timeout)
        return self.done

    def cancel(self) -> None:
        """Give up what has not been compiled yet. Returns at once."""
        self._cancelled.set()

    def _run(
        self,
        sources: Sequence[tuple[Source, Chip]],
        effort: str,
        hbm: int | None,
        held: int,
        done: Callable[[Compiled], None] | None,
    ) -> None:
        try:
            for source, to in sources:
                self._go_on()
                self.underway = f"{source.name} for {to.name}"
                try:
                    result = try_source(source, to, effort, hbm, held, self._go_on)
                except CompilerDiedError as error:  # of this program, perhaps: the next one gets a new process
                    result = refused(source, to, effort, to.hbm_bytes if hbm is None else hbm, str(error))
                self.results.append(result)
                if done is not None:
                    done(result)
        except _Cancelled:
            pass
        except Exception as error:
            self.error = error
        finally:
            self.underway = ""

    def _go_on(self, *_: Any) -> None:
        if self._cancelled.is_set():
            raise _Cancelled


class _Cancelled(Exception):
    """The job was cancelled."""


def compile_programs(
    programs: Sequence[Program],
    chips: Sequence[str | Chip],
    *,
    rows: Sequence[ProgramRow] = (),
    effort: str = "memory",
    hbm: int | None = None,
    held: int = 0,
    done: Callable[[Compiled], None] | None = None,
) -> Job:
    """Compile programs that ran here for chips, in the background.

    Args:
        programs: as the device compiled them.
        chips: for each of which every program is compiled.
        rows: of a report on the same programs, for the lines of their ops.
        effort, hbm, held: as in `compile_for`.
        done: called with each result, in the job's thread.

    Raises:
        UnknownChipError, ValueError: for arguments that cannot be meant.
    """
    if effort not in EFFORTS:
        raise ValueError(f"unknown effort {effort!r}: use one of {', '.join(EFFORTS)}")
    wanted = tuple(map(known.chip, chips))
    ops = [row.ops for row in rows] or repeat(())
    sources = [_source(program, of) for program, of in zip(programs, ops, strict=False)]
    return Job([(source, to) for source in sources for to in wanted], effort, hbm, held, done)


def _source(program: Program, ops: Any) -> Source:
    if not ops:
        ops = op_rows(program.nodes, program.graph, repeat(None), lambda origin: None)
    least = least_bytes(program.inputs, program.outputs, program.donated)
    return Source(program.name, program.graph, ops, least, lambda: program.lower_for("tpu"))
