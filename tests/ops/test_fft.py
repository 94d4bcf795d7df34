"""Fourier transforms: every normalization, several dimensions, gradients."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.usefixtures("mode", "no_fallback")


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn", "hfftn", "ihfftn"])
def test_transforms(name: str, norm: str) -> None:
    transform = getattr(torch.fft, name)
    dtype = torch.float32 if name in ("rfftn", "ihfftn") else torch.complex64
    x = torch.randn(3, 4, 6, dtype=dtype, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(transform(x.to("tpu"), dim=(0, 2), norm=norm).cpu(), transform(x, dim=(0, 2), norm=norm))


def test_more_dimensions_than_xla_transforms_at_once() -> None:
    x = torch.randn(2, 3, 2, 3, 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(torch.fft.fftn(x.to("tpu")).cpu(), torch.fft.fftn(x))


def test_float64_keeps_its_precision() -> None:
    x = torch.randn(64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(torch.fft.rfft(x.to("tpu")).cpu(), torch.fft.rfft(x), rtol=0, atol=1e-13)


def test_gradient_of_a_spectrogram() -> None:
    x = torch.randn(2, 64, generator=torch.Generator().manual_seed(0))
    window = torch.hann_window(16)

    def gradient(device: str) -> torch.Tensor:
        leaf = x.to(device).requires_grad_()
        spectrum = torch.stft(leaf, 16, window=window.to(device), return_complex=True)
        back = torch.istft(spectrum * 0.5, 16, window=window.to(device), length=64)
        (spectrum.abs().square().mean() + back.square().sum()).backward()
        return leaf.grad.cpu()

    torch.testing.assert_close(gradient("tpu"), gradient("cpu"))
