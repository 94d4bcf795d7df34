"""Fake quantization, scaled float8 products, jagged batches."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.usefixtures("mode", "no_fallback")

aten = torch.ops.aten


def on_tpu(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors on tpu."""
    return [t.to("tpu") for t in tensors]


@pytest.fixture
def x() -> torch.Tensor:
    return 3 * torch.randn(4, 5, generator=torch.Generator().manual_seed(0))


def test_fake_quantize_with_numbers(x: torch.Tensor) -> None:
    ours = x.to("tpu").requires_grad_()
    theirs = x.clone().requires_grad_()
    for leaf in (ours, theirs):
        torch.fake_quantize_per_tensor_affine(leaf, 0.1, 3, -8, 20).sum().backward()
    torch.testing.assert_close(ours.grad.cpu(), theirs.grad)
    assert 0 < theirs.grad.sum() < x.numel(), "some values saturate, some do not"


def test_fake_quantize_with_tensors(x: torch.Tensor) -> None:
    scale, zero = torch.tensor(0.1), torch.tensor(3, dtype=torch.int32)
    actual = torch.fake_quantize_per_tensor_affine(*on_tpu(x, scale, zero), -8, 20)
    torch.testing.assert_close(actual.cpu(), torch.fake_quantize_per_tensor_affine(x, scale, zero, -8, 20))
    scales, zeros = torch.linspace(0.1, 0.5, 5), torch.arange(5, dtype=torch.int32)
    actual = torch.fake_quantize_per_channel_affine(*on_tpu(x, scales, zeros), 1, -8, 20)
    torch.testing.assert_close(actual.cpu(), torch.fake_quantize_per_channel_affine(x, scales, zeros, 1, -8, 20))


@pytest.mark.parametrize("out_dtype", [torch.float32, torch.bfloat16])
def test_scaled_float8_product(out_dtype: torch.dtype) -> None:
    a = torch.randn(16, 32, generator=torch.Generator().manual_seed(0)).to(torch.float8_e4m3fn)
    b = torch.randn(16, 32, generator=torch.Generator().manual_seed(1)).to(torch.float8_e4m3fn).t()
    scales = torch.tensor(0.5), torch.tensor(2.0)
    actual = torch._scaled_mm(*on_tpu(a, b, *scales), out_dtype=out_dtype)
    expected = a.float() @ b.float()
    torch.testing.assert_close(actual.cpu(), expected.to(out_dtype))
    rows, columns = torch.linspace(0.1, 1, 16).unsqueeze(1), torch.linspace(1, 2, 16).unsqueeze(0)
    actual = torch._scaled_mm(*on_tpu(a, b, rows, columns), out_dtype=out_dtype)
    torch.testing.assert_close(actual.cpu(), (expected * rows * columns).to(out_dtype))


def test_jagged_batches() -> None:
    values, offsets = torch.randn(7, 2, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 2, 2, 7])
    padded = aten._jagged_to_padded_dense_forward(values, [offsets], [5], -1.0)
    actual = aten._jagged_to_padded_dense_forward(values.to("tpu"), on_tpu(offsets), [5], -1.0)
    torch.testing.assert_close(actual.cpu(), padded)
    for total in (7, None):
        back = aten._padded_dense_to_jagged_forward(padded.to("tpu"), on_tpu(offsets), total)
        torch.testing.assert_close(back.cpu(), values)
