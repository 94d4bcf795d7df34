"""Random numbers: distributions, determinism, generators, dropout."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils.checkpoint import checkpoint

import torchtpu
from torchtpu import modes

pytestmark = pytest.mark.usefixtures("no_fallback")

N = 20_000
FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def empty(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(N, device="tpu", dtype=dtype)


def full(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.full((N,), value, device="tpu", dtype=dtype)


def values(x: torch.Tensor) -> np.ndarray:
    return x.cpu().double().numpy()


def fits(x: torch.Tensor, distribution: stats.rv_continuous) -> bool:
    """A Kolmogorov-Smirnov test: a good sample fails it once in a thousand seeds."""
    return stats.kstest(values(x), distribution.cdf).pvalue > 1e-3


def has_moments(x: torch.Tensor, mean: float, variance: float) -> bool:
    """Mean and variance within five standard errors (of the normal distribution's)."""
    v = values(x)
    return abs(v.mean() - mean) < 5 * (variance / v.size) ** 0.5 and abs(v.var() - variance) < 0.1 * variance


# Distributions

CONTINUOUS = {
    "uniform_": (lambda: empty().uniform_(-1, 3), stats.uniform(-1, 4)),
    "normal_": (lambda: empty().normal_(1, 2), stats.norm(1, 2)),
    "exponential_": (lambda: empty().exponential_(2), stats.expon(scale=0.5)),
    "cauchy_": (lambda: empty().cauchy_(1, 2), stats.cauchy(1, 2)),
    "log_normal_": (lambda: empty().log_normal_(0.5, 0.25), stats.lognorm(0.25, scale=np.exp(0.5))),
    "normal_ in float64": (lambda: empty(torch.float64).normal_(), stats.norm()),
    "rand": (lambda: torch.rand(N, device="tpu"), stats.uniform()),
    "randn": (lambda: torch.randn(N, device="tpu"), stats.norm()),
    "rand_like": (lambda: torch.rand_like(empty()), stats.uniform()),
    "normal of numbers": (lambda: torch.normal(1.0, 2.0, (N,), device="tpu"), stats.norm(1, 2)),
    "normal of means": (lambda: torch.normal(full(1.0), 2.0), stats.norm(1, 2)),
    "normal of deviations": (lambda: torch.normal(1.0, full(2.0)), stats.norm(1, 2)),
    "normal of both": (lambda: torch.normal(full(1.0), full(2.0)), stats.norm(1, 2)),
    "gamma, shape below 1": (lambda: torch._standard_gamma(full(0.3)), stats.gamma(0.3)),
    "gamma": (lambda: torch._standard_gamma(full(2.5)), stats.gamma(2.5)),
}


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous(name):
    draw, distribution = CONTINUOUS[name]
    assert fits(draw(), distribution)


DISCRETE = {
    "bernoulli_": (lambda: empty().bernoulli_(0.3), 0.3, 0.21),
    "bernoulli_ of tensors": (lambda: empty().bernoulli_(full(0.3)), 0.3, 0.21),
    "bernoulli": (lambda: torch.bernoulli(full(0.3)), 0.3, 0.21),
    "bernoulli of a number": (lambda: torch.bernoulli(empty(), 0.3), 0.3, 0.21),
    "bernoulli_ in int32": (lambda: empty(torch.int32).bernoulli_(0.3), 0.3, 0.21),
    "geometric_": (lambda: empty().geometric_(0.3), 1 / 0.3, 0.7 / 0.09),
    "poisson, small": (lambda: torch.poisson(full(3.5)), 3.5, 3.5),
    "poisson, large": (lambda: torch.poisson(full(350.0)), 350, 350),
    "binomial": (lambda: torch.binomial(full(10.0), full(0.3)), 3.0, 2.1),
    "randint": (lambda: torch.randint(-5, 5, (N,), device="tpu"), -0.5, 8.25),
    "random_ below": (lambda: empty().random_(100), 49.5, 833.25),
    "random_ of bool": (lambda: empty(torch.bool).random_(), 0.5, 0.25),
    "random_ of uint8": (lambda: empty(torch.uint8).random_(), 127.5, (256**2 - 1) / 12),
    "dirichlet": (lambda: torch._sample_dirichlet(full(1.0).reshape(-1, 2)), 0.5, 1 / 12),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_moments(name):
    draw, mean, variance = DISCRETE[name]
    assert has_moments(draw(), mean, variance)


@pytest.mark.parametrize("dtype", FLOATS)
def test_uniform_never_reaches_one(dtype):
    x = empty(dtype).uniform_()
    assert (x >= 0).all()
    assert (x < 1).all()
    assert has_moments(x, 0.5 - torch.finfo(dtype).eps / 4, 1 / 12)


@pytest.mark.parametrize("dtype", FLOATS)
def test_dtypes(dtype):
    assert has_moments(empty(dtype).normal_(1, 2), 1, 4)
    assert has_moments(empty(dtype).bernoulli_(0.5), 0.5, 0.25)
    assert (empty(dtype).exponential_() > 0).all()


def test_complex():
    """The parts share the variance of 1."""
    x = torch.randn(N, device="tpu", dtype=torch.complex64)
    assert has_moments(x.real, 0, 0.5)
    assert has_moments(x.imag, 0, 0.5)


def test_integers():
    x = torch.empty(N, device="tpu", dtype=torch.int64)
    assert sorted(set(x.random_(3, 7).tolist())) == [3, 4, 5, 6]
    whole = x.random_(-(2**63), None).cpu()
    assert (whole < 0).double().mean() == pytest.approx(0.5, abs=0.02)
    assert (x.random_().cpu() >= 0).all()
    assert empty(torch.int8).random_(-128, 128).cpu().unique().numel() == 256


def test_bounds_are_inputs():
    x = torch.empty(8, device="tpu", dtype=torch.int64)
    x.random_(0, 10)
    x.float().uniform_(0, 2)  # (0, 1), the default, has a program of its own
    with torchtpu.watch() as report:
        for high in range(1, 20):
            x.random_(0, high)
            x.float().uniform_(0, 0.3 * high)
    assert report.compile_events == ()


def test_permutation():
    p = torch.randperm(1000, device="tpu")
    assert sorted(p.tolist()) == list(range(1000))
    assert p.tolist() != list(range(1000))
    assert torch.randperm(5, device="tpu", dtype=torch.int32).dtype == torch.int32
    assert torch.randperm(0, device="tpu").shape == (0,)
    first = torch.stack([torch.randperm(4, device="tpu") for _ in range(400)])
    assert has_moments(first[:, 0], 1.5, 1.25)


P = (0.1, 0.2, 0.3, 0.4, 0.0)


@pytest.mark.parametrize("rows", [(), (3,)])
def test_multinomial_with_replacement(rows):
    drawn = torch.multinomial(torch.tensor(P, device="tpu").expand(*rows, 5), N, replacement=True)
    assert drawn.shape == (*rows, N)
    for row in drawn.reshape(-1, N).cpu():
        torch.testing.assert_close(torch.bincount(row, minlength=5) / N, torch.tensor(P), atol=0.02, rtol=0)


def test_multinomial_without_replacement():
    p = torch.tensor(P, device="tpu")
    drawn = torch.multinomial(p.expand(N, 5), 2).cpu()
    assert (drawn[:, 0] != drawn[:, 1]).all()
    torch.testing.assert_close(torch.bincount(drawn[:, 0], minlength=5) / N, torch.tensor(P), atol=0.02, rtol=0)
    # The second is drawn from what the first leaves.
    expected = [sum(P[i] * P[j] / (1 - P[i]) for i in range(5) if i != j) for j in range(5)]
    torch.testing.assert_close(torch.bincount(drawn[:, 1], minlength=5) / N, torch.tensor(expected), atol=0.02, rtol=0)
    assert sorted(torch.multinomial(torch.ones(6, device="tpu"), 6).tolist()) == list(range(6))


def test_multinomial_reads_nothing():
    p = torch.rand(4, 50, device="tpu")
    with torchtpu.watch() as report:
        torch.multinomial(p, 1)
    assert len(report.syncs) == 0
    with pytest.raises(RuntimeError, match="without replacement"):
        torch.multinomial(p, 51)


def test_distributions_of_torch_work_by_composition():
    a = torch.tensor([0.5, 2.0, 9.0], device="tpu", requires_grad=True)
    for make in (
        lambda: torch.distributions.Beta(a, a),
        lambda: torch.distributions.Gumbel(a, a),
        lambda: torch.distributions.StudentT(a),
    ):
        assert torch.isfinite(make().sample((7,))).all()
    sample = torch._standard_gamma(a)
    sample.sum().backward()
    expected = torch._standard_gamma_grad(a.detach().cpu(), sample.detach().cpu())
    torch.testing.assert_close(a.grad.cpu(), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    "call",
    [
        lambda d: torch.empty(3, device=d).normal_(0, -1),
        lambda d: torch.empty(3, device=d).uniform_(1, 0),
        lambda d: torch.empty(3, device=d).exponential_(0),
        lambda d: torch.empty(3, device=d).bernoulli_(1.5),
        lambda d: torch.empty(3, device=d).geometric_(1),
        lambda d: torch.empty(3, device=d, dtype=torch.uint8).random_(0, 300),
        lambda d: torch.randint(3, 3, (2,), device=d),
        lambda d: torch.normal(torch.ones(3, device=d), -1.0),
    ],
)
def test_parameters_are_judged_on_every_call(call):
    torch.empty(3, device="tpu").normal_(0, 1)
    messages = []
    for device in ("cpu", "tpu"):
        with pytest.raises(RuntimeError) as error:
            call(device)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


# Determinism


def draws() -> list[torch.Tensor]:
    x = torch.ones(50, device="tpu")
    return [
        torch.rand(5, device="tpu"),
        torch.nn.functional.dropout(x, 0.5),
        torch.randperm(9, device="tpu"),
        torch.multinomial(x, 3),
    ]


def test_same_seed_same_numbers_in_every_mode():
    seen = []
    for mode in ("strict", "debug", "defer_and_fuse"):
        with modes.scope(mode):
            torch.manual_seed(7)
            seen.append([t.cpu() for t in draws()])
            again = [t.cpu() for t in draws()]
        assert not torch.equal(seen[-1][0], again[0])
    for other in seen[1:]:
        torch.testing.assert_close(seen[0], other, rtol=0, atol=0)


def test_masks_of_one_program_differ(mode):
    x = torch.ones(1000, device="tpu")

    def kept() -> list[list[float]]:
        return [torch.nn.functional.dropout(x, 0.5).tolist() for _ in range(3)]

    torch.manual_seed(1)
    first = kept()
    assert first[0] != first[1] != first[2]
    with torchtpu.watch() as report:
        torch.manual_seed(1)
        assert kept() == first
    assert report.compile_events == ()
    assert all(0.42 < np.mean(np.array(m) != 0) < 0.58 for m in first)


def test_dropout_and_its_gradient(mode):
    x = torch.ones(1000, device="tpu", requires_grad=True)
    y = torch.nn.functional.dropout(x, 0.2)
    y.sum().backward()
    assert set(y.tolist()) == {0.0, 1.25}
    torch.testing.assert_close(x.grad, y.detach())
    assert torch.equal(torch.nn.functional.dropout(x, 0.2, training=False), x)
    assert torch.nn.functional.dropout(x, 1.0).sum().item() == 0


def test_rate_of_dropout_is_an_input():
    x = torch.ones(10, device="tpu")
    torch.nn.functional.dropout(x, 0.1)
    with torchtpu.watch() as report:
        for p in (0.2, 0.3, 0.4):
            torch.nn.functional.dropout(x, p)
    assert report.compile_events == ()


def test_rrelu():
    x = torch.randn(N, device="tpu")
    x.requires_grad_()
    y = torch.nn.functional.rrelu(x, 0.1, 0.3, training=True)
    y.sum().backward()
    slopes = x.grad[x < 0]
    assert has_moments(slopes.detach(), 0.2, 0.04 / 12)
    torch.testing.assert_close(y.detach(), x.detach() * x.grad)
    torch.testing.assert_close(torch.nn.functional.rrelu(x).cpu(), torch.nn.functional.rrelu(x.cpu()))


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_drops_the_same_again(reentrant, mode):
    x = torch.ones(100, device="tpu", requires_grad=True)
    y = checkpoint(lambda t: torch.nn.functional.dropout(t * 2, 0.5), x, use_reentrant=reentrant)
    torch.rand(3, device="tpu")
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


# Generators


def test_generator_is_a_torch_generator():
    g = torch.Generator(device="tpu")
    assert isinstance(g, torch.Generator)
    assert g.device == torch.device("tpu", 0)
    assert torch.Generator().device.type == "cpu"
    assert type(torch.Generator("cpu")) is torch.Generator
    assert g.initial_seed() == torch.Generator().initial_seed()
    with pytest.raises(RuntimeError, match="device"):
        torch.Generator(device="tpu:1")
    with pytest.raises(RuntimeError, match="device"):
        torch.Generator(device="nowhere")


def test_generators_have_streams_of_their_own(mode):
    a, b = (torch.Generator(device="tpu").manual_seed(3) for _ in range(2))
    first = torch.randn(4, device="tpu", generator=a)
    second = torch.randn(4, device="tpu", generator=a)
    torch.manual_seed(0)
    torch.rand(4, device="tpu")
    assert torch.equal(torch.randn(4, device="tpu", generator=b), first)
    assert torch.equal(torch.randn(4, device="tpu", generator=b), second)
    assert not torch.equal(first, second)
    assert torch.equal(torch.randn(4, device="tpu", generator=a.manual_seed(3)), first)
    assert a.initial_seed() == 3


def copies_of(g: torch.Generator) -> list[torch.Generator]:
    file = io.BytesIO()
    torch.save(g, file)
    file.seek(0)
    return [
        copy.deepcopy(g),
        pickle.loads(pickle.dumps(g)),
        torch.load(file, weights_only=False),
        g.clone_state(),
        torch.Generator(device="tpu").set_state(g.get_state()),
    ]


def test_copies_of_a_generator_go_on_from_its_place():
    g = torch.Generator(device="tpu").manual_seed(5)
    torch.rand(2, device="tpu", generator=g)
    copies = copies_of(g)
    assert [c.device for c in copies] == [g.device] * len(copies)
    expected = torch.rand(2, device="tpu", generator=g)
    for c in copies:
        assert torch.equal(torch.rand(2, device="tpu", generator=c), expected)
    assert torch.rand(2, device="tpu", generator=g.set_offset(1)).equal(expected)
    assert g.get_offset() == 2


def test_every_kind_of_op_takes_a_generator():
    x = torch.rand(8, device="tpu")
    for draw in (
        lambda g: torch.bernoulli(x, generator=g),
        lambda g: torch.empty_like(x).exponential_(generator=g),
        lambda g: torch.multinomial(x, 3, generator=g),
        lambda g: torch.normal(x, x, generator=g),
        lambda g: torch.rand(8, device="tpu", generator=g),
        lambda g: torch.randint(100, (8,), device="tpu", generator=g),
        lambda g: torch.randperm(8, device="tpu", generator=g),
        lambda g: torch.nn.init.trunc_normal_(torch.empty_like(x), generator=g),
    ):
        drawn = [draw(torch.Generator(device="tpu").manual_seed(4)) for _ in range(2)]
        assert torch.equal(*drawn)


def test_a_generator_of_the_cpu_is_refused():
    with pytest.raises(RuntimeError, match="Expected a 'tpu' device type for generator but found 'cpu'"):
        torch.rand(3, device="tpu", generator=torch.Generator())


def test_states_are_checked():
    g = torch.Generator(device="tpu")
    with pytest.raises(TypeError, match="ByteTensor"):
        g.set_state(torch.zeros(16))
    with pytest.raises(RuntimeError, match="16 bytes"):
        g.set_state(torch.Generator().get_state())
    with pytest.raises(ValueError, match="Overflow"):
        g.manual_seed(2**64)


# torch.tpu


def test_state_of_the_device():
    state = torch.tpu.get_rng_state()
    a = torch.rand(3, device="tpu")
    torch.tpu.set_rng_state(state)
    assert torch.equal(torch.rand(3, device="tpu"), a)
    torch.tpu.set_rng_state_all([state])
    assert torch.equal(torch.rand(3, device="tpu"), a)
    with torch.random.fork_rng(device_type="tpu"):
        b = torch.rand(3, device="tpu")
    assert torch.equal(torch.rand(3, device="tpu"), b)


def test_seeds():
    torch.manual_seed(-1)
    assert torch.tpu.initial_seed() == 2**64 - 1
    torch.tpu.manual_seed(9)
    assert torch.tpu.initial_seed() == 9
    torch.tpu.seed()
    assert torch.tpu.initial_seed() != 9
