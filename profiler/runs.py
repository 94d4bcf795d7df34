"""Which launch of which program a run in XLA's trace was."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torchtpu.graph import hlo
from torchtpu.profiler import cost, wire
from torchtpu.profiler.timeline import Launch
from torchtpu.profiler.trace import Kernel, Run
from torchtpu.report.rows import FusionRow

if TYPE_CHECKING:
    from torchtpu.program import Program


@dataclass(slots=True)
class Known:
    """A program that ran, or was launched.

    Attributes:
        name: as in the report; XLA's name for what torchtpu did not launch (a copy, the user's own jax code).
        number: from 1 on, in order of the first launch.
        program: None for what torchtpu did not launch.
        kernels: what the compiler's text says of each kernel by name; costs: of one run of each.
        module, hlo: XLA's name, and HloProto with buffer assignment; empty where there is none.
        texts, symbols: HLO text and number by kernel, once they were asked for.
    """

    name: str
    number: int
    program: Program | None
    module: str
    launches: list[Launch] = field(default_factory=list)
    kernels: dict[str, FusionRow] = field(default_factory=dict)
    costs: dict[str, cost.Cost] = field(default_factory=dict)
    hlo: bytes = b""
    texts: dict[str, str] = field(default_factory=dict)
    symbols: dict[str, int] = field(default_factory=dict)

    def symbol(self, kernel: str) -> int:
        """Return a number that tells the kernel from others of the program."""
        return self.symbols.setdefault(kernel, len(self.symbols) + 1)

    def text(self, kernel: str) -> str:
        """Return a kernel's instruction as HLO text, without its metadata."""
        if not self.texts and self.program is not None:
            self.texts = hlo.instructions(self.program.hlo())
        return self.texts.get(kernel, kernel)


@dataclass(frozen=True, slots=True)
class Ran:
    """A run: of which program, and which launch made it (None if that is not known)."""

    known: Known
    launch: Launch | None
    run: Run

    def cost(self, kernel: Kernel) -> cost.Cost:
        """What the kernel cost in this run."""
        return self.known.costs.get(kernel.name, _NOTHING)


_NOTHING = cost.Cost()


_Module = tuple[str, bytes, dict[str, FusionRow]]
_modules: weakref.WeakKeyDictionary[Any, _Module] = weakref.WeakKeyDictionary()


def _module(program: Program) -> _Module:
    """Return a program's name in XLA, its HloProto, and its kernels: read once, however often it is profiled."""
    compiled = program.compiled
    if compiled not in _modules:
        name, data = f"jit_{program.name.partition('#')[0]}", b""
        try:
            executable = compiled.runtime_executable()
            (module,) = executable.hlo_modules()
            buffers = executable.get_compiled_memory_stats().serialized_buffer_assignment_proto or b""
            name, data = module.name, wire.message(1, module.as_serialized_hlo_module_proto()) + wire.message(3, buffers)
        except (NotImplementedError, ValueError, RuntimeError):  # a backend that hands out no HLO
            pass
        _modules[compiled] = name, data, hlo.kernels(program.hlo())
    return _modules[compiled]


def match(
    runs: Sequence[Run], launches: Sequence[Launch], on_xla: Callable[[float], float] = lambda at: at
) -> tuple[list[Known], list[Ran]]:
    """Tell the runs of a trace by the program and the launch that made them.

    XLA names a program in its trace by its module's name, which programs share, and by a number, which a program that came
    from the disk does not know of itself. But launches are in order, come before their runs, and a run's kernels are its
    program's.

    Args:
        runs: in order of their start.
        launches: in order.
        on_xla: turns a launch's time into one of XLA's clock.
    """
    found: dict[int, Known] = {}
    alike: dict[str, list[tuple[Known, Launch]]] = {}
    for launch in launches:
        known = found.get(id(launch.program))
        if known is None:
            known = found[id(launch.program)] = _known(launch.program, len(found) + 1)
        known.launches.append(launch)
        alike.setdefault(known.module, []).append((known, launch))
    by_module: dict[str, list[Run]] = {}
    for run in runs:
        by_module.setdefault(run.module, []).append(run)
    others: dict[tuple[str, int], Known] = {}
    ran = []
    for module, members in by_module.items():
        for run, made in zip(members, _pair(members, alike.get(module, []), on_xla), strict=True):
            if made is None:
                key = module, run.number
                number = len(found) + len(others) + 1
                other = others.setdefault(key, Known(module or "unknown", number, None, module))
                ran.append(Ran(other, None, run))
            else:
                ran.append(Ran(*made, run))
    ran.sort(key=lambda r: r.run.start)
    return [*found.values(), *others.values()], ran


def _known(program: Program, number: int) -> Known:
    module, data, kernels = _module(program)
    return Known(program.name, number, program, module, kernels=kernels, costs=cost.kernels(program), hlo=data)


_EARLY = 1e-4  # seconds by which a run may seem to begin before its launch: the clocks are set side by side from Python


def _pair(
    runs: Sequence[Run], launches: Sequence[tuple[Known, Launch]], on_xla: Callable[[float], float]
) -> list[tuple[Known, Launch] | None]:
    """Pair the runs and launches of programs whose modules have the same name."""
    names = [{k.name for k in run.kernels} for run in runs]

    def pair(fits: Callable[[int, Known], bool]) -> list[tuple[Known, Launch] | None]:
        waiting = list(launches)
        pairs: list[tuple[Known, Launch] | None] = []
        for n, run in enumerate(runs):
            found = None
            for k, (known, launch) in enumerate(waiting):
                if on_xla(launch.start) > run.start + _EARLY:
                    break
                if fits(n, known):
                    found = waiting.pop(k)
                    break
            pairs.append(found)
        return pairs

    pairs = pair(lambda n, known: names[n] <= known.kernels.keys())
    # Programs with the same kernels' names can have been mistaken for each other where XLA began them in another order.
    votes = Counter((run.number, made[0].number) for run, made in zip(runs, pairs, strict=True) if made is not None)
    program_of: dict[int, int] = {}
    for (number, program), _ in votes.most_common():
        if number not in program_of and program not in program_of.values():
            program_of[number] = program
    if len(program_of) < len({run.number for run in runs}) or len(program_of) < len({p for _, p in votes}):
        return pairs  # programs from the disk of several sessions can share a number
    return pair(lambda n, known: program_of[runs[n].number] == known.number)
