"""What is tested: which entry of PyTorch's databases, which way of using it, with which dtype and mode."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

DTYPES = (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64)
LONG_DTYPES = (torch.float64, torch.float16, torch.int32, torch.uint8, torch.int8, torch.complex128)
VARIANTS = ("functional", "inplace", "out", "grad", "error", "module", "optimizer")
MODES = ("strict", "debug", "defer_and_fuse")


@dataclass(frozen=True, slots=True)
class Test:
    """One row of results: an operator, module or optimizer, used one way, with all samples of one dtype, in one mode."""

    variant: str
    op: str
    dtype: str
    mode: str

    def __str__(self) -> str:
        return f"{self.variant} {self.op} {self.dtype} {self.mode}"


@functools.cache
def operators() -> dict[str, Any]:
    """Return PyTorch's OpInfos by full name; those of foreach functions are in lists of their own."""
    from torch.testing._internal import common_methods_invocations as database

    foreach = (getattr(database, name) for name in dir(database) if re.fullmatch("foreach_.*op_db", name))
    return {info.full_name: info for info in itertools.chain(database.op_db, *foreach)}


@functools.cache
def modules() -> dict[str, Any]:
    """Return PyTorch's ModuleInfos by name (`nn.Linear`)."""
    from torch.testing._internal.common_modules import module_db

    return {info.name: info for info in module_db}


@functools.cache
def optimizers() -> dict[str, Any]:
    """Return PyTorch's OptimizerInfos by name (`optim.Adam`)."""
    from torch.testing._internal.common_optimizers import optim_db

    return {f"optim.{info.optim_cls.__name__}": info for info in optim_db}


@functools.cache
def entries() -> dict[str, Any]:
    """Return all of them."""
    return {**operators(), **modules(), **optimizers()}


def dtype_name(dtype: torch.dtype) -> str:
    """Return `float32` for torch.float32."""
    return str(dtype).removeprefix("torch.")


def tests(
    names: Sequence[str],
    dtypes: Iterable[torch.dtype] = DTYPES,
    modes: Iterable[str] = ("strict",),
    variants: Iterable[str] = VARIANTS,
) -> Iterator[Test]:
    """List the tests of some entries, those of one entry together."""
    for name in names:
        for mode, variant, dtype in itertools.product(modes, variants, dtypes):
            if applies(name, variant, dtype):
                yield Test(variant, name, dtype_name(dtype), mode)


def applies(name: str, variant: str, dtype: torch.dtype) -> bool:
    """Whether PyTorch can use an entry this way with this dtype on the CPU."""
    if name in optimizers():
        return variant == "optimizer" and dtype is torch.float32
    info = entries()[name]
    if name in modules():
        return variant == "module" and dtype in info.supported_dtypes("cpu")
    match variant:
        case "error":  # its inputs choose their own dtypes
            return info.error_inputs_func is not None and dtype is torch.float32
        case "functional":
            chosen = True
        case "inplace":
            chosen = info.get_inplace() is not None
        case "out":
            chosen = info.supports_out and not info.name.startswith("_foreach")
        case "grad":
            chosen = dtype is torch.float32 and dtype in info.supported_backward_dtypes("cpu")
        case _:
            chosen = False
    return chosen and info.supports_dtype(dtype, "cpu")
