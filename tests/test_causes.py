"""Why a program was compiled: each cause is provoked, and named with its line and its remedy."""

from __future__ import annotations

import gc
import inspect
import itertools
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

import torchtpu
from torchtpu import causes, config, modes
from torchtpu.buffer import buffer_of
from torchtpu.causes.cause import of_sizes
from torchtpu.report import CompileRow, Report

# Sizes that no other test uses: what one test compiled is known to the next one.
fresh = itertools.count(1501).__next__


@pytest.fixture(autouse=True)
def no_churn():
    with config.options(churn_limit=1000):
        yield


@pytest.fixture
def deferred():
    with modes.scope("defer_and_fuse"):
        yield


def ones(*size: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor that was there before: nothing of it is pending, and no op made it."""
    return torch.ones(*size, dtype=dtype).to("tpu")


def watched(work: Callable[[], object]) -> Report:
    with torchtpu.watch() as report:
        work()
    return report


def cause(report: Report) -> CompileRow:
    """The first cause that is not a first time: later ones follow from it."""
    return next(c for c in report.compile_events if c.kind != "first time")


def line_of(test: Callable[..., object], text: str) -> str:
    """Where a line of a test is, as reports have it."""
    lines, start = inspect.getsourcelines(test)
    (offset,) = [k for k, line in enumerate(lines) if text in line and "line_of" not in line]
    return f"test_causes.py:{start + offset}"


def test_a_first_time(mode):
    n = fresh()
    report = watched(lambda: torch.ones(n, device="tpu").cosh().sum().item())
    assert {c.kind for c in report.compile_events} == {"first time"} or mode != "strict"
    assert all(c.remedy == "" for c in report.compile_events if c.kind == "first time")
    assert watched(lambda: torch.ones(n, device="tpu").cosh().sum().item()).compile_events == () or mode == "debug"


def test_a_shape_is_told_with_the_variable_the_dimension_and_both_sizes(mode):
    table = ones(50, 8)
    before, after = fresh(), fresh() + 50

    def look_up(n: int) -> None:
        ids = ones(2, n, dtype=torch.long)
        nn.functional.embedding(ids, table).sum().item()

    look_up(before)
    found = [c for c in watched(lambda: look_up(after)).compile_events if "ids" in c.detail]
    assert found[0].kind == "shape"
    assert found[0].detail.startswith(f"ids dim 1: {before} -> {after}")
    assert found[0].remedy == "pad to one size, or round up to one of a few sizes (buckets)"
    assert found[0].line.where == line_of(look_up, "nn.functional.embedding(")
    assert watched(lambda: look_up(before)).compile_events == ()


def test_a_ragged_last_batch_is_advised_to_be_dropped_or_padded(mode):
    linear = nn.Linear(4, 2).to("tpu")
    full, rest = 2 * fresh(), fresh()

    def epoch() -> None:
        for batch in torch.ones(2 * full + rest, 4).split(full):
            x = batch.to("tpu")
            linear(x).sum().item()

    report = watched(epoch)
    ragged = [c for c in report.compile_events if c.detail.startswith(f"x dim 0: {full} -> {rest}")]
    assert [c.remedy for c in ragged[:1]] == ["drop the ragged last batch (DataLoader(drop_last=True)), or pad it to full size"]
    assert watched(epoch).compile_events == ()


def test_what_was_compiled_unwatched_is_known(mode):
    before, after = fresh(), fresh()

    def work(n: int) -> None:
        x = ones(n)
        (x * 2).sum().item()

    work(before)
    assert cause(watched(lambda: work(after))).detail == f"x dim 0: {before} -> {after}"


# One for each mode: what a line compiled in another mode is known, and would be closest.
OTHER_DTYPE = {"strict": torch.bfloat16, "debug": torch.float16, "defer_and_fuse": torch.float64}


def test_a_dtype(mode):
    n = fresh()

    def work(dtype: torch.dtype) -> None:
        x = ones(n, dtype=dtype)
        x.exp().sum().item()

    other = OTHER_DTYPE[mode]
    work(torch.float32)
    found = cause(watched(lambda: work(other)))
    assert (found.kind, found.detail) == ("dtype", f"x float32 -> {str(other).removeprefix('torch.')}")
    assert found.remedy.startswith("keep to one dtype")


def test_autocast_is_a_dtype(mode):
    model = nn.Linear(fresh(), 3).to("tpu")
    x = ones(2, model.in_features)
    dtype = torch.float16 if mode == "debug" else torch.bfloat16

    def work(enabled: bool) -> None:
        with torch.autocast("tpu", dtype=dtype, enabled=enabled):
            model(x).sum().item()

    work(False)
    found = [c for c in watched(lambda: work(True)).compile_events if c.kind == "dtype"]
    assert str(dtype).removeprefix("torch.") in found[0].detail
    assert found[0].remedy.startswith("keep to one dtype")


def test_the_type_of_a_python_number(mode):
    x = ones(fresh())

    def work(number: float) -> None:
        (x * number).sum().item()

    work(2.5)
    assert watched(lambda: work(3.5)).compile_events == ()
    found = cause(watched(lambda: work(3)))
    assert (found.kind, found.detail) == ("dtype", "mul other float -> int")


def test_a_constant(mode):
    n = fresh()
    x = ones(n, n % 7 + 2)

    def work(dim: int) -> None:
        x.cumsum(dim).sum().item()

    work(0)
    found = cause(watched(lambda: work(1)))
    assert (found.kind, found.detail) == ("constant", "cumsum dim 0 -> 1")
    assert found.remedy == "pass a tensor instead of the Python value, or keep to a few values"


def test_a_number_that_becomes_one(mode):
    x = ones(fresh())

    def work(alpha: float) -> None:
        torch.add(x, x, alpha=alpha).sum().item()

    work(0.5)
    assert watched(lambda: work(0.25)).compile_events == ()
    found = cause(watched(lambda: work(1.0)))
    assert (found.kind, found.detail) == ("constant", "add alpha another number -> 1.0")
    assert found.remedy == "nothing: 0 and 1 have programs of their own, all other numbers share one"


def test_a_window_that_moves(mode):
    x = ones(4, fresh())

    def work(row: int) -> None:
        (x[row] * 2.0).sum().item()

    work(1)
    found = cause(watched(lambda: work(2)))
    assert (found.kind, found.detail) == ("view", f"x begins at element {x.shape[1]} -> {2 * x.shape[1]} of its storage")
    assert "torch.index_select" in found.remedy


def test_the_precision_of_products(mode):
    x = ones(3, fresh())

    def work() -> None:
        (x @ x.T).sum().item()

    work()
    with torch.tpu.precision("DEFAULT"):
        found = cause(watched(work))
    assert found.kind == "precision"
    assert found.detail.startswith("precision HIGHEST -> DEFAULT")
    assert found.remedy == "set the precision once, before the first step"


@pytest.mark.parametrize(("before", "after"), [("strict", "defer_and_fuse"), ("defer_and_fuse", "strict")])
def test_a_change_of_mode(before, after):
    x = ones(fresh())
    op = torch.erfc if before == "strict" else torch.lgamma  # what a line compiled in the other test is known

    def work() -> None:
        op(x).cpu()

    with modes.scope(before):
        work()
    with modes.scope(after):
        report = watched(work)
    assert "mode" in {c.kind for c in report.compile_events}
    found = cause(report)
    assert found.detail.startswith(f"{before} -> {after}")
    assert found.remedy == "stay in one mode: each has programs of its own"


def test_a_learning_rate_compiles_nothing(mode):
    w = nn.Parameter(ones(fresh()))
    optimizer = torch.optim.SGD([w], lr=0.1)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def step() -> None:
        optimizer.zero_grad()
        w.square().sum().backward()
        optimizer.step()
        schedule.step()

    step()
    step()
    assert watched(step).compile_events == ()


def model_step(n: int, model: nn.Module) -> Callable[[], None]:
    def step() -> None:
        x = ones(n, 8)
        model(x).square().mean().backward()
        model.zero_grad()

    return step


def test_the_first_pass_through_a_deep_model_is_all_first_times():
    model = nn.Sequential(nn.Linear(8, 51), nn.ReLU(), nn.Linear(51, 52), nn.ReLU(), nn.Linear(52, 3)).to("tpu")
    report = watched(model_step(fresh(), model))
    assert len(report.compile_events) > 12
    assert {c.kind for c in report.compile_events} == {"first time"}
    assert report.storms == ()


def test_another_batch_size_is_one_cause_through_forward_and_backward(mode):
    model = nn.Sequential(nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 3)).to("tpu")
    before, after = fresh(), fresh()
    model_step(before, model)()
    report = watched(model_step(after, model))
    assert {c.kind for c in report.compile_events} == {"shape"}
    assert all(f"{before} -> {after}" in c.detail for c in report.compile_events)


def test_an_optimizers_first_step_makes_its_state(deferred):
    w = nn.Parameter(ones(fresh()))
    optimizer = torch.optim.Adam([w])

    def step() -> None:
        optimizer.zero_grad()
        w.square().sum().backward()
        optimizer.step()

    step()
    (found,) = watched(step).compile_events
    where = line_of(test_an_optimizers_first_step_makes_its_state, "optimizer.step()")
    assert (found.kind, found.detail) == ("different ops", f"without zero_ x2 ({where})")
    assert found.remedy == "nothing: the first pass makes values, such as an optimizer's state, that later ones find"
    assert watched(step).compile_events == ()


def test_train_and_eval(deferred):
    model = nn.Sequential(nn.Linear(8, fresh()), nn.Dropout(0.5))
    model = model.to("tpu")
    x = ones(2, 8)

    def work() -> None:
        model(x).sum().item()

    work()
    model.eval()
    found = cause(watched(work))
    assert found.kind == "different ops"
    assert found.detail == f"without native_dropout ({line_of(test_train_and_eval, 'model(x).sum()')})"
    assert found.remedy == "nothing, if you go to and fro: the programs of train() and eval() are both kept"
    model.train()
    assert watched(work).compile_events == ()


def test_ops_that_were_not_there(deferred):
    x = ones(fresh())

    def work(clip: bool) -> None:
        y = x * 3.0 + 1.0
        if clip:
            y = y.clamp(max=2.0)
        y.tanh().sum().item()

    work(False)
    found = cause(watched(lambda: work(True)))
    assert (found.kind, found.detail) == (
        "different ops",
        f"with clamp ({line_of(test_ops_that_were_not_there, 'y.clamp(')})",
    )
    assert "torch.tpu.synchronize()" in found.remedy


def test_a_read_in_the_loop(deferred):
    x = ones(fresh())

    def work(read: bool) -> None:
        y = x * 3.0 + 1.0
        if read:
            y.max().item()
        (y.tanh() - 0.5).sum().item()

    work(False)
    first, second = watched(lambda: work(True)).compile_events
    where = line_of(test_a_read_in_the_loop, "y.max().item()")
    assert (first.kind, first.detail) == ("graph cut", f"cut by item ({where}) after 2 of 5 ops")
    assert (second.kind, second.detail) == ("graph cut", f"begins after item ({where}), with the last 3 of 5 ops")
    assert first.remedy == second.remedy == "move the read out of the loop, or do it on every pass"


def test_a_read_that_cuts_a_graph_short(deferred):
    x = ones(fresh())

    def work(read: bool) -> None:
        y = x * 3.0 + 1.0
        if read:
            y.cpu()
        y.tanh().sum().item()

    work(False)
    found = watched(lambda: work(True)).compile_events[0]
    assert found.kind == "graph cut"
    assert found.detail == f"cut by to_host ({line_of(test_a_read_that_cuts_a_graph_short, 'y.cpu()')}) after 2 of 4 ops"


def test_a_read_that_is_gone(deferred):
    x = ones(fresh())

    def work(read: bool) -> None:
        y = x * 3.0 + 1.0
        if read:
            y.cpu()
        y.tanh().sum().item()

    work(True)
    found = cause(watched(lambda: work(False)))
    where = line_of(test_a_read_that_is_gone, "y.cpu()")
    assert (found.kind, found.detail) == ("graph cut", f"no longer cut by to_host ({where}): 4 ops instead of 2")


def test_a_value_that_a_variable_keeps(deferred):
    x = ones(fresh())

    def work(keep: bool) -> None:
        hidden = x * 3.0
        loss = hidden.tanh().sum()
        if not keep:
            del hidden
        loss.item()

    work(False)
    found = cause(watched(lambda: work(True)))
    assert found.kind == "kept value"
    assert found.detail == "hidden in work()"
    assert found.remedy == "del hidden in work(), before item; or keep it on every pass"


def test_a_value_that_a_list_keeps(deferred):
    x = ones(fresh())
    losses: list[torch.Tensor] = []

    def work(keep: bool) -> None:
        loss = (x * 3.0).sum()
        if keep:
            losses.append(loss)
        (loss * 2.0).item()

    work(True)
    assert watched(lambda: work(True)).compile_events == ()
    losses.clear()

    def without(keep: bool) -> None:
        for _ in range(1):
            part = x * 5.0
            if keep:
                losses.append(part)
            total = part.sum()
            del part
            total.item()

    without(False)
    found = cause(watched(lambda: without(True)))
    assert (found.kind, found.detail) == ("kept value", "losses[0] in without()")


def test_a_value_that_nothing_keeps_any_more(deferred):
    x = ones(fresh())

    def work(keep: bool) -> None:
        hidden = x * 3.0
        loss = hidden.tanh().sum()
        if not keep:
            del hidden
        loss.item()

    work(True)
    where = line_of(test_a_value_that_nothing_keeps_any_more, "hidden = x * 3.0")
    assert cause(watched(lambda: work(False))).detail == f"no longer the result of mul ({where})"


def test_what_autograd_keeps(deferred):
    w = ones(fresh())

    def work() -> None:
        loss = w.tanh().sum()
        loss.item()

    work()
    w.requires_grad_()
    found = cause(watched(work))
    assert found.kind == "kept value"
    assert "TanhBackward" in found.detail
    assert "torch.no_grad()" in found.remedy


def test_an_input_that_is_still_held(deferred):
    n = fresh()

    def work(hold: bool) -> None:
        x = ones(n)
        old = x if hold else None
        x = x * 2.0
        x.sum().item()
        del old

    work(False)
    found = cause(watched(lambda: work(True)))
    assert found.kind == "donation"
    assert found.detail == "old in work() is still held after its last use"
    assert found.remedy == "del old in work(), before its last use: then its memory is reused"
    work(True)
    assert watched(lambda: work(False)).compile_events == ()


def test_a_graph_that_keeps_changing_is_run_in_pieces_for_the_same_cause(deferred):
    x = ones(4096)
    start = fresh()

    def work(n: int) -> None:
        y = x[:n]
        (y * 2.0 + 1.0).sum().item()

    with config.options(churn_limit=2):
        work(start)
        work(start + 1)
        report = watched(lambda: work(start + 100))
    assert {c.kind for c in report.compile_events} == {"shape"}
    assert report.compile_events[0].detail.endswith("in pieces, since such graphs did not come back")
    assert f"-> {start + 100}" in report.compile_events[0].detail


def test_a_growing_loop_is_one_warning(mode):
    start = fresh() * 10

    def generate() -> None:
        for n in range(start, start + 6):
            ids = ones(n)
            (ids * 2.0).sum().item()

    report = watched(generate)
    (storm,) = report.storms
    assert storm.kind == "shape"
    assert storm.detail.startswith(f"ids dim 0: {start + 4} -> {start + 5}")
    text = report.to_text(200)
    assert text.count("\n! ") == 1
    assert "pad to one size, or round up to one of a few sizes (buckets)" in text


def test_buckets_are_no_storm(mode):
    start = fresh() * 10

    def serve() -> None:
        for _ in range(3):
            for n in range(start, start + 5):
                ones(n).exp().sum().item()

    report = watched(serve)
    assert len(report.compile_events) >= 5
    assert report.storms == ()


def test_a_cell_that_is_run_again_is_the_same_place(mode):
    source = "x = torch.ones(n).to('tpu')\n(x * 2.0).sum().item()"
    before, after = fresh(), fresh()
    exec(compile(source, "cell_of_test.py", "exec"), {"torch": torch, "n": before})
    report = watched(lambda: exec(compile(source, "cell_of_test.py", "exec"), {"torch": torch, "n": after}))
    assert cause(report).detail == f"x dim 0: {before} -> {after}"


def test_equal_code_of_two_cells_is_two_lines(mode):
    code = [compile("for _ in range(3): (x * 2.0).sum().item()", f"cell_{k}.py", "exec") for k in range(2)]
    x = ones(fresh())
    with torchtpu.watch() as report:
        for cell in code:
            exec(cell, {"x": x})
    lines = [s.line.where for s in report.syncs if s.kind == "item"]
    assert lines == ["cell_0.py:1"] * 3 + ["cell_1.py:1"] * 3


def test_nothing_on_the_device_is_remembered(mode):
    def work() -> weakref.ref:
        x = ones(fresh())
        (x * 2.0).sum().item()
        return weakref.ref(buffer_of(x))

    with torchtpu.watch():
        dead = work()
    gc.collect()
    assert dead() is None


@pytest.mark.parametrize(
    ("dims", "remedy"),
    [
        ([(0, 64, 29)], "drop the ragged last batch (DataLoader(drop_last=True)), or pad it to full size"),
        ([(0, 64, 29), (1, 40, 41)], "drop the ragged last batch (DataLoader(drop_last=True)), and pad the others"),
        ([(0, 29, 64)], "pad to one size, or round up"),
        ([(1, 40, 48), (2, 3, 4)], "pad to one size, or round up"),
        ([(1, 40, 41)], "pad to one size, or round up to one of a few sizes (buckets); a key-value cache"),
    ],
)
def test_the_remedy_fits_the_sizes(dims, remedy):
    assert of_sizes(dims).startswith(remedy)


def test_a_cause_is_a_sentence():
    found = causes.Cause(causes.Kind.SHAPE, "ids dim 1: 12 -> 17", "pad")
    assert str(found) == "shape: ids dim 1: 12 -> 17"
    assert str(causes.Cause(causes.Kind.FIRST)) == "first time"
