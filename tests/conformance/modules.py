"""torch.nn modules: the forward pass, and the gradients of parameters and inputs, in training and evaluation."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from tests.conformance import compare, copies, oracle


def samples(info: Any, dtype: torch.dtype) -> Iterator[tuple[Any, bool]]:
    """Yield (ModuleInput, training)."""
    for training in (True, False) if info.train_and_eval_differ else (True,):
        for sample in info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training):
            if sample.forward_input is not None:
                yield sample, training


def module(info: Any, dtype: torch.dtype, sample: tuple[Any, bool]) -> bool:
    """Build a module on the CPU, copy it to `tpu`, and compare a forward and a backward pass."""
    inputs, training = sample
    args, kwargs = inputs.constructor_input.args, inputs.constructor_input.kwargs
    given = inputs.forward_input.args, inputs.forward_input.kwargs
    torch.manual_seed(0)
    try:
        theirs = info.module_cls(*args, **kwargs).to(dtype).train(training)
        if info.is_lazy:
            theirs(*copies.on_cpu(given[0]), **copies.on_cpu(given[1]))
    except Exception:
        return False
    ours, wide = copy.deepcopy(theirs).to("tpu"), copy.deepcopy(theirs)
    expected = oracle.ask(lambda: _pass(theirs, copies.on_cpu(given)))
    if expected is None:
        return False
    actual = _pass(ours, copies.on_device(given))
    compare.same(
        copies.host(actual),
        copies.host(expected.value),
        {},
        lambda: _pass(wide.to(torch.complex128 if dtype.is_complex else torch.float64), copies.in_float64(given)),
        values=not expected.random,
    )
    return True


def _pass(module: torch.nn.Module, given: Any) -> list[Any]:
    """Return outputs, gradients of inputs and parameters, and buffers."""
    args, kwargs = given
    outputs = tree_leaves(module(*args, **kwargs))
    leaves = [t for t in tree_leaves(given) if isinstance(t, torch.Tensor) and t.requires_grad]
    leaves += [p for p in module.parameters() if p.requires_grad]
    sources = [o for o in outputs if isinstance(o, torch.Tensor) and o.requires_grad]
    gradients: Any = ()
    if sources and leaves:
        generator = torch.Generator().manual_seed(0)
        weights = [torch.randn(o.shape, generator=generator).to(o.device, o.dtype) for o in sources]
        gradients = torch.autograd.grad(sources, leaves, weights, allow_unused=True)
    return [*outputs, *gradients, *module.buffers()]
