"""Reductions, scans, sorting, indexing and shapes: values, NaN and ties of the CPU, gradients, and counts of waits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import torchtpu
from torchtpu import config

F = torch.nn.functional
NAN, INF = math.nan, math.inf
Function = Callable[..., Any]

pytestmark = pytest.mark.usefixtures("no_fallback")


def on(device: str, tensors: tuple[torch.Tensor, ...], grad: bool) -> list[torch.Tensor]:
    return [t.clone().to(device).requires_grad_(grad and t.is_floating_point()) for t in tensors]


def same(function: Function, *tensors: torch.Tensor, grad: bool = False, **tolerance: float) -> None:
    """Check that a function of tensors gives on tpu what it gives on the CPU, and the same gradients."""

    def results(device: str) -> list[torch.Tensor]:
        leaves = on(device, tensors, grad)
        values = tree_leaves(function(*leaves))
        outputs = [v for v in values if isinstance(v, torch.Tensor) and v.requires_grad]
        if outputs:
            # Different weights, so that every element's gradient is different.
            total = sum((o * torch.linspace(0.5, 1.5, o.numel()).to(device).reshape(o.shape)).sum() for o in outputs)
            values += [g for g in torch.autograd.grad(total, [t for t in leaves if t.requires_grad])]
        return [v.detach().cpu() if isinstance(v, torch.Tensor) else torch.tensor(v) for v in values]

    for actual, expected in zip(results("tpu"), results("cpu"), strict=True):
        torch.testing.assert_close(actual, expected, equal_nan=True, **tolerance)


def randn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def randint(high: int, *shape: int) -> torch.Tensor:
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(high))


def reads(report: Any) -> list[str]:
    """What the host waited for, other than debug mode's own waits."""
    return [s.kind for s in report.syncs if s.kind != "debug"]


# -- reductions

REDUCTIONS: dict[str, Function] = {
    "sum": lambda x: (x.sum(), x.sum(1), x.sum((0, -1), keepdim=True), x.sum(dtype=torch.float64)),
    "mean": lambda x: (x.mean(), x.mean((0, 2))),
    "prod": lambda x: (x.prod(), x.prod(1, keepdim=True)),
    "extrema": lambda x: (x.max(), x.amin((0, 1)), *x.max(1), *x.min(-1, keepdim=True), *torch.aminmax(x, dim=0)),
    "positions": lambda x: (x.argmax(), x.argmin(1), x.argmax(keepdim=True)),
    "variance": lambda x: (x.var(), x.std(1, correction=0), *torch.var_mean(x, (0, 2)), *torch.std_mean(x, correction=1.5)),
    "norms": lambda x: [torch.linalg.vector_norm(x, p, (0, 2)) for p in (0, 1, 3, -2, -INF)] + [x.norm(), x.norm(1, 0)],
    "logsumexp": lambda x: (x.logsumexp(1), x.logsumexp((0, 1), keepdim=True)),
    "scans": lambda x: (x.cumsum(1), x.cumprod(0), *x.cummax(-1), *x.cummin(1), x.logcumsumexp(2), x.diff(dim=1)),
    "ranks": lambda x: (*x.sort(1), *x.topk(2, 1, largest=False), *x.median(2), x.median(), *x.kthvalue(2, 1), *x.mode(1)),
}


@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_and_their_gradients(mode: str, name: str) -> None:
    same(REDUCTIONS[name], randn(2, 3, 4), grad=True)


@pytest.mark.parametrize("name", ["sum", "mean", "extrema", "variance", "logsumexp"])
def test_bfloat16_is_computed_in_float32_and_rounded_once(name: str) -> None:
    same(REDUCTIONS[name], randn(2, 3, 64, dtype=torch.bfloat16))


def test_results_of_integers_and_bools() -> None:
    x = torch.tensor([[100, -3, 0], [100, 7, 7]], dtype=torch.int8)
    same(lambda x: (x.sum(), x.prod(1), x.cumsum(1), x.cumprod(0), x.count_nonzero(1), x.any(1), x.all(0)), x)
    same(lambda x: (x.max(1), x.argmin(0), x.sort(1), x.amax(()), torch.aminmax(x)), x)
    same(lambda x: (x.sum(), x.sum(1), x.any(), x.all(1), x.amax(1), x.max(), x.cumsum(0), x.cummax(1)), x > 0)
    same(lambda x: (x.any(), x.all(1)), x.to(torch.uint8))  # uint8 in, uint8 out


def test_nan_wins_every_extremum_and_sorts_last() -> None:
    x = torch.tensor([[2.0, NAN, INF, NAN, 3.0], [3.0, 1.0, 3.0, -INF, 3.0]])
    same(lambda x: (x.max(1), x.min(1), x.amax(), x.argmax(1), x.argmin(), x.cummax(1), x.cummin(1)), x)
    same(lambda x: (x.sort(dim=1, stable=True), x.sort(dim=1, stable=True, descending=True), x.median(1), x.nanmedian(1)), x)
    same(lambda x: (x.topk(5, 1)[0], x.topk(5, 1, largest=False)[0], x.logsumexp(1), x.nansum(1), x.nanmean(0)), x)


def test_empty_and_zero_dimensional() -> None:
    same(lambda x: (x.sum(), x.sum(0), x.prod(1), x.any(1), x.all(0), x.cumsum(1), x.logsumexp(1), x.norm()), torch.zeros(3, 0))
    same(lambda x: (x.mean(), x.median(), x.unique()), torch.zeros(0))
    same(lambda x: (x.sum(0), x.max(0), x.argmax(), x.cumsum(0), x.sort(0), x.topk(1), x.median(0)), torch.tensor(3.0))
    with pytest.raises(IndexError, match="non-zero size"):
        torch.zeros(3, 0, device="tpu").amax(1)


def test_binary_search() -> None:
    edges = torch.tensor([1.0, 2.0, 2.0, 5.0])
    values = torch.tensor([[0.0, 2.0, NAN], [5.0, 6.0, 1.5]])
    same(lambda e, v: [torch.searchsorted(e, v, right=r) for r in (False, True)], edges, values)
    same(lambda e, v: (torch.bucketize(v, e, out_int32=True), torch.bucketize(2.0, e), torch.searchsorted(e, 3)), edges, values)
    same(lambda e, v: torch.searchsorted(e, v, side="right"), randn(2, 9).sort(1)[0], values)
    same(lambda x: torch.histc(x, 5, 0, 4), edges)


# -- indexing


INDEXING: dict[str, Function] = {
    "gather": lambda x, i: x.gather(1, i[:, :2]),
    "index": lambda x, i: (x[i[0]], x[:, i], x[i[0], :, i[1]], x[None, i[0], i[1]], x[-1 - i[0]]),
    "index_select": lambda x, i: x.index_select(1, i[0]),
    "index_put": lambda x, i: x.index_put((i[0], i[1]), x.sum(1)[:3] * 2),
    "index_put accumulate": lambda x, i: x.index_put((i[0],), x[:3] * 2, accumulate=True),
    "index_add": lambda x, i: x.index_add(0, i[0], x[:3], alpha=0.5),
    "index_copy": lambda x, i: x.index_copy(1, torch.tensor([2, 0], device=x.device), x[:, :2] * 3),
    "index_fill": lambda x, i: x.index_fill(1, i[0], 7.0),
    "scatter": lambda x, i: x.scatter(1, i[:, :1], x[:, :1, :3].square()),
    "scatter value": lambda x, i: x.scatter(1, i[:, :2], 0.5),
    "scatter_add": lambda x, i: x.scatter_add(2, i[:, :2], x[:, :2, :3].square()),
    "take": lambda x, i: (x.take(i), x.take(i - 20)),
    "put": lambda x, i: x.put(i[0], x[0, 0, :3], accumulate=True),
    "embedding": lambda x, i: F.embedding(i, x[:, 0], padding_idx=1),
}


@pytest.mark.parametrize("name", INDEXING)
def test_indexing_and_its_gradients(mode: str, name: str) -> None:
    index = randint(3, 3, 3, 3)
    same(INDEXING[name], randn(3, 3, 4), index if name.startswith(("gather", "scatter")) else index[0], grad=True)


@pytest.mark.filterwarnings("ignore:index_reduce")
@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
@pytest.mark.parametrize("include_self", [True, False])
def test_scatter_reduce(reduce: str, include_self: bool) -> None:
    def scatter(x: torch.Tensor, i: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return x.scatter_reduce(1, i, s, reduce, include_self=include_self)

    index = torch.tensor([[0, 0, 2], [1, 1, 1]])
    same(scatter, randn(2, 4), index, randn(2, 3), grad=True)
    same(scatter, randint(9, 2, 4), index, randint(5, 2, 3) - 3)
    if reduce != "sum":
        same(lambda x, i, s: x.index_reduce(0, i, s, reduce, include_self=include_self), randn(4, 2), index[0], randn(3, 2))


def test_bools_accumulate_as_logic() -> None:
    x, i = torch.tensor([True, False, False]), torch.tensor([0, 1, 1])
    same(lambda x, i: (x.scatter_add(0, i, ~x), x.index_add(0, i, x), x.index_put((i,), ~x, accumulate=True)), x, i)


def test_embedding_gradients() -> None:
    index = torch.tensor([[1, 3, 1], [1, 0, 4]])
    same(lambda w, i: F.embedding(i, w, padding_idx=3, scale_grad_by_freq=True), randn(5, 2), index, grad=True)
    same(lambda w, i: F.embedding(i, w, max_norm=0.5), randn(5, 2), index)
    for reduce in ("sum", "mean", "max"):
        bag = lambda w, i, o, m=reduce: F.embedding_bag(i.reshape(-1), w, o, mode=m, padding_idx=4)  # noqa: E731
        same(bag, randn(5, 2), index, torch.tensor([0, 2, 2]), grad=True)
    same(lambda w, i, p: F.embedding_bag(i, w, per_sample_weights=p, mode="sum"), randn(5, 2), index, randn(2, 3), grad=True)


def test_segments() -> None:
    for reduce in ("mean", "max", "prod"):
        lengths = torch.tensor([2, 0, 3])
        same(lambda x, n, r=reduce: torch.segment_reduce(x, r, lengths=n, initial=1), randn(5, 2), lengths, grad=True)


def test_an_index_out_of_range_touches_no_element() -> None:
    x = torch.arange(1.0, 4.0, device="tpu")
    bad = torch.tensor([3, -1, 2**32 + 1], device="tpu")
    for read in (x.gather(0, bad), x.index_select(0, bad), F.embedding(bad, x[:, None])[:, 0], x[bad * 4]):
        assert read.isnan().all()
    assert x.long().index_select(0, bad).tolist() == [torch.iinfo(torch.int64).min] * 3
    for written in (x.scatter(0, bad, 9.0), x.index_add(0, bad, x), x.index_fill(0, bad, 9.0), x.index_put((bad * 4,), x)):
        assert written.tolist() == [1.0, 2.0, 3.0]


def test_debug_mode_checks_indices() -> None:
    x, bad = torch.zeros(3, device="tpu"), torch.tensor([0, -1], device="tpu")
    with torchtpu.modes.scope("debug"), config.options(debug_index=True):
        assert x[bad].tolist() == [0.0, 0.0]  # here negative indices count from the end
        for use in (
            lambda: x.gather(0, bad),
            lambda: x.index_add(0, bad, x[:2]),
            lambda: x[bad - 3],
            lambda: F.embedding(bad, x[:, None]),
        ):
            with pytest.raises(IndexError, match="out of bounds for dimension with size 3"):
                use()


@pytest.mark.parametrize(
    "op", [lambda *a: torch.index_add(*a), lambda *a: torch.index_reduce(*a, "prod")], ids=["add", "reduce"]
)
@pytest.mark.parametrize("shapes", [((), (1,)), ((1,), ()), ((2, 3), (1, 2)), ((), ())])
def test_slices_have_the_shape_of_what_they_change(op: Function, shapes: tuple[tuple[int, ...], ...]) -> None:
    outcomes = []
    for device in ("cpu", "tpu"):
        x, source = (torch.ones(shape, device=device) for shape in shapes)
        try:
            outcomes.append(op(x, 0, torch.tensor([0], device=device), source).tolist())
        except RuntimeError as error:
            outcomes.append(str(error))
    assert outcomes[0] == outcomes[1]


def test_indices_may_be_on_the_cpu() -> None:
    x = randn(4, 3)
    index, mask = torch.tensor([2, -1]), torch.tensor([True, False, True, True])
    torch.testing.assert_close(x.to("tpu")[index].cpu(), x[index])
    torch.testing.assert_close(x.to("tpu")[mask].cpu(), x[mask])


# -- shapes that depend on values


def assign(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    x = x.clone()
    x[mask] = 0
    x[:, mask[0]] = 5
    x[mask[:, 1]] = x[mask[:, 1]] * 2
    return x


MASKS: dict[str, Function] = {
    "select": lambda x, m: (x[m], x[m[:, 0]], x[:, m[0]], torch.masked_select(x, m[0]), x[m & ~m]),
    "assign": assign,
    "masked_scatter": lambda x, m: x.masked_scatter(m, x.flip(0)),
    "masked_fill": lambda x, m: x.masked_fill(m, 3.0),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_and_their_gradients(mode: str, name: str) -> None:
    x = randn(4, 5)
    same(MASKS[name], x, x > 0, grad=True)


def test_positions_and_counts(mode: str) -> None:
    x = randint(5, 12)
    same(lambda x: (x.nonzero(), torch.argwhere(x > 2), torch.where(x == 1), torch.nonzero_static(x, size=20)), x)
    same(lambda x: torch.nonzero(x, as_tuple=True), x.reshape(2, 3, 2) % 2)
    same(lambda x: (x.bincount(), x.bincount(x.double(), minlength=9), F.one_hot(x), F.one_hot(x, 6)), x)
    same(lambda x: x.repeat_interleave(x, 0), x)
    same(lambda x: (torch.equal(x, x.clone()), torch.equal(x, x + 1), torch.equal(x, x[:1])), x)


def test_unique() -> None:
    x = randint(4, 12)
    every = {"return_inverse": True, "return_counts": True}
    same(lambda x: (x.unique(), x.unique(**every), x.unique_consecutive(**every)), x)
    same(lambda x: (x.unique(dim=0, **every), x.unique(dim=1), x.unique_consecutive(dim=0, **every)), x.reshape(6, 2) % 2)
    rows = randint(2, 12).reshape(12, 1) * torch.tensor([1, 0] * 9 + [3])
    same(lambda x: (x.unique(dim=0, **every), x.unique(dim=1, **every), x[:0].unique(dim=0)), rows)
    same(lambda x: (x.unique(**every), torch.unique(x.new_tensor([NAN, 1.0, NAN]))), torch.zeros(0))


def test_masks_wait_at_most_once() -> None:
    x = randn(4, 5).to("tpu").requires_grad_()
    mask = x.detach() > 0
    with torchtpu.watch() as report:
        x.detach().clone()[mask] = 0
    assert reads(report) == []
    with torchtpu.watch() as report:
        x[mask].square().sum().backward()
    assert reads(report) == ["nonzero"]


def test_mismatched_masks_and_counts_are_errors() -> None:
    x = torch.zeros(3, 2, device="tpu")
    with pytest.raises(IndexError, match="shape of the mask"):
        x[torch.ones(2, dtype=torch.bool, device="tpu")]
    with pytest.raises(RuntimeError, match="non-negative"):
        torch.tensor([1, -1], device="tpu").bincount()
    with pytest.raises(RuntimeError, match="negative"):
        torch.tensor([1, -1], device="tpu").repeat_interleave(torch.tensor([1, -1], device="tpu"))


# -- shapes

SHAPES: dict[str, Function] = {
    "cat": lambda x: (torch.cat([x, x.double(), x.new_empty(0)], 1), torch.stack([x, x], -1), torch.block_diag(x[0], x[1, 0])),
    "repeat": lambda x: (x.repeat(2, 1, 1, 3), x.tile(2), x.repeat_interleave(2, 1), x.expand(2, 2, 4, 6)),
    "turn": lambda x: (x.flip(0, 2), x.roll(3), x.roll((1, -2), (0, 2)), torch.rot90(x, 3, (1, 2))),
    "shuffle": lambda x: (F.pixel_shuffle(x[None, [0, 1] * 2], 2), F.pixel_unshuffle(x, 2), F.channel_shuffle(x[None], 2)),
    "pad": lambda x: (F.pad(x, (1, 2, -1, 0), value=0.5), F.pad(x, (2, 1), mode="reflect"), F.pad(x, (1, 3), mode="replicate")),
    "pad 2d": lambda x: [F.pad(x[None], (1, 2, 0, 3), mode=m) for m in ("reflect", "replicate", "circular")],
    "pad 3d": lambda x: [F.pad(x[None], (1, 2, 0, 3, 1, 0), mode=m) for m in ("reflect", "replicate")],
    "patches": lambda x: (F.unfold(x, (2, 3), 1, (1, 0), 2), F.fold(x.reshape(1, 12, 4), 3, 2), x.unfold(2, 3, 2)),
    "view gradients": lambda x: (x[:, 1], x[..., 1:6:2], x[0, -1], x.diagonal(1, 1, 2), x.as_strided((2, 3), (3, 2), 1)),
    "scatters": lambda x: (
        x.select_scatter(x[:, 0] * 2, 1, -1),
        x.slice_scatter(x[:, :2] * 2, 1, 1, None, 2),
        x.diagonal_scatter(x[:, 0, :4] * 2, 1, 1, 2),
        torch.diag_embed(x, 1),
    ),
    "copies": lambda x: (
        torch.permute_copy(x, (2, 0, 1)),
        *torch.split_copy(x, 3, 2),
        torch.unfold_copy(x, 2, 3, 2),
        torch.diagonal_copy(x, -1, 1, 2),
        *torch.unbind_copy(x, 1),
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_and_their_gradients(mode: str, name: str) -> None:
    same(SHAPES[name], randn(2, 4, 6), grad=True)


def test_padding_numbers_do_not_make_programs() -> None:
    x = torch.ones(3, device="tpu")
    F.pad(x, (1, 1), value=0.25)
    with torchtpu.watch() as report:
        padded = [F.pad(x, (1, 1), value=v)[0].item() for v in (0.5, 0.75)]
    assert padded == [0.5, 0.75]
    assert not [c for c in report.compile_events if "pad" in c.program]


def test_out_and_in_place_variants() -> None:
    x = randn(3, 4)

    def variants(x: torch.Tensor) -> list[torch.Tensor]:
        out, values, places = x.new_empty(0), x.new_empty(0), torch.empty(0, dtype=torch.long, device=x.device)
        torch.sum(x, 1, out=out)
        torch.max(x, 1, out=(values, places))
        found = torch.nonzero(x > 0, out=places.new_empty(0))
        y = x.clone().t()[1:]
        y.index_add_(0, places[:1] * 0, y[:1]).cumsum_(1)
        return [out, values, places, found, y]

    same(variants, x)
