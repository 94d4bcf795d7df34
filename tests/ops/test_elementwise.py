"""Elementwise ops, comparisons, activations, creation and copies: values of the CPU, and counts of programs."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

import torchtpu
from torchtpu import modes

F = nn.functional
pytestmark = pytest.mark.usefixtures("no_fallback")

NAN, INF = float("nan"), float("inf")


def compare(functions: dict[str, Callable], *inputs: torch.Tensor, **tolerance: float) -> None:
    """Compare each function of the inputs with the CPU. All are computed before the first is read: one fused program."""
    ours = {name: f(*(t.to("tpu") for t in inputs)) for name, f in functions.items()}
    for name, f in functions.items():
        torch.testing.assert_close(ours[name].cpu(), f(*inputs), equal_nan=True, **tolerance, msg=lambda m, n=name: f"{n}: {m}")


def samples(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


# `x` and `y` are floats that broadcast.
ARITHMETIC = {
    "add": lambda x, y: x + y,
    "add, alpha": lambda x, y: torch.add(x, y, alpha=2.5),
    "sub": lambda x, y: x - y,
    "rsub": lambda x, y: 1 - x,
    "rsub, alpha": lambda x, y: torch.rsub(x, y, alpha=3),
    "mul": lambda x, y: x * 0.3,
    "div": lambda x, y: x / y,
    "div, floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "div, trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "floor_divide": lambda x, y: x // 0.1,
    "remainder": lambda x, y: x % y,
    "remainder of a number": lambda x, y: 2 % x,
    "fmod": lambda x, y: torch.fmod(x, y),
    "neg, abs": lambda x, y: -x.abs(),
    "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.1),
    "addcdiv": lambda x, y: torch.addcdiv(x, x, y, value=0.1),
    "lerp": lambda x, y: torch.lerp(x, y.expand_as(x), 0.3),
    "lerp, tensor": lambda x, y: torch.lerp(x, y.expand_as(x), x),
    "pow 2": lambda x, y: x**2,
    "pow -1": lambda x, y: x**-1,
    "pow 0.5": lambda x, y: x.abs() ** 0.5,
    "pow 2.7": lambda x, y: x.abs() ** 2.7,
    "pow 20": lambda x, y: x**20,
    "pow, tensors": lambda x, y: x.abs() ** y,
    "pow of a number": lambda x, y: 2**x,
    "atan2": torch.atan2,
    "hypot": torch.hypot,
    "copysign": torch.copysign,
    "copysign, number": lambda x, y: torch.copysign(x, -1),
    "heaviside": lambda x, y: torch.heaviside(x.round(), y),
    "logaddexp": torch.logaddexp,
    "logaddexp2": torch.logaddexp2,
    "xlogy": lambda x, y: torch.xlogy(x.round(), y.abs()),
    "nextafter": torch.nextafter,
    "ldexp": lambda x, y: torch.ldexp(x, y.round()),
    "float_power": lambda x, y: torch.float_power(x.abs(), 2),
}

COMPARISONS = {
    **{name: getattr(torch, name) for name in ("eq", "ne", "lt", "le", "gt", "ge", "maximum", "minimum", "fmax", "fmin")},
    **{name: getattr(torch, name) for name in ("logical_and", "logical_or", "logical_xor")},
    "eq, number": lambda x, y: x == 1,
    "logical_not": lambda x, y: ~(x > y) & torch.logical_not(x),
    "isnan": lambda x, y: torch.isnan(x) | torch.isinf(y) | torch.isfinite(x),
    "isposinf": lambda x, y: torch.isposinf(x) | torch.isneginf(y),
    "clamp": lambda x, y: x.clamp(-1, 1),
    "clamp, one bound": lambda x, y: x.clamp(max=0.5).clamp_min(-0.5),
    "clamp, tensors": lambda x, y: x.clamp(y, y + 1),
    "clamp, crossed": lambda x, y: x.clamp(1, -1),
    "where": lambda x, y: torch.where(x > 0, x, y),
    "where, numbers": lambda x, y: torch.where(x > 0, 2.5, y),
    "masked_fill": lambda x, y: x.masked_fill(x > y, -INF),
    "nan_to_num": lambda x, y: torch.nan_to_num(x, 1.5, posinf=2.5),
    "sign": lambda x, y: torch.sign(x) + torch.sgn(y),
    "signbit": lambda x, y: torch.signbit(x),
    "isclose": lambda x, y: torch.isclose(x, y, equal_nan=True),
}

UNARY = {
    **{
        name: getattr(torch, name)
        for name in (
            "acos", "acosh", "angle", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "deg2rad", "digamma", "erf",
            "erfc", "erfinv", "exp", "exp2", "expm1", "floor", "frac", "i0", "lgamma", "log", "log10", "log1p", "log2",
            "logit", "round", "rsqrt", "reciprocal", "sigmoid", "sin", "sinc", "sinh", "sqrt", "square", "tan", "tanh",
            "trunc",
        )
    },
    "logit, eps": lambda x: torch.logit(x, 0.1),
    "round, decimals": lambda x: torch.round(x, decimals=1),
    "round, tens": lambda x: torch.round(x * 100, decimals=-1),
}  # fmt: skip

ACTIVATIONS = {
    **{
        name: getattr(F, name)
        for name in (
            "relu", "relu6", "elu", "selu", "celu", "gelu", "silu", "mish", "hardswish", "hardsigmoid", "hardtanh",
            "leaky_relu", "logsigmoid", "softplus", "softsign", "tanhshrink", "hardshrink", "softshrink", "sigmoid", "tanh",
            "glu",
        )
    },
    "elu, alpha": lambda x: F.elu(x, 1.7),
    "gelu, tanh": lambda x: F.gelu(x, approximate="tanh"),
    "glu, first dimension": lambda x: F.glu(x, 0),
    "hardtanh, bounds": lambda x: F.hardtanh(x, -0.3, 0.2),
    "prelu": lambda x: F.prelu(x, torch.full((x.shape[1],), 0.2, device=x.device)),
    "softplus, beta": lambda x: F.softplus(x, 2.5, 1.0),
    "threshold": lambda x: F.threshold(x, 0.1, -3.0),
    "logit": lambda x: torch.logit(x.sigmoid(), 1e-3),
    "pow": lambda x: x.pow(3) + x.abs().pow(1.5),
    "clamp": lambda x: x.clamp(-0.5, 0.5),
    "lerp": lambda x: torch.lerp(x, x * x, 0.7),
    "where": lambda x: torch.where(x > 0, x, x * x),
    "atan2": lambda x: torch.atan2(x, x * x + 1),
}  # fmt: skip

SPECIAL = {
    **{
        name: getattr(torch.special, name)
        for name in (
            "airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "entr", "erfcx", "i0e", "i1", "i1e", "log_ndtr",
            "modified_bessel_i0", "modified_bessel_k0", "modified_bessel_k1", "ndtr", "scaled_modified_bessel_k0",
            "scaled_modified_bessel_k1", "spherical_bessel_j0", "digamma",
        )
    },
    "ndtri": lambda x: torch.special.ndtri(torch.sigmoid(x)),
    "multigammaln": lambda x: torch.special.multigammaln(x.abs() + 2, 3),
    "gammainc": lambda x: torch.special.gammainc(x.abs(), x.abs() + 0.5),
    "gammaincc": lambda x: torch.special.gammaincc(x.abs(), x.abs() + 0.5),
    "xlog1py": lambda x: torch.special.xlog1py(x, x.abs()),
    "zeta": lambda x: torch.special.zeta(x.abs() + 2, x.abs() + 0.5),
    "zeta, left of 0": lambda x: torch.special.zeta(3, x - 20.25),
    **{f"polygamma {n}": lambda x, n=n: torch.polygamma(n, x) for n in (0, 1, 2, 3)},
    **{f"hermite {n}": lambda x, n=n: torch.special.hermite_polynomial_h(x, n) for n in (-1, 0, 1, 5)},
    **{f"chebyshev {n}": lambda x, n=n: torch.special.chebyshev_polynomial_u(x / 10, n) for n in (0, 1, 4, 12)},
    "laguerre": lambda x: torch.special.laguerre_polynomial_l(x, torch.arange(len(x), device=x.device) % 7),
    "legendre": lambda x: torch.special.legendre_polynomial_p(x, torch.arange(len(x), device=x.device) % 7),
}  # fmt: skip


def test_arithmetic(mode):
    compare(ARITHMETIC, samples(3, 4) * 3, samples(4, seed=1))


def test_comparisons_of_numbers_and_of_what_is_none(mode):
    edge = torch.tensor([0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 0.3])
    compare(COMPARISONS, edge.repeat(8), edge.repeat_interleave(8))


def test_functions_of_one_number(mode):
    compare(UNARY, torch.cat([torch.linspace(-3, 3, 25), torch.tensor([0.0, 0.5, 1.5, 2.5, 90.0, -90.0, INF, -INF, NAN])]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_special_functions(dtype):
    x = torch.linspace(-12, 12, 31, dtype=dtype) + 0.13
    x = torch.cat([x, torch.tensor([0.0, 0.3, -0.3], dtype=dtype)])
    tolerance = {"rtol": 2e-5, "atol": 2e-5} if dtype is torch.float32 else {"rtol": 1e-9, "atol": 1e-10}
    compare(SPECIAL, x, **tolerance)


def test_erfinv_near_one_is_more_precise_than_xla():
    y = 1 - torch.logspace(-7, -1, 50)
    torch.testing.assert_close(torch.erfinv(y.to("tpu")).cpu(), torch.erfinv(y), rtol=4e-7, atol=0)


def test_activations_and_their_gradients(mode):
    x = torch.cat([samples(20, 6) * 3, torch.tensor([[0.0, -0.5, 0.5, 3.0, -3.0, 6.0]]).repeat(2, 1)])

    def run(device: str) -> dict[str, list[torch.Tensor]]:
        results = {}
        for name, f in ACTIVATIONS.items():
            leaf = x.to(device, copy=True).requires_grad_()
            value = f(leaf)
            (gradient,) = torch.autograd.grad(value, leaf, samples(*value.shape, seed=2).to(device))
            results[name] = [value.detach(), gradient]
        return results

    ours, theirs = run("tpu"), run("cpu")
    for name, expected in theirs.items():
        actual = [t.cpu() for t in ours[name]]
        torch.testing.assert_close(actual, expected, msg=lambda m, n=name: f"{n}: {m}")


def test_second_derivatives(mode):
    def run(device: str) -> torch.Tensor:
        x = samples(12).to(device).requires_grad_()
        value = (F.silu(x) + torch.tanh(x) * torch.sigmoid(x) + F.softplus(x) + F.gelu(x)).sum()
        (first,) = torch.autograd.grad(value, x, create_graph=True)
        (second,) = torch.autograd.grad(first.square().sum(), x)
        return second.cpu()

    torch.testing.assert_close(run("tpu"), run("cpu"))


INTEGERS = {
    "div": lambda a, b: a / b,
    "div, floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "div, trunc": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "div, none": lambda a, b: torch.div(a, b, rounding_mode=None),
    "floor_divide": lambda a, b: a // b,
    "remainder": lambda a, b: a % b,
    "fmod": torch.fmod,
    "pow": lambda a, b: a ** b.abs(),
    "pow, negative": lambda a, b: torch.pow(a, b),
    "pow 70": lambda a, b: a**70,
    "gcd": torch.gcd,
    "lcm": torch.lcm,
    "shift left": lambda a, b: a << b,
    "shift right": lambda a, b: a >> b.abs(),
    "bits": lambda a, b: (a & b) | (a ^ 5) & ~b,
    "add": lambda a, b: a + 2.5,
    "mean of numbers": lambda a, b: torch.sqrt(a.abs()) + torch.sigmoid(b),
    "round": lambda a, b: torch.round(a) + torch.floor(b),
    "clamp": lambda a, b: a.clamp(-2, 2),
    "clamp, float": lambda a, b: a.clamp(-1.5, 2),
    "isin, few": lambda a, b: torch.isin(a, b[:4]),
    "isin, many": lambda a, b: torch.isin(a, torch.arange(-100, 100, 3, device=a.device), invert=True),
    "isin, number": lambda a, b: torch.isin(a, 7) | torch.isin(-7, b),
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int8])
def test_integers(dtype):
    a = torch.tensor([7, -7, 7, -7, 0, 1, -1, 100, -128, 127, 5, 6], dtype=dtype)
    b = torch.tensor([2, 2, -2, -2, 3, 5, 9, 7, 3, -3, 63, 2], dtype=dtype)
    compare(INTEGERS, a, b)


def test_booleans_and_bytes():
    a, b = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    compare(
        {
            "add": lambda a, b: a + b,
            "mul": lambda a, b: a * b,
            "bits": lambda a, b: (a & b) | (a ^ b) | ~a,
            "true division": lambda a, b: a / 2,
            "cumulative": lambda a, b: a.to(torch.uint8) - b.to(torch.uint8),  # wraps to 255
            "negative float to byte": lambda a, b: torch.where(a, -1.0, 300.0).to(torch.uint8),
            "sign": lambda a, b: torch.sign(a) | torch.signbit(b),
        },
        a,
        b,
    )


DTYPES = [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.float16, torch.float32, torch.float64]


def test_type_promotion():
    with modes.scope(
        "defer_and_fuse"
    ):  # shapes and dtypes are known at once: nothing is compiled for results that nobody reads
        for a in DTYPES:
            x = torch.ones(2, dtype=a)
            for b in DTYPES:
                y = torch.ones(2, dtype=b)
                for f in (torch.add, torch.true_divide, torch.maximum, torch.eq):
                    assert f(x.to("tpu"), y.to("tpu")).dtype == f(x, y).dtype
            for number in (True, 2, 2.5):
                assert (x.to("tpu") * number).dtype == (x * number).dtype
    for x in (torch.ones(2), torch.ones(2, dtype=torch.int64)):
        # A 0-d tensor on the CPU counts as a number.
        compare({"complex": lambda x: x * 1j, "host": lambda x: x * torch.tensor(2.5, dtype=torch.float64)}, x)


def test_bfloat16_is_computed_in_float32_and_rounded_once(mode):
    x, y = samples(64).bfloat16(), samples(64, seed=1).bfloat16()
    compare(
        {
            "addcmul": lambda x, y: torch.addcmul(x, x, y, value=0.1),
            "gelu": lambda x, y: F.gelu(x),
            "number": lambda x, y: x * 0.1,
            "equal to a rounded number": lambda x, y: torch.full_like(x, 0.1) == 0.1,
            "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
            "maximum": lambda x, y: torch.maximum(x, y).clamp(max=0.1),
        },
        x,
        y,
        rtol=0,
        atol=0,
    )


COMPLEX = {
    "arithmetic": lambda z, w: z * w + z / w - 2j * z,
    "conj": lambda z, w: z.conj() * w.conj(),
    "conj, copied": lambda z, w: z.conj().clone() + w.conj().contiguous(),
    "conj_physical": lambda z, w: torch.conj_physical(z),
    "real of conj": lambda z, w: z.conj().imag * w.real,
    "resolve": lambda z, w: z.conj().resolve_conj() + w.conj().imag.resolve_neg(),
    "abs, angle": lambda z, w: torch.complex(z.abs(), w.angle()),
    "polar": lambda z, w: torch.polar(z.abs(), w.real),
    "view_as": lambda z, w: torch.view_as_complex(torch.view_as_real(z) * 2),
    "sgn": lambda z, w: torch.sgn(z * (w.real > 0)),
    "functions": lambda z, w: torch.exp(z) + torch.tanh(w) + torch.sqrt(z) + torch.log(w) + torch.sigmoid(z) + z**2 + z**w,
    "logaddexp": lambda z, w: torch.logaddexp(z * 3, w),
    "eq": lambda z, w: (z == w) | (z != z.clone()),
}


def test_complex_numbers_and_lazy_bits(mode):
    z = torch.complex(samples(3, 4), samples(3, 4, seed=1))
    compare(COMPLEX, z, z.flip(0))


CREATION = {
    "arange": lambda d: torch.arange(2, 11, 3, device=d),
    "arange, down": lambda d: torch.arange(5, -3, -2, device=d),
    "arange, float": lambda d: torch.arange(0.5, 4, 0.3, device=d),
    "arange, bfloat16": lambda d: torch.arange(0, 4, 0.3, dtype=torch.bfloat16, device=d),
    "arange, cut": lambda d: torch.arange(0.5, 4, dtype=torch.int32, device=d),
    "arange, empty": lambda d: torch.arange(0, device=d),
    "linspace": lambda d: torch.linspace(-1, 3, 7, device=d),
    "linspace, one": lambda d: torch.linspace(-1, 3, 1, device=d),
    "linspace, whole": lambda d: torch.linspace(50, 1, 50, dtype=torch.int64, device=d),
    "linspace, tensors": lambda d: torch.linspace(torch.tensor(1.0, device=d), 3, 5),
    "logspace": lambda d: torch.logspace(-1, 2, 7, device=d),
    "logspace, whole": lambda d: torch.logspace(0, 6, 7, base=2, dtype=torch.int32, device=d),
    "eye": lambda d: torch.eye(3, 5, device=d) + torch.eye(5, device=d)[:3],
    "full": lambda d: torch.full((2, 3), 2**40, device=d),
    "full, double": lambda d: torch.full((2,), 0.1, dtype=torch.float64, device=d),
    "full, complex": lambda d: torch.full((2,), 1 + 2j, device=d),
    "ones, zeros": lambda d: torch.ones(3, device=d) - torch.zeros_like(torch.empty(3, device=d)),
    "fill with a tensor": lambda d: torch.empty(3, device=d).fill_(torch.tensor(2.5, device=d)),
    "fill a window": lambda d: torch.zeros(3, 4, device=d).fill_diagonal_(2.0)[1:].fill_(7),
    "tril, triu": lambda d: torch.ones(2, 4, 5, device=d).tril(1).triu_(-1),
    "tril_indices": lambda d: torch.tril_indices(4, 5, -1, device=d),
    "triu_indices": lambda d: torch.triu_indices(4, 5, 1, dtype=torch.int32, device=d),
    "tensor": lambda d: torch.tensor([[1, 2], [3, 4]], device=d),
    "kaiser_window": lambda d: torch.kaiser_window(9, device=d),
    "hann_window": lambda d: torch.hann_window(9, periodic=False, device=d),
}


def test_creation(mode):
    ours = {name: f("tpu") for name, f in CREATION.items()}
    for name, f in CREATION.items():
        torch.testing.assert_close(ours[name].cpu(), f("cpu"), msg=lambda m, n=name: f"{n}: {m}")


def test_copies_keep_values_and_strides(mode):
    x = samples(4, 6)
    for f in (
        lambda t: t.t().clone(),
        lambda t: t.t().contiguous(),
        lambda t: t[::2, 1:].to(torch.float64),
        lambda t: t.to(torch.int8).to(torch.bool),
        lambda t: torch.empty(6, 4, device=t.device).copy_(t.t()),
        lambda t: torch.zeros(2, 4, 6, dtype=torch.int64, device=t.device).copy_(t),
        lambda t: t.view(2, 2, 2, 3).to(memory_format=torch.channels_last),
        lambda t: torch.zeros_like(t).t().copy_(t.t()[:, :1]),
    ):
        ours, theirs = f(x.to("tpu")), f(x)
        assert ours.stride() == theirs.stride()
        torch.testing.assert_close(ours.cpu(), theirs)


def test_in_place_and_out(mode):
    x, y = samples(3, 4).to("tpu"), samples(3, 4, seed=1).to("tpu")
    expected = ((x.cpu() + y.cpu() * 2).clamp(-1, 1) * 3).tanh()
    out = torch.empty(0, device="tpu")
    torch.add(x, y, alpha=2, out=out)
    out.clamp_(-1, 1).mul_(3).tanh_()
    torch.testing.assert_close(out.cpu(), expected)
    x[:, 1:3].mul_(2).sub_(y[:, 1:3])  # through a window
    x[0] = -1
    assert x.cpu()[0].tolist() == [-1] * 4
    counts = torch.arange(4, device="tpu")
    counts <<= 2
    counts //= 3
    assert counts.tolist() == [0, 1, 2, 4]


def test_new_numbers_do_not_compile(mode):
    x = samples(8).to("tpu")

    def step(k: int) -> None:
        y = (x * (0.1 * k + 0.05)).add_(x, alpha=k + 2).clamp_(-k - 1, k + 1).masked_fill_(x > 0, float(k))
        y = torch.where(y > 0.5 * k, y, k + 0.5) + torch.full_like(y, k + 0.25)
        positions = torch.arange(k, k + 8, device="tpu")
        y.addcmul_(positions, x, value=k + 0.5).sub_(k).div_(k + 2).cpu()

    step(1)
    with torchtpu.watch() as report:
        for k in range(2, 6):
            step(k)
    assert report.compile_events == ()


def test_mistakes_are_the_errors_of_the_cpu():
    for f in (
        lambda d: torch.ones(2, 3, device=d) + torch.ones(4, device=d),
        lambda d: torch.ones(3, device=d).add_(torch.ones(2, 3, device=d)),
        lambda d: torch.arange(3, device=d) ** -1,
        lambda d: torch.arange(3, device=d).div_(2),
        lambda d: torch.tensor([True], device=d) - torch.tensor([True], device=d),
        lambda d: torch.ones(3, device=d) - True,
        lambda d: True - torch.ones(3, device=d),
        lambda d: torch.lerp(torch.arange(3, device=d), torch.arange(3, device=d), 0.5),
        lambda d: torch.arange(3, device=d) // 0,
        lambda d: torch.arange(3, device=d).remainder_(0),
        lambda d: torch.div(torch.arange(3, device=d), 0, rounding_mode="trunc"),
        lambda d: torch.full((2,), 1e39, device=d),
        lambda d: torch.zeros(2, dtype=torch.int8, device=d).fill_(300),
        lambda d: torch.zeros(2, dtype=torch.float16, device=d).masked_fill(torch.tensor([True, False], device=d), -1e9),
        lambda d: torch.arange(0, 1, 0, device=d),
        lambda d: torch.arange(0, 4, -1, device=d),
        lambda d: torch.complex(torch.ones(1, device=d), torch.ones(1, dtype=torch.float64, device=d)),
        lambda d: torch.where(torch.ones(2, device=d), 1.0, 2.0),
        lambda d: torch.ones(3, device=d).masked_fill(torch.ones(3, device=d), 1.0),
        lambda d: F.glu(torch.ones(3, device=d)),
        lambda d: F.gelu(torch.ones(3, device=d), approximate="exact"),
        lambda d: torch.ones(3, device=d).fill_(torch.ones(2, device=d)),
    ):
        with pytest.raises(Exception) as theirs:
            f("cpu")
        with pytest.raises(theirs.type):
            f("tpu")
    with pytest.raises(RuntimeError, match=r"tensor a \(3\) must match .* tensor b \(4\) at non-singleton dimension 1"):
        torch.ones(2, 3, device="tpu") + torch.ones(4, device="tpu")


def test_a_number_beyond_float32_is_infinite():
    assert (torch.ones(1, device="tpu") * 1e39).item() == math.inf
    assert torch.full((1,), -math.inf, device="tpu").item() == -math.inf


def test_debug_mode_stops_at_an_integer_divided_by_zero():
    x, y = torch.tensor([7, -7], device="tpu"), torch.tensor([2, 0], device="tpu")
    with modes.scope("debug"):
        for f in (torch.floor_divide, torch.remainder, torch.fmod):
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                f(x, y)
        assert (x.float() // y).tolist() == [3.0, -math.inf]
        assert (x // y.clamp(min=1)).tolist() == [3, -7]
