"""New tensors: fills, ranges, identity, triangles, complex numbers from their parts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, isfinite
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array, lax

from torchtpu.dtypes import xla_dtype
from torchtpu.ops.registry import entry, overload, rule

# Fills. They do not read the tensor: it may not even have been computed.


@rule("aten::fill.Scalar", "aten::fill.Tensor", dynamic="value", ignores="self", meta=True)
def fill(_self: Any, value: Any, *, out: list[Any]) -> Array:
    return jnp.broadcast_to(jnp.asarray(value).astype(xla_dtype(out[0].dtype)), out[0].shape)


_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
_LIMITS = {d: (i.min, i.max) for d in _FLOATS + _INTEGERS for i in [(torch.finfo if d in _FLOATS else torch.iinfo)(d)]}


def _refuse_overflow(name: str, *mask: torch.Tensor) -> None:
    """Raise for a number that the dtype cannot hold, where the CPU does; XLA would make it infinite, or wrap it."""
    on_cpu = overload(f"aten::{name}.Scalar")

    @entry(f"aten::{name}.Scalar", f"aten::{name}_.Scalar")
    def checked(kernel: Callable[..., Any], x: torch.Tensor, *mask_and_number: Any) -> torch.Tensor:
        number = mask_and_number[-1]
        limits = _LIMITS.get(x.dtype)
        if limits is not None and (isinstance(number, complex) or not limits[0] <= number <= limits[1]):
            on_cpu(torch.empty(1, dtype=x.dtype, device="cpu"), *mask, number)  # raises, or not: infinities and NaN may fit
        return kernel(x, *mask_and_number)


_refuse_overflow("fill")
_refuse_overflow("masked_fill", torch.ones(1, dtype=torch.bool, device="cpu"))


@rule("aten::zero", ignores="self", meta=True)
def zero(_self: Any, *, out: list[Any]) -> Array:
    return jnp.zeros(out[0].shape, xla_dtype(out[0].dtype))


# PyTorch makes these of `empty` and a fill; inside a decomposition they are whole.
_FULL = ("full", "full_like", "new_full", "scalar_tensor")
_LIKE = ("{}", "{}_like", "new_{}")
_EMPTY = ("empty.memory_format", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")


@rule(*(f"aten::{name}" for name in _FULL), inner=True, meta=True)
def full(*arguments: Any, out: list[Any]) -> Array:
    """The value is the last number before the options."""
    value = next(a for a in reversed(arguments) if isinstance(a, (bool, int, float, complex)))
    return fill(None, value, out=out)


rule(*(f"aten::{name.format('ones')}" for name in _LIKE), inner=True, meta=True)(lambda *_, out: fill(None, 1, out=out))
rule(*(f"aten::{name.format('zeros')}" for name in _LIKE), *(f"aten::{name}" for name in _EMPTY), inner=True, meta=True)(
    lambda *_, out: zero(None, out=out)
)


@entry("aten::_efficientzerotensor")
def efficient_zeros(_kernel: Any, size: Sequence[int], **options: Any) -> torch.Tensor:
    """Autograd's zeros; here they are a fill like others, which costs nothing inside a fusion."""
    return torch.zeros(size, **options)


# Ranges. Integer results take their ends as integers first; low-precision ones are computed in float32.
# Their ends are program inputs: `torch.arange(n, n + 1)` in a loop is one program.


@rule("aten::arange.start_out", "aten::range.out", dynamic=("start", "end", "step"), meta=True)
def arange(start: Any, end: Any, step: Any, *, out: list[Any]) -> Array:
    compute, dtype = _range_dtypes(out[0].dtype)
    return (_number(start, compute) + _number(step, compute) * lax.iota(compute, out[0].shape[0])).astype(dtype)


rule("aten::arange", inner=True, meta=True)(lambda end, *_, out: arange(0, end, 1, out=out))
rule("aten::arange.start", inner=True, meta=True)(lambda start, end, *_, out: arange(start, end, 1, out=out))
rule("aten::arange.start_step", inner=True, meta=True)(lambda start, end, step, *_, out: arange(start, end, step, out=out))


@entry("aten::arange.start_out")
def arange_start_out(kernel: Any, start: float, end: float, step: float = 1, *, out: torch.Tensor) -> torch.Tensor:
    """Resize `out` first: its length is the only thing about the numbers that the program depends on."""
    if not (isfinite(start) and isfinite(end)) or step == 0 or (end - start) * step < 0:
        torch.arange(start, end, step, device="meta")  # raises
    if out.dtype is torch.int64:
        start, end, step = int(start), int(end), int(step)
        if step == 0:
            raise ValueError("step must be nonzero")
        length = -((start - end) // step)
    else:
        length = ceil((float(end) - float(start)) / float(step))
    if out.numel() != length:
        out.resize_(length)
    return kernel(start, end, step, out=out)


@entry("aten::range.out")
def range_out(kernel: Any, start: float, end: float, step: float = 1, *, out: torch.Tensor) -> torch.Tensor:
    """`torch.range` is deprecated, and has its end in it."""
    length = torch.empty(0, device="meta", dtype=out.dtype)
    torch.ops.aten.range.out(start, end, step, out=length)
    if out.numel() != length.numel():
        out.resize_(length.numel())
    return kernel(start, end, step, out=out)


@rule("aten::linspace", inner=True, meta=True)
def linspace_made(start: Any, end: Any, steps: int, *_options: Any, out: list[Any]) -> Array:
    return linspace(start, end, steps, out=out)


@rule("aten::linspace.out", dynamic=("start", "end"), meta=True)
def linspace(start: Any, end: Any, steps: int, *, out: list[Any]) -> Array:
    """Each half counts from its own end, so that both ends are exact."""
    compute, dtype = _range_dtypes(out[0].dtype)
    start, end = _number(start, compute), _number(end, compute)
    if np.issubdtype(compute, np.integer):  # whole ends, fractional steps
        start, end, compute = start.astype(np.float64), end.astype(np.float64), np.dtype(np.float64)
    return _between(start, end, steps, compute).astype(dtype)


@rule("aten::logspace.out", dynamic=("start", "end", "base"), meta=True)
def logspace(start: Any, end: Any, steps: int, base: Any, *, out: list[Any]) -> Array:
    compute, dtype = _range_dtypes(out[0].dtype)
    start, end = _number(start, compute), _number(end, compute)
    if np.issubdtype(compute, np.integer):
        start, end, compute = start.astype(np.float64), end.astype(np.float64), np.dtype(np.float64)
    return jnp.power(_number(base, compute), _between(start, end, steps, compute)).astype(dtype)


def _between(start: Array, end: Array, steps: int, dtype: np.dtype) -> Array:
    if steps <= 1:
        return jnp.broadcast_to(start, (steps,))
    index = lax.iota(np.int32, steps)
    real = np.finfo(dtype).dtype
    # Behind a barrier: XLA would multiply by the reciprocal of a constant, which is not exact.
    step = (end - start) / lax.optimization_barrier(jnp.asarray(steps - 1, real))
    near, far = step * index.astype(real), step * (steps - 1 - index).astype(real)
    if dtype == np.float64:  # rounded before the sum: a fused multiply-add would be truncated to another integer
        near, far = lax.optimization_barrier((near, far))
    return jnp.where(index < steps // 2, start + near, end - far)


def _range_dtypes(dtype: Any) -> tuple[np.dtype, np.dtype]:
    result = xla_dtype(dtype)
    return (np.dtype(np.float32) if dtype.is_floating_point and dtype.itemsize < 4 else result), result


def _number(value: Any, dtype: np.dtype) -> Array:
    return jnp.asarray(value).astype(dtype)


# Matrices with a pattern.


@rule("aten::eye.out", meta=True)
def eye(n: int, *, out: list[Any]) -> Array:
    return jnp.eye(n, dtype=xla_dtype(out[0].dtype))


rule("aten::eye", inner=True, meta=True)(lambda n, *_, out: eye(n, out=out))
rule("aten::eye.m", inner=True, meta=True)(lambda n, m, *_, out: eye_rectangular(n, m, out=out))


@rule("aten::eye.m_out", meta=True)
def eye_rectangular(n: int, m: int, *, out: list[Any]) -> Array:
    return jnp.eye(n, m, dtype=xla_dtype(out[0].dtype))


rule("aten::tril")(jnp.tril)
rule("aten::triu")(jnp.triu)


@rule("aten::tril_indices", meta=True)
def tril_indices(row: int, col: int, offset: int, *_options: Any, out: list[Any]) -> Array:
    return _indices(jnp.tri(row, col, offset, dtype=bool), out[0])


@rule("aten::triu_indices", meta=True)
def triu_indices(row: int, col: int, offset: int, *_options: Any, out: list[Any]) -> Array:
    return _indices(~jnp.tri(row, col, offset - 1, dtype=bool), out[0])


def _indices(mask: Array, out: Any) -> Array:
    return jnp.stack(jnp.nonzero(mask, size=out.shape[1])).astype(xla_dtype(out.dtype))


# Complex numbers.


def _complex_metadata(real: torch.Tensor, imag: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Raise what PyTorch's CPU kernel does; its meta kernel fails an assertion."""
    if not (_is_part(real) and _is_part(imag)):
        names = " and ".join(str(t.dtype).removeprefix("torch.") for t in (real, imag))
        raise RuntimeError(f"Expected both inputs to be Half, Float or Double tensors but got {names}")
    if real.dtype != imag.dtype:
        raise RuntimeError(f"Expected object of scalar type {real.dtype} but got scalar type {imag.dtype} for second argument")
    made = torch.complex(real, imag)
    if out is not None and out.dtype != made.dtype:
        raise RuntimeError(f"Expected object of scalar type {made.dtype} but got scalar type {out.dtype} for argument 'out'")
    return made if out is None else out.resize_(made.shape)


def _is_part(t: torch.Tensor) -> bool:
    return t.dtype in (torch.float16, torch.float32, torch.float64)


@rule("aten::complex", metadata=_complex_metadata)
def complex_of(real: Array, imag: Array) -> Array:
    return lax.complex(*jnp.broadcast_arrays(real, imag))


@rule("aten::polar")
def polar(absolute: Array, angle: Array) -> Array:
    return complex_of(absolute * jnp.cos(angle), absolute * jnp.sin(angle))


# Windows. The others of torch are made of ops; this one asks for a kernel of the device.


@entry("aten::kaiser_window", "aten::kaiser_window.periodic", "aten::kaiser_window.beta")
def kaiser_window(_kernel: Any, window_length: int, periodic: bool = True, beta: float = 12.0, **options: Any) -> torch.Tensor:
    if window_length <= 1:
        return torch.ones(window_length, **options)
    last = window_length if periodic else window_length - 1
    position = torch.arange(last + 1, **options) * (2 / last) - 1
    window = torch.i0(beta * torch.sqrt(1 - position * position)) / torch.i0(torch.scalar_tensor(beta, **options))
    return window[:window_length]
