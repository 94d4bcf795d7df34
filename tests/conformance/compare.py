"""When two results are the same: torch.testing's tolerances, the OpInfo's own, and float64 where rounding decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.testing._internal.opinfo.core import BinaryUfuncInfo, UnaryUfuncInfo

from tests.conformance import copies

# OpInfos give tolerances per test of PyTorch's own suite: these compare values as we do.
_THEIR_TESTS = (("TestCommon", "test_compare_cpu"), ("TestCommon", "test_numpy_ref"), ("TestCommon", "test_out"))

# PyTorch promises the strides of their results.
_ELEMENTWISE = (BinaryUfuncInfo, UnaryUfuncInfo)


class Mismatch(AssertionError):
    """A result differs from the CPU's."""


def tolerances(info: Any, dtype: torch.dtype) -> dict[str, float]:
    """Return atol and rtol for assert_close where the OpInfo has its own, else nothing (torch.testing's defaults)."""
    rtol, atol = torch.testing._comparison.default_tolerances(dtype)
    own = False
    for test in _THEIR_TESTS:
        for decorator in info.get_decorators(*test, "cpu", dtype, {}):
            override = getattr(decorator, "d", None)
            if isinstance(override, dict) and dtype in override:
                own = True
                tol = override[dtype]
                atol = max(atol, getattr(tol, "atol", tol))
                rtol = max(rtol, getattr(tol, "rtol", 0.0))
    return {"rtol": rtol, "atol": atol} if own else {}


def same(
    actual: Sequence[Any],
    expected: Sequence[Any],
    tolerance: dict[str, float],
    exact: Callable[[], Any],
    values: bool = True,
) -> None:
    """Compare flattened results.

    Args:
        actual, expected: of the device (on the CPU by now) and of the CPU.
        tolerance: arguments of assert_close.
        exact: computes the result in float64; called only where the tolerance is exceeded.
        values: compare values too, not only shapes and dtypes.

    Raises:
        Mismatch: they differ.
    """
    if len(actual) != len(expected):
        raise Mismatch(f"{len(actual)} results, expected {len(expected)}")
    reference: Sequence[Any] | None = None
    for k, (a, e) in enumerate(zip(actual, expected, strict=True)):
        if isinstance(e, float) and isinstance(a, float):  # an optimizer's state: read from float32 tensors
            a, e = torch.tensor(a, dtype=torch.float32), torch.tensor(e, dtype=torch.float32)
        if not isinstance(e, torch.Tensor):
            if type(a) is not type(e) or (values and a != e and not (a != a and e != e)):
                raise Mismatch(f"result {k}: {a!r}, expected {e!r}")
            continue
        if not isinstance(a, torch.Tensor):
            raise Mismatch(f"result {k} is a {type(a).__name__}, expected a tensor")
        if a.shape != e.shape or a.dtype != e.dtype:
            raise Mismatch(f"result {k} is {a.dtype} {tuple(a.shape)}, expected {e.dtype} {tuple(e.shape)}")
        if not values:
            continue
        try:
            torch.testing.assert_close(a, e, equal_nan=True, **(tolerance if e.is_floating_point() or e.is_complex() else {}))
        except AssertionError as error:
            if e.is_floating_point() or e.is_complex():
                reference = _computed(exact) if reference is None else reference
                if k < len(reference) and rounding_only(a, e, reference[k]):
                    continue
            raise Mismatch(f"result {k}: {_first_lines(str(error))}") from None


def _computed(exact: Callable[[], Any]) -> list[Any]:
    try:
        return copies.host(exact())
    except Exception:  # the operator does not take float64
        return []


def rounding_only(actual: torch.Tensor, expected: torch.Tensor, exact: Any) -> bool:
    """Whether `actual` is off from the float64 result by at most 4 times the CPU's own error plus 8 ulp."""
    if isinstance(exact, float):
        exact = torch.tensor(exact, dtype=torch.float64)
    if not isinstance(exact, torch.Tensor) or exact.shape != actual.shape:
        return False
    if exact.is_complex():
        return rounding_only(*(torch.view_as_real(t.resolve_conj()) for t in (actual, expected, exact)))
    ours, theirs = actual.to(torch.float64), expected.to(torch.float64)
    exact = exact.to(torch.float64)
    off, allowed = (ours - exact).abs(), (theirs - exact).abs()
    finite = torch.isfinite(exact) & torch.isfinite(theirs)
    info = torch.finfo(actual.dtype)
    ulp = exact.abs().clamp(min=info.tiny) * info.eps
    worst = allowed[finite].max() if finite.any() else torch.zeros((), dtype=torch.float64)
    close = off <= 4 * worst + 8 * ulp
    same = (ours == theirs) | (ours.isnan() & theirs.isnan()) | (ours == exact.to(actual.dtype).to(torch.float64))
    return bool((torch.where(finite, close, False) | same).all())


def _first_lines(text: str) -> str:
    return " ".join(line.strip() for line in text.splitlines()[:6] if line.strip())


def same_memory(
    info: Any, actual: Sequence[Any], inputs: Sequence[Any], expected: Sequence[Any], their_inputs: Sequence[Any]
) -> None:
    """Compare which results are views of an input, and the strides of these and of elementwise results.

    Raises:
        Mismatch: they differ.
    """
    ours = {t.untyped_storage()._cdata for t in inputs if _dense(t)}
    theirs = {t.untyped_storage()._cdata for t in their_inputs if _dense(t)}
    for k, (a, e) in enumerate(zip(actual, expected, strict=True)):
        if not _dense(e) or not _dense(a) or e.numel() == 0:
            continue
        is_view, should = a.untyped_storage()._cdata in ours, e.untyped_storage()._cdata in theirs
        if is_view != should:
            raise Mismatch(f"result {k} is {'a view' if is_view else 'no view'} of an input; the CPU says the contrary")
        if (should or isinstance(info, _ELEMENTWISE)) and a.stride() != e.stride():
            raise Mismatch(f"result {k} has strides {a.stride()}, expected {e.stride()}")
        if should and a.storage_offset() != e.storage_offset():
            raise Mismatch(f"result {k} starts at {a.storage_offset()}, expected {e.storage_offset()}")


def _dense(t: Any) -> bool:
    return isinstance(t, torch.Tensor) and t.layout is torch.strided
