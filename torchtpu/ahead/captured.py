"""`capture`: what a function would run on the device, as one program, without running it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torchtpu import schedule
from torchtpu.ahead import keep, stand_ins
from torchtpu.ahead.chips import Chip
from torchtpu.ahead.compile import Progress, compile_source
from torchtpu.ahead.compiled import Compiled
from torchtpu.ahead.source import Source, least_bytes
from torchtpu.ahead.tape import Tape, recording
from torchtpu.layout import Layout
from torchtpu.program import Wires, graph_function, lower
from torchtpu.reach import SAVED, Walk
from torchtpu.report.build import op_rows, resolver

_BUDGET = 1_000_000  # objects to look at for results


class Captured:
    """A function's work on the device, as one program. `compile` asks the TPU compiler about it, for as many chips as wanted.

    Attributes:
        name: of the function.
        ops: its ATen ops, with their lines.
        inputs, outputs: layouts of its arrays: what it reads, and what it leaves behind.
        donated: how many of the inputs, the first ones, are rewritten or dropped by it, so that outputs take their memory.
    """

    def __init__(self, name: str, tape: Tape, kept: Sequence[int], freed: Sequence[int]) -> None:
        layouts = [b.layout for b in tape.inputs]
        arranged = schedule.arrange(tape.nodes, kept, freed, layouts)
        nodes, results, donated = arranged.key
        origins = [tape.origins[k] for k in arranged.members]
        self.name = name
        self.ops = op_rows([node.plan.info() for node in nodes], nodes, origins, resolver())
        self.inputs: tuple[Layout, ...] = tuple(layouts[-1 - r] for r in arranged.refs)
        made = [layout for node in nodes for layout in node.plan.outputs]
        self.outputs: tuple[Layout, ...] = tuple(made[s] for s in results)
        self.donated = len(donated)
        wires = Wires([w for n in nodes for w in n.plan.wires])
        function = graph_function(nodes, results, wires, len(self.inputs))
        function.__name__ = function.__qualname__ = name
        least = least_bytes(self.inputs, self.outputs, donated)
        self._source = Source(name, nodes, self.ops, least, lambda: lower(function, self.inputs, wires, donated, "tpu"))

    def compile(
        self,
        target: str | Chip,
        *,
        effort: str = "memory",
        hbm: int | None = None,
        held: int = 0,
        progress: Progress | None = None,
    ) -> Compiled:
        """Compile it for a chip. Arguments, result and errors as in `torchtpu.compile_for`, for one target."""
        return compile_source(self._source, target, effort, hbm, held, progress)

    def __repr__(self) -> str:
        return f"<Captured {self.name}: {len(self.ops)} ops, {len(self.inputs)} inputs, {len(self.outputs)} outputs>"


def capture(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Captured:
    """Record what a function would run on the device. Nothing is computed, and the user's objects stay as they are.

    The function is called once; twice where an optimizer makes its state in the first call, for the step that is repeated
    is the one of interest. Its own Python runs: what it appends to a list, or prints, is there.

    Args:
        function: of tensors or modules; a whole training step too. What it returns, and what it changes in place
            (parameters, gradients, states), are the program's outputs.
        args, kwargs: of its call. Tensors and modules may be on `tpu`, on the CPU, or on `meta`, where they need no memory.
            They, and those that the function reaches by its variables, are looked at as if they were on `tpu`.

    Raises:
        ValueUnknownError: the function needs the value of a tensor (with its line).
        ValueError: it does nothing on the device.
        Whatever the function raises.
    """
    from torchtpu import _register

    _register.start()
    name = getattr(function, "__name__", type(function).__name__)
    with stand_ins.standing_in(stand_ins.reached(function, args, kwargs)), keep.unchanged() as kept:
        tape, results = _record(function, args, kwargs)
        if any(keep.entries(optimizer) > before for optimizer, before in kept.optimizers):
            del results
            tape, results = _record(function, args, kwargs)
        live = tape.live()
        freed = tape.freed(kept.buffers)
    del results
    if not live:
        raise ValueError(f"{name} computes nothing on the device that it returns or keeps: there is nothing to compile")
    return Captured(_identifier(name), tape, live, freed)


def _record(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tape, list[Any]]:
    """Call the function. Returns its ops, and the buffers of what it returned; its autograd graph is let go of."""
    tape = Tape()
    with recording(tape):
        result = function(*args, **kwargs)
    return tape, [r.buffer for r in Walk(_BUDGET).run(result, "result") if r.role != SAVED]


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name).strip("_") or "function"
