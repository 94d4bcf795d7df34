"""Matrix products, convolutions, normalisations, pooling, softmax, losses, attention, interpolation, linear algebra.

`compare` runs a function on the CPU and on `tpu` and asserts equal results and equal gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import torchtpu
from torchtpu import modes

pytestmark = pytest.mark.usefixtures("no_fallback")

# For what models are made of. The rest runs in strict mode only: a mode does not change what a rule computes.
every_mode = pytest.mark.usefixtures("mode")


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def compare(f: Callable[..., Any], *tensors: torch.Tensor, **tolerances: float) -> None:
    """Assert that f gives the same results and gradients on both devices."""
    gradients = []
    for device in ("cpu", "tpu"):
        leaves = [t.detach().to(device).requires_grad_(t.is_floating_point() or t.is_complex()) for t in tensors]
        results = f(*leaves)
        results = results if isinstance(results, tuple) else (results,)
        ends = [r for r in results if r.requires_grad]
        generator = torch.Generator().manual_seed(1)
        seeds = [torch.randn(r.shape, dtype=r.dtype, generator=generator).to(device) for r in ends]
        if ends:
            torch.autograd.backward(ends, seeds)
        gradients.append([r.detach().cpu() for r in results] + [t.grad.cpu() for t in leaves if t.grad is not None])
    for actual, expected in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(actual, expected, equal_nan=True, **tolerances)


# -- matrix products


@every_mode
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64, torch.int8])
def test_products(dtype: torch.dtype) -> None:
    def make(*shape: int) -> torch.Tensor:
        return torch.randn(shape).mul(3).to(dtype)

    def products(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        plain = torch.mv(a[0], b[0, :, 0]), torch.dot(c, c), torch.outer(c, c), a[0] @ b[0], torch.bmm(a, b)
        return *plain, torch.addmm(c, a[0], b[0], beta=2, alpha=3), torch.baddbmm(c, a, b), torch.addbmm(c, a, b, alpha=2)

    tolerance = {"rtol": 2e-2, "atol": 0.3} if dtype == torch.bfloat16 else {}
    compare(products, make(2, 3, 4), make(2, 4, 5), make(5), **tolerance)


@every_mode
def test_beta_zero_ignores_nan() -> None:
    nan = torch.full((2, 2), math.nan)
    compare(lambda c, a: torch.addmm(c, a, a, beta=0), nan, torch.randn(2, 2))


@every_mode
def test_products_over_nothing_are_zero() -> None:
    compare(lambda a, b: a @ b, torch.randn(3, 0), torch.randn(0, 2))


@every_mode
def test_bool_matrices_are_refused() -> None:
    ones = torch.ones(2, 2, dtype=torch.bool, device="tpu")
    with pytest.raises(RuntimeError, match="not implemented for 'Bool'"):
        (ones @ ones).cpu()


def test_beta_and_alpha_do_not_recompile(mode: str) -> None:
    a = torch.randn(7, 7).to("tpu")
    for k in range(2):
        torch.addmm(a, a, a, beta=2.5, alpha=3.5).cpu()
        if k == 0:
            with torchtpu.watch() as report:
                torch.addmm(a, a, a, beta=0.25, alpha=0.125).cpu()
    assert not report.compile_events


# -- convolutions

CONVOLUTIONS = [
    (1, dict(stride=2, padding=1)),
    (2, dict(padding=(1, 2), dilation=(2, 1))),
    (2, dict(stride=3)),
    (2, dict(groups=2, stride=2)),
    (3, dict(stride=(1, 2, 1), padding=1)),
]


@every_mode
@pytest.mark.parametrize(("axes", "options"), CONVOLUTIONS)
def test_convolution(axes: int, options: dict[str, Any]) -> None:
    conv = getattr(F, f"conv{axes}d")
    groups = options.get("groups", 1)
    x, w, b = torch.randn(2, 4, *(8, 7, 6)[:axes]), torch.randn(6, 4 // groups, *(3, 2, 3)[:axes]), torch.randn(6)
    compare(lambda x, w, b: conv(x, w, b, **options), x, w, b, rtol=1e-4, atol=1e-4)


TRANSPOSED = [
    (1, dict(stride=2, padding=1, output_padding=1)),
    (2, dict(stride=(2, 3), padding=1, groups=2)),
    (2, dict(dilation=3, output_padding=2)),
    (3, dict(stride=2)),
]


@every_mode
@pytest.mark.parametrize(("axes", "options"), TRANSPOSED)
def test_transposed_convolution(axes: int, options: dict[str, Any]) -> None:
    conv = getattr(F, f"conv_transpose{axes}d")
    x, w = torch.randn(2, 4, *(5, 4, 3)[:axes]), torch.randn(4, 3, *(3, 2, 3)[:axes])
    compare(lambda x, w: conv(x, w, **options), x, w, rtol=1e-4, atol=1e-4)


@every_mode
def test_convolution_of_an_empty_batch() -> None:
    compare(lambda x, w, b: F.conv2d(x, w, b), torch.randn(0, 3, 8, 8), torch.randn(4, 3, 3, 3), torch.randn(4))


@every_mode
def test_convolution_keeps_channels_last() -> None:
    x = torch.randn(2, 3, 8, 8).contiguous(memory_format=torch.channels_last)
    w = torch.randn(4, 3, 3, 3)
    y = F.conv2d(x.to("tpu"), w.to("tpu"))
    assert y.stride() == F.conv2d(x, w).stride()
    torch.testing.assert_close(y.cpu(), F.conv2d(x, w), rtol=1e-4, atol=1e-4)


def test_mistakes_are_named() -> None:
    x = torch.randn(1, 3, 4, 4).to("tpu")
    with pytest.raises(RuntimeError, match="negative padding"):
        F.conv2d(x, torch.randn(2, 3, 1, 1).to("tpu"), padding=-1)
    with pytest.raises(RuntimeError, match="normalized_shape"):
        F.rms_norm(x, (3,))


@every_mode
def test_frozen_weights_get_no_gradient() -> None:
    x, w = torch.randn(1, 2, 5, 5).to("tpu").requires_grad_(), torch.randn(3, 2, 3, 3).to("tpu")
    F.conv2d(x, w).sum().backward()
    assert x.grad is not None
    assert w.grad is None


# -- normalisations


@every_mode
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm(training: bool, affine: bool) -> None:
    x, w, b = torch.randn(4, 3, 5), torch.randn(3), torch.randn(3)
    statistics = {d: (torch.randn(3).to(d), torch.rand(3).add(0.5).to(d)) for d in ("cpu",)}
    statistics["tpu"] = tuple(s.clone().to("tpu") for s in statistics["cpu"])

    def norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        mean, var = statistics[x.device.type]
        return F.batch_norm(x, mean, var, w if affine else None, b if affine else None, training, 0.3)

    compare(norm, x, w, b, rtol=1e-4, atol=1e-5)
    for s, t in zip(statistics["cpu"], statistics["tpu"], strict=True):
        torch.testing.assert_close(t.cpu(), s)


@every_mode
def test_batch_norm_without_statistics() -> None:
    compare(lambda x: F.batch_norm(x, None, None, training=True), torch.randn(4, 3, 5), rtol=1e-4, atol=1e-5)
    compare(lambda x: F.instance_norm(x), torch.randn(4, 3, 5), rtol=1e-4, atol=1e-5)


@every_mode
def test_batch_norm_in_mixed_precision() -> None:
    module = torch.nn.BatchNorm2d(3)
    other = torch.nn.BatchNorm2d(3).to("tpu")
    x = torch.randn(2, 3, 4, 4).bfloat16()
    torch.testing.assert_close(other(x.to("tpu")).cpu(), module(x))
    torch.testing.assert_close(other.running_var.cpu(), module.running_var)
    assert other.num_batches_tracked.item() == 1


@every_mode
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layer_group_and_rms_norm(dtype: torch.dtype) -> None:
    x, w, b = torch.randn(2, 6, 4).to(dtype), torch.randn(6).to(dtype), torch.randn(6).to(dtype)
    loose = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 3e-2, "atol": 3e-2}
    compare(lambda x, w, b: F.layer_norm(x.mT, (6,), w, b), x, w, b, **loose)
    compare(lambda x: F.layer_norm(x, (6, 4)), x, **loose)
    compare(lambda x, w, b: F.group_norm(x, 3, w, b), x, w, b, **loose)
    compare(lambda x, w: F.rms_norm(x.mT, (6,), w), x, w, **loose)


# -- pooling

WINDOWS = [
    dict(kernel_size=2),
    dict(kernel_size=3, stride=2, padding=1),
    dict(kernel_size=(3, 2), stride=(2, 3), ceil_mode=True),
]


@every_mode
@pytest.mark.parametrize("options", [*WINDOWS, dict(kernel_size=2, dilation=3, stride=1)])
def test_max_pool(options: dict[str, Any]) -> None:
    x = torch.randn(2, 3, 8, 9)
    compare(lambda x: F.max_pool2d(x, return_indices=True, **options), x)
    # Ties: the first; NaN: the last; nothing above -inf: the first that is not padding.
    compare(lambda x: F.max_pool2d(x, return_indices=True, **options), x.round())
    compare(lambda x: F.max_pool2d(x, return_indices=True, **options), torch.where(x > 1, math.nan, x))
    compare(lambda x: F.max_pool2d(x, return_indices=True, **options), torch.full_like(x, -math.inf))


def test_max_pool_in_other_dimensions_and_back() -> None:
    compare(lambda x: F.max_pool1d(x, 3, 2), torch.randn(2, 3, 9))
    compare(lambda x: F.max_pool3d(x, 2, padding=1, return_indices=True), torch.randn(2, 4, 5, 6))
    compare(lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), torch.randn(2, 4, 6))
    samples = torch.full((2, 3, 2), 0.3)

    def fractional(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return F.fractional_max_pool2d(x, 2, (3, 4), _random_samples=samples.to(x.device), return_indices=True)

    compare(fractional, torch.randn(2, 3, 7, 9))


@every_mode
@pytest.mark.parametrize(
    "options", [*WINDOWS, dict(kernel_size=3, padding=1, count_include_pad=False), dict(kernel_size=2, divisor_override=3)]
)
def test_avg_pool(options: dict[str, Any]) -> None:
    compare(lambda x: F.avg_pool2d(x, **options), torch.randn(2, 3, 8, 9))


def test_avg_pool_in_other_dimensions() -> None:
    compare(lambda x: F.avg_pool1d(x, 3, 2, ceil_mode=True), torch.randn(2, 3, 10))
    compare(lambda x: F.avg_pool3d(x, 2, 2, 1), torch.randn(2, 4, 5, 6))


@pytest.mark.parametrize("size", [(1, 1), (2, 4), (3, 5), (9, 7)])
def test_adaptive_pool(size: tuple[int, int]) -> None:
    compare(lambda x: F.adaptive_avg_pool2d(x, size), torch.randn(2, 3, 6, 8))
    compare(lambda x: F.adaptive_max_pool2d(x, size, return_indices=True), torch.randn(2, 3, 6, 8))


def test_adaptive_pool_keeps_infinities_apart() -> None:
    x = torch.randn(1, 1, 5, 5)
    x[0, 0, 0, 0] = math.inf
    compare(lambda x: F.adaptive_avg_pool2d(x, 3), x)


# -- softmax and losses


@every_mode
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_softmax(dtype: torch.dtype) -> None:
    x = torch.randn(3, 4, 5).to(dtype)
    loose = {} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    compare(lambda x: (F.softmax(x, 1), F.log_softmax(x, -1), F.softmax(x[0, 0, 0], 0)), x, **loose)
    compare(lambda x: F.softmax(x, 1, dtype=torch.float32), x, **loose)
    compare(lambda x: F.softmax(x, 0), torch.full((2,), -math.inf, dtype=dtype))


@every_mode
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_cross_entropy(reduction: str) -> None:
    target, weight = torch.tensor([1, 4, 2, 0]), torch.rand(5)

    def loss(x: torch.Tensor, **options: Any) -> torch.Tensor:
        moved = {k: v.to(x.device) if isinstance(v, torch.Tensor) else v for k, v in options.items()}
        return F.cross_entropy(x, target.to(x.device), reduction=reduction, **moved)

    x = torch.randn(4, 5)
    compare(lambda x: loss(x), x)
    compare(lambda x: loss(x, weight=weight, ignore_index=4), x)
    compare(lambda x: loss(x, label_smoothing=0.1), x)
    compare(lambda x: F.cross_entropy(x, target.to(x.device).expand(2, 3, 4), reduction=reduction), torch.randn(2, 5, 3, 4))
    compare(lambda x: F.nll_loss(x, target[0].to(x.device), reduction=reduction), torch.randn(5))


def test_cross_entropy_of_nothing_but_ignored_targets_is_nan() -> None:
    compare(lambda x: F.cross_entropy(x, torch.full((3,), -100, device=x.device)), torch.randn(3, 5))


@pytest.mark.parametrize("reduction", ["none", "mean"])
def test_losses(reduction: str) -> None:
    x, y, p = torch.randn(4, 5), torch.randn(4, 5), torch.rand(4, 5)
    for f in (F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss, F.soft_margin_loss):
        compare(lambda x, f=f: f(x, p.to(x.device), reduction=reduction), x)
    compare(lambda x: F.kl_div(x, p.to(x.device), reduction=reduction if reduction == "none" else "batchmean"), x)
    compare(lambda x, y: F.mse_loss(x, y, reduction=reduction), x, y)
    compare(lambda x: F.smooth_l1_loss(x, y.to(x.device), reduction=reduction, beta=0.0), x)
    compare(lambda x: F.huber_loss(x, y.to(x.device), reduction=reduction, delta=0.3), x)
    compare(lambda p: F.binary_cross_entropy(p, p.detach().flip(0), p.detach(), reduction=reduction), p)
    logits = F.binary_cross_entropy_with_logits
    compare(lambda x: logits(x, p.to(x.device), pos_weight=p[0].to(x.device), reduction=reduction), x)
    labels = torch.tensor([3, 0, 1, 4])
    compare(lambda x: F.multi_margin_loss(x, labels.to(x.device), p=2, margin=0.7, reduction=reduction), x)
    several = torch.tensor([[3, 0, -1, 1, 2]] * 4)
    compare(lambda x: F.multilabel_margin_loss(x, several.to(x.device), reduction=reduction), x)


@pytest.mark.parametrize(("flat", "zero_infinity"), [(True, False), (False, True)])
def test_ctc_loss(flat: bool, zero_infinity: bool) -> None:
    targets = torch.tensor([[1, 2, 2, 3], [4, 5, 1, 0], [2, 0, 0, 0]])
    labels = (4, 3, 1)
    targets = torch.cat([t[:n] for t, n in zip(targets, labels, strict=True)]) if flat else targets

    def loss(x: torch.Tensor) -> torch.Tensor:
        there = targets.to(x.device)
        # The first sequence is too short for its labels: it needs a blank between the two 2s.
        return F.ctc_loss(x.log_softmax(-1), there, (4, 9, 7), labels, reduction="none", zero_infinity=zero_infinity)

    compare(loss, torch.randn(9, 3, 6), rtol=1e-4, atol=1e-5)


def test_ctc_loss_of_concatenated_targets_with_lengths_as_tensors() -> None:
    """What torch calls under a dispatch mode, as the counter of FLOPs is one."""
    x, targets = torch.randn(9, 3, 7).log_softmax(-1), torch.randint(1, 7, (6,))
    lengths = torch.tensor([4, 9, 7]), torch.tensor([2, 3, 1])
    expected = torch.ops.aten._ctc_loss.Tensor(x, targets, *lengths)[0]
    actual = torch.ops.aten._ctc_loss.Tensor(x.to("tpu"), targets.to("tpu"), *(n.to("tpu") for n in lengths))[0]
    torch.testing.assert_close(actual.cpu(), expected)


def test_ctc_loss_of_long_sequences_keeps_its_precision() -> None:
    """Its gradient is no further from the one in float64 than the CPU's; sums over it neither."""
    x, targets = torch.randn(200, 2, 30), torch.randint(1, 30, (2, 40))

    def gradient(device: str, dtype: torch.dtype) -> torch.Tensor:
        logits = x.to(device, dtype).requires_grad_()
        loss = F.ctc_loss(logits.log_softmax(-1), targets.to(device), (200, 190), (40, 30), reduction="sum")
        return torch.autograd.grad(loss, logits)[0].cpu().double()

    exact, cpu, ours = gradient("cpu", torch.float64), gradient("cpu", torch.float32), gradient("tpu", torch.float32)
    assert (ours - exact).abs().max() < (cpu - exact).abs().max()
    assert (ours - exact).sum(0).abs().max() < (cpu - exact).sum(0).abs().max()


def test_ctc_loss_of_other_lengths_is_the_same_program() -> None:
    x, targets = torch.randn(8, 2, 5).to("tpu").log_softmax(-1), torch.tensor([[1, 2], [3, 4]]).to("tpu")
    F.ctc_loss(x, targets, (8, 7), (2, 1)).cpu()
    with torchtpu.watch() as report:
        F.ctc_loss(x, targets, (6, 8), (1, 2)).cpu()
    assert not report.compile_events


@pytest.mark.parametrize("p", [0.0, 0.5, 2.0, math.inf])
def test_distances(p: float) -> None:
    x = torch.randn(4, 3)
    x[1] = x[0]
    compare(lambda x, y: torch.cdist(x, y, p), x, torch.randn(2, 5, 3), rtol=1e-4, atol=1e-5)
    compare(lambda x: F.pdist(x, p), torch.randn(4, 3), rtol=1e-4, atol=1e-5)


# -- attention


@every_mode
@pytest.mark.parametrize("heads", [4, 2])
@pytest.mark.parametrize("mask", ["none", "causal", "bool", "float"])
def test_attention(mask: str, heads: int) -> None:
    q, k, v = (torch.randn(2, n, s, d) for n, s, d in ((4, 5, 8), (heads, 7, 8), (heads, 7, 6)))
    keep = torch.rand(2, 1, 5, 7) > 0.4
    keep[0, 0, 2] = False  # a query that sees nothing

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        chosen = keep.to(q.device) if mask == "bool" else bias
        return F.scaled_dot_product_attention(q, k, v, chosen, is_causal=mask == "causal", enable_gqa=heads != 4)

    compare(attend, q, k, v, *([torch.randn(5, 7)] if mask == "float" else []))


def test_attention_is_one_op_unless_told_otherwise() -> None:
    q = torch.randn(1, 2, 4, 8).to("tpu").requires_grad_()
    assert "Overrideable" in F.scaled_dot_product_attention(q, q, q).grad_fn.name()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert "Overrideable" not in F.scaled_dot_product_attention(q, q, q).grad_fn.name()


@every_mode
def test_attention_with_dropout_keeps_its_expectation() -> None:
    q, v = torch.zeros(1, 1, 64, 4).to("tpu"), torch.ones(1, 1, 512, 4).to("tpu")
    y = F.scaled_dot_product_attention(q, v * 0, v, dropout_p=0.5).cpu()
    assert y.std() > 0
    assert abs(y.mean() - 1) < 0.05


@pytest.mark.parametrize("norm_first", [True, False])
def test_transformer_encoder_in_inference(norm_first: bool) -> None:
    options = {"batch_first": True, "norm_first": norm_first, "activation": "gelu"}
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, **options).eval()
    x, future = torch.randn(2, 5, 16), torch.ones(5, 5, dtype=torch.bool).triu(1)
    padding = torch.tensor([[False] * 3 + [True] * 2, [False] * 5])
    with torch.no_grad():
        expected = [layer(x), layer(x, src_mask=future), layer(x, src_key_padding_mask=padding)]
        layer.to("tpu")
        y, future, padding = x.to("tpu"), future.to("tpu"), padding.to("tpu")
        actual = [layer(y), layer(y, src_mask=future), layer(y, src_key_padding_mask=padding)]
        encoder = torch.nn.TransformerEncoder(layer, 1, enable_nested_tensor=not norm_first)
        torch.testing.assert_close(encoder(y, src_key_padding_mask=padding), actual[2])
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.cpu(), e)


def test_attention_weights_in_inference() -> None:
    attention = torch.nn.MultiheadAttention(8, 2, batch_first=True).eval()
    x = torch.randn(2, 5, 8)
    with torch.no_grad():
        expected = attention(x, x, x, average_attn_weights=False)
        y = x.to("tpu")
        actual = attention.to("tpu")(y, y, y, average_attn_weights=False)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a.cpu(), e)


# -- interpolation and grids

INTERPOLATIONS = [
    (1, "nearest", {}),
    (1, "linear", {}),
    (2, "nearest", {}),
    (2, "nearest-exact", {}),
    (2, "bilinear", dict(align_corners=True)),
    (2, "bilinear", dict(antialias=True)),
    (2, "bicubic", {}),
    (2, "bicubic", dict(antialias=True)),
    (3, "trilinear", {}),
]


@pytest.mark.parametrize(("axes", "name", "options"), INTERPOLATIONS)
@pytest.mark.parametrize("size", [dict(scale_factor=2.0), dict(scale_factor=0.6)])
def test_interpolation(axes: int, name: str, options: dict[str, Any], size: dict[str, Any]) -> None:
    x = torch.randn(2, 2, *(5, 6, 4)[:axes])
    compare(lambda x: F.interpolate(x, mode=name, **size, **options), x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["bilinear", "bicubic"])
@pytest.mark.parametrize("options", [dict(antialias=True), dict(align_corners=True)])
def test_interpolation_of_bytes_is_in_fixed_point(name: str, options: dict[str, Any]) -> None:
    x = torch.randint(0, 256, (1, 3, 16, 17), dtype=torch.uint8)
    y = F.interpolate(x.to("tpu"), (29, 5), mode=name, **options).cpu()
    assert torch.equal(y, F.interpolate(x, (29, 5), mode=name, **options))


@pytest.mark.parametrize(
    ("name", "padding"), [("bilinear", "zeros"), ("bilinear", "reflection"), ("nearest", "border"), ("bicubic", "reflection")]
)
def test_grid_sample(name: str, padding: str) -> None:
    grid = torch.rand(2, 4, 3, 2) * 3 - 1.5
    image = torch.randn(2, 3, 5, 6)
    compare(lambda x, g: F.grid_sample(x, g, name, padding, align_corners=False), image, grid, rtol=1e-4, atol=1e-4)
    if name != "bicubic":
        volume, points = torch.randn(2, 3, 4, 5, 6), torch.rand(2, 2, 3, 2, 3) * 3 - 1.5
        compare(lambda x, g: F.grid_sample(x, g, name, padding, align_corners=True), volume, points, rtol=1e-4, atol=1e-4)


# -- linear algebra


def positive(a: torch.Tensor) -> torch.Tensor:
    """Return a positive-definite matrix made from a."""
    return a @ a.mH + torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)


def test_factorisations() -> None:
    a, b = torch.randn(2, 4, 4, dtype=torch.complex128), torch.randn(2, 4, 3, dtype=torch.complex128)
    compare(lambda a: torch.linalg.cholesky(positive(a)), a)
    compare(lambda a: torch.linalg.cholesky(positive(a), upper=True), a)
    compare(lambda a: torch.linalg.svdvals(a), a)
    compare(lambda a: torch.linalg.eigvalsh(positive(a)), a)
    compare(lambda a: torch.linalg.qr(a)[1].abs(), a)
    compare(lambda a: torch.linalg.lu(a), a)
    compare(lambda a, b: torch.cholesky_solve(b, torch.linalg.cholesky(positive(a))), a, b)
    compare(lambda a: torch.linalg.matrix_exp(a), a)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_solvers(dtype: torch.dtype) -> None:
    a, b = torch.randn(2, 4, 4, dtype=dtype), torch.randn(2, 4, 3, dtype=dtype)
    solve = torch.linalg.solve
    compare(lambda a, b: (solve(a, b), solve(a, b.mT, left=False), solve(a, b[..., 0])), a, b)
    compare(lambda a: (torch.linalg.inv(a), torch.linalg.det(a), torch.linalg.slogdet(a)[1]), a)
    compare(lambda a: torch.linalg.det(a.mT), a)
    compare(lambda a, b: torch.linalg.solve_triangular(a.tril(), b, upper=False), a, b)
    compare(lambda a, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(a.detach()), b.mT, left=False, adjoint=True), a, b)


@every_mode
def test_matrices_without_a_factor_raise() -> None:
    with pytest.raises(torch.linalg.LinAlgError, match="leading minor of order 2"):
        torch.linalg.cholesky(torch.tensor([[1.0, 2.0], [2.0, 1.0]]).to("tpu"))
    with pytest.raises(torch.linalg.LinAlgError, match="singular"):
        torch.linalg.inv(torch.ones(2, 2).to("tpu"))
    with pytest.raises(torch.linalg.LinAlgError, match=r"inv_ex.*singular"):
        torch.linalg.inv_ex(torch.ones(2, 2).to("tpu"), check_errors=True)
    with pytest.raises(torch.linalg.LinAlgError, match="positive-definite"):
        torch.linalg.cholesky_ex(-torch.eye(2).to("tpu"), check_errors=True)


# -- precision


def test_matmul_precision_is_part_of_the_program() -> None:
    a = torch.randn(9, 9).to("tpu")
    before = torch.get_float32_matmul_precision()
    results = []
    try:
        for name in ("highest", "medium"):
            torch.set_float32_matmul_precision(name)
            with torchtpu.watch() as report:
                results.append((a @ a).cpu())
            assert len(report.compile_events) == 1
    finally:
        torch.set_float32_matmul_precision(before)
    torch.testing.assert_close(*results, rtol=2e-2, atol=2e-2)


@every_mode
def test_shape_errors_come_at_the_call() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        torch.randn(2, 3).to("tpu") @ torch.randn(2, 3).to("tpu")
    assert modes.pending() == 0 or modes.current() is modes.EagerMode.DEFER_AND_FUSE
