"""`Compiled`: what the TPU compiler made of a program, for one chip."""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass
from typing import Any

from torchtpu.ahead.chips import Chip
from torchtpu.lines import Line
from torchtpu.report.rows import FusionRow, OpRow, compiled, measured

MODELLED = "modelled"
SCHEMA = "torchtpu.compiled"
VERSION = 1  # raise it when a field changes its meaning, is renamed or goes


@dataclass(frozen=True, slots=True)
class Memory:
    """The device memory of a program, in bytes, as its compiler planned it.

    Attributes:
        arguments, outputs: its arrays, with the padding of the chip's tiles.
        aliased: of the outputs, those that take an argument's memory.
        temporaries: what it needs besides at its peak, with the gaps between its buffers.
        code: its instructions.
        held: what lies on the device beside the program, as the caller said.
    """

    arguments: int = compiled()
    outputs: int = compiled()
    aliased: int = compiled()
    temporaries: int = compiled()
    code: int = compiled()
    held: int = 0

    @property
    def peak(self) -> int:
        """Arguments + outputs - aliased + temporaries + code + held."""
        return self.arguments + self.outputs - self.aliased + self.temporaries + self.code + self.held


@dataclass(frozen=True, slots=True)
class LargeRow:
    """A buffer of a program, among the largest of those that are in use at its peak.

    Attributes:
        role: `argument`, `output` or `temporary`.
        what: `float32[8,128]`.
        op: the ATen op that made it; for an argument, the first that reads it. Empty where the compiler does not say.
        line: that op's line.
        module: path of the nn.Module that made it; empty outside of any.
        unpadded: bytes of its elements.
        padded: bytes that it takes on the chip, whose tiles are filled up.
    """

    role: str
    what: str
    op: str
    line: Line | None
    module: str = ""
    unpadded: int = 0
    padded: int = compiled()


@dataclass(frozen=True, slots=True)
class Roofline:
    """Where a program stands between the chip's two published peaks. All of it is modelled, none measured.

    Attributes:
        bound: `compute` or `memory`: the peak that it would meet first.
        seconds: it would take at that peak; a real run takes longer.
        intensity: FLOP per byte of HBM, as the compiler counts both.
        ridge: the intensity at which the chip's peaks meet.
    """

    bound: str
    seconds: float
    intensity: float
    ridge: float


class _WithTexts:
    """A slot that is no field: it is neither saved as JSON nor compared."""

    __slots__ = ("_texts",)


@dataclass(frozen=True, slots=True, repr=False)
class Compiled(_WithTexts):
    """What the TPU compiler made of a program, for one chip.

    Attributes:
        name: of the program.
        chip: what it was compiled for.
        effort: `memory` (a fast compile, which keeps more in HBM and makes less code) or `full` (what a TPU would run).
        compiler: `libtpu 0.0.42.1`.
        limit: bytes of HBM that it had to fit into: the chip's, or what the caller said.
        fits: its peak and what is held beside it are within the limit.
        reason: why it does not fit, or was refused, in the compiler's words where it has some; else empty.
        refused: the compiler cannot compile it; there are no figures then.
        memory: what it needs.
        largest: its largest buffers at the peak, the largest first.
        ops: its ATen ops, with their lines.
        fusions: its kernels in the order in which they run.
        flops, bytes_accessed: of a run, in the compiler's own cost model. It counts no FLOP inside custom calls.
        seconds: what compiling took, whenever that was.
        from_disk: the result of an earlier compile was taken.
    """

    name: str
    chip: Chip
    effort: str
    compiler: str
    limit: int
    fits: bool
    reason: str
    refused: bool
    memory: Memory
    largest: tuple[LargeRow, ...]
    ops: tuple[OpRow, ...]
    fusions: tuple[FusionRow, ...]
    flops: float = compiled(0.0)
    bytes_accessed: float = compiled(0.0)
    seconds: float = measured(0.0)
    from_disk: bool = False

    @property
    def hbm_peak(self) -> int:
        """Bytes of HBM: arguments + outputs - aliased + temporaries + code + held (compiled)."""
        return self.memory.peak

    @property
    def roofline(self) -> Roofline:
        """Where it stands between the chip's published peaks (modelled)."""
        compute, memory = self.flops / self.chip.peak_flops, self.bytes_accessed / self.chip.peak_bandwidth
        intensity = self.flops / self.bytes_accessed if self.bytes_accessed else 0.0
        bound = "compute" if compute > memory else "memory"
        return Roofline(bound, max(compute, memory), intensity, self.chip.ridge)

    @property
    def hlo(self) -> str:
        """What the compiler made of it, as optimized HLO with the chip's layouts; empty in a result read from JSON."""
        text = getattr(self, "_texts", _NO_TEXTS)[1]
        return zlib.decompress(text).decode() if text else ""

    @property
    def hlo_proto(self) -> bytes:
        """The optimized HLO with its buffer assignment, as a serialized HloProto; empty where `hlo` is."""
        proto = getattr(self, "_texts", _NO_TEXTS)[2]
        return zlib.decompress(proto) if proto else b""

    @property
    def stablehlo(self) -> str:
        """What the compiler was given, as StableHLO whose locations name the ops; empty in a result read from JSON."""
        from torchtpu.ahead.source import text_of

        module = getattr(self, "_texts", _NO_TEXTS)[0]
        return text_of(module) if module else ""

    def to_text(self) -> str:
        """Return it as plain text."""
        from torchtpu.ahead.show import to_text

        return to_text(self)

    def to_json(self) -> str:
        """Return everything but the two texts as JSON, in a versioned schema that `from_json` reads."""
        return json.dumps({"schema": SCHEMA, "version": VERSION, "compiled": asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> Compiled:
        """Read what `to_json` wrote.

        Raises:
            ValueError: it is something else, or of another version.
        """
        from torchtpu.report.to_json import decode_document

        return decode_document(cls, text, SCHEMA, VERSION, "compiled")

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        verdict = "refused" if self.refused else "fits" if self.fits else "does not fit"
        return f"<Compiled {self.name} for {self.chip.name}: {verdict}, {self.hbm_peak:,} bytes at the peak>"

    def _repr_html_(self) -> str:
        from torchtpu.ahead.show import to_html

        return to_html(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self.to_text())


_NO_TEXTS = b"", b"", b""


def with_texts(result: Compiled, module: bytes, hlo: bytes, proto: bytes) -> Compiled:
    """Give a result its texts: StableHLO as bytecode, and compressed by zlib the optimized HLO, as text and as HloProto."""
    object.__setattr__(result, "_texts", (module, hlo, proto))
    return result
