"""The ways of using an operator: each runs one sample on the CPU and on `tpu`, and compares.

A function returns whether there was something to compare: a sample that the CPU refuses is none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from tests.conformance import compare, copies, open_results, oracle

# Their results are memory that nobody wrote: only metadata is compared.
_UNDEFINED = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})
# Tensors that PyTorch wants on the CPU, whatever the device.
_HOST_ARGUMENTS = frozenset({"tensor_split"})

Given = tuple[Any, tuple[Any, ...], dict[str, Any]]


def functional(info: Any, dtype: torch.dtype, sample: Any) -> bool:
    """`op(input, ...)`: values, and which results are views of an input."""
    given = _given(info, sample)
    theirs, ours = copies.on_cpu(given), _on_device(info, given)
    expected = _attempt(info.op, theirs)
    if expected is None:
        return False
    actual = _call(info.op, ours)
    _same(info, dtype, given, actual, expected, lambda: _call(info.op, copies.in_float64(given)))
    compare.same_memory(info, tree_leaves(actual), tree_leaves(ours), tree_leaves(expected.value), tree_leaves(theirs))
    return True


def inplace(info: Any, dtype: torch.dtype, sample: Any) -> bool:
    """`input.op_(...)`: every argument afterwards."""
    if sample.broadcasts_input:  # the result has another size
        return False
    op = info.get_inplace()
    given = _given(info, sample)
    theirs, ours = copies.on_cpu(given), _on_device(info, given)
    expected = _attempt(op, theirs)
    if expected is None:
        return False
    _call(op, ours)

    def exact() -> Any:
        wide = copies.in_float64(copies.on_cpu(given))
        _call(op, wide)
        return wide

    _same(info, dtype, given, ours, oracle.Answer(theirs, expected.random), exact)
    return True


def out(info: Any, dtype: torch.dtype, sample: Any) -> bool:
    """`op(..., out=...)` into tensors of the right size and strides."""
    given = _given(info, sample)
    results = _attempt(info.op, copies.on_cpu(given))
    if results is None:
        return False

    def into(device: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            kwargs["out"] = tree_map(
                lambda r: torch.empty_strided(r.shape, r.stride(), dtype=r.dtype, device=device), results.value
            )
            if not isinstance(kwargs["out"], (torch.Tensor, list)):
                kwargs["out"] = tuple(kwargs["out"])  # a named tuple
            info.op(*args, **kwargs)
            return kwargs["out"]

        return call

    if _attempt(into("cpu"), copies.on_cpu(given)) is None:
        return False
    actual = _call(into("tpu"), _on_device(info, given))
    _same(info, dtype, given, actual, results, lambda: _call(info.op, copies.in_float64(given)))
    return True


def grad(info: Any, dtype: torch.dtype, sample: Any) -> bool:
    """Differentiable results, and the gradients of every input for one random cotangent."""
    given = _given(info, sample)
    cotangents: list[torch.Tensor] = []

    def gradients(first: Any, *args: Any, **kwargs: Any) -> Any:
        leaves = [t for t in tree_leaves((first, args, kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad]
        results = sample.output_process_fn_grad(info.op(first, *args, **kwargs))
        outputs = [r for r in tree_leaves(results) if isinstance(r, torch.Tensor) and r.requires_grad]
        if not cotangents:
            generator = torch.Generator().manual_seed(0)
            cotangents.extend(torch.randn(o.shape, dtype=o.dtype, generator=generator) for o in outputs)
        weights = [c.to(o.device, o.dtype) for c, o in zip(cotangents, outputs, strict=True)]
        return (*outputs, *torch.autograd.grad(outputs, leaves, weights, allow_unused=True)) if outputs and leaves else ()

    expected = _attempt(gradients, copies.on_cpu(given))
    if expected is None or not expected.value:
        return False
    actual = _call(gradients, _on_device(info, given))
    _same(info, dtype, None, actual, expected, lambda: _call(gradients, copies.in_float64(given)))
    return True


def error(info: Any, dtype: torch.dtype, error_input: Any) -> bool:
    """What raises on the CPU raises the same type."""
    sample = error_input.sample_input
    given = sample.input, sample.args, sample.kwargs
    try:
        _call(info.op, copies.on_cpu(given))
    except Exception as raised:
        expected = raised
    else:
        return False
    try:
        copies.host(_call(info.op, copies.on_device(given)))
    except type(expected):
        return True
    except Exception as raised:
        raise compare.Mismatch(f"raises {_said(raised)}, expected {_said(expected)}") from None
    raise compare.Mismatch(f"raises nothing, expected {_said(expected)}")


def _said(raised: Exception) -> str:
    return f"{type(raised).__name__} ({' '.join(str(raised).split())[:120]})"


def _given(info: Any, sample: Any) -> Given:
    """Return a sample's arguments, without a generator: a CPU generator cannot draw on `tpu`."""
    return sample.input, sample.args, {k: v for k, v in sample.kwargs.items() if k != "generator"}


def _on_device(info: Any, given: Given) -> Given:
    first, args, kwargs = given
    if info.name in _HOST_ARGUMENTS:
        return copies.on_device(first), args, kwargs
    return copies.on_device(given)


def _call(op: Callable[..., Any], given: Given) -> Any:
    first, args, kwargs = given
    return op(first, *args, **kwargs)


def _attempt(op: Callable[..., Any], given: Given) -> oracle.Answer | None:
    return oracle.ask(lambda: _call(op, given))


def _same(
    info: Any, dtype: torch.dtype, given: Given | None, actual: Any, expected: oracle.Answer, exact: Callable[[], Any]
) -> None:
    """Compare; where the results are the operator's own, `given` is what it was called with."""

    def settled(result: Any, given: Given | None) -> list[Any]:
        return copies.host(result) if given is None else open_results.settled(info.name, given, copies.host(result))

    compare.same(
        settled(actual, given),
        settled(expected.value, given),
        compare.tolerances(info, dtype),
        lambda: settled(exact(), given if given is None else copies.in_float64(given)),
        values=not expected.random and info.name not in _UNDEFINED,
    )
