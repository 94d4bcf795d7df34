"""`torch.autocast("tpu")`: dtypes as autocast gives them elsewhere, values as on the CPU, gradients in the weights' dtype."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from torchtpu import autocast

BF16 = torch.bfloat16


def test_the_lists_are_those_of_other_accelerators():
    ours = {*autocast.LOWER, *autocast.FLOAT32, *autocast.FLOAT32_RESULT, *autocast.FLOAT32_RESULT_OVERLOAD, *autocast.WIDEST}
    theirs = {n.removeprefix("aten::") for n in torch._C._dispatch_get_registrations_for_dispatch_key("AutocastXPU")}
    assert ours == theirs


def square(device, dtype=torch.float32):
    torch.manual_seed(0)
    return torch.rand(4, 4, dtype=dtype).add(0.5).to(device)


# Ops that the CPU's autocast treats alike, and others with the dtype that CUDA's gives.
LIKE_CPU = {
    "mm": lambda x: x @ x,
    "linear": lambda x: F.linear(x, x, x[0]),
    "bmm": lambda x: torch.bmm(x[None], x[None]),
    "baddbmm": lambda x: torch.baddbmm(x[None], x[None], x[None]),
    "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
    "conv": lambda x: F.conv2d(x[None, None], x[None, None, :2, :2]),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
    "chain": lambda x: (x @ x).relu() + 1,
    "mixed with float32": lambda x: x @ x + x,
    "mse_loss": lambda x: F.mse_loss(x @ x, x),
    "nll_loss": lambda x: F.nll_loss(x @ x, torch.arange(4, device=x.device)),
    "bce_with_logits": lambda x: F.binary_cross_entropy_with_logits(x @ x, x),
    "float64": lambda x: x.double() @ x.double(),
    "int": lambda x: x.int().sum(),
}
FLOAT32 = {
    "exp": lambda x: (x @ x).exp(),
    "pow": lambda x: (x @ x) ** 2,
    "softmax": lambda x: (x @ x).softmax(-1),
    "log_softmax": lambda x: F.log_softmax(x @ x, -1),
    "sum": lambda x: (x @ x).sum(),
    "sum over a dim": lambda x: (x @ x).sum(0, keepdim=True),
    "cumsum": lambda x: (x @ x).cumsum(0),
    "prod": lambda x: (x @ x).prod(1),
    "norm": lambda x: (x @ x).norm(),
    "norm over a dim": lambda x: (x @ x).norm(dim=0),
    "vector norm": lambda x: torch.linalg.vector_norm(x @ x, 2, dim=1),
    "layer_norm": lambda x: F.layer_norm(x @ x, (4,)),
    "cosine_similarity": lambda x: F.cosine_similarity(x @ x, x),
    "bce": lambda x: F.binary_cross_entropy((x @ x).sigmoid(), x / 2),
    "widest": lambda x: torch.addcmul(x, x @ x, x),
}
LOWER = {
    "narrowest": lambda x: torch.atan2(x @ x, x @ x),
    "a dtype that is asked for": lambda x: (x @ x).softmax(-1, dtype=BF16),
    "a sum with a dtype": lambda x: torch.sum(x @ x, 0, dtype=BF16),
}


@pytest.mark.parametrize("name", LIKE_CPU)
def test_as_on_the_cpu(name, mode):
    with torch.autocast("cpu", BF16):
        expected = LIKE_CPU[name](square("cpu"))
    with torch.autocast("tpu", BF16):
        actual = LIKE_CPU[name](square("tpu"))
    assert actual.dtype == expected.dtype
    torch.testing.assert_close(actual.cpu(), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("name", FLOAT32)
def test_in_float32(name):
    with torch.autocast("tpu"):
        result = FLOAT32[name](square("tpu"))
    assert result.dtype == torch.float32
    torch.testing.assert_close(result.cpu(), FLOAT32[name](square("cpu")), rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("name", LOWER)
def test_in_the_lower_precision(name):
    with torch.autocast("tpu"):
        assert LOWER[name](square("tpu")).dtype == BF16


def test_nested_and_disabled():
    x = square("tpu")
    with torch.autocast("tpu"):
        assert torch.is_autocast_enabled("tpu")
        assert (x @ x).dtype == BF16
        with torch.autocast("tpu", enabled=False):
            assert (x @ x).dtype == torch.float32
            with torch.autocast("tpu", torch.float16):
                assert (x @ x).dtype == torch.float16
        assert (x @ x).dtype == BF16
    assert (x @ x).dtype == torch.float32
    with torch.autocast("cpu", BF16):
        assert (x @ x).dtype == torch.float32
    with torch.autocast("tpu"):
        assert (x.cpu() @ x.cpu()).dtype == torch.float32
    with pytest.warns(UserWarning, match="tpu Autocast only supports dtypes of torch.bfloat16"):
        torch.autocast("tpu", torch.float64)


def test_in_place_and_out_are_not_cast():
    x = square("tpu")
    with torch.autocast("tpu"):
        out = torch.empty_like(x)
        assert torch.mm(x, x, out=out) is out
        assert out.dtype == torch.float32
        assert x.clone().exp_().dtype == torch.float32


def test_a_training_step_keeps_the_dtype_of_weights_and_gradients(mode):
    def step(device):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.LayerNorm(8), nn.Linear(8, 4)).to(device)
        with torch.autocast(device, BF16):
            loss = F.mse_loss(net(square(device)), square(device))
        loss.backward()
        return loss, [p.grad for p in net.parameters()]

    loss, gradients = step("tpu")
    expected_loss, expected = step("cpu")
    assert loss.dtype == torch.float32
    assert {g.dtype for g in gradients} == {torch.float32}
    torch.testing.assert_close(loss.cpu(), expected_loss, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close([g.cpu() for g in gradients], expected, rtol=5e-2, atol=3e-2)


def test_a_weight_is_cast_once(mode):
    net = nn.Linear(4, 4).to("tpu")
    x = square("tpu")
    with torch.autocast("tpu"):
        y = net(net(x))
        casts = len(autocast._casts)
        with torch.no_grad():
            net(x)
        assert net(x).requires_grad  # the cast made under no_grad is another one
    y.sum().backward()
    assert casts == 2
    assert not autocast._casts
    assert net.weight.grad.dtype == torch.float32
    with torch.autocast("tpu", cache_enabled=False):
        net(x)
        assert not autocast._casts


def test_as_a_decorator_and_in_custom_functions():
    @torch.autocast("tpu")
    def f(x):
        return x @ x

    assert f(square("tpu")).dtype == BF16

    class Square(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="tpu", cast_inputs=torch.float32)
        def forward(ctx, x):
            assert not torch.is_autocast_enabled("tpu")
            return x @ x

    with torch.autocast("tpu"):
        assert Square.apply(square("tpu", BF16)).dtype == torch.float32
