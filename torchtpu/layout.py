"""How bytes lie: `Layout`, the shape and dtype of an XLA array, and `View`, a strided window of torch's on it.

Sizes, strides and offsets are PyTorch's. A view is *read* by lowering its window on the storage's array to reshape,
slice, transpose and broadcast, and *written* by running the same steps backwards. Only windows that overlap themselves
(`unfold` with a step below its size) need a gather.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np
import torch

from torchtpu.dtypes import xla_dtype


class Layout:
    """Shape and dtype of an XLA array. Interned: equal layouts are the same object, so `is` and `hash` are cheap.

    Attributes:
        shape: sizes of the array.
        dtype: its numpy dtype.
        nbytes: its size in bytes, without padding.
    """

    __slots__ = ("shape", "dtype", "nbytes", "numel")
    _known: ClassVar[dict[tuple[tuple[int, ...], np.dtype], Layout]] = {}

    shape: tuple[int, ...]
    dtype: np.dtype
    nbytes: int
    numel: int

    def __new__(cls, shape: tuple[int, ...], dtype: np.dtype) -> Layout:
        shape = tuple(shape)
        layout = cls._known.get((shape, dtype))
        if layout is None:
            layout = object.__new__(cls)
            layout.shape, layout.dtype = shape, dtype
            layout.numel = math.prod(shape)
            layout.nbytes = layout.numel * dtype.itemsize
            cls._known[shape, dtype] = layout
        return layout

    def __repr__(self) -> str:
        return f"{self.dtype.name}[{','.join(map(str, self.shape))}]"


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a row-major tensor, in elements, as torch computes them."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


@dataclass(frozen=True, slots=True)
class Step:
    """One reversible array operation: `reshape`, `slice`, `pad`, `transpose`, `broadcast` or `gather`."""

    kind: str
    args: tuple


@dataclass(frozen=True, slots=True)
class View:
    """A torch tensor's window on its storage's array.

    Attributes:
        size, stride, offset: PyTorch's, in elements of `dtype`.
        dtype: the tensor's dtype.
        layout: the array that the storage holds; its dtype may differ (`Tensor.view(dtype)`).
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    layout: Layout

    @property
    def covers(self) -> bool:
        """Whether the window holds every byte of the array exactly once."""
        if math.prod(self.size) * self.dtype.itemsize != self.layout.nbytes or self.offset:
            return False
        return dense_order(self.size, self.stride) is not None

    @property
    def repeats(self) -> bool:
        """Whether several elements of the window are the same element of the array (as far as PyTorch checks)."""
        return any(n > 1 and step == 0 for n, step in zip(self.size, self.stride, strict=True)) and 0 not in self.size

    def overlap(self, other: View) -> str:
        """Say how two windows on one storage overlap: "full", "partial" or "" (or too hard to tell: as PyTorch has it)."""
        ranges = []
        for view in (self, other):
            if 0 in view.size or dense_order(view.size, view.stride) is None:
                return ""
            start = view.offset * view.dtype.itemsize
            ranges.append((start, start + math.prod(view.size) * view.dtype.itemsize))
        (a, b), (c, d) = ranges
        if (a, b) == (c, d):
            return "full" if self.stride == other.stride else "partial"
        return "partial" if a < d and c < b else ""

    def read(self, array: Any) -> Any:
        """Return the window's values, of shape `size`."""
        array = bitcast(array, xla_dtype(self.dtype))
        for step in steps(array.shape, self.size, self.stride, self.offset):
            array = _apply(step, array)
        return array

    def write(self, array: Any, values: Any, in_place: bool = False) -> Any:
        """Return the storage's array with the window replaced by `values` (of shape `size` and the view's dtype).

        Args:
            in_place: XLA may update the array where it is. Only for `values` that are not computed from `array`.
        """
        import jax.numpy as jnp

        dtype = xla_dtype(self.dtype)
        stored = bitcast(array, dtype)
        path = steps(stored.shape, self.size, self.stride, self.offset)
        before = [stored]
        for step in path:
            before.append(_apply(step, before[-1]))
        for step, previous in zip(reversed(path), reversed(before[:-1]), strict=True):
            values = _invert(step, previous, values, in_place)
        values = bitcast(values, array.dtype)
        if values.size < array.size:  # the last bytes, which are no whole element of the view's dtype
            values = jnp.concatenate([values.reshape(-1), array.reshape(-1)[values.size :]])
        return values.reshape(array.shape)


def dense_order(size: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the dimensions by falling stride if the tensor fills its memory without gap or overlap, else None."""
    if 0 in size:
        return tuple(range(len(size)))
    order = tuple(sorted(range(len(size)), key=lambda d: (-stride[d], -size[d], d)))
    expected = 1
    for d in reversed(order):
        if size[d] != 1:
            if stride[d] != expected:
                return None
            expected *= size[d]
    return order


@lru_cache(maxsize=65536)
def steps(shape: tuple[int, ...], size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> tuple[Step, ...]:
    """Lower a window to steps on an array of `shape` and the window's own dtype.

    Dimensions are taken by falling stride. For each, the last axis becomes (rows, stride), the rows are sliced, and
    the rest of the offset is carried inward; one transpose and a broadcast for stride 0 finish it.
    """
    if shape == size and offset == 0 and stride == contiguous_strides(size):
        return ()
    numel = math.prod(shape)
    if 0 in size:
        return (Step("reshape", (numel,)), Step("slice", ((0,), (0,))), Step("reshape", size))
    order = sorted((d for d in range(len(size)) if size[d] > 1 and stride[d] != 0), key=lambda d: (-stride[d], d))
    inner = [1] * (len(order) + 1)  # inner[k]: extent in elements of the dimensions from k on
    for k in range(len(order) - 1, -1, -1):
        d = order[k]
        if stride[d] < inner[k + 1]:  # the window overlaps itself
            return (Step("reshape", (numel,)), Step("gather", (size, stride, offset)))
        inner[k] = inner[k + 1] + (size[d] - 1) * stride[d]

    out: list[Step] = []
    current = actual = shape  # what the steps should have made by now, and what they have: reshapes wait and merge

    def emit(kind: str, args: tuple, result: tuple[int, ...]) -> None:
        nonlocal current, actual
        if actual != current:
            out.append(Step("reshape", current))
        out.append(Step(kind, args))
        current = actual = result

    def cut(axis: int, start: int, stop: int) -> None:
        """Slice an axis (counted from the end) to [start, stop), padding the last one where the array ends before."""
        axis += len(current)
        length = current[axis]
        if stop > length:
            emit("pad", (stop - length,), (*current[:-1], stop))
        if start or stop != current[axis]:
            starts = tuple(start if a == axis else 0 for a in range(len(current)))
            stops = tuple(stop if a == axis else n for a, n in enumerate(current))
            emit("slice", (starts, stops), tuple(b - a for a, b in zip(starts, stops, strict=True)))

    current = (numel,)
    for k, d in enumerate(order):
        length, rows, step = current[-1], size[d], stride[d]
        row, rest = divmod(offset, step)
        if rest + inner[k + 1] > step or (row + rows) * step > length:
            cut(-1, offset, offset + rows * step)
            row = rest = 0
        else:
            cut(-1, 0, length // step * step)
        current = (*current[:-1], current[-1] // step, step)
        cut(-2, row, row + rows)
        offset = rest
    cut(-1, offset, offset + 1)
    current = current[:-1]
    # The axes now follow `order`; bring them to the dimensions' own order, then add those of size 1 and stride 0.
    ranks = tuple(sorted(range(len(order)), key=order.__getitem__))
    if ranks != tuple(range(len(order))):
        emit("transpose", ranks, tuple(current[r] for r in ranks))
    current = tuple(1 if stride[d] == 0 else size[d] for d in range(len(size)))
    if current != size:
        emit("broadcast", size, size)
    elif actual != current:
        out.append(Step("reshape", current))
    return tuple(out)


def _apply(step: Step, x: Any) -> Any:
    import jax.numpy as jnp
    from jax import lax

    match step.kind:
        case "reshape":
            return lax.reshape(x, step.args)
        case "slice":
            return lax.slice(x, *step.args)
        case "pad":
            return lax.pad(x, np.zeros((), x.dtype), [(0, 0, 0)] * (x.ndim - 1) + [(0, step.args[0], 0)])
        case "transpose":
            return lax.transpose(x, step.args)
        case "broadcast":
            return jnp.broadcast_to(x, step.args)
        case _:
            return x[_indices(*step.args)]


def _invert(step: Step, before: Any, after: Any, in_place: bool) -> Any:
    from jax import lax

    match step.kind:
        case "reshape":
            return lax.reshape(after, before.shape)
        case "slice":
            if after.shape == before.shape:
                return after
            return _replaced(before, after, step.args[0], in_place)
        case "pad":
            return lax.slice(after, (0,) * after.ndim, before.shape)
        case "transpose":
            return lax.transpose(after, tuple(np.argsort(step.args)))
        case "broadcast":
            # torch refuses writes to windows that overlap, so at most one element stands behind each.
            return lax.slice(after, (0,) * after.ndim, before.shape)
        case _:
            return before.at[_indices(*step.args)].set(after)


def _replaced(array: Any, part: Any, start: tuple[int, ...], in_place: bool) -> Any:
    """Return the array with a part replaced that begins at `start`."""
    from jax import lax

    from torchtpu import client

    if in_place or not client.shares_memory():
        return lax.dynamic_update_slice(array, part, start)
    # XLA:CPU updates in place although the part reads what is being overwritten (openxla/xla#49176): x[1:] = x[:-1] would
    # repeat x[0]. So the array is put together anew, one dimension after the other.
    low, high = list(start), [s + n for s, n in zip(start, part.shape, strict=True)]
    for d in reversed(range(array.ndim)):
        if part.shape[d] != array.shape[d]:
            below = lax.slice(array, (*low[:d], 0, *low[d + 1 :]), (*high[:d], low[d], *high[d + 1 :]))
            above = lax.slice(array, (*low[:d], high[d], *low[d + 1 :]), (*high[:d], array.shape[d], *high[d + 1 :]))
            part = lax.concatenate([piece for piece in (below, part, above) if piece.shape[d]], d)
            low[d], high[d] = 0, array.shape[d]
    return part


def _indices(size: tuple[int, ...], stride: tuple[int, ...], offset: int) -> Any:
    from jax import lax

    index = np.int64(offset)
    for d, step in enumerate(stride):
        index = index + lax.broadcasted_iota(np.int64, size, d) * np.int64(step)
    return lax.broadcast(index, size) if not size else index


def bitcast(array: Any, dtype: np.dtype) -> Any:
    """Reinterpret an array's bytes as `dtype` (flat where the item size changes)."""
    from jax import lax

    if array.dtype != dtype:
        array = _words(array)
        word = np.dtype(f"u{_part(dtype).itemsize}")
        if array.dtype.itemsize < word.itemsize:
            count = word.itemsize // array.dtype.itemsize
            flat = array.reshape(-1)
            array = lax.bitcast_convert_type(flat[: flat.size // count * count].reshape(-1, count), word)
        elif array.dtype != word:
            array = lax.bitcast_convert_type(array, word)
        if dtype == np.bool_:
            array = array != 0
        elif dtype.kind == "c":
            parts = lax.bitcast_convert_type(array, _part(dtype)).reshape(-1)
            parts = parts[: parts.size // 2 * 2].reshape(-1, 2)
            array = lax.complex(parts[:, 0], parts[:, 1])
        elif array.dtype != dtype:
            array = lax.bitcast_convert_type(array, dtype)
    return array


def _part(dtype: np.dtype) -> np.dtype:
    return np.dtype(f"f{dtype.itemsize // 2}") if dtype.kind == "c" else dtype


def _words(array: Any) -> Any:
    """Return the bytes of any array as unsigned integers of its own (or, for complex, its parts') width."""
    import jax.numpy as jnp
    from jax import lax

    if array.dtype == np.bool_:
        return array.astype(np.uint8)
    if array.dtype.kind == "c":
        array = jnp.stack([array.real, array.imag], axis=-1)
    return lax.bitcast_convert_type(array, np.dtype(f"u{array.dtype.itemsize}"))
