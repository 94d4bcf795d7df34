"""Weight norm, as audio models have it on their convolutions."""

import copy

import pytest
import torch
from torch.nn.utils import parametrizations


@pytest.mark.parametrize("dim", [0, 2])
def test_values_and_gradients(mode, no_fallback, dim):
    torch.manual_seed(dim)
    theirs = parametrizations.weight_norm(torch.nn.Conv1d(6, 4, 3, groups=2), dim=dim)
    ours = copy.deepcopy(theirs).to("tpu")
    x = torch.randn(2, 6, 9)
    for model, data in ((theirs, x), (ours, x.to("tpu"))):
        model(data).square().sum().backward()
    torch.testing.assert_close(ours(x.to("tpu")).cpu(), theirs(x))
    for p, q in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(p.grad.cpu(), q.grad)


def test_norms_of_bfloat16_are_float32(no_fallback):
    v = torch.randn(4, 5).to(torch.bfloat16)
    g = torch.rand(4, 1).to(torch.bfloat16)
    expected = torch._weight_norm_interface(v, g, 0)
    actual = torch._weight_norm_interface(v.to("tpu"), g.to("tpu"), 0)
    for a, e in zip(actual, expected, strict=True):
        assert a.shape == e.shape
        torch.testing.assert_close(a.cpu(), e)
