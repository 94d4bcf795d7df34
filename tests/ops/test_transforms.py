"""Function transforms and derivatives of derivatives: torch.func, forward mode, double backward."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    linearize,
    stack_module_state,
    vjp,
    vmap,
)
from torch.utils._pytree import tree_map

pytestmark = [
    pytest.mark.usefixtures("mode", "no_fallback"),
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node"),  # PyTorch's own, of `linearize`
]


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float32)


def compare(function: Callable[..., Any], *arguments: Any) -> None:
    """Assert that a function of tensors gives on both devices the same."""

    def move(device: str) -> Callable[[Any], Any]:
        return lambda value: value.to(device) if isinstance(value, torch.Tensor) else value

    actual = function(*tree_map(move("tpu"), arguments))
    assert all(t.device.type == "tpu" for t in torch.utils._pytree.tree_leaves(actual) if isinstance(t, torch.Tensor))
    expected = function(*tree_map(move("cpu"), arguments))
    torch.testing.assert_close(tree_map(move("cpu"), actual), expected, rtol=1e-4, atol=1e-5)


def energy(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (torch.tanh(x @ w) * torch.softmax(x, -1)[..., : w.shape[1]]).square().sum()


def features(x: torch.Tensor) -> torch.Tensor:
    return torch.stack([x.sin().prod(), x.logsumexp(0), (x[1:] * x[:-1]).sum()])


TRANSFORMS = {
    "grad": lambda x, w: grad(energy, argnums=(0, 1))(x, w),
    "grad and value": lambda x, w: grad_and_value(energy)(x, w),
    "grad of grad": lambda x, w: grad(lambda x: grad(energy)(x, w).square().sum())(x),
    "vjp": lambda x, w: vjp(lambda x: torch.tanh(x @ w), x)[1](torch.ones(x.shape[0], w.shape[1], device=x.device)),
    "jvp": lambda x, w: jvp(lambda x: torch.tanh(x @ w), (x,), (torch.ones_like(x),)),
    "linearize": lambda x, w: linearize(lambda x: torch.tanh(x @ w), x)[1](torch.ones_like(x)),
    "jacrev": lambda x, w: jacrev(features)(x[0]),
    "jacfwd": lambda x, w: jacfwd(features)(x[0]),
    "hessian": lambda x, w: hessian(lambda x: features(x).square().sum())(x[0]),
    "vmap": lambda x, w: vmap(torch.dot, in_dims=(0, None))(x, w[:, 0]),
    "vmap over columns": lambda x, w: vmap(lambda column: column.cumsum(0), in_dims=1, out_dims=1)(w),
    "vmap of vmap": lambda x, w: vmap(vmap(lambda a, b: (a * b).relu(), (None, 0)), (0, None))(x, w.t()),
    "vmap in chunks": lambda x, w: vmap(lambda row: row @ w, chunk_size=2)(x),
    "gradients of samples": lambda x, w: vmap(grad(energy, argnums=1), in_dims=(0, None))(x[:, None], w),
    "vmap of an in-place write": lambda x, w: vmap(
        lambda row: row.clone().index_fill_(0, torch.tensor([1]).to(row.device), 9.0)
    )(x),
    "hessian-vector product": lambda x, w: jvp(grad(lambda x: energy(x, w)), (x,), (torch.ones_like(x),))[1],
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform(name):
    compare(TRANSFORMS[name], normal(3, 4), normal(4, 2))


def test_functional_call_and_an_ensemble():
    models = [nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False), nn.Tanh()) for _ in range(2)]
    x = normal(5, 4)

    def call(x: torch.Tensor) -> list[torch.Tensor]:
        placed = [copy.deepcopy(m).to(x.device) for m in models]
        parameters, buffers = stack_module_state(placed)
        skeleton = copy.deepcopy(placed[0]).to("meta")
        together = vmap(lambda p, b, x: functional_call(skeleton, (p, b), (x,)), (0, 0, None))(parameters, buffers, x)
        swapped = functional_call(placed[0], {n: torch.zeros_like(p) for n, p in placed[0].named_parameters()}, (x,))
        return [together.detach(), swapped.detach(), placed[0](x).detach()]

    compare(call, x)


def test_forward_mode_through_a_module():
    layer = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.GELU())

    def tangent(x: torch.Tensor) -> torch.Tensor:
        here = copy.deepcopy(layer).to(x.device)
        with torch.autograd.forward_ad.dual_level():
            dual = here(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x)))
            return torch.autograd.forward_ad.unpack_dual(dual).tangent.detach()

    compare(tangent, normal(5, 4))


def test_gradient_penalty():
    """Double backward through a convolution, a norm and a linear layer, to the parameters."""
    torch.manual_seed(0)
    critic = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.SiLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 1))

    def penalty(x: torch.Tensor) -> list[torch.Tensor]:
        here = copy.deepcopy(critic).to(x.device)
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(here(x).sum(), x, create_graph=True)
        (slope.flatten(1).norm(2, 1) - 1).square().mean().backward()
        return [x.grad] + [p.grad for p in here.parameters() if p.grad is not None]

    compare(penalty, normal(2, 2, 4, 4))


SMOOTH = {
    "exp and log": lambda x: (x.exp() + 1).log(),
    "matmul": lambda x: x @ x.t() @ x,
    "softmax": lambda x: x.softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (3,)),
    "gelu": lambda x: F.gelu(x),
    "cumsum and prod": lambda x: x.cumsum(0).prod(1),
    "index": lambda x: x[[0, 1, 0]].square(),
    "norm": lambda x: x.norm(dim=1),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.tensor([2, 0], device=x.device)),
    "view and in place": lambda x: (x * 2).t().mul_(3).sin(),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_first_and_second_derivatives_in_float64(name):
    x = normal(2, 3).double().to("tpu").requires_grad_()
    # Where another part of the graph is live, XLA fuses it differently, and rounds otherwise.
    assert torch.autograd.gradcheck(SMOOTH[name], x, fast_mode=True, nondet_tol=1e-12)
    assert torch.autograd.gradgradcheck(SMOOTH[name], x, fast_mode=True, nondet_tol=1e-12)
