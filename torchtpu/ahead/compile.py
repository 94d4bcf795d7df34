"""From a program to what the TPU compiler says of it."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from typing import Any

from torchtpu.ahead import process
from torchtpu.ahead.chips import Chip, chip, targets
from torchtpu.ahead.compiled import Compiled, LargeRow, Memory, with_texts
from torchtpu.ahead.source import Source
from torchtpu.ahead.worker import EFFORTS
from torchtpu.errors import CompileError
from torchtpu.graph import hlo
from torchtpu.program import Node, graph_function, lower
from torchtpu.report import units

# Told while waiting: what is compiled for which chip, and the seconds so far.
Progress = Callable[[str, float], None]


def compile_source(
    source: Source, target: str | Chip, effort: str, hbm: int | None, held: int, progress: Progress | None
) -> Compiled:
    """Compile a program for a chip. Arguments as in `torchtpu.compile_for`.

    Raises:
        CompileError: the TPU compiler refuses it (with its reason, and the line of the op at fault where it is known).
    """
    result = try_source(source, target, effort, hbm, held, progress)
    if result.refused:
        raise CompileError(result.reason)
    return result


def try_source(
    source: Source, target: str | Chip, effort: str, hbm: int | None, held: int, progress: Progress | None
) -> Compiled:
    """Compile a program for a chip; one that is refused is a result too."""
    to = chip(target)
    if effort not in EFFORTS:
        raise ValueError(f"unknown effort {effort!r}: use one of {', '.join(EFFORTS)}")
    limit = to.hbm_bytes if hbm is None else hbm
    if limit <= 0 or held < 0:
        raise ValueError(f"hbm={hbm}, held={held}: the one must be above 0 bytes, the other at least 0")
    compiler = f"libtpu {process.version()}"  # or an error that says how to get it, before anything is lowered

    def waiting(seconds: float) -> None:
        if progress is not None:
            progress(f"{source.name} for {to.name}", seconds)

    try:
        module = source.module
    except Exception as error:  # jax has no TPU lowering for something in it
        return refused(source, to, effort, limit, _refusal(source, to, str(error)))
    request = {
        "module": module,
        "topology": to.topology,
        "bounds": to.chips_per_host_bounds,
        "effort": effort,
        "limit": max(limit - held, 1 << 20),
        "least": source.least,
        "excess": source.excess,
        "larger": [(c.name if c is not to else "", c.topology, c.chips_per_host_bounds) for c in _larger(to, limit - held)],
    }
    answer, from_disk = process.compile(request, waiting)
    if "error" in answer:
        return refused(source, to, effort, limit, _refusal(source, to, answer["error"]))
    text = zlib.decompress(answer["hlo"]).decode()
    memory = memory_of(answer, held)
    fits = not answer["reason"] and memory.peak <= limit
    result = Compiled(
        name=source.name,
        chip=to,
        effort=effort,
        compiler=compiler,
        limit=limit,
        fits=fits,
        reason="" if fits else _too_large(memory, limit, answer["reason"], answer["figures_of"]),
        refused=False,
        memory=memory,
        largest=_largest(answer["peak"], text, source),
        ops=source.ops,
        fusions=hlo.fusions(text),
        flops=answer["flops"],
        bytes_accessed=answer["bytes_accessed"],
        seconds=answer["seconds"],
        from_disk=from_disk,
    )
    return with_texts(result, module, answer["hlo"], answer["proto"])


def memory_of(answer: dict[str, Any], held: int = 0) -> Memory:
    """Return the memory that `worker.compile` tells of."""
    figures = ("arguments", "outputs", "aliased", "temporaries", "code")
    return Memory(*(answer[name] for name in figures), held)


def refused(source: Source, to: Chip, effort: str, limit: int, reason: str) -> Compiled:
    """Return the result for a program that the compiler refuses."""
    compiler = f"libtpu {process.version()}"
    result = Compiled(source.name, to, effort, compiler, limit, False, reason, True, Memory(), (), source.ops, ())
    return with_texts(result, b"", b"", b"")


def _larger(to: Chip, limit: int) -> list[Chip]:
    """Return what may tell the figures of a program that is too large: the chip itself, if it has more HBM than the limit
    that was set, then the chip that has most. The compiler takes no limit above what a chip has.
    """
    largest = max(targets(), key=lambda c: c.hbm_bytes)
    return [c for c, hbm in ((to, limit), (largest, to.hbm_bytes)) if c.hbm_bytes > hbm]


def _too_large(memory: Memory, limit: int, reason: str, figures_of: str) -> str:
    over = units.nbytes(memory.peak - limit)
    held = f", {units.nbytes(memory.held)} of them held beside it" if memory.held else ""
    said = f" ({reason.rstrip('.')})" if reason else ""
    # With room to spare the compiler does not save memory, so this may be more than the chip's own words have.
    source = f"as compiled for {figures_of}, which has room, " if figures_of else ""
    return (
        f"{source}it needs {units.nbytes(memory.peak)}{held}: {over} more than the {units.nbytes(limit)} that there are{said}"
    )


_SCOPE = re.compile(r"/(\d+)\.[^\"/]+")


def _refusal(source: Source, to: Chip, reason: str) -> str:
    """Say why a program cannot be compiled, and which line is at fault."""
    found = _SCOPE.search(reason)
    at = int(found[1]) if found else _first_not_lowered(source.nodes)
    text = f"the TPU compiler cannot compile {source.name} for {to.name}: {reason.splitlines()[0]}"
    if at is None or at >= len(source.ops):
        return text
    op = source.ops[at]
    return f"{text} ({op.op}{f', {op.line.where}: {op.line.source}' if op.line is not None else ''})"


def _first_not_lowered(nodes: Sequence[Node]) -> int | None:
    """Return the position of the first op that jax cannot lower for TPU by itself."""
    known: set[int] = set()
    for k, node in enumerate(nodes):
        plan = node.plan
        if id(plan) in known:
            continue
        known.add(id(plan))
        inputs = [plan.views[n].layout for n in plan.needs]
        alone = Node(plan, tuple(-1 - p for p in range(len(inputs))))
        function = graph_function([alone], range(len(plan.outputs)), plan.packing, len(inputs))
        try:
            lower(function, inputs, plan.packing, (), "tpu")
        except Exception:
            return k
    return None


def _largest(peak: Sequence[tuple[str, str, str, int, int]], text: str, source: Source) -> tuple[LargeRow, ...]:
    """Describe the largest buffers at the peak, as `worker.compile` returns them."""
    values = hlo.values(text) if peak else {}
    rows = []
    for instruction, place, allocation, padded, unpadded in peak:
        value = values.get(instruction)
        role = "argument" if value is not None and value.parameter else "output" if "live-out" in allocation else "temporary"
        op = source.ops[value.op] if value is not None and value.op is not None and value.op < len(source.ops) else None
        rows.append(
            LargeRow(
                role=role,
                what=_spoken(value.shape, place) if value is not None else instruction,
                op=op.op if op is not None else "",
                line=op.line if op is not None else None,
                module=op.module if op is not None else "",
                unpadded=unpadded,
                padded=padded,
            )
        )
    return tuple(rows)


_ARRAY = re.compile(r"\b([a-z]+)(\w*)\[([\d,]*)\]")
_NAMES = {"bf": "bfloat", "f": "float", "s": "int", "u": "uint", "c": "complex"}


def _spoken(shape: str, place: str) -> str:
    """Write an HLO shape as everywhere else: `f32[8,128]{1,0:T(8,128)}` as `float32[8,128]`; of a tuple, the array at `{1}`."""
    arrays = _ARRAY.findall(shape)
    position = int(place.strip("{}") or 0) if place.strip("{}").isdigit() or place == "{}" else 0
    kind, bits, dims = arrays[min(position, len(arrays) - 1)] if arrays else ("", "", "")
    return f"{'bool' if kind == 'pred' else _NAMES.get(kind, kind) + bits}[{dims}]"
