"""What each kernel of a program costs, by XLA's own cost analysis.

XLA analyses a whole module. So each kernel is made a module of its own: its instruction, the computations that it calls,
and a parameter for each operand (xla/service/hlo.proto).
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torchtpu import client
from torchtpu.profiler import wire

if TYPE_CHECKING:
    from torchtpu.program import Program

# Fields of HloModuleProto and of HloComputationProto; those of HloInstructionProto stand in `_Instruction`.
_COMPUTATIONS, _MODULE_SIGNATURE, _MODULE_ID, _ENTRY = 3, 4, 5, 6
_INSTRUCTIONS, _SIGNATURE, _COMPUTATION_ID, _ROOT = 2, 4, 5, 6

# They do no work, or run other kernels.
_ENDS = (b"-done", b"-update")  # of what goes on beside other kernels: the work is that of its `-start`
_NO_KERNEL = (b"parameter", b"constant", b"tuple", b"get-tuple-element", b"bitcast", b"while", b"conditional", b"call")


@dataclass(frozen=True, slots=True)
class Cost:
    """One run of a kernel: floating-point operations, and bytes read and written."""

    flops: float = 0.0
    nbytes: float = 0.0


_known: weakref.WeakKeyDictionary[Any, dict[str, Cost]] = weakref.WeakKeyDictionary()


def kernels(program: Program) -> dict[str, Cost]:
    """Return the cost of each kernel of a program by name. Empty where the platform's executables hold no HLO."""
    compiled = program.compiled
    if compiled not in _known:
        try:
            (module,) = compiled.runtime_executable().hlo_modules()
            _known[compiled] = of_module(module.as_serialized_hlo_module_proto())
        except (NotImplementedError, ValueError, RuntimeError):  # a backend without HLO, or without this analysis
            _known[compiled] = {}
    return _known[compiled]


def of_module(module: bytes) -> dict[str, Cost]:
    """Return the cost of each kernel of a serialized HloModuleProto by name."""
    from jax._src.lib import xla_client
    from jaxlib._hlo import HloModule

    backend = client.device().client
    computations = {}
    for number, value in wire.fields(module):
        if number == _COMPUTATIONS and isinstance(value, bytes):
            made = _Computation(value)
            computations[made.number] = made
    fused = {c for made in computations.values() for i in made.instructions.values() if i.opcode == b"fusion" for c in i.called}
    costs = {}
    for computation in computations.values():
        if computation.number in fused:
            continue
        for instruction in computation.instructions.values():
            if instruction.opcode in _NO_KERNEL or instruction.opcode.endswith(_ENDS):
                continue
            alone = HloModule.from_serialized_hlo_module_proto(_alone(instruction, computation, computations))
            figures = xla_client._xla.hlo_module_cost_analysis(backend, alone)
            costs[instruction.name.decode()] = Cost(
                max(0.0, figures.get("flops", 0.0)),
                max(0.0, figures.get("bytes accessed", 0.0)),
            )
    return costs


class _Instruction:
    """An instruction as it was read: `operands` and `called` are numbers of instructions and computations."""

    __slots__ = ("data", "name", "opcode", "shape", "number", "operands", "called")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.name, self.opcode, self.shape, self.number = b"", b"", b"", 0
        self.operands: list[int] = []
        self.called: list[int] = []
        for field, value in wire.fields(data):
            match field:
                case 1:
                    self.name = value
                case 2:
                    self.opcode = value
                case 3:
                    self.shape = value
                case 35:
                    self.number = value
                case 36:
                    self.operands += wire.numbers(value)
                case 38:
                    self.called += wire.numbers(value)


class _Computation:
    """A computation as it was read: its instructions by number."""

    __slots__ = ("data", "number", "instructions")

    def __init__(self, data: bytes) -> None:
        self.data, self.number = data, 0
        self.instructions: dict[int, _Instruction] = {}
        for field, value in wire.fields(data):
            if field == _COMPUTATION_ID:
                self.number = value
            elif field == _INSTRUCTIONS:
                instruction = _Instruction(value)
                self.instructions[instruction.number] = instruction


def _alone(instruction: _Instruction, home: _Computation, computations: dict[int, _Computation]) -> bytes:
    """Return a module that computes one instruction from parameters."""
    called: list[int] = []
    waiting = list(instruction.called)
    while waiting:
        number = waiting.pop()
        if number not in called:
            called.append(number)
            waiting += [c for i in computations[number].instructions.values() for c in i.called]
    operands = [home.instructions[o] for o in dict.fromkeys(instruction.operands)]
    signature = b"".join(wire.message(1, o.shape) for o in operands) + wire.message(2, instruction.shape)
    signature += b"".join(wire.text(3, f"p{k}") for k in range(len(operands)))
    entry = wire.text(1, "kernel") + wire.message(_SIGNATURE, signature)
    for k, o in enumerate(operands):
        parameter = wire.message(1, o.name) + wire.text(2, "parameter") + wire.message(3, o.shape)
        entry += wire.message(_INSTRUCTIONS, parameter + wire.number(9, k) + wire.number(35, o.number))
    entry += wire.message(_INSTRUCTIONS, instruction.data)
    entry += wire.number(_COMPUTATION_ID, home.number) + wire.number(_ROOT, instruction.number)
    module = wire.text(1, "kernel") + wire.text(2, "kernel")
    # Called computations stand before their callers: HLO is read in that order.
    for number in computations:
        if number in called:
            module += wire.message(_COMPUTATIONS, computations[number].data)
    module += wire.message(_COMPUTATIONS, entry) + wire.message(_MODULE_SIGNATURE, signature) + wire.number(_MODULE_ID, 1)
    return module + wire.number(_ENTRY, home.number)
