"""`torchtpu.fit`: the search, the changes that it tries, what it refuses, and one whole answer from the TPU compiler."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import torchtpu
from torchtpu.ahead import Captured, capture
from torchtpu.errors import UnknownChipError, ValueUnknownError
from torchtpu.fit import Answer, Fit, FitRow
from torchtpu.fit.changes import Parts, change
from torchtpu.fit.search import Trial, search

MIB = 1 << 20


class Block(nn.Module):
    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        between = [nn.Dropout(dropout)] if dropout else []
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), *between, nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


class Net(nn.Module):
    def __init__(self, width: int = 64, blocks: int = 3, dropout: float = 0.1) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(blocks))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def training(device: str = "cpu", dropout: float = 0.1, blocks: int = 3) -> SimpleNamespace:
    """A model, and a step that takes its batch from data on the host."""
    torch.manual_seed(0)
    model = Net(blocks=blocks, dropout=dropout).to(device)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    data, labels = torch.randn(2048, 64), torch.randint(0, 10, (2048,))

    def step(batch: int) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(data[:batch].to("tpu")), labels[:batch].to("tpu"))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return SimpleNamespace(model=model, optimizer=optimizer, step=step)


PEAKS: dict[str, Callable[[int], float]] = {
    "linear": lambda n: 100 + 3 * n,
    "tiles": lambda n: 100 + 3 * 128 * math.ceil(n / 128),
    "convex": lambda n: 50 + n**1.4,
    "a step": lambda n: n + (500 if n > 300 else 0),
    "nothing fits": lambda n: 5000 + n,
    "all fits": lambda n: 1,
}


@pytest.mark.parametrize("figures", [True, False], ids=["figures", "no figure of what does not fit"])
@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize("first", [1, 32, 8192])
@pytest.mark.parametrize("peak", PEAKS.values(), ids=PEAKS)
def test_the_search_ends_between_what_fits_and_what_does_not(peak, first, multiple, figures):
    tried = []

    def probe(size: int) -> Trial:
        tried.append(size)
        room = math.floor(1000 - peak(size))
        return Trial(room >= 0, room if figures or room >= 0 else None)

    found = search(probe, first, 4096, multiple)
    assert len(tried) == len(set(tried)) <= 22
    assert all(size % multiple == 0 and 0 < size <= 4096 for size in tried)
    assert found.largest == max((n for n in tried if peak(n) <= 1000), default=0)
    if found.largest < 4096:
        assert peak(found.refused) > 1000
        assert found.refused - found.largest <= max(multiple, found.largest // 64)


def test_a_linear_search_takes_few_compiles():
    tried = []
    search(lambda n: (tried.append(n), Trial(n <= 96, 96 - n))[1], 8, 65_536)
    assert tried == [8, 32, 96, 97]


@pytest.mark.parametrize("device", ["cpu", "tpu", "meta"])
def test_the_modules_are_found_and_stay_as_they_are(device):
    made = training(device)
    parts = Parts.of(made.step)
    assert list(parts.modules.values()) == [made.model]
    assert parts.optimizers == (made.optimizer,)
    before = [(p, p.dtype, p.device, p._version, p.grad) for p in made.model.parameters()]
    plain = capture(made.step, batch=16)
    for name in ("checkpoint", "bfloat16", "checkpoint+bfloat16"):
        changed = change(name, parts)
        captured = capture(changed.of(made.step), batch=16)
        assert captured.name == plain.name
        assert captured.ops != plain.ops
    assert [(p, p.dtype, p.device, p._version, p.grad) for p in made.model.parameters()] == before
    assert not made.optimizer.state
    assert all("forward" not in vars(m) and not m._forward_pre_hooks for m in made.model.modules())
    assert capture(made.step, batch=16).ops == plain.ops


def counts(captured: Captured) -> dict[str, int]:
    ops = [op.op for op in captured.ops]
    return {name: ops.count(name) for name in ops}


def test_checkpointing_computes_the_blocks_again():
    made = training()
    plain, again = (capture(change(n, Parts.of(made.step)).of(made.step), batch=16) for n in ("as it is", "checkpoint"))
    assert counts(again)["aten::gelu"] == 2 * counts(plain)["aten::gelu"]
    assert counts(again)["aten::native_dropout"] == 2 * counts(plain)["aten::native_dropout"]


def test_the_parts_of_a_sequential_are_checkpointed_in_segments():
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(8, 8), nn.Tanh())))

    def step(batch: int) -> None:
        model(torch.ones(batch, 8, device="tpu")).sum().backward()

    made = change("checkpoint", Parts.of(step))
    assert made.detail == "torch.utils.checkpoint on model in 2 segments"
    assert counts(capture(made.of(step), batch=4))["aten::tanh"] > 4


def test_bfloat16_makes_parameters_and_states_half_as_large():
    made = training("tpu")
    made.step(batch=8)
    plain, half = (capture(change(n, Parts.of(made.step)).of(made.step), batch=16) for n in ("as it is", "bfloat16"))
    parameters = sum(p.numel() for p in made.model.parameters())
    floats = [sum(math.prod(i.shape) for i in c.inputs if str(i.dtype) == "float32") for c in (plain, half)]
    halves = [sum(math.prod(i.shape) for i in c.inputs if str(i.dtype) == "bfloat16") for c in (plain, half)]
    assert floats[0] - floats[1] == halves[1] - halves[0] == 2 * parameters
    assert {p.dtype for p in made.model.parameters()} == {torch.float32}


def test_nothing_to_change_is_said_in_words():
    def step(batch: int) -> torch.Tensor:
        return torch.ones(batch, device="tpu") * 2

    for name in ("checkpoint", "bfloat16"):
        with pytest.raises(ValueError, match="no module with parameters"):
            change(name, Parts.of(step))


@pytest.fixture
def compiler(monkeypatch) -> list[tuple[str, int]]:
    """A compiler that says at once how much a program needs, so that a test can ask often. Returns what it was asked."""
    asked = []

    def compile(self: Captured, target: str, *, effort: str, hbm: int | None, progress: Callable) -> Any:
        progress("", 0.1)
        peak = sum(i.nbytes for i in self.inputs) + sum(math.prod(o.shape) * o.dtype.itemsize for o in self.outputs) + 4096
        peak += sum(op.op == "aten::gelu" for op in self.ops)
        limit = hbm or torchtpu.ahead.chip(target).hbm_bytes
        asked.append((target, peak))
        fits = peak <= limit
        return SimpleNamespace(
            fits=fits, hbm_peak=peak, limit=limit, seconds=0.5, from_disk=False, compiler="libtpu 1", effort=effort
        )

    monkeypatch.setattr(Captured, "compile", compile)
    return asked


def values(batch: int, width: int = 64) -> torch.Tensor:
    return torch.ones(batch, width, device="tpu") * 2


def test_all_chips_and_the_order_of_the_answers(compiler):
    found = torchtpu.fit(values, target="v6e,v5e", tries=(), hbm=MIB, first=1)
    assert [(a.chip, a.change) for a in found.answers] == [("v6e", "as it is"), ("v5e", "as it is")]
    assert found.largest() == found.largest("v5e") == (MIB - 4096) // 256
    assert {a.limit for a in found.answers} == {MIB}
    assert len(torchtpu.fit(values, target="all", tries=(), hbm=MIB, most=8).answers) == 5


def test_another_parameter_can_be_varied(compiler):
    def step(batch: int = 2, length: int = 8) -> torch.Tensor:
        return values(batch, length)

    found = torchtpu.fit(step, vary="length", tries=(), hbm=MIB // 8, multiple=128)
    assert found.largest() % 128 == 0
    assert f"the largest length that fits is {found.largest():,}" in found.to_text()


def test_what_all_fits_is_not_called_the_largest(compiler):
    found = torchtpu.fit(values, tries=(), most=64)
    assert (found.largest(), found.answer().refused) == (64, 0)
    assert "batch 64 fits, with a peak of 20.0 KiB; no larger one was tried" in found.to_text()


def test_what_does_not_fit_at_all_is_said_with_what_it_needs(compiler):
    found = torchtpu.fit(values, tries=("checkpoint",), hbm=4096, first=4)
    assert found.largest() == 0
    assert "v5e, 4.0 KiB: batch 1 does not fit: it needs 4.2 KiB" in found.to_text()
    assert "! checkpoint: the names in the step's code lead to no module with parameters" in found.to_text()


def nothing() -> None: ...


def two(batch: int, labels: Any) -> None: ...


def fails(batch: int) -> None:
    raise RuntimeError("the user's")


def reads(batch: int) -> float:
    return values(batch).sum().item()


def always(batch: int) -> torch.Tensor:
    return values(7)


@pytest.mark.parametrize(
    ("step", "options", "error", "text"),
    [
        (values, {"target": "v5"}, UnknownChipError, "Did you mean 'v5"),
        (values, {"tries": ("checkpoints",)}, ValueError, "Did you mean 'checkpoint'?"),
        (values, {"vary": "bach"}, ValueError, "to vary: it has batch, width. Did you mean 'batch'?"),
        (values, {"first": 0}, ValueError, "first=0: it must be at least 1"),
        (nothing, {}, ValueError, "nothing has no parameter 'batch' to vary: it has none"),
        (two, {}, ValueError, "two is called with batch alone, but needs labels too: give it a default"),
        (fails, {}, RuntimeError, "the user's"),
        (reads, {}, ValueUnknownError, "sum"),
        (always, {}, ValueError, "always does the same for batch=8 and batch=32: it has to make inputs of the size"),
        (7, {}, TypeError, "not a int"),
    ],
)  # fmt: skip
def test_what_is_refused(compiler, step, options, error, text):
    with pytest.raises(error) as raised:
        torchtpu.fit(step, **options)
    assert text in str(raised.value)


def test_a_change_that_fails_leaves_the_other_answers(compiler):
    model = Net().to("tpu")

    def step(batch: int) -> None:
        loss = F.mse_loss(model(torch.ones(batch, 64, device="tpu")) @ torch.ones(10, 10, device="tpu"), values(batch, 10))
        loss.backward()

    found = torchtpu.fit(step, hbm=MIB, most=64)
    assert found.largest(change="checkpoint") > 0
    assert "BFloat16" in found.answer(change="bfloat16").error
    assert "! bfloat16: RuntimeError: " in found.to_text()


def test_an_interrupt_comes_through_and_what_is_known_was_told(compiler):
    told: list[Fit] = []

    def progress(fit: Fit, what: str, seconds: float) -> None:
        told.append(fit)
        if len(fit.rows) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        torchtpu.fit(values, tries=(), progress=progress)
    (answer,) = told[-1].answers
    assert (answer.largest, answer.refused, answer.error) == (32, 0, "")


def example() -> Fit:
    rows = (
        FitRow("v5e", "as it is", 8, True, 9 << 30, 1.5),
        FitRow("v5e", "as it is", 16, False, 18 << 30, 2.0),
        FitRow("v5e", "checkpoint", 16, True, 12 << 30, 2.0, True),
        FitRow("v6e", "as it is", 16, True, 18 << 30, 2.0),
    )
    answers = (
        Answer("v5e", "as it is", "", 16 << 30, 8, 16),
        Answer("v5e", "checkpoint", "<b>blocks</b>", 16 << 30, 16, 0),
        Answer("v6e", "as it is", "", 32 << 30, 16, 0),
    )
    return Fit("<i>step</i>", "batch", 16, "memory", "libtpu 0.0.42.1", answers, rows)


def test_it_is_read_as_it_was_written(tmp_path):
    fit = example()
    assert Fit.from_json(fit.to_json()) == fit
    assert Fit.from_json(fit.save(tmp_path / "fit.json").read_text()) == fit
    assert fit.save(tmp_path / "fit.html").read_text().startswith("<!DOCTYPE html>")
    assert fit.save(tmp_path / "fit.txt").read_text() == str(fit)
    with pytest.raises(ValueError, match="this JSON is not a"):
        Fit.from_json("{}")
    with pytest.raises(KeyError, match="no answer for 'bfloat16' on v6e"):
        fit.answer("v6e", "bfloat16")


def test_it_is_drawn_with_what_an_untrusted_notebook_keeps():
    html = example().to_html()
    for lost in ("<svg", "<style", "<script", "<iframe", "<i>", "<b>blocks"):
        assert lost not in html
    assert html.count("data:image/svg+xml;base64,") == 2
    for figure in ("largest batch that fits is 8", "9.0 GiB", "16 or more", "with checkpoint, 16 does", "libtpu 0.0.42.1"):
        assert figure in html, figure


@pytest.mark.slow
def test_the_compiler_of_a_chip_finds_more_room_with_checkpointing():
    made = training(dropout=0.0, blocks=1)
    limit = 8 * MIB  # the compiler squeezes what nearly fits
    found = torchtpu.fit(made.step, tries=("checkpoint",), hbm=limit, first=1024, most=2048, multiple=1024)
    plain, again = found.answer(), found.answer(change="checkpoint")
    assert (plain.largest, plain.refused) == (1024, 2048)
    assert (again.largest, again.refused) == (2048, 0)
    assert found.peak(1024) <= limit < found.peak(2048)
    assert found.peak(1024, change="checkpoint") < found.peak(1024)
    assert found.compiler.startswith("libtpu ")
