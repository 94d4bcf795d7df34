"""Reading and writing by index: index, gather, scatter, masks and their kin.

An index out of range never reads or writes another element: such a read gives NaN (of integers: the smallest; of bool:
True), such a write is left out. Debug mode can check instead. Only the ops in which PyTorch counts negative indices from
the end do so: index, index_put, take, put.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu.dtypes import spoken
from torchtpu.ops.reduction import accumulation_dtype, wide
from torchtpu.ops.registry import rule
from torchtpu.ops.scan import scan

Index = jax.Array | slice

# -- which arguments are indices (`Rule.indexed`), and errors that torch's meta kernels do not raise


def _in_dim(x: torch.Tensor, dim: int, index: torch.Tensor, *_: Any) -> list[tuple[torch.Tensor, int, bool]]:
    return [(index, x.shape[dim] if x.dim() else 1, False)]


def _in_each(x: torch.Tensor, indices: Sequence[torch.Tensor | None], *_: Any) -> list[tuple[torch.Tensor, int, bool]]:
    return [(index, x.shape[d], True) for d, index in enumerate(indices) if index is not None]


def _in_all(x: torch.Tensor, index: torch.Tensor, *_: Any) -> list[tuple[torch.Tensor, int, bool]]:
    return [(index, x.numel(), True)]


def _check_values(x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, *_: Any) -> None:
    _check_sizes(x, indices)
    if values.dtype != x.dtype:
        raise RuntimeError(
            f"Index put requires the source and destination dtypes match, got {spoken(x.dtype)} for the destination and "
            f"{spoken(values.dtype)} for the source."
        )
    selected = torch.ops.aten.index.Tensor(x, indices).shape
    try:
        fits = torch.broadcast_shapes(values.shape, selected) == selected
    except RuntimeError:
        fits = False
    if not fits:
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing result of shape "
            f"{list(selected)}"
        )


def _check_sizes(x: torch.Tensor, indices: Sequence[torch.Tensor | None], *_: Any) -> None:
    for d, index in enumerate(indices):
        if index is not None and index.numel() and not x.shape[d]:
            raise IndexError("index is out of bounds for dimension with size 0")


def _check_size(x: torch.Tensor, dim: int, index: torch.Tensor, out: torch.Tensor | None = None) -> None:
    if out is not None and out.dtype != x.dtype:
        raise RuntimeError("index_select(): self and result must have the same scalar type")
    if x.dim() and index.numel() and not x.shape[dim]:
        if x.dim() > 1:
            raise RuntimeError("index_select(): self indexing axis dim should be positive")
        raise IndexError("index out of range in self")


def _check_slices(op: str) -> Callable[..., None]:
    def check(x: torch.Tensor, dim: int, _index: torch.Tensor, source: torch.Tensor, *_: Any) -> None:
        if source.dtype != x.dtype:
            raise RuntimeError(
                f"{op}_(): self ({spoken(x.dtype)}) and source ({spoken(source.dtype)}) must have the same scalar type"
            )
        if _rest(source, dim) != _rest(x, dim) or (x.dim() == 0) != (source.dim() == 0):
            raise RuntimeError(
                "source tensor shape must match self tensor shape, excluding the specified dimension. "
                f"Got self.shape = {list(x.shape)} source.shape = {list(source.shape)}"
            )

    return check


def _rest(x: torch.Tensor, dim: int) -> list[int]:
    """Return the sizes of the other dimensions."""
    return [n for d, n in enumerate(x.shape) if d != dim and d != dim + x.dim()]


def _check_count(x: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *_: Any) -> None:
    if x.dim() and source.dim() and x.dim() != source.dim():  # the meta kernel raises RuntimeErrors with these words
        raise IndexError(
            "index_copy_(): When source and destination are not scalars, their dimensionality must match. Source "
            f"dimensionality ({source.dim()}), destination dimensionality ({x.dim()})"
        )
    if source.dtype != x.dtype:
        raise RuntimeError(
            f"index_copy_(): self and source expected to have the same dtype, but got (self) {spoken(x.dtype)} and (source) "
            f"{spoken(source.dtype)}"
        )
    count = source.shape[dim] if source.dim() else 1
    if index.numel() != count:
        raise IndexError(f"index_copy_(): Number of indices ({index.numel()}) should be equal to source.size(dim) ({count})")


def _check_mask(_x: torch.Tensor, mask: torch.Tensor, *_: Any) -> None:
    if mask.dtype != torch.bool:
        raise RuntimeError(f"masked_scatter_ only supports boolean masks, but got mask with dtype {mask.dtype}")


# -- indices on the device


def rows(index: jax.Array, size: int, wrap: bool = False) -> jax.Array:
    """Return an index as XLA wants it: int32 where that is enough, and `size` where it is out of range."""
    if index.dtype.itemsize < 4 or size >= 2**31:
        index = index.astype(np.int64)
    if wrap:
        index = jnp.where(index < 0, index + size, index)
    valid = (index >= 0) & (index < size)
    return jnp.where(valid, index, size).astype(np.int32 if size < 2**31 - 1 else np.int64)


def at_dim(x: jax.Array, dim: int, index: jax.Array) -> tuple[Index, ...]:
    """Return the index tuple that takes 1-d `index` in one dimension."""
    dim %= x.ndim
    return (*[slice(None)] * dim, rows(index, x.shape[dim]))


def along(index: jax.Array, dim: int, size: int) -> tuple[Index, ...]:
    """Return the full index of `gather` and `scatter`: `index` in `dim`, each element's own position elsewhere."""
    dim %= index.ndim
    own: list[Index] = [
        jnp.arange(n, dtype=np.int32).reshape([n if k == d else 1 for k in range(index.ndim)])
        for d, n in enumerate(index.shape)
    ]
    own[dim] = rows(index, size)
    return tuple(own)


_OF_BOOL = {"add": "max", "multiply": "min"}


def update(x: jax.Array, where: tuple[Index, ...], values: Any, how: str) -> jax.Array:
    """Write `values` at an index: `set`, or combine by `add`, `multiply`, `min`, `max`. 16-bit floats combine in float32."""
    if 0 in x.shape:
        return x
    values = jnp.asarray(values).astype(x.dtype)
    if how == "set":
        return x.at[where].set(values, mode="drop")
    if x.dtype == np.bool_:
        how = _OF_BOOL.get(how, how)
    total = getattr(wide(x).at[where], how)(values.astype(accumulation_dtype(x.dtype)), mode="drop")
    return total.astype(x.dtype)


# -- reads


@rule("aten::index_select", indexed=_in_dim, check=_check_size)
def index_select(x: jax.Array, dim: int, index: jax.Array) -> jax.Array:
    if x.ndim == 0:
        return index_select(x.reshape(1), 0, index).reshape(())
    dim %= x.ndim
    index = index.reshape(-1)
    if 0 in x.shape or not index.size:
        return jnp.zeros((*x.shape[:dim], index.size, *x.shape[dim + 1 :]), x.dtype)
    return x.at[at_dim(x, dim, index)].get(mode="fill")


@rule("aten::gather", indexed=_in_dim)
def gather(x: jax.Array, dim: int, index: jax.Array, _sparse_grad: bool = False) -> jax.Array:
    shape = index.shape
    if 0 in shape or 0 in x.shape:
        return jnp.zeros(shape, x.dtype)
    x, index = jnp.atleast_1d(x, index)
    return x.at[along(index, dim, x.shape[dim])].get(mode="fill").reshape(shape)


def indices_of(x: jax.Array, indices: Sequence[jax.Array | None]) -> tuple[Index, ...]:
    """Return the index tuple of `x[...]`: an index tensor or a whole dimension each."""
    return tuple(slice(None) if i is None else rows(i, x.shape[d], wrap=True) for d, i in enumerate(indices))


@rule("aten::index.Tensor", meta=True, indexed=_in_each, check=_check_sizes)
@rule("aten::_unsafe_index.Tensor", meta=True)
def index(x: jax.Array, indices: Sequence[jax.Array | None], *, out: Sequence[Any]) -> jax.Array:
    if 0 in out[0].shape or 0 in x.shape:
        return jnp.zeros(out[0].shape, x.dtype)
    return x.at[indices_of(x, indices)].get(mode="fill")


@rule("aten::_unsafe_masked_index", dynamic="fill", meta=True)
def masked_index(x: jax.Array, mask: jax.Array, indices: Sequence[Any], fill: Any, *, out: Sequence[Any]) -> jax.Array:
    return jnp.where(mask, index(x, indices, out=out), jnp.asarray(fill).astype(x.dtype))


@rule("aten::take", indexed=_in_all)
def take(x: jax.Array, index: jax.Array) -> jax.Array:
    if not index.size or not x.size:
        return jnp.zeros(index.shape, x.dtype)
    return x.reshape(-1).at[rows(index, x.size, wrap=True)].get(mode="fill")


# -- writes


@rule("aten::index_put", "aten::_index_put_impl", indexed=_in_each, check=_check_values)
@rule("aten::_unsafe_index_put")
def index_put(
    x: jax.Array, indices: Sequence[jax.Array | None], values: jax.Array, accumulate: bool, _unsafe: bool = False
) -> jax.Array:
    return update(x, indices_of(x, indices), values, "add" if accumulate else "set")


@rule("aten::_unsafe_masked_index_put_accumulate")
def masked_index_put(x: jax.Array, mask: jax.Array, indices: Sequence[jax.Array | None], values: jax.Array) -> jax.Array:
    return index_put(x, indices, jnp.where(mask, values, jnp.zeros((), values.dtype)), True)


@rule("aten::put", indexed=_in_all)
def put(x: jax.Array, index: jax.Array, source: jax.Array, accumulate: bool) -> jax.Array:
    flat = update(x.reshape(-1), (rows(index, x.size, wrap=True),), source.reshape(index.shape), "add" if accumulate else "set")
    return flat.reshape(x.shape)


def _on_rows(x: jax.Array, dim: int, index: jax.Array, source: Any, how: str) -> jax.Array:
    """Update the rows of `dim` that 1-d `index` names with those of `source`."""
    if x.ndim == 0:
        return update(x.reshape(1), (rows(index.reshape(-1), 1),), jnp.asarray(source).reshape(-1), how).reshape(())
    return update(x, at_dim(x, dim, index.reshape(-1)), source, how)


@rule("aten::index_add", unit="alpha", indexed=_in_dim, check=_check_slices("index_add"))
def index_add(x: jax.Array, dim: int, index: jax.Array, source: jax.Array, alpha: Any) -> jax.Array:
    if isinstance(alpha, jax.Array) or alpha != 1:
        source = (wide(source) * jnp.asarray(alpha)).astype(accumulation_dtype(x.dtype))
    return _on_rows(x, dim, index, source, "add")


@rule("aten::index_copy", indexed=_in_dim, check=_check_count)
def index_copy(x: jax.Array, dim: int, index: jax.Array, source: jax.Array) -> jax.Array:
    return _on_rows(x, dim, index, source, "set")


@rule("aten::index_fill.int_Scalar", "aten::index_fill.int_Tensor", dynamic="value", indexed=_in_dim)
def index_fill(x: jax.Array, dim: int, index: jax.Array, value: Any) -> jax.Array:
    return _on_rows(x, dim, index, value, "set")


@rule("aten::scatter.src", indexed=_in_dim)
def scatter(x: jax.Array, dim: int, index: jax.Array, source: Any, how: str = "set") -> jax.Array:
    if not index.size:
        return x
    shape = x.shape
    x, index = jnp.atleast_1d(x, index)
    if getattr(source, "ndim", 0):  # only the part of the source that the index covers is used
        source = source[tuple(slice(n) for n in index.shape)]
    return update(x, along(index, dim, x.shape[dim]), source, how).reshape(shape)


@rule("aten::scatter.value", dynamic="value", indexed=_in_dim)
def scatter_value(x: jax.Array, dim: int, index: jax.Array, value: Any) -> jax.Array:
    return scatter(x, dim, index, value)


@rule("aten::scatter.reduce", "aten::scatter.value_reduce", dynamic="value", indexed=_in_dim)
def scatter_by_name(x: jax.Array, dim: int, index: jax.Array, source: Any, reduce: str) -> jax.Array:
    return scatter(x, dim, index, source, reduce)  # "add" or "multiply"


@rule("aten::scatter_add", indexed=_in_dim)
def scatter_add(x: jax.Array, dim: int, index: jax.Array, source: jax.Array) -> jax.Array:
    return scatter(x, dim, index, source, "add")


_COMBINE = {"sum": "add", "mean": "add", "prod": "multiply", "amax": "max", "amin": "min"}


def _neutral(reduce: str, dtype: np.dtype) -> Any:
    """Return the value that does not change a reduction."""
    if reduce in ("sum", "mean", "prod"):
        return reduce == "prod"
    if dtype == np.bool_:
        return reduce == "amin"
    if jnp.issubdtype(dtype, jnp.inexact):
        return -np.inf if reduce == "amax" else np.inf
    return jnp.iinfo(dtype).min if reduce == "amax" else jnp.iinfo(dtype).max


def _reduced(x: jax.Array, where: tuple[Index, ...], source: jax.Array, reduce: str, include_self: bool) -> jax.Array:
    """Reduce `source` into the places of `x` that an index names, with their old values or without."""
    dtype, x = x.dtype, wide(x)
    source = source.astype(x.dtype)
    hit = jnp.zeros(x.shape, bool).at[where].set(True, mode="drop")
    start = x if include_self else jnp.where(hit, jnp.asarray(_neutral(reduce, dtype)).astype(x.dtype), x)
    total = update(start, where, source, _COMBINE[reduce])
    if reduce == "mean":
        own = 1 if include_self else jnp.where(hit, 0, 1)
        count = jnp.zeros(x.shape, np.int32).at[where].add(1, mode="drop") + own
        # Integers: rounded down, as PyTorch does.
        total = total / count if jnp.issubdtype(dtype, jnp.inexact) else jnp.floor_divide(total, count.astype(x.dtype))
    return total.astype(dtype)


@rule("aten::scatter_reduce.two", indexed=_in_dim)
def scatter_reduce(x: jax.Array, dim: int, index: jax.Array, source: jax.Array, reduce: str, include_self: bool) -> jax.Array:
    if not index.size:
        return x
    shape = x.shape
    x, index, source = jnp.atleast_1d(x, index, source)
    source = source[tuple(slice(n) for n in index.shape)]
    return _reduced(x, along(index, dim, x.shape[dim]), source, reduce, include_self).reshape(shape)


@rule("aten::index_reduce", indexed=_in_dim, check=_check_slices("index_reduce"))
def index_reduce(x: jax.Array, dim: int, index: jax.Array, source: jax.Array, reduce: str, include_self: bool) -> jax.Array:
    shape = x.shape
    x, source = jnp.atleast_1d(x, source)
    if not index.size or not x.size:
        return x.reshape(shape)
    return _reduced(x, at_dim(x, dim, index.reshape(-1)), source, reduce, include_self).reshape(shape)


# -- masks


def _ranks(mask: jax.Array) -> jax.Array:
    """Return, for each element that a flat mask chooses, how many are chosen before it."""
    return scan(mask.astype(np.int32 if mask.size < 2**31 else np.int64), 0, lax.add) - 1


@rule("aten::masked_scatter", check=_check_mask)
def masked_scatter(x: jax.Array, mask: jax.Array, source: jax.Array) -> jax.Array:
    shape = jnp.broadcast_shapes(x.shape, mask.shape)
    if not source.size:
        return jnp.broadcast_to(x, shape)
    mask = jnp.broadcast_to(mask, shape).reshape(-1) != 0
    taken = source.reshape(-1).at[_ranks(mask)].get(mode="clip").reshape(shape)
    return jnp.where(mask.reshape(shape), taken, x)


@rule("aten::masked_scatter_backward")
def masked_scatter_backward(grad: jax.Array, mask: jax.Array, sizes: Sequence[int]) -> jax.Array:
    mask = jnp.broadcast_to(mask, grad.shape).reshape(-1)
    count = int(np.prod(sizes, dtype=np.int64))
    place = jnp.where(mask, _ranks(mask), count)
    return jnp.zeros(count, grad.dtype).at[place].set(grad.reshape(-1), mode="drop").reshape(sizes)


@rule("aten::nonzero_static")
def nonzero_static(x: jax.Array, size: int, fill_value: int) -> jax.Array:
    if not x.size or not x.ndim:
        return jnp.full((size, x.ndim), fill_value, np.int64)
    flat = x.reshape(-1) != 0
    order = _ranks(flat)
    place = jnp.where(flat, order, size)
    found = jnp.full(size, -1, order.dtype).at[place].set(jnp.arange(flat.size, dtype=order.dtype), mode="drop")
    positions = jnp.stack(jnp.unravel_index(jnp.maximum(found, 0), x.shape), -1).astype(np.int64)
    return jnp.where(found[:, None] < 0, fill_value, positions)
