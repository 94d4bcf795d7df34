"""PyTorch's dtypes and XLA's, both ways. 64-bit types stay 64-bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

from torchtpu.errors import UnsupportedDtypeError

XLA: dict[torch.dtype, np.dtype] = {
    torch.bool: np.dtype(np.bool_),
    torch.uint8: np.dtype(np.uint8),
    torch.uint16: np.dtype(np.uint16),
    torch.uint32: np.dtype(np.uint32),
    torch.uint64: np.dtype(np.uint64),
    torch.int8: np.dtype(np.int8),
    torch.int16: np.dtype(np.int16),
    torch.int32: np.dtype(np.int32),
    torch.int64: np.dtype(np.int64),
    torch.float16: np.dtype(np.float16),
    torch.bfloat16: np.dtype(ml_dtypes.bfloat16),
    torch.float32: np.dtype(np.float32),
    torch.float64: np.dtype(np.float64),
    torch.complex64: np.dtype(np.complex64),
    torch.complex128: np.dtype(np.complex128),
    torch.float8_e4m3fn: np.dtype(ml_dtypes.float8_e4m3fn),
    torch.float8_e4m3fnuz: np.dtype(ml_dtypes.float8_e4m3fnuz),
    torch.float8_e5m2: np.dtype(ml_dtypes.float8_e5m2),
    torch.float8_e5m2fnuz: np.dtype(ml_dtypes.float8_e5m2fnuz),
}


def spoken(dtype: torch.dtype) -> str:
    """Return the name that PyTorch's errors have for a dtype: Long, BFloat16, ComplexFloat."""
    return torch.empty(0, dtype=dtype, device="meta").type().rsplit(".", 1)[1].removesuffix("Tensor")


# numpy cannot hold these in a torch tensor: they cross the host boundary as integers of the same width.
_BY_BITS = {
    dtype: {1: torch.uint8, 2: torch.int16}[dtype.itemsize]
    for dtype in XLA
    if dtype.is_floating_point and dtype not in (torch.float16, torch.float32, torch.float64)
}


def xla_dtype(dtype: torch.dtype) -> np.dtype:
    """Return the XLA (numpy) dtype of a torch dtype, or raise `UnsupportedDtypeError`."""
    try:
        return XLA[dtype]
    except KeyError:
        names = ", ".join(str(d).removeprefix("torch.") for d in XLA)
        raise UnsupportedDtypeError(
            f"{dtype} has no counterpart in XLA, so it cannot live on tpu. Use one of: {names}."
        ) from None


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """View a contiguous CPU tensor as a numpy array of the XLA dtype (no copy).

    Raises:
        RuntimeError: it has more dimensions than arrays can have.
    """
    if tensor.dim() > 64:
        raise RuntimeError(f"tensors on tpu have at most 64 dimensions, this one has {tensor.dim()}")
    bits = _BY_BITS.get(tensor.dtype)
    if bits is None:
        return tensor.numpy()
    return tensor.view(bits).numpy().view(XLA[tensor.dtype])


def from_numpy(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """View a writable numpy array of `dtype`'s XLA type as a CPU tensor (no copy)."""
    bits = _BY_BITS.get(dtype)
    if bits is None:
        return torch.from_numpy(array)
    return torch.from_numpy(array.view({1: np.uint8, 2: np.int16}[dtype.itemsize])).view(dtype)
