"""Unchanged PyTorch training code on `tpu` follows the CPU, in every mode."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import torchtpu
from tests.models import GPT, ResidualCNN, mlp

Batch = tuple[torch.Tensor, torch.Tensor]


def train(
    model: nn.Module,
    optimizer: Callable[..., torch.optim.Optimizer],
    batches: list[Batch],
    device: str,
    loss: Callable[[nn.Module, Batch], torch.Tensor],
) -> list[float]:
    """Train a copy of the model and return the loss of each step."""
    model = copy.deepcopy(model).to(device)
    opt = optimizer(model.parameters())
    losses = []
    for batch in batches:
        on_device = (batch[0].to(device), batch[1].to(device))
        opt.zero_grad()
        value = loss(model, on_device)
        value.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
        losses.append(value.item())
    return losses


def language_batches(steps: int, vocab: int = 64, batch: int = 4, tokens: int = 32) -> list[Batch]:
    torch.manual_seed(1)
    data = [torch.randint(0, vocab, (batch, tokens + 1)) for _ in range(steps)]
    return [(d[:, :-1].contiguous(), d[:, 1:].contiguous()) for d in data]


def image_batches(steps: int) -> list[Batch]:
    torch.manual_seed(2)
    return [(torch.randn(8, 1, 16, 16), torch.randint(0, 10, (8,))) for _ in range(steps)]


def classify(model: nn.Module, batch: Batch) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def assert_follows(actual: list[float], expected: list[float]) -> None:
    torch.testing.assert_close(torch.tensor(actual), torch.tensor(expected), rtol=1e-4, atol=0.0)


def test_mlp_with_sgd_momentum(mode, no_fallback):
    torch.manual_seed(0)
    model = mlp(32, 48)
    torch.manual_seed(3)
    batches = [(torch.randn(16, 32), torch.randint(0, 10, (16,))) for _ in range(20)]
    optimizer = lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4)  # noqa: E731
    assert_follows(train(model, optimizer, batches, "tpu", classify), train(model, optimizer, batches, "cpu", classify))


def test_residual_cnn_20_steps(mode, no_fallback):
    torch.manual_seed(0)
    model, batches = ResidualCNN(width=8), image_batches(20)
    optimizer = lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9)  # noqa: E731
    assert_follows(train(model, optimizer, batches, "tpu", classify), train(model, optimizer, batches, "cpu", classify))


def test_gpt_20_steps_with_adamw(mode, no_fallback):
    torch.manual_seed(0)
    model = GPT(vocab=64, width=32, layers=2, heads=2, context=32)
    batches = language_batches(20)
    optimizer = lambda p: torch.optim.AdamW(p, lr=1e-3)  # noqa: E731
    loss = lambda m, b: m(*b)  # noqa: E731
    assert_follows(train(model, optimizer, batches, "tpu", loss), train(model, optimizer, batches, "cpu", loss))


def test_batch_norm_statistics_and_eval(mode, no_fallback):
    torch.manual_seed(0)
    model, batches = ResidualCNN(width=8), image_batches(3)
    ours = copy.deepcopy(model).to("tpu")
    for x, _ in batches:
        model(x)
        ours(x.to("tpu"))
    torch.testing.assert_close(
        {k: v.cpu() for k, v in ours.state_dict().items()}, dict(model.state_dict()), rtol=1e-4, atol=1e-5
    )
    model.eval()
    ours.eval()
    torch.testing.assert_close(ours(batches[0][0].to("tpu")).cpu(), model(batches[0][0]), rtol=1e-4, atol=1e-5)


def test_gradient_accumulation_and_checkpointing(mode, no_fallback):
    torch.manual_seed(0)
    model = GPT(vocab=64, width=32, layers=2, heads=2, context=32)
    ours = copy.deepcopy(model).to("tpu")

    def accumulate(m: GPT, device: str, use_checkpoint: bool) -> dict[str, torch.Tensor]:
        for ids, targets in language_batches(3):
            ids, targets = ids.to(device), targets.to(device)
            loss = checkpoint(m, ids, targets, use_reentrant=False) if use_checkpoint else m(ids, targets)
            (loss / 3).backward()
        return {n: p.grad.cpu() for n, p in m.named_parameters()}

    torch.testing.assert_close(accumulate(ours, "tpu", True), accumulate(model, "cpu", False), rtol=1e-4, atol=1e-6)


def test_full_recipe_compiles_nothing_after_step_three(no_fallback):
    """AdamW, cosine schedule, dropout, clipping: new numbers and new masks each step, no new program."""
    torch.manual_seed(0)
    model = GPT(vocab=64, width=32, layers=2, heads=2, context=32, dropout=0.1).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=30)
    batches = language_batches(30)

    def step(batch: Batch) -> None:
        optimizer.zero_grad()
        model(batch[0].to("tpu"), batch[1].to("tpu")).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()

    with torch.tpu.set_eager_mode("defer_and_fuse"):
        for batch in batches[:3]:
            step(batch)
        with torchtpu.watch() as report:
            for batch in batches[3:]:
                step(batch)
            torch.tpu.synchronize()
    assert report.compile_events == ()
    assert report.cache_hits == report.runs > 0


def test_dropout_masks_differ_between_runs_of_one_program(mode):
    x = torch.ones(1000, device="tpu")
    masks = [(F.dropout(x, 0.5) != 0).cpu() for _ in range(3)]
    assert not torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[1], masks[2])
    for mask in masks:
        assert 0.42 < mask.float().mean() < 0.58
