"""How an ATen overload reaches XLA, without calling it."""

from __future__ import annotations

from pathlib import Path

import torch

_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
# Kernels of PyTorch's own that are made of other operators.
_COMPOSITE = ("CompositeImplicitAutograd", "CompositeExplicitAutograd")
_STRUCTURED = "CompositeExplicitAutogradNonFunctional"  # calls the out= overload


def reference() -> list[str]:
    """Return the overloads of the reference (torch_tpu 0.2.0)."""
    return (Path(__file__).parent / "reference_overloads.txt").read_text().split()


def route(name: str) -> str:
    """Return native, decomposed, missing, or absent (this PyTorch has no such overload)."""
    try:
        torch._C._dispatch_find_schema_or_throw(*_split(name))
    except RuntimeError:
        return "absent"
    torch.empty(1, device="tpu")  # registers the kernels
    if _has_kernel(name, "PrivateUse1"):
        return "native"
    if any(_has_kernel(name, key) for key in _COMPOSITE) or _decomposes(name):
        return "decomposed"
    if _has_kernel(name, _STRUCTURED):
        base = name.partition(".")[0].rstrip("_")
        outs = [n for n in torch._C._dispatch_get_all_op_names() if n.partition(".")[0] == base and "out" in n]
        if any(_has_kernel(n, "PrivateUse1") for n in outs):
            return "native"
    return "missing"


def _split(name: str) -> tuple[str, str]:
    base, _, overload = name.partition(".")
    return base, overload


def _decomposes(name: str) -> bool:
    from torch._decomp import decomposition_table

    base, overload = _split(name.removeprefix("aten::"))
    return getattr(getattr(torch.ops.aten, base), overload or "default") in decomposition_table
