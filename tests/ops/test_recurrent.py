"""Recurrent layers and cells: outputs, states and gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("mode", "no_fallback")


def results(layer: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    """Return outputs, states, and the gradients of the input and of every parameter."""
    x = x.clone().requires_grad_()
    flat = torch.utils._pytree.tree_leaves(layer(x))
    sum(t.square().sum() for t in flat).backward()
    return [t.detach().cpu() for t in [*flat, x.grad, *(p.grad for p in layer.parameters())]]


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.LSTM(4, 3, num_layers=2, bidirectional=True),
        lambda: nn.LSTM(4, 3, bias=False, batch_first=True),
        lambda: nn.GRU(4, 3),
        lambda: nn.GRU(4, 3, bias=False, bidirectional=True),
        lambda: nn.RNN(4, 3, nonlinearity="relu"),
    ],
    ids=["lstm two layers both ways", "lstm without bias", "gru", "gru without bias both ways", "rnn"],
)
def test_layers(layer: object) -> None:
    torch.manual_seed(0)
    ours = layer()
    x = torch.randn(3, 2, 4)
    for actual, expected in zip(results(copy.deepcopy(ours).to("tpu"), x.to("tpu")), results(ours, x), strict=True):
        torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells(cell: type[nn.Module]) -> None:
    torch.manual_seed(0)
    ours = cell(4, 3)
    x = torch.randn(2, 4)
    for actual, expected in zip(results(copy.deepcopy(ours).to("tpu"), x.to("tpu")), results(ours, x), strict=True):
        torch.testing.assert_close(actual, expected)
