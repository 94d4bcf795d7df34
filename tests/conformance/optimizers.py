"""torch.optim: parameters and state after a few steps, for each implementation (for loop, foreach, fused)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_map

from tests.conformance import compare, copies, oracle

_STEPS = 4
_SHAPES = ((3, 4), (5, 2))  # matrices, because Muon takes nothing else


def samples(info: Any, dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """Yield the keyword arguments of the optimizer."""
    for sample in info.optim_inputs_func(device="cpu", dtype=dtype):
        for implementation in ({}, {"foreach": True}, {"fused": True}):
            name = next(iter(implementation), "")
            supported = not name or (name in info.supported_impls and (name != "fused" or "cpu" in info.supports_fused_on))
            if supported:
                yield {**sample.kwargs, **implementation}


def optimizer(info: Any, dtype: torch.dtype, kwargs: dict[str, Any]) -> bool:
    """Take steps on a small least-squares problem on both devices."""
    expected = oracle.ask(lambda: _steps(info, "cpu", dtype, kwargs))
    if expected is None:
        return False
    compare.same(
        copies.host(_steps(info, "tpu", dtype, kwargs)),
        copies.host(expected.value),
        {},
        lambda: _steps(info, "cpu", torch.float64, copies.in_float64(kwargs)),
    )
    return True


def _steps(info: Any, device: str, dtype: torch.dtype, kwargs: dict[str, Any]) -> list[Any]:
    """Return the parameters and the optimizer's state after a few steps."""
    generator = torch.Generator().manual_seed(0)
    start, goal = ([torch.randn(s, generator=generator).to(device, dtype) for s in _SHAPES] for _ in range(2))
    parameters = [torch.nn.Parameter(p) for p in start]
    kwargs = tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, kwargs)
    stepper = info.optim_cls(parameters, **kwargs)

    def closure() -> torch.Tensor:
        stepper.zero_grad()
        loss = sum(((p - g) ** 2).sum() for p, g in zip(parameters, goal, strict=True))
        loss.backward()
        if info.only_supports_sparse_grads:
            for p in parameters:
                p.grad = p.grad.to_sparse()
        return loss

    for _ in range(_STEPS):
        if info.step_requires_closure:
            stepper.step(closure)
        else:
            closure()
            stepper.step()
    return [*parameters, *stepper.state.values()]
