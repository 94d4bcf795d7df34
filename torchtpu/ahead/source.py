"""`Source`: a program that can be compiled for chips."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torchtpu.layout import Layout
from torchtpu.program import Node
from torchtpu.report.rows import OpRow


@dataclass(frozen=True)
class Source:
    """A program that can be compiled for chips.

    Attributes:
        name: of the program, as XLA gets it.
        nodes: its ops.
        ops: the same, with their lines.
        least: bytes that it needs in any case.
        lower: traces it and lowers it for TPU.
    """

    name: str
    nodes: Sequence[Node]
    ops: tuple[OpRow, ...]
    least: int
    lower: Callable[[], Any]
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def module(self) -> bytes:
        """What the compiler is given: StableHLO as bytecode, made once for all chips."""
        with self._lock:
            return self._module

    @cached_property
    def _module(self) -> bytes:
        from jax._src.interpreters import mlir

        return mlir.module_to_bytecode(self.lower().compiler_ir("stablehlo"))

    @property
    def excess(self) -> bool:
        """Whether the compiler may leave out roundings to 16 bits."""
        return any(node.plan.key is not None and node.plan.key.excess for node in self.nodes)


def least_bytes(inputs: Sequence[Layout], outputs: Sequence[Layout], donated: Sequence[int]) -> int:
    """Return what a program needs without temporaries and padding, if its outputs take all of the donated inputs' memory."""
    given = sum(inputs[k].nbytes for k in donated)
    return sum(i.nbytes for i in inputs) + max(sum(o.nbytes for o in outputs) - given, 0)


def text_of(module: bytes) -> str:
    """Return the text of StableHLO bytecode, with locations that name the ops."""
    from jax._src.interpreters import mlir
    from jax._src.lib.mlir import ir

    with mlir.make_ir_context():
        return ir.Module.parse(module).operation.get_asm(enable_debug_info=True)
