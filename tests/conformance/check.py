"""Runs one test, and records which way its operators take: native, decomposed, on the CPU, or refused."""

from __future__ import annotations

import contextlib
import traceback
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from tests.conformance import cases, compare, modules, optimizers, variants
from torchtpu import config, events, modes

ROUTES = ("native", "decomposed", "fallback", "refused")


@dataclass(slots=True)
class Outcome:
    """What came of a test.

    Attributes:
        test: which one.
        samples: how many ran on the CPU and were compared.
        failures: (index of the sample, error) of those that did not pass.
        wrong: how many of those gave a value, and the value or its metadata was wrong.
        route: the worst way that an operator took.
        fallbacks: the ATen overloads that ran on the CPU.
        decomposed: those that torch's decompositions lowered.
        compiles: programs compiled.
    """

    test: cases.Test
    samples: int = 0
    failures: list[tuple[int, str]] = field(default_factory=list)
    wrong: int = 0
    route: str = "native"
    fallbacks: list[str] = field(default_factory=list)
    decomposed: list[str] = field(default_factory=list)
    compiles: int = 0


def run(test: cases.Test, max_samples: int | None = None) -> Outcome:
    """Run every sample of a test, or `max_samples` of them."""
    info = cases.entries()[test.op]
    dtype = getattr(torch, test.dtype)
    outcome = Outcome(test)
    refused = False
    with modes.scope(test.mode), config.options(cpu_fallback="silent"), _watch(outcome), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for index, sample in _spread(_samples(info, test.variant, dtype), max_samples):
            try:
                outcome.samples += _CHECKS[test.variant](info, dtype, sample)
            except Exception as error:
                outcome.samples += 1
                outcome.failures.append((index, describe(error)))
                wrong = isinstance(error, compare.Mismatch)
                outcome.wrong += wrong
                refused = refused or not wrong
                with contextlib.suppress(Exception):
                    modes.flush("an error")
    if refused:
        outcome.route = "refused"
    return outcome


_CHECKS = {
    "functional": variants.functional,
    "inplace": variants.inplace,
    "out": variants.out,
    "grad": variants.grad,
    "error": variants.error,
    "module": modules.module,
    "optimizer": optimizers.optimizer,
}


def _samples(info: Any, variant: str, dtype: torch.dtype) -> Iterable[Any]:
    match variant:
        case "error":
            return info.error_inputs("cpu")
        case "module":
            return modules.samples(info, dtype)
        case "optimizer":
            return optimizers.samples(info, dtype)
        case _:
            return info.sample_inputs("cpu", dtype, requires_grad=variant == "grad")


def _spread(samples: Iterable[Any], count: int | None) -> list[tuple[int, Any]]:
    """Return `count` of the samples with their indices, evenly spread (all: None)."""
    numbered = list(enumerate(samples))
    if count is None or count >= len(numbered):
        return numbered
    return [numbered[k * (len(numbered) - 1) // max(count - 1, 1)] for k in range(count)]


@contextlib.contextmanager
def _watch(outcome: Outcome) -> Iterator[None]:
    """Record which way operators take, and how many programs are compiled."""
    log = events.Log(mode=outcome.test.mode)
    modes.start_log(log)
    execute = modes.state.execute
    decomposed: set[str] = set()

    def spy(plan: Any, inputs: Any, numbers: Any) -> Any:
        if plan.route == "decomposed":
            decomposed.add(plan.name)
        return execute(plan, inputs, numbers)

    modes.state.execute = spy
    try:
        yield
    finally:
        modes.stop_log(log)
        outcome.fallbacks = sorted({f.op for f in log.fallbacks})
        outcome.decomposed = sorted(decomposed)
        outcome.compiles = len(log.compiles)
        outcome.route = "fallback" if outcome.fallbacks else "decomposed" if decomposed else "native"


def describe(error: Exception) -> str:
    """Return an error in one line, with the innermost place in torchtpu that it passed."""
    text = " ".join(str(error).split())[:400]
    if isinstance(error, compare.Mismatch):
        return text
    places = [f for f in traceback.extract_tb(error.__traceback__) if "/torchtpu/" in f.filename]
    place = f" @{places[-1].filename.rpartition('/torchtpu/')[2]}:{places[-1].lineno}" if places else ""
    return f"{type(error).__name__}: {text}{place}"
