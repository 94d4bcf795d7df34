"""The exceptions that torchtpu raises of its own, and the one place where jaxlib's become them.

A user's mistake is a Python exception that says what happened, where, and what to do next. Where PyTorch already has
a type for it (`RuntimeError` for shapes, `torch.OutOfMemoryError`) that type is kept.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torchtpu.checks.finding import Finding
    from torchtpu.report.holdings import Holdings


class TorchTPUError(RuntimeError):
    """Base of the errors that only torchtpu can raise."""


class DeviceTakenError(TorchTPUError):
    """Another package (Google's `torch_tpu`, say) registered PyTorch's one out-of-tree device first."""


class UnsupportedDtypeError(TypeError):
    """The dtype has no XLA counterpart, so no tensor of it can live on `tpu`."""


class FallbackError(NotImplementedError):
    """An operator would have to run on the CPU while `torchtpu.config.cpu_fallback` is "error"."""


class CompileError(TorchTPUError):
    """XLA refused a program. The text names the op and the line that recorded it."""


class UnknownChipError(ValueError):
    """There is no chip of that name to compile for. The text lists those that there are."""


class CompilerMissingError(TorchTPUError):
    """The TPU compiler (libtpu) is not installed, or in another version than jax works with."""


class CompilerDiedError(TorchTPUError):
    """The process in which the TPU compiler runs ended before it answered. The next compile starts another."""


class ValueUnknownError(TorchTPUError):
    """A function that is only recorded, to be compiled for a chip, needs the value of a tensor."""


class SyncError(TorchTPUError):
    """A read waits for the device where `--no-sync` or `torch.tpu.set_sync_debug_mode("error")` forbids that."""


class NumericsError(TorchTPUError):
    """A check of debug mode failed: a NaN or Inf appeared, or an op disagrees with the CPU.

    Attributes:
        finding: the op, its line, and its inputs with their values and history, as a `torchtpu.checks.Finding`.
    """

    def __init__(self, message: str, finding: Finding) -> None:
        super().__init__(message)
        self.finding = finding

    def __reduce__(self) -> tuple[Any, ...]:  # for other processes: a message alone is not enough to make one
        return type(self), (str(self), self.finding)


class OutOfMemoryError(torch.OutOfMemoryError):
    """A tensor or a program does not fit into device memory.

    Attributes:
        holdings: what filled it: who held how many bytes, made by which line, and what frees them. The text ends with it.
    """

    def __init__(self, message: str, holdings: Holdings | None = None) -> None:
        super().__init__(message)
        self.holdings = holdings

    def __str__(self) -> str:
        message = str(self.args[0]) if self.args else ""
        if self.holdings is None or not self.holdings.rows:
            return message
        advice = "Free some of it, use a smaller batch, or checkpoint activations."
        return f"{message}\nWhat holds it, largest first (measured):\n{self.holdings.lines()}\n{advice}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `" Did you mean 'strict'?"`, or nothing when no known word is close."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" Did you mean {close[0]!r}?" if close else ""


def check_broadcast(shapes: Sequence[Sequence[int]]) -> None:
    """Raise the error that PyTorch's kernels raise for shapes that do not broadcast: its meta kernels word it otherwise."""
    common = list(shapes[0])
    for shape in shapes[1:]:
        rank = max(len(common), len(shape))
        first, second = [1] * (rank - len(common)) + common, [1] * (rank - len(shape)) + list(shape)
        for dim, (a, b) in enumerate(zip(first, second, strict=True)):
            if a != b and 1 not in (a, b):
                raise RuntimeError(
                    f"The size of tensor a ({a}) must match the size of tensor b ({b}) at non-singleton dimension {dim}"
                ) from None
        common = [b if a == 1 else a for a, b in zip(first, second, strict=True)]


def out_of_memory(wanted: int, live: int, limit: int, what: str) -> OutOfMemoryError:
    """Build the error for an allocation of `wanted` bytes with `live` of `limit` bytes in use, with who holds them."""
    from torchtpu.report import units
    from torchtpu.report.holdings import Holdings

    needs, used, of = (units.nbytes(n) for n in (wanted, live, limit))
    return OutOfMemoryError(f"tpu out of memory: {what} needs {needs}, {used} of {of} are in use.", Holdings.now())
