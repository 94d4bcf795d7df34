"""Histograms."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.usefixtures("mode", "no_fallback")


def both(function: object, *inputs: torch.Tensor) -> None:
    """Compare on tpu and on the CPU."""
    actual = torch.utils._pytree.tree_leaves(function(*(i.to("tpu") for i in inputs)))
    expected = torch.utils._pytree.tree_leaves(function(*inputs))
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.cpu(), e)


def test_equal_bins_include_both_ends() -> None:
    x = torch.tensor([0.0, 0.1, 0.5, 0.99, 1.0, 1.0, -3.0, 4.0])
    both(lambda x: torch.histogram(x, 4, range=(0.0, 1.0)), x)
    both(lambda x: torch.histogram(x, 5), x)
    both(lambda x: torch.histogram(x, 3), torch.full((4,), 2.0))


def test_weights_and_density() -> None:
    x, weight = torch.rand(50, generator=torch.Generator().manual_seed(0)), torch.linspace(0, 1, 50)
    both(lambda x, w: torch.histogram(x, 7, weight=w, density=True), x, weight)
    both(lambda x, e: torch.histogram(x, e), x, torch.tensor([0.0, 0.2, 0.25, 0.9]))


def test_several_dimensions() -> None:
    x = torch.rand(40, 2, generator=torch.Generator().manual_seed(0))
    both(lambda x: torch.histogramdd(x, [3, 5], density=True), x)
    both(lambda x: torch.histogramdd(x, [3, 5], range=[0.0, 0.5, 0.25, 1.0]), x)


def test_errors_are_pytorchs_own() -> None:
    with pytest.raises(RuntimeError, match="bins must be > 0"):
        torch.histogram(torch.rand(3, device="tpu"), 0)
    with pytest.raises(RuntimeError, match="size of bins must be equal"):
        torch.histogramdd(torch.rand(3, 2, device="tpu"), [3])
    with pytest.raises(RuntimeError, match="min should not exceed max"):
        torch.histogram(torch.rand(3, device="tpu"), 4, range=(1.0, 0.0))
