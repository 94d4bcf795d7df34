"""Programs: one or many lowered ops, compiled by XLA, with the numbers that they take as inputs.

A program's inputs are arrays, then one vector per *wire* dtype that holds the numbers of all its ops (learning rates,
epsilons, random keys): a new value never makes a new program.
"""

from __future__ import annotations

import contextlib
import gc
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import numpy as np

from torchtpu import client, compiler, errors, hbm, precision
from torchtpu.layout import Layout

if TYPE_CHECKING:
    from torchtpu.plan import Plan, PlanKey

# bfloat16 intermediates are rounded as eager PyTorch rounds them, also inside a fusion.
COMPILER_OPTIONS: dict[str, Any] = {"xla_allow_excess_precision": False}


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """An op of a program, for reports: its ATen name and the layouts of its results."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[Layout, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """An op in a graph.

    Attributes:
        plan: what it does.
        refs: where its arrays come from (`>= 0`: a result's slot, `< 0`: input `-1 - ref`).
        backward: it was recorded in a backward pass.
    """

    plan: Plan
    refs: tuple[int, ...]
    backward: bool = False


# Linux gives a process 65,530 memory mappings, and a compiled program takes three or more: XLA crashes beyond.
MAX_PROGRAMS = 8_000
_made = count(1)

_constants: dict[tuple[str, bytes], Any] = {}
_MAX_CONSTANTS = 4096


class Wires:
    """How a program's numbers travel: which go into the vector of each wire dtype."""

    __slots__ = ("groups", "places")

    def __init__(self, wires: Sequence[str]) -> None:
        groups: dict[str, list[int]] = {}
        places = []
        for k, wire in enumerate(wires):
            members = groups.setdefault(wire, [])
            places.append((wire, len(members)))
            members.append(k)
        self.groups = tuple((wire, np.dtype(wire), tuple(members)) for wire, members in sorted(groups.items()))
        self.places = tuple(places)

    def pack(self, numbers: Sequence[Any]) -> list[Any]:
        """Put the numbers on the device, one vector per wire dtype. Vectors seen before are reused."""
        packed = []
        for wire, dtype, members in self.groups:
            try:
                values = [numbers[k] for k in members]
                # What float32 cannot hold becomes infinite, without a warning of numpy's.
                host = np.frombuffer(array("f", values), dtype) if wire == "f4" else np.array(values, dtype)
            except OverflowError:
                raise RuntimeError(f"value cannot be converted to type {dtype.name} without overflow: {values}") from None
            key = (wire, host.tobytes())
            vector = _constants.get(key)
            if vector is None:
                vector = client.put(host)
                if wire != "u4":  # random keys never come back
                    if len(_constants) >= _MAX_CONSTANTS:
                        _constants.clear()
                    _constants[key] = vector
            packed.append(vector)
        return packed

    def unpack(self, vectors: Sequence[Any]) -> list[Any]:
        """Inside a trace: the numbers as 0-d arrays."""
        by_wire = {wire: vector for (wire, _, _), vector in zip(self.groups, vectors, strict=True)}
        return [by_wire[wire][position] for wire, position in self.places]


class Program:
    """A compiled program.

    Attributes:
        name: `aten_mul` for one op, `fused_12_ops#3` for the third graph.
        nodes: its ops.
        graph: its ops with their plans and references, as in `Node`.
        results: slots of the graph that it returns.
        inputs, outputs: layouts of its arrays (numbers not counted).
        donated: positions of the inputs whose memory it may reuse.
        call: the compiled callable: arrays, then packed numbers; returns a tuple of arrays.
        compile_seconds: tracing, lowering and XLA (or loading from disk), measured.
        from_disk: it was compiled by an earlier session and loaded.
        argument_bytes, output_bytes, temp_bytes, alias_bytes: as XLA's compiler for the platform reports them.
    """

    __slots__ = (
        "name", "nodes", "graph", "results", "inputs", "outputs", "donated", "wires", "call", "compile_seconds",
        "argument_bytes", "output_bytes", "temp_bytes", "alias_bytes", "compiled", "from_disk", "_function",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        nodes: tuple[NodeInfo, ...],
        function: Callable[..., tuple[Any, ...]],
        inputs: tuple[Layout, ...],
        wires: Wires,
        donated: tuple[int, ...],
        graph: tuple[Node, ...] = (),
        results: tuple[int, ...] = (),
    ) -> None:
        import jax

        if next(_made) % MAX_PROGRAMS == 0:
            forget()
        self.graph, self.results, self._function = graph, results, function
        self.name, self.nodes, self.inputs, self.wires, self.donated = name, nodes, inputs, wires, donated
        function.__name__ = function.__qualname__ = name.partition("#")[0]
        start = time.perf_counter()
        with compiler.announce(name, len(nodes)) as about:
            lowered = self._lower()
            try:
                self.compiled, self.from_disk = compiler.compile(about, lowered, self.options)
            except jax.errors.JaxRuntimeError as error:
                raise compile_error(name, nodes, error) from None
        self.call = self.compiled
        self.outputs = tuple(Layout(o.shape, o.dtype) for o in lowered.out_info)
        stats = self.compiled.memory_analysis()
        self.argument_bytes = stats.argument_size_in_bytes if stats else 0
        self.output_bytes = stats.output_size_in_bytes if stats else 0
        self.temp_bytes = stats.temp_size_in_bytes if stats else 0
        self.alias_bytes = stats.alias_size_in_bytes if stats else 0
        self.compile_seconds = time.perf_counter() - start

    def _lower(self) -> Any:
        return lower(self._function, self.inputs, self.wires, self.donated)

    def lower_for(self, platform: str) -> Any:
        """Lower it anew, for another platform (`tpu`)."""
        return lower(self._function, self.inputs, self.wires, self.donated, platform)

    @property
    def options(self) -> dict[str, Any]:
        """The options that XLA compiles it with."""
        return COMPILER_OPTIONS | {"xla_allow_excess_precision": any(key.excess for key in self._keys())}

    @property
    def precision(self) -> str:
        """Of its float32 products (`DEFAULT`, `HIGH, emulated`), several joined by `and`; empty where it has none.

        `excess allowed` is added where XLA may leave out roundings to 16 bits.
        """
        products = " and ".join(dict.fromkeys(str(key.precision) for key in self._keys() if key.precision is not None))
        excess = "excess allowed" if self.options["xla_allow_excess_precision"] else ""
        return ", ".join(filter(None, (products, excess)))

    def _keys(self) -> list[PlanKey]:
        return [node.plan.key for node in self.graph if node.plan.key is not None]

    def stablehlo(self) -> str:
        """Return what XLA was given, as StableHLO whose locations name the ops. It is lowered anew: nothing keeps it."""
        return self._lower().as_text(debug_info=True)

    def hlo(self) -> str:
        """Return what XLA made of it, as optimized HLO; `op_name` leads back to the ops."""
        return self.compiled.as_text() or ""  # None where a backend has no text

    def __repr__(self) -> str:
        return f"Program({self.name}, {len(self.nodes)} ops, {self.compile_seconds:.3f} s to compile)"


def lower(
    function: Callable[..., tuple[Any, ...]],
    inputs: Sequence[Layout],
    wires: Wires,
    donated: tuple[int, ...],
    platform: str = "",
) -> Any:
    """Trace a program's function and lower it for the device, or for another platform."""
    import jax

    where = None if platform else client.sharding()
    with client.tracing(), precision.for_tpu() if platform == "tpu" else contextlib.nullcontext():
        arguments = [jax.ShapeDtypeStruct(i.shape, i.dtype, sharding=where) for i in inputs]
        arguments += [jax.ShapeDtypeStruct((len(members),), dtype, sharding=where) for _, dtype, members in wires.groups]
        traced = jax.jit(function, donate_argnums=donated, keep_unused=True).trace(*arguments)
        return traced.lower(lowering_platforms=(platform,)) if platform else traced.lower()


def forget() -> None:
    """Let go of every compiled program. Each is loaded from disk, or compiled, when it is needed again."""
    from torchtpu import schedule
    from torchtpu.modes import deferred
    from torchtpu.plan import Plan

    deferred.forget_schedules()
    schedule.programs.clear()
    for plan in gc.get_objects():
        if type(plan) is Plan:
            plan.program = plan.donating = plan.last = None


def compile_error(name: str, nodes: tuple[NodeInfo, ...], error: Exception) -> Exception:
    """Turn what the compiler threw into an exception that a user can act on."""
    text = str(error)
    if "RESOURCE_EXHAUSTED" in text:
        wanted = sum(o.nbytes for n in nodes for o in n.outputs)
        return errors.out_of_memory(wanted, hbm.usage.live, client.memory_limit(), f"program {name}")
    ops = ", ".join(dict.fromkeys(n.op for n in nodes))
    return errors.CompileError(f"XLA could not compile {name} ({ops}): {text.splitlines()[0]}")


def graph_function(nodes: Sequence[Node], live: Sequence[int], wires: Wires, n_inputs: int) -> Callable[..., tuple[Any, ...]]:
    """Build the function that runs `nodes` in order and returns the results in the `live` slots.

    Each op is traced under a scope with its number, so that an XLA fusion's `op_name` leads back to it.
    """
    slots: list[range] = []
    first = 0
    for node in nodes:
        slots.append(range(first, first + len(node.plan.outputs)))
        first += len(node.plan.outputs)
    forward = {s for node, made in zip(nodes, slots, strict=True) if not node.backward for s in made}

    def run(*arguments: Any) -> tuple[Any, ...]:
        import jax
        from jax.lax import optimization_barrier

        arrays, numbers = arguments[:n_inputs], wires.unpack(arguments[n_inputs:])
        values: dict[int, Any] = {}
        saved: dict[int, Any] = {}

        def inputs_of(node: Node) -> list[Any]:
            inputs = [values[r] if r >= 0 else arrays[-1 - r] for r in node.refs]
            if not node.backward:
                return inputs
            # What autograd saved goes through a barrier. Otherwise XLA merges the backward op's work with the forward
            # op's, and keeps alive what the op would compute again from what was saved.
            for k, r in enumerate(node.refs):
                if r in forward:
                    if r not in saved:
                        saved[r] = optimization_barrier(values[r])
                    inputs[k] = saved[r]
            return inputs

        number = 0
        for k, node in enumerate(nodes):
            plan = node.plan
            count = len(plan.wires)
            with jax.named_scope(f"{k}.{plan.scope}"):
                results = plan.lower(inputs_of(node), numbers[number : number + count])
            for slot, result in zip(slots[k], results, strict=True):
                values[slot] = result
            number += count
        return tuple(values[s] for s in live)

    return run
