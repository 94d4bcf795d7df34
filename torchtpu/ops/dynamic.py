"""Ops whose result depends on values that the host must know: nonzero, masks as indices, unique, bincount, equal.

XLA needs every shape before it runs. One number is read from the device (a recorded wait, named after the op); the rest
is made of ordinary ops on it. `x[mask] = number` needs no read, nor does the backward pass of `x[mask]`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchtpu import transfer
from torchtpu.ops.registry import entry

Tensor = torch.Tensor
aten = torch.ops.aten  # always with the overload: to find one that fits, torch may print the tensors, which reads them


def _read(values: Tensor, kind: str) -> Any:
    """Wait for values and return them as Python numbers."""
    return transfer.on_host(values, kind).tolist()


def _is_mask(index: Tensor) -> bool:
    return index.dtype in (torch.bool, torch.uint8)


# -- nonzero and masks as indices


@entry("aten::nonzero")
def nonzero(_kernel: Any, x: Tensor) -> Tensor:
    return aten.nonzero_static.default(x, size=_read(aten.count_nonzero.default(x), "nonzero"))


@entry("aten::masked_select")
def masked_select(_kernel: Any, x: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    x, mask = torch.broadcast_tensors(x, mask)
    mask = mask.reshape(-1)
    chosen = aten.nonzero_static.default(mask, size=_read(aten.count_nonzero.default(mask), "masked_select"))
    return aten.index_select.default(x.reshape(-1), 0, chosen[:, 0])


def positions(x: Tensor, indices: Sequence[Tensor | None], count: int | None = None) -> list[Tensor | None]:
    """Return the indices of `x[...]` on the device, each mask replaced by the positions that it chooses.

    Args:
        x: the tensor that is indexed.
        indices: index tensors and masks, on any device.
        count: how many a mask chooses, where that is known.

    Raises:
        IndexError: a mask does not have the shape of the dimensions that it stands for.
    """
    found: list[Tensor | None] = []
    for index in indices:
        if index is None or not _is_mask(index):
            found.append(index if index is None else index.to(x.device))
            continue
        first = len(found)
        for d, size in enumerate(index.shape):
            if first + d >= x.dim() or size != x.shape[first + d]:
                raise IndexError(
                    f"The shape of the mask {list(index.shape)} at index {d} does not match the shape of the indexed tensor "
                    f"{list(x.shape)} at index {first + d}"
                )
        if index.device.type == "cpu":
            chosen = torch.nonzero(index).to(x.device)
        elif count is not None:
            chosen = aten.nonzero_static.default(index, size=count)
        else:
            chosen = aten.nonzero.default(index)
        found += chosen.unbind(1)
    return found


def _plain(x: Tensor, indices: Sequence[Tensor | None]) -> bool:
    """Whether a program can take the indices as they are."""
    return all(i is None or (i.device == x.device and not _is_mask(i)) for i in indices)


@entry("aten::index.Tensor", "aten::index.Tensor_out", "aten::_unsafe_index.Tensor")
def index(kernel: Any, x: Tensor, indices: Sequence[Tensor | None], **out: Tensor) -> Tensor:
    return kernel(x, indices if _plain(x, indices) else positions(x, indices), **out)


def _where(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool) -> list[Tensor | None]:
    """Return the positions to write to."""
    given = [k for k, i in enumerate(indices) if i is not None]
    known = None
    if accumulate and len(given) == 1 and torch._C._current_graph_task_id() != -1:
        # The gradient of x[mask]: its size says how many elements the mask chooses.
        k = given[0]
        if values.dim() == x.dim() - indices[k].dim() + 1 and values.shape[k] != 1:
            known = values.shape[k]
    return positions(x, indices, known)


def _lone_mask(x: Tensor, indices: Sequence[Tensor | None], values: Tensor) -> Tensor | None:
    """Return the mask of `x[..., mask] = number`, with the dimensions of `x`, if it is one."""
    masks = [i for i in indices if i is not None]
    if values.numel() != 1 or len(masks) != 1 or masks[0].dtype != torch.bool or masks[0].device != x.device:
        return None
    before = len(indices) - 1
    after = x.dim() - before - masks[0].dim()
    if indices[-1] is None or masks[0].shape != x.shape[before : x.dim() - after]:
        return None
    return masks[0].reshape((*masks[0].shape, *(1 for _ in range(after))))


@entry("aten::index_put", "aten::_unsafe_index_put")
def index_put(kernel: Any, x: Tensor, indices: Any, values: Tensor, accumulate: bool = False, *unsafe: bool) -> Tensor:
    if not _plain(x, indices):
        indices = _where(x, indices, values, accumulate)
    return kernel(x, indices, values, accumulate, *unsafe)


@entry("aten::index_put_", "aten::_index_put_impl_")
def index_put_(kernel: Any, x: Tensor, indices: Any, values: Tensor, accumulate: bool = False, *unsafe: bool) -> Tensor:
    if not accumulate and x.dtype == values.dtype:
        mask = _lone_mask(x, indices, values)
        if mask is not None:
            return aten.masked_fill_.Tensor(x, mask, values.reshape(()))
    return index_put(kernel, x, indices, values, accumulate, *unsafe)


def _out(name: str, function: Callable[..., Tensor]) -> None:
    @entry(name)
    def into(_kernel: Any, *args: Any, out: Tensor) -> Tensor:
        result = function(None, *args)
        if not torch.can_cast(result.dtype, out.dtype) or (result.dtype == torch.int64 and out.dtype != torch.int64):
            raise RuntimeError(f"Expected out tensor to have dtype {result.dtype}, but got {out.dtype} instead")
        return out.resize_(result.shape).copy_(result)


_out("aten::nonzero.out", nonzero)
_out("aten::masked_select.out", masked_select)


# -- unique


def _unique(
    ordered: Tensor, order: Tensor | None, kind: str, return_inverse: bool, return_counts: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Keep the first of each run of equal elements (rows, if there are more dimensions).

    Args:
        ordered: the elements, equal ones side by side.
        order: where each of them stood before; None: where it is.
        kind: what the read is called.
        return_inverse, return_counts: what is asked for besides; what is not is an empty tensor.
    """
    size = ordered.shape[0]
    if not size:
        nothing = ordered.new_empty(0, dtype=torch.int64)
        return ordered, nothing, nothing
    other = ordered[1:] != ordered[:-1]
    starts = torch.cat([other.new_ones(1), other.flatten(1).any(1) if other.dim() > 1 else other])
    first = aten.nonzero_static.default(starts, size=_read(aten.count_nonzero.default(starts), kind))[:, 0]
    inverse = counts = first.new_empty(0)
    if return_inverse:
        inverse = starts.cumsum(0) - 1
        if order is not None:
            inverse = torch.zeros_like(inverse).scatter_(0, order, inverse)
    if return_counts:
        counts = torch.cat([first[1:], first.new_full((1,), size)]) - first
    return aten.index_select.default(ordered, 0, first), inverse, counts


@entry("aten::_unique2")
def unique2(
    _kernel: Any, x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    ordered, order = torch.sort(x.reshape(-1))
    values, inverse, counts = _unique(ordered, order, "unique", return_inverse, return_counts)
    return values, inverse.reshape(x.shape) if return_inverse else inverse, counts


@entry("aten::_unique")
def unique(_kernel: Any, x: Tensor, sorted: bool = True, return_inverse: bool = False) -> tuple[Tensor, Tensor]:
    return unique2(None, x, sorted, return_inverse)[:2]


@entry("aten::unique_consecutive")
def unique_consecutive(
    _kernel: Any, x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    if dim is not None:
        return unique_dim_consecutive(None, x, dim, return_inverse, return_counts)
    values, inverse, counts = _unique(x.reshape(-1), None, "unique_consecutive", return_inverse, return_counts)
    return values, inverse.reshape(x.shape) if return_inverse else inverse, counts


def _check_dims(x: Tensor, dim: int) -> None:
    if x.numel() == 0 and (x.shape[dim] != 0 or x.shape.count(0) != 1):
        raise RuntimeError("There are 0 sized dimensions, and they aren't selected, so unique cannot be applied")


@entry("aten::unique_dim_consecutive")
def unique_dim_consecutive(
    _kernel: Any, x: Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    _check_dims(x, dim)
    values, inverse, counts = _unique(x.movedim(dim, 0), None, "unique_consecutive", return_inverse, return_counts)
    return values.movedim(0, dim), inverse, counts


def _ranks(columns: Tensor) -> Tensor:
    """Return, for each element, how many distinct values of its column are less."""
    ordered, order = torch.sort(columns, dim=0, stable=True)
    other = (ordered[1:] != ordered[:-1]) & ((ordered[1:] == ordered[1:]) | (ordered[:-1] == ordered[:-1]))
    less = torch.nn.functional.pad(other.cumsum(0), (0, 0, 1, 0))
    return torch.zeros_like(less).scatter_(0, order, less)


@entry("aten::unique_dim")
def unique_dim(
    _kernel: Any, x: Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    _check_dims(x, dim)
    rows = x.movedim(dim, 0)
    columns = rows.flatten(1) if rows.dim() > 1 else rows[:, None]
    while len(rows) and columns.shape[1] > 1:  # pairs of columns become one, in the order of both
        ranks = _ranks(columns)
        last = [ranks[:, -1:]] if ranks.shape[1] % 2 else []
        columns = torch.cat([ranks[:, 0:-1:2] * len(ranks) + ranks[:, 1::2], *last], dim=1)
    order = torch.sort(columns[:, 0], stable=True)[1]
    values, inverse, counts = _unique(rows.index_select(0, order), order, "unique", return_inverse, return_counts)
    return values.movedim(0, dim), inverse, counts


# -- counting and repeating


@entry("aten::bincount")
def bincount(_kernel: Any, x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    if minlength < 0:
        raise RuntimeError("minlength should be >= 0")
    if x.dim() != 1 or x.dtype.is_floating_point or x.dtype in (torch.bool, torch.uint16, torch.uint32, torch.uint64):
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None and weights.shape != x.shape:
        raise RuntimeError("weights should be 1-d and have the same length as input")
    dtype = torch.int64 if weights is None else torch.float32 if weights.dtype == torch.float32 else torch.float64
    lowest, highest = _read(torch.stack(torch.aminmax(x)), "bincount") if x.numel() else (0, -1)
    if lowest < 0:
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    ones = torch.ones(x.shape, dtype=dtype, device=x.device) if weights is None else weights.to(dtype)
    return torch.zeros(max(highest + 1, minlength), dtype=dtype, device=x.device).scatter_add_(0, x.long(), ones)


@entry("aten::repeat_interleave.Tensor")
def repeat_interleave(_kernel: Any, repeats: Tensor, *, output_size: int | None = None) -> Tensor:
    if repeats.dim() != 1:
        raise RuntimeError("repeat_interleave only accept 1D vector as repeat")
    if repeats.dtype not in (torch.int32, torch.int64):
        raise RuntimeError("repeats has to be Long or Int tensor")
    if not repeats.numel():
        return torch.empty_like(repeats)
    ends = repeats.cumsum(0)
    if output_size is None:
        lowest, output_size = _read(torch.stack([repeats.min().long(), ends[-1]]), "repeat_interleave")
        if lowest < 0:
            raise RuntimeError("repeats can not be negative")
    places = torch.arange(output_size, device=repeats.device)
    return torch.searchsorted(ends, places, right=True, out_int32=repeats.dtype == torch.int32)


@entry("aten::equal")
def equal(_kernel: Any, x: Tensor, other: Tensor) -> bool:
    if x.device != other.device:
        raise RuntimeError(f"Cannot compare two tensors on different devices. Got: {x.device} and {other.device}")
    if x.dtype != other.dtype:
        raise RuntimeError(f"Expected object of data type {x.dtype} but got data type {other.dtype} for argument 'other'")
    return x.shape == other.shape and bool(_read(aten.all.default(x == other), "equal"))


@entry("aten::_assert_async", "aten::_assert_async.msg")
def assert_async(_kernel: Any, x: Tensor, message: str = "Expected Tensor with single nonzero value, but got zero") -> None:
    if x.numel() != 1:
        count = "more than one value" if x.numel() else "no values"
        raise RuntimeError(f"Boolean value of Tensor with {count} is ambiguous")
    if not _read(x != 0, "_assert_async"):
        raise RuntimeError(message)
