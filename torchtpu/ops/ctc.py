"""Connectionist temporal classification: the loss over all alignments of a label sequence, and its gradient.

Lengths are data of the program and not part of it: batches of other lengths run the same program.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
import torch
from jax import lax

from torchtpu.ops.registry import entry, rule
from torchtpu.ops.softmax import wide

# Stands for log(0), so that gradients stay finite on paths that cannot be taken.
_NEVER = -1e30


def _padded(targets: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """Return concatenated label sequences as rows, as long as the longest one, rounded up to need fewer programs."""
    if targets.dim() == 2:
        return targets
    width = -(-max(lengths, default=0) // 8) * 8
    firsts = torch.tensor([0, *accumulate(lengths)][:-1])
    positions = (firsts[:, None] + torch.arange(width)).clamp(max=max(targets.shape[0] - 1, 0))
    return targets[positions.to(targets.device)] if targets.shape[0] else targets.new_zeros(len(lengths), width)


def _on_device(log_probs: torch.Tensor, targets: torch.Tensor, *lengths: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Return padded targets and the lengths of inputs and targets as tensors."""
    steps, batch = log_probs.shape[:2]
    inputs, labels = lengths
    if len(inputs) != batch or len(labels) != batch:
        raise RuntimeError(f"input_lengths and target_lengths must be of size batch_size ({batch})")
    if max(inputs, default=0) > steps:
        raise RuntimeError(f"Expected input_lengths to have value at most {steps}, but got value {max(inputs)}")
    moved = (torch.tensor(values, device=log_probs.device) for values in lengths)
    return _padded(targets, labels).long(), *moved


@entry("aten::_ctc_loss")
def _ctc_loss_of_lists(
    kernel: Any,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    moved = _on_device(log_probs, targets, input_lengths, target_lengths)
    return torch.ops.aten._ctc_loss.Tensor(log_probs, *moved, blank, zero_infinity)


@entry("aten::_ctc_loss_backward")
def _ctc_loss_backward_of_lists(
    kernel: Any,
    grad: torch.Tensor,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    *rest: Any,
) -> torch.Tensor:
    moved = _on_device(log_probs, targets, input_lengths, target_lengths)
    return torch.ops.aten._ctc_loss_backward.Tensor(grad, log_probs, *moved, *rest)


def negative_log_likelihood(
    log_probs: jax.Array, targets: jax.Array, input_lengths: jax.Array, target_lengths: jax.Array, blank: int
) -> tuple[jax.Array, jax.Array]:
    """Return minus the log-probability of each label sequence (batch,), and of each prefix (batch, steps, states).

    The states of a sequence are its labels with a blank before, between and after them.

    Args:
        log_probs: (steps, batch, classes).
        targets: (batch, labels), of which the first `target_lengths` count; or all those, concatenated.
        input_lengths, target_lengths: (batch,).
        blank: the class of blanks.
    """
    batch, classes = log_probs.shape[1:]
    if targets.ndim == 1:
        firsts = jnp.cumsum(target_lengths) - target_lengths
        targets = targets.at[firsts[:, None] + jnp.arange(targets.shape[0])].get(mode="fill", fill_value=blank)
    states = 2 * targets.shape[1] + 1
    labels = jnp.full((batch, states), blank, jnp.int64).at[:, 1::2].set(jnp.clip(targets, 0, classes - 1))
    repeated = jnp.pad(labels, ((0, 0), (2, 0)), constant_values=-1)[:, :-2] == labels
    may_skip = (labels != blank) & ~repeated  # the blank between two different labels may be left out
    emitted = jnp.take_along_axis(log_probs, labels[None], axis=2)

    def shifted(alpha: jax.Array, total: jax.Array) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
        # Log-probabilities of long prefixes are large, and what they differ in is small: float32 keeps it only of those
        # relative to the largest one, whose sum goes beside.
        top = lax.stop_gradient(jnp.maximum(alpha.max(1, keepdims=True), _NEVER / 2))
        carry = jnp.maximum(alpha - top, _NEVER), total + top
        return carry, carry

    def advance(
        carry: tuple[jax.Array, jax.Array], step: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
        alpha, total = carry
        before = [jnp.pad(alpha, ((0, 0), (k, 0)), constant_values=_NEVER)[:, :states] for k in range(3)]
        before[2] = jnp.where(may_skip, before[2], _NEVER)
        return shifted(jax.nn.logsumexp(jnp.stack(before), axis=0) + step, total)

    first = jnp.where(jnp.arange(states) < 2, emitted[0], jnp.full_like(emitted[0], _NEVER))
    carry, start = shifted(first, jnp.zeros_like(first[:, :1]))
    alphas, totals = (
        jnp.concatenate([a[None], b]) for a, b in zip(start, lax.scan(advance, carry, emitted[1:])[1], strict=True)
    )
    at_end = jnp.maximum(input_lengths - 1, 0)[None, :, None]
    last, total = (jnp.take_along_axis(values, at_end, axis=0)[0] for values in (alphas, totals))
    end = 2 * target_lengths[:, None]
    with_blank = jnp.take_along_axis(last, end, axis=1)[:, 0]
    without = jnp.take_along_axis(last, jnp.maximum(end - 1, 0), axis=1)[:, 0]
    likelihood = total[:, 0] + jnp.logaddexp(with_blank, jnp.where(target_lengths > 0, without, _NEVER))
    nothing = jnp.where(target_lengths == 0, 0.0, _NEVER).astype(likelihood.dtype)
    return -jnp.where(input_lengths > 0, likelihood, nothing), jnp.swapaxes(alphas + totals, 0, 1)


def _metadata(log_probs: torch.Tensor, targets: torch.Tensor, *rest: Any) -> tuple[torch.Tensor, torch.Tensor]:
    steps, batch = log_probs.shape[:2]
    return log_probs.new_empty(batch), log_probs.new_empty(batch, steps, 2 * targets.shape[-1] + 1)


@rule("aten::_ctc_loss.Tensor", metadata=_metadata)
def _ctc_loss(
    log_probs: jax.Array,
    targets: jax.Array,
    input_lengths: jax.Array,
    target_lengths: jax.Array,
    blank: int,
    zero_infinity: bool,
) -> tuple[jax.Array, jax.Array]:
    loss, alphas = negative_log_likelihood(wide(log_probs), targets, input_lengths, target_lengths, blank)
    return jnp.where(loss > -_NEVER / 2, 0.0 if zero_infinity else jnp.inf, loss), alphas


@rule("aten::_ctc_loss_backward.Tensor", metadata=lambda grad, log_probs, *rest: torch.empty_like(log_probs))
def _ctc_loss_backward(
    grad: jax.Array,
    log_probs: jax.Array,
    targets: jax.Array,
    input_lengths: jax.Array,
    target_lengths: jax.Array,
    loss: jax.Array,
    alphas: jax.Array,
    blank: int,
    zero_infinity: bool,
) -> jax.Array:
    x = wide(log_probs)
    loss, pull = jax.vjp(lambda x: negative_log_likelihood(x, targets, input_lengths, target_lengths, blank)[0], x)
    occupancy = -pull(jnp.ones_like(loss))[0]
    # At each step some class is emitted. Rounding along the steps would add up in sums over them, as a bias' gradient is.
    occupancy = occupancy / occupancy.sum(-1, keepdims=True)
    # PyTorch's gradient is that of the logits before log_softmax; passed through its gradient it comes out the same.
    slope = jnp.exp(x) - occupancy
    impossible = (loss > -_NEVER / 2)[:, None]
    slope = jnp.where(impossible, 0.0 if zero_infinity else jnp.nan, slope * wide(grad)[:, None])
    return jnp.where(jnp.arange(x.shape[0])[:, None, None] < input_lengths[:, None], slope, 0.0).astype(x.dtype)
