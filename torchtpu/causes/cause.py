"""`Cause`: why a program was compiled, and what to do about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from torchtpu.lines import Origin


class Kind(StrEnum):
    """What told the program from the closest known one."""

    FIRST = "first time"
    SHAPE = "shape"
    DTYPE = "dtype"
    CONSTANT = "constant"
    VIEW = "view"
    OPS = "different ops"
    KEPT = "kept value"
    CUT = "graph cut"
    DONATION = "donation"
    PRECISION = "precision"
    MODE = "mode"


@dataclass(frozen=True, slots=True)
class Cause:
    """Why none of the programs at hand would do.

    Attributes:
        kind: what differs.
        detail: how: `ids dim 1: 12 -> 17`.
        remedy: what to do about it; empty for a first time.
        closest: the line of the closest known program; None if there is none.
    """

    kind: Kind
    detail: str = ""
    remedy: str = ""
    closest: Origin | None = None

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else str(self.kind)


PAD_BATCH = "drop the ragged last batch (DataLoader(drop_last=True)), or pad it to full size"
PAD = "pad to one size, or round up to one of a few sizes (buckets)"
PAD_CACHE = f"{PAD}; a key-value cache: take one of fixed size (static) and mask what is not filled yet"
_PAD_BOTH = "drop the ragged last batch (DataLoader(drop_last=True)), and pad the others to one of a few sizes (buckets)"
_WINDOW = "take it with a tensor of indices (torch.index_select): where a slice begins is compiled in"
OWN_STORAGE = "give it a storage of its own (clone()), if it comes with one and without one by turns"
UNIT = "nothing: 0 and 1 have programs of their own, all other numbers share one"
ONE_DTYPE = "keep to one dtype: cast outside the loop, give the same kind of Python number each time"
_TENSOR = "pass a tensor instead of the Python value, or keep to a few values"
DONATION = "nothing, if you go to and fro: both variants are kept"
TRAINING = "nothing, if you go to and fro: the programs of train() and eval() are both kept"
_PRECISION = "set the precision once, before the first step"
FIRST_PASS = "nothing: the first pass makes values, such as an optimizer's state, that later ones find"
KEPT = "keep it on every pass or on none; under torch.no_grad() nothing is kept for a backward pass"
MODE = "stay in one mode: each has programs of its own"
OPS = "run the same ops on every pass, with a read or torch.tpu.synchronize() at the same place"


def of_sizes(dims: Sequence[tuple[int, int, int]]) -> str:
    """Return the remedy for sizes that changed: (dimension, old, new)."""
    dim, old, new = dims[0]
    ragged = dim == 0 and new < old
    if len(dims) > 1:
        return _PAD_BOTH if ragged else PAD
    if ragged:
        return PAD_BATCH
    return PAD_CACHE if dim > 0 and new == old + 1 else PAD


# Cuts that no line of the user's reads a value for.
_NOT_READS = ("end of", "start of", "cap on", "mode change", "precision change")


def of_cut(reason: str) -> str:
    """Return the remedy for a graph that is cut at another place than before."""
    if reason.startswith("cap on"):
        return "raise torchtpu.config.max_pending_ops or max_pending_bytes, or cut with torch.tpu.synchronize() once a pass"
    if reason.startswith(_NOT_READS):
        return "nothing, if it comes back: programs are kept"
    return "move the read out of the loop, or do it on every pass"


def of_kind(kind: Kind, subject: str) -> str:
    """Return the remedy for an argument of an op that changed, where sizes in particular say no more."""
    match kind:
        case Kind.SHAPE:
            return PAD
        case Kind.VIEW:
            return _WINDOW
        case Kind.DTYPE:
            return ONE_DTYPE
        case Kind.CONSTANT:
            return TRAINING if subject in ("training", "train") else _TENSOR
        case Kind.PRECISION:
            return _PRECISION
        case _:
            return OPS
