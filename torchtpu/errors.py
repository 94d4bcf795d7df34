"""The exceptions that torchtpu raises of its own, and the one place where jaxlib's become them.

A user's mistake is a Python exception that says what happened, where, and what to do next. Where PyTorch already has
a type for it (`RuntimeError` for shapes, `torch.OutOfMemoryError`) that type is kept.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

import torch


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


class NumericsError(TorchTPUError):
    """A check of debug mode failed: a NaN or Inf appeared, or an op disagrees with the CPU."""


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


def out_of_memory(wanted: int, live: int, limit: int, what: str) -> torch.OutOfMemoryError:
    """Build the error for an allocation of `wanted` bytes with `live` of `limit` bytes in use."""
    gib = 2**30
    return torch.OutOfMemoryError(
        f"tpu out of memory: {what} needs {wanted / gib:.2f} GiB, {live / gib:.2f} GiB of {limit / gib:.2f} GiB are in use. "
        "Free tensors (del, or %reset for what Out[] holds), use a smaller batch, or checkpoint activations."
    )
