"""Arrays as text: `float32[8,128]` of reports and `f32[8,128]` of HLO."""

from __future__ import annotations

import math
import re

_SHAPE = re.compile(r"([a-z]+\w*)\[([\d,]*)\]")
_BITS = re.compile(r"\d+")
_BIT = {"bool": 8, "pred": 8, "token": 0}


def nbytes_of(dtype: str, dims: str) -> int:
    """Return the size in bytes of an array, from the name of its dtype and its dimensions (`8,128`)."""
    bits = _BIT.get(dtype)
    if bits is None:
        width = _BITS.search(dtype)
        bits = int(width[0]) if width else 0
    return math.prod(int(d) for d in dims.split(",") if d) * bits // 8


def nbytes(shape: str) -> int:
    """Return the size in bytes of `float32[8,128]`; 0 for what is no array."""
    match = _SHAPE.fullmatch(shape)
    return nbytes_of(match[1], match[2]) if match else 0


def short(shape: str) -> str:
    """Return a shape as it stands on a node: `8×128`, `scalar`; other dtypes than float32 are named."""
    match = _SHAPE.fullmatch(shape)
    if match is None:
        return shape
    dims = match[2].replace(",", "×") or "scalar"
    return dims if match[1] == "float32" else f"{dims} {match[1]}"
