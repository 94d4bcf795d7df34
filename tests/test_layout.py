"""Windows on arrays: any chain of PyTorch views reads and writes what PyTorch reads and writes."""

from __future__ import annotations

import math

import jax
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

from torchtpu.layout import Layout, View, bitcast, contiguous_strides, dense_order, steps

FLOAT32 = np.dtype(np.float32)


@st.composite
def chains(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    """A base tensor and a view of it, made by up to four of PyTorch's view ops."""
    shape = tuple(draw(st.lists(st.integers(1, 5), max_size=4)))
    base = torch.arange(float(math.prod(shape))).view(shape)
    view = base
    for _ in range(draw(st.integers(0, 4))):
        rank = view.dim()
        match draw(st.sampled_from(["transpose", "slice", "unsqueeze", "expand", "select", "flatten", "diagonal", "unfold"])):
            case "transpose" if rank > 1:
                view = view.transpose(draw(st.integers(0, rank - 1)), draw(st.integers(0, rank - 1)))
            case "slice" if rank:
                d = draw(st.integers(0, rank - 1))
                start = draw(st.integers(0, view.shape[d]))
                stop = draw(st.integers(start, view.shape[d]))
                view = view[(slice(None),) * d + (slice(start, stop, draw(st.integers(1, 3))),)]
            case "unsqueeze":
                view = view.unsqueeze(draw(st.integers(0, rank)))
            case "expand":
                view = view.unsqueeze(0).expand(3, *view.shape)
            case "select" if rank and view.shape[0]:
                view = view[-1]
            case "flatten" if view.is_contiguous():
                view = view.view(-1)
            case "diagonal" if rank > 1:
                view = view.diagonal()
            case "unfold" if rank and view.shape[0] > 1:
                view = view.unfold(0, 2, 1)
    return base, view


def window(base: torch.Tensor, view: torch.Tensor) -> View:
    layout = Layout(tuple(base.shape), FLOAT32)
    return View(tuple(view.shape), view.stride(), view.storage_offset(), view.dtype, layout)


@settings(max_examples=60, deadline=None)
@given(chains())
def test_any_chain_of_views_reads_what_torch_reads(chain):
    base, view = chain
    with jax.enable_x64(True):
        actual = window(base, view).read(jax.numpy.asarray(base.numpy()))
    np.testing.assert_array_equal(np.asarray(actual), view.numpy())


@settings(max_examples=60, deadline=None)
@given(chains())
def test_a_write_through_a_view_reaches_the_base_and_nothing_else(chain):
    base, view = chain
    addresses = torch.arange(base.numel()).as_strided(view.shape, view.stride(), view.storage_offset()).flatten()
    if addresses.unique().numel() < addresses.numel():
        return  # torch refuses writes to windows that overlap themselves
    values = torch.rand(view.shape)
    with jax.enable_x64(True):
        actual = window(base, view).write(jax.numpy.asarray(base.numpy()), jax.numpy.asarray(values.numpy()))
    expected = base.clone()
    expected.as_strided(view.shape, view.stride(), view.storage_offset()).copy_(values)
    np.testing.assert_array_equal(np.asarray(actual), expected.numpy())


def test_only_overlapping_windows_need_a_gather():
    assert steps((8,), (7, 2), (1, 1), 0)[-1].kind == "gather"
    kinds = {s.kind for s in steps((6, 8), (2, 3), (1, 16), 5)}
    assert "gather" not in kinds


def test_a_slice_of_attention_heads_is_one_reshape_one_slice_one_transpose():
    """The q of `qkv.split(width, 2)[0].view(b, t, heads, -1).transpose(1, 2)`."""
    path = steps((8, 128, 768), (8, 4, 128, 64), (98304, 64, 768, 1), 256)
    assert [s.kind for s in path] == ["reshape", "slice", "transpose"]


@pytest.mark.parametrize("size", [(2, 3), (0, 3), (), (1, 4, 1)])
def test_dense_order_of_contiguous_tensors_is_their_own(size):
    assert dense_order(size, contiguous_strides(size)) is not None
    assert dense_order((3, 2), (1, 3)) == (1, 0)
    assert dense_order((3, 2), (4, 1)) is None


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float32, torch.int64, torch.float64, torch.complex64])
@pytest.mark.parametrize("other", [torch.bool, torch.bfloat16, torch.int32, torch.float64, torch.complex128])
def test_bitcast_is_view_dtype(dtype, other):
    source = (
        torch.arange(32, dtype=torch.uint8).view(dtype)
        if other != torch.bool
        else torch.zeros(32, dtype=torch.uint8).view(dtype)
    )
    from torchtpu.dtypes import to_numpy, xla_dtype

    with jax.enable_x64(True):
        actual = np.asarray(bitcast(jax.numpy.asarray(to_numpy(source)), xla_dtype(other)))
    assert actual.reshape(-1).view(np.uint8).tolist() == source.view(other).view(torch.uint8).tolist()


def test_layouts_are_interned():
    assert Layout((2, 3), FLOAT32) is Layout((2, 3), FLOAT32)
    assert Layout((2, 3), FLOAT32).nbytes == 24
