"""Runs one architecture on `tpu` against the CPU: forward, backward, optimizer's steps, and greedy generation."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from tests.conformance import check as conformance, compare, copies
from tests.zoo.architecture import Architecture, Inputs
from torchtpu import config, events, modes

MODES = ("strict", "defer_and_fuse")
_PROMPTS = ("input_ids", "attention_mask", "input_features")


@dataclass(slots=True)
class Outcome:
    """What came of an architecture in one mode.

    Attributes:
        error: why it did not pass; empty if it did.
        difference: the largest one from the CPU, relative to the largest magnitude in its tensor.
        programs: distinct programs that ran in the first step.
        compiles: programs made for the first step, and for the third, which should need none.
        fallbacks: how often each operator ran on the CPU in the first step.
    """

    error: str = ""
    difference: float = 0.0
    programs: int = 0
    compiles: tuple[int, int] = (0, 0)
    fallbacks: dict[str, int] = field(default_factory=dict)


def run(architecture: Architecture) -> dict[str, Outcome]:
    """Run an architecture in both modes, from the same weights."""
    torch.manual_seed(0)
    model = _evaluating(architecture.make())
    inputs = architecture.inputs()
    expected = next(_steps(copy.deepcopy(model), copies.on_cpu(inputs)))
    tokens = _generate(architecture, model, inputs)

    def exact() -> Sequence[Any]:
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)  # for what models make while they run
        try:
            with _Float64():
                return next(_steps(copy.deepcopy(model).double(), copies.in_float64(inputs)))
        finally:
            torch.set_default_dtype(default)

    return {mode: _run(architecture, mode, model, inputs, expected, exact, tokens) for mode in MODES}


class _Float64(TorchFunctionMode):
    """Calls that ask for float32 get float64: models ask for it where they hold rounding to be harmful."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        args, kwargs = tree_map(lambda v: torch.float64 if v is torch.float32 else v, (args, kwargs or {}))
        return func(*args, **kwargs)


def _run(
    architecture: Architecture,
    mode: str,
    model: nn.Module,
    inputs: Inputs,
    expected: Sequence[Any],
    exact: Callable[[], Sequence[Any]],
    tokens: list[list[int]],
) -> Outcome:
    outcome = Outcome()
    log = events.Log(mode)
    with modes.scope(mode), config.options(cpu_fallback="silent"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        modes.start_log(log)
        try:
            steps = _steps(copy.deepcopy(model).to("tpu"), copies.on_device(inputs))
            actual = next(steps)
            outcome.programs = len({id(r.program) for r in log.runs.values()})
            outcome.fallbacks = dict(Counter(f.op for f in log.fallbacks))
            first = len(log.compiles)
            next(steps)  # what the first one could not reuse yet, as the optimizer's state
            before = len(log.compiles)
            next(steps)
            outcome.compiles = first, len(log.compiles) - before
            outcome.difference = _difference(actual, expected)
            compare.same(actual, expected, {}, exact)
            generated = _generate(architecture, copy.deepcopy(model).to("tpu"), copies.on_device(inputs))
            if generated != tokens:
                raise compare.Mismatch(f"generate() gives {generated}, expected {tokens}")
        except Exception as error:
            outcome.error = conformance.describe(error)
        finally:
            modes.stop_log(log)
    return outcome


def _evaluating(model: nn.Module) -> nn.Module:
    """Turn dropout off, whose masks are the device's own, and leave batch norm in training."""
    model.eval()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.train()
    return model


def _steps(model: nn.Module, inputs: Inputs) -> Iterator[list[Any]]:
    """Train. Each step yields, on the CPU: the outputs, the loss, all gradients, and all parameters and buffers after it."""
    # A larger epsilon than usual: else the first step is the gradient's sign, which rounding decides where it should be zero.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=1e-3)
    while True:
        optimizer.zero_grad()
        outputs = model(**inputs)
        loss = _loss(outputs)
        loss.backward()
        gradients = [p.grad for p in model.parameters()]
        optimizer.step()
        yield copies.host([_tensors(outputs), loss, gradients, list(model.state_dict().values())])


def _loss(outputs: Any) -> torch.Tensor:
    loss = outputs.get("loss") if isinstance(outputs, dict) else None
    if loss is None:
        loss = sum(t.square().mean() for t in _tensors(outputs) if t.requires_grad)
    return loss


def _tensors(outputs: Any) -> list[torch.Tensor]:
    values = list(outputs.values()) if isinstance(outputs, dict) else outputs
    return [t for t in tree_leaves(values) if isinstance(t, torch.Tensor)]


def _generate(architecture: Architecture, model: nn.Module, inputs: Inputs) -> list[list[int]]:
    """Continue the inputs greedily; nothing for a model that does not generate."""
    if not architecture.new_tokens:
        return []
    prompt = {name: value for name, value in inputs.items() if name in _PROMPTS}
    return model.generate(**prompt, max_new_tokens=architecture.new_tokens, do_sample=False).tolist()


def _difference(actual: Sequence[Any], expected: Sequence[Any]) -> float:
    largest = 0.0
    for a, e in zip(actual, expected, strict=True):
        if isinstance(e, torch.Tensor) and e.is_floating_point() and e.numel() and a.shape == e.shape:
            scale = e.abs().max().clamp(min=1e-3)
            largest = max(largest, float((a - e).abs().max() / scale))
    return largest
