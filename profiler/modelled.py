"""What a TPU chip would take for a capture, by its compiler's own estimates: a run beside the measured one.

The TPU compiler writes down how many cycles it expects of each kernel. They are turned into seconds with the chip's clock,
one kernel after the other; a loop's body counts once. Nothing is measured: the run's name and its device say `modelled`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torchtpu.errors import TorchTPUError
from torchtpu.graph import hlo
from torchtpu.profiler import build, cost, wire
from torchtpu.profiler.captured import Captured
from torchtpu.profiler.peaks import Peaks
from torchtpu.profiler.result import Profile
from torchtpu.profiler.rows import Span
from torchtpu.profiler.runs import Known, Ran
from torchtpu.profiler.timeline import Allocations, Timeline
from torchtpu.profiler.trace import Kernel, Run, Trace

if TYPE_CHECKING:
    from torchtpu.ahead import Chip, Compiled

# Cycles per second: what the published peak of the matrix units is a multiple of.
_CLOCKS = {"v4": 1.05e9, "v5e": 1.5e9, "v5p": 1.75e9, "v6e": 1.75e9, "tpu7x": 2.2e9}
_CYCLES = re.compile(r'^\s+(?:ROOT )?%?([\w.\-]+) = .*"estimated_cycles":"(\d+)"', re.MULTILINE)


def model(
    captured: Captured, chip: Chip, progress: Callable[[str], None] | None = None
) -> tuple[Captured, Profile, list[Span]]:
    """Compile the programs of a capture for a chip, and let the compiler's estimates take the place of what was measured.

    Args:
        captured: a measured one.
        chip: it need not be there.
        progress: called every second, with what is compiled.

    Raises:
        CompilerMissingError: libtpu is not installed.
        CompileError: it refuses one of the programs.
    """
    programs = [known for known in captured.programs if known.program is not None]
    compiled = dict(zip((known.number for known in programs), _compile(captured, programs, chip, progress), strict=True))
    known = {number: _known(of, compiled[number]) for of in programs if (number := of.number) in compiled}
    cycles = {number: _cycles(result) for number, result in compiled.items()}
    ends = captured.timeline.ends_of_steps
    timeline = Timeline(captured.timeline.mode, started=0.0)
    runs, ran, now, step = [], [], 0.0, 0
    for was in captured.ran:
        if was.launch is None:
            continue
        while step < min(bisect_right(ends, was.launch.start), len(ends)):
            timeline.ends_of_steps.append(now)
            step += 1
        run = Run(was.known.module, was.known.number)
        for name, count in cycles[was.known.number].items():
            seconds = count / _CLOCKS[chip.name]
            run.kernels.append(Kernel(name, 1, now, now + seconds, seconds))
            now += seconds
        if run.kernels:
            launch = was.launch._replace(start=run.start, seconds=0.0)
            timeline.launches.append(launch)
            runs.append(run)
            ran.append(Ran(known[was.known.number], launch, run))
    timeline.ends_of_steps += [now] * (len(ends) - step)
    nothing = Allocations()
    nothing.before = 0
    name = f"{captured.run}_modelled_{chip.name}"
    made = replace(
        captured,
        run=name,
        folder=str(Path(captured.folder).with_name(name)),
        elapsed=now,
        timeline=timeline,
        allocations=nothing,
        trace=Trace(runs, 0.0, 1.0, captured.trace.began, False),
        programs=list(known.values()),
        ran=ran,
        peaks=Peaks(chip.peak_flops, chip.peak_bandwidth, f"published for {chip.name}, in bfloat16 ({chip.source})"),
        device_type=f"TPU {chip.name}, modelled from {programs and compiled[programs[0].number].compiler}'s estimated cycles",
    )
    # What the host did was measured here, and is in the other run.
    spans = [s for s in build.spans(made) if s.track in ("steps", "programs") or s.track.startswith("device")]
    return made, replace(build.profile(made, spans), modelled=True, idle=()), spans


def _compile(captured: Captured, programs: list[Known], chip: Chip, progress: Callable[[str], None] | None) -> list[Compiled]:
    from torchtpu.ahead import compile_programs
    from torchtpu.errors import CompileError

    rows = dict(zip(map(id, captured.report.live_programs()), captured.report.programs, strict=True))
    wanted = [known.program for known in programs if known.program is not None]
    job = compile_programs(wanted, [chip], rows=[rows[id(program)] for program in wanted], effort="full")
    try:
        while not job.wait(1.0):
            if progress is not None:
                progress(f"{len(job.results)} of {job.total} programs compiled for {chip.name}")
    finally:
        job.cancel()
    if job.error is not None:
        raise job.error
    for result in job.results:
        if result.refused:
            raise CompileError(result.reason)
    return list(job.results)


def _cycles(compiled: Compiled) -> dict[str, int]:
    return {name: int(count) for name, count in _CYCLES.findall(compiled.hlo)}


def _known(known: Known, compiled: Compiled) -> Known:
    text = compiled.hlo
    proto = compiled.hlo_proto
    if not proto:
        raise TorchTPUError(f"{compiled.name} does not fit on a {compiled.chip.name}: {compiled.reason}")
    return replace(
        known,
        kernels=hlo.kernels(text),
        costs=cost.of_module(module) if isinstance(module := wire.first(proto, 1), bytes) else {},
        hlo=proto,
        texts=hlo.instructions(text),
        symbols={},
    )
