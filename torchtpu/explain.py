"""How a tensor came to be: `torchtpu.explain(tensor)`. It runs nothing, waits for nothing and flushes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torchtpu.lines import Line
from torchtpu.provenance import Step

if TYPE_CHECKING:
    import torch

    from torchtpu.buffer import Buffer

_STEPS = 20
_HOLDERS = 4  # shown
_SOURCE = 80  # characters of a line of code


@dataclass(frozen=True, slots=True)
class Explanation:
    """How a tensor came to be, what it is made of, and who holds it. Sizes are in bytes.

    Attributes:
        tensor: dtype and shape: `float32[8,128]`.
        state: `pending` (its value is not computed yet), `ready`, `unfilled` (memory that nobody wrote), or `failed`.
        waiting: ops that are pending in all, where it is one of them.
        error: why its value cannot be computed, where it failed.
        stride, offset: PyTorch's, in elements.
        array: the XLA array that holds its storage.
        nbytes: of that array (measured).
        window: in words, which part of the storage it sees; empty for all of it, in row-major order.
        gradient: what its gradient comes from: `leaf that requires grad`, `MulBackward0`, or empty.
        program: the program that computed it; empty where it is not known.
        steps: the op that made it, and those that its value came from, the latest first; at most 20. Outside of
            `torchtpu.watch()`, `%%tpu_mode` cells and debug mode, only pending ops are known.
        holders: what keeps its storage alive: names of variables, parameters, `Out[3]`, ...
    """

    tensor: str
    state: str
    waiting: int
    error: str
    stride: tuple[int, ...]
    offset: int
    array: str
    nbytes: int
    window: str
    gradient: str
    program: str
    steps: tuple[Step, ...]
    holders: tuple[str, ...]

    def rows(self) -> list[tuple[str, str]]:
        """Return what there is to say, as (what, it)."""
        from torchtpu.report import units

        state = {
            "pending": f"pending, one of {units.count(self.waiting, 'op')} that run at the next flush",
            "ready": "computed",
            "unfilled": "memory that nobody has written to",
            "failed": f"failed: {self.error}",
        }[self.state]
        rest = f" and {len(self.holders) - _HOLDERS} more" if len(self.holders) > _HOLDERS else ""
        named = [
            ("tensor", f"{self.tensor}, strides {self.stride}"),
            ("value", state),
            ("computed by", self.program),
            ("storage", f"{self.array}, {units.nbytes(self.nbytes)} (measured)"),
            ("window", self.window),
            ("gradient", self.gradient),
            ("held by", ", ".join(self.holders[:_HOLDERS]) + rest if self.holders else "nothing with a name"),
        ]
        return [(what, text) for what, text in named if text]

    def origin(self) -> str:
        """Say in a sentence how much of its history is known."""
        if not self.steps:
            return (
                "Which op made it is not known: nobody watched. Ops are remembered inside torchtpu.watch(), in %%tpu_mode "
                "cells and in debug mode."
            )
        if len(self.steps) == _STEPS:
            return f"The latest {_STEPS} ops that its value came from:"
        return "Every op known that its value came from, the latest first:"

    def to_text(self) -> str:
        """Return the explanation as plain text."""
        out = [f"{what:<12}{text}" for what, text in self.rows()]
        out += ["", self.origin()]
        out += [f"{k:>4}  {' '.join(cell for cell in cells if cell)}" for k, cells in enumerate(self._cells())]
        return "\n".join(out)

    def _cells(self) -> list[tuple[str, str, str]]:
        """For each step: the op with its result, what it reads, and its line."""
        cells = []
        for step in self.steps:
            sources = [f"#{k}" for k in step.inputs]
            if step.unknown:
                sources.append(f"{step.unknown} made before" if sources else f"{step.unknown} made before anybody watched")
            reads = f"<- {', '.join(sources)}" if sources else ""
            waits = " (pending)" if step.pending else ""
            cells.append((f"{step.op} {step.result}{waits}", reads, f"{_where(step.line)}"))
        return cells

    def _repr_html_(self) -> str:
        from html import escape

        from torchtpu.report.table import BOX, LINE, QUIET

        code = "font-family:monospace;font-size:12px"
        table = "border-collapse:collapse;border:none;font-size:13px;color:inherit"
        cell = "padding:2px 14px 2px 0;vertical-align:top;text-align:left"
        row = f"background:none;border-top:1px solid {LINE}"
        about = "".join(
            f'<tr style="background:none"><td style="{cell};{QUIET}">{escape(what)}</td>'
            f'<td style="{cell}">{escape(text)}</td></tr>'
            for what, text in self.rows()
        )
        steps = "".join(
            f'<tr style="{row}"><td style="{cell};{QUIET}">#{k}</td><td style="{cell};{code}">{escape(op)}</td>'
            f'<td style="{cell};{QUIET}">{escape(reads)}</td><td style="{cell}">{escape(line)}</td></tr>'
            for k, (op, reads, line) in enumerate(self._cells())
        )
        return (
            f'<div style="{BOX}"><table style="{table}"><tbody>{about}</tbody></table>'
            f'<div style="{QUIET};margin:6px 0 2px 0">{escape(self.origin())}</div>'
            f'<div style="overflow-x:auto"><table style="{table}"><tbody>{steps}</tbody></table></div></div>'
        )

    def _repr_pretty_(self, printer: object, cycle: bool) -> None:
        printer.text(self.to_text())  # type: ignore[attr-defined]

    def __str__(self) -> str:
        return self.to_text()


def explain(tensor: torch.Tensor) -> Explanation:
    """Say how a `tpu` tensor came to be: its ops and lines, whether it is pending, its bytes, and who holds it.

    It computes nothing: what is pending stays pending.

    Args:
        tensor: on `tpu`, of any shape.

    Raises:
        TypeError: not a tensor.
        ValueError: a tensor on another device.
    """
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"explain takes a tensor on tpu, got {type(tensor).__name__}")
    if tensor.device.type != "tpu":
        raise ValueError(f"explain takes a tensor on tpu, got one on {tensor.device}: PyTorch keeps no record of those")
    from torchtpu import holders, modes, provenance
    from torchtpu.buffer import buffer_of

    buffer = buffer_of(tensor)
    steps = provenance.history(buffer, _STEPS)
    return Explanation(
        tensor=_named(str(tensor.dtype).removeprefix("torch."), tensor.shape),
        state=_state(buffer),
        waiting=modes.pending() if _state(buffer) == "pending" else 0,
        error=str(buffer.error) if buffer.error is not None else "",
        stride=tuple(tensor.stride()),
        offset=int(tensor.storage_offset()),
        array=str(buffer.layout),
        nbytes=buffer.layout.nbytes,
        window=_window(tensor, buffer),
        gradient=_gradient(tensor),
        program=steps[0].program if steps else "",
        steps=steps,
        holders=tuple(h.name for h in holders.holders([buffer])[0]),
    )


def _named(dtype: str, shape: torch.Size) -> str:
    return f"{dtype}[{','.join(map(str, shape))}]"


def _state(buffer: Buffer) -> str:
    if buffer.error is not None:
        return "failed"
    if buffer.array is not None:
        return "ready"
    return "pending" if buffer.epoch else "unfilled"


def _window(tensor: torch.Tensor, buffer: Buffer) -> str:
    from torchtpu.layout import View, contiguous_strides

    shape, stride = tuple(tensor.shape), tuple(tensor.stride())
    lazy = "conjugated when it is read" if tensor.is_conj() else "negated when it is read" if tensor.is_neg() else ""
    base = tensor._base
    of = f"a view of {_named(str(base.dtype).removeprefix('torch.'), base.shape)}" if base is not None else ""
    view = View(shape, stride, tensor.storage_offset(), tensor.dtype, buffer.layout)
    if not view.covers:
        part = f"elements {tensor.storage_offset():,} on, strides {stride}"
    else:
        part = "" if stride == contiguous_strides(shape) else f"all of the storage, transposed: strides {stride}"
    return ", ".join(text for text in (of, part, lazy) if text)


def _gradient(tensor: torch.Tensor) -> str:
    if tensor.grad_fn is not None:
        return tensor.grad_fn.name()
    return "leaf that requires grad" if tensor.requires_grad else ""


def _where(line: Line | None) -> str:
    from torchtpu.report import units

    if line is None:
        return ""
    return f"{'backward of ' if line.backward else ''}{line.where}: {units.cut(line.source, _SOURCE)}"
