"""torch.distributions: samples, densities, entropies, and gradients of samples, each against the CPU."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.distributions as td
from scipy import stats

pytestmark = [
    pytest.mark.usefixtures("no_fallback"),
    pytest.mark.filterwarnings("ignore:Singular sample detected"),  # Wishart draws again
]

Parameters = tuple[torch.Tensor, ...]

N = 3000
LOWER = torch.tensor([[1.0, 0.0], [0.5, 0.8]])

# For each class: how to make one of parameters, and the parameters of one distribution.
DISTRIBUTIONS: dict[str, tuple[Callable[..., td.Distribution], Parameters]] = {
    "Bernoulli": (td.Bernoulli, (torch.tensor(0.3),)),
    "Beta": (td.Beta, (torch.tensor(0.7), torch.tensor(2.5))),
    "Binomial": (lambda p: td.Binomial(12, p), (torch.tensor(0.3),)),
    "Categorical": (td.Categorical, (torch.tensor([0.2, 0.5, 0.3]),)),
    "Cauchy": (td.Cauchy, (torch.tensor(1.0), torch.tensor(2.0))),
    "Chi2": (td.Chi2, (torch.tensor(3.0),)),
    "ContinuousBernoulli": (td.ContinuousBernoulli, (torch.tensor(0.3),)),
    "Dirichlet": (td.Dirichlet, (torch.tensor([0.8, 2.0, 5.0]),)),
    "Exponential": (td.Exponential, (torch.tensor(1.5),)),
    "FisherSnedecor": (td.FisherSnedecor, (torch.tensor(6.0), torch.tensor(9.0))),
    "Gamma": (td.Gamma, (torch.tensor(2.5), torch.tensor(0.5))),
    "GeneralizedPareto": (td.GeneralizedPareto, (torch.tensor(1.0), torch.tensor(2.0), torch.tensor(0.1))),
    "Geometric": (td.Geometric, (torch.tensor(0.3),)),
    "Gumbel": (td.Gumbel, (torch.tensor(1.0), torch.tensor(2.0))),
    "HalfCauchy": (td.HalfCauchy, (torch.tensor(2.0),)),
    "HalfNormal": (td.HalfNormal, (torch.tensor(2.0),)),
    "Independent": (lambda m, s: td.Independent(td.Normal(m, s), 1), (torch.zeros(2), torch.tensor([1.0, 2.0]))),
    "InverseGamma": (td.InverseGamma, (torch.tensor(4.0), torch.tensor(2.0))),
    "Kumaraswamy": (td.Kumaraswamy, (torch.tensor(2.0), torch.tensor(3.0))),
    "LKJCholesky": (lambda c: td.LKJCholesky(3, c), (torch.tensor(1.5),)),
    "Laplace": (td.Laplace, (torch.tensor(1.0), torch.tensor(2.0))),
    "LogNormal": (td.LogNormal, (torch.tensor(0.5), torch.tensor(0.4))),
    "LogisticNormal": (td.LogisticNormal, (torch.tensor([0.1, 0.5]), torch.tensor([1.0, 0.5]))),
    "LowRankMultivariateNormal": (
        td.LowRankMultivariateNormal,
        (torch.tensor([1.0, 2.0]), torch.tensor([[0.5], [1.0]]), torch.tensor([0.4, 0.9])),
    ),
    "MixtureSameFamily": (
        lambda p, m, s: td.MixtureSameFamily(td.Categorical(p), td.Normal(m, s)),
        (torch.tensor([0.3, 0.7]), torch.tensor([-2.0, 1.0]), torch.tensor([0.5, 1.0])),
    ),
    "Multinomial": (lambda p: td.Multinomial(7, p), (torch.tensor([0.2, 0.5, 0.3]),)),
    "MultivariateNormal": (lambda m, t: td.MultivariateNormal(m, scale_tril=t), (torch.tensor([1.0, 2.0]), LOWER)),
    "NegativeBinomial": (lambda p: td.NegativeBinomial(5, p), (torch.tensor(0.4),)),
    "Normal": (td.Normal, (torch.tensor(1.0), torch.tensor(2.0))),
    "OneHotCategorical": (td.OneHotCategorical, (torch.tensor([0.2, 0.5, 0.3]),)),
    "OneHotCategoricalStraightThrough": (td.OneHotCategoricalStraightThrough, (torch.tensor([0.2, 0.5, 0.3]),)),
    "Pareto": (td.Pareto, (torch.tensor(1.0), torch.tensor(5.0))),
    "Poisson": (td.Poisson, (torch.tensor(4.5),)),
    "RelaxedBernoulli": (lambda p: td.RelaxedBernoulli(torch.tensor(0.7, device=p.device), p), (torch.tensor(0.3),)),
    "RelaxedOneHotCategorical": (
        lambda p: td.RelaxedOneHotCategorical(torch.tensor(0.7, device=p.device), p),
        (torch.tensor([0.2, 0.5, 0.3]),),
    ),
    "StudentT": (td.StudentT, (torch.tensor(5.0), torch.tensor(1.0), torch.tensor(2.0))),
    "TransformedDistribution": (
        lambda m, s: td.TransformedDistribution(td.Normal(m, s), [td.TanhTransform(), td.AffineTransform(1.0, 2.0)]),
        (torch.tensor(0.3), torch.tensor(0.8)),
    ),
    "Uniform": (td.Uniform, (torch.tensor(-1.0), torch.tensor(3.0))),
    "VonMises": (td.VonMises, (torch.tensor(0.5), torch.tensor(2.0))),
    "Weibull": (td.Weibull, (torch.tensor(1.0), torch.tensor(2.0))),
    "Wishart": (lambda df, t: td.Wishart(df, scale_tril=t), (torch.tensor(4.0), LOWER)),
}
ABSTRACT = {"Distribution", "ExponentialFamily"}


def make(name: str, device: str, batch: tuple[int, ...] = (), grad: bool = False) -> tuple[td.Distribution, Parameters]:
    """Return a batch of one distribution, and its parameters as leaves."""
    build, parameters = DISTRIBUTIONS[name]
    leaves = tuple(p.expand((*batch, *p.shape)).clone().to(device).requires_grad_(grad) for p in parameters)
    return build(*leaves), leaves


def test_every_distribution_is_here():
    classes = {n for n in td.__all__ if isinstance(c := getattr(td, n), type) and issubclass(c, td.Distribution)}
    assert set(DISTRIBUTIONS) == classes - ABSTRACT


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_samples_are_distributed_as_on_the_cpu(name):
    """A Kolmogorov-Smirnov test of each component against a sample of the CPU: good ones fail once in ten thousand seeds."""
    columns = []
    for device in ("cpu", "tpu"):
        torch.manual_seed(2)
        columns.append(make(name, device)[0].sample((N,)).cpu().double().reshape(N, -1).T.numpy())
    for expected, actual in zip(*columns, strict=True):
        assert np.isfinite(actual).all()
        assert np.array_equal(actual, expected) or stats.ks_2samp(actual, expected, method="asymp").pvalue > 1e-4


ASKED = {
    "log_prob": lambda d, value: d.log_prob(value),
    "entropy": lambda d, value: d.entropy(),
    "cdf": lambda d, value: d.cdf(value),
    "mean": lambda d, value: d.mean,
    "variance": lambda d, value: d.variance,
}


def gradients_of(value: torch.Tensor, leaves: Parameters) -> list[torch.Tensor | None]:
    found = torch.autograd.grad(value.sum(), leaves, retain_graph=True, allow_unused=True)
    return [g.cpu() if g is not None else None for g in found]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_densities_and_entropies(name):
    torch.manual_seed(2)
    (ours, our_leaves), (theirs, their_leaves) = make(name, "tpu", grad=True), make(name, "cpu", grad=True)
    value = theirs.sample((5,))
    for what, ask in ASKED.items():
        try:
            expected = ask(theirs, value)
        except NotImplementedError:
            continue
        actual = ask(ours, value.to("tpu"))
        torch.testing.assert_close(actual.cpu(), expected, rtol=2e-5, atol=2e-5, equal_nan=True)
        if expected.requires_grad and (name, what) not in WITHOUT_DERIVATIVE:
            gradients = [gradients_of(actual, our_leaves), gradients_of(expected, their_leaves)]
            torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4, equal_nan=True)


# PyTorch has no derivative of the incomplete gamma function by its shape.
WITHOUT_DERIVATIVE = {(name, "cdf") for name in ("Chi2", "Gamma", "InverseGamma")}


PATHWISE = [n for n, (build, p) in DISTRIBUTIONS.items() if build(*p).has_rsample]


@pytest.mark.parametrize("name", PATHWISE)
def test_gradients_of_samples(name):
    """The mean gradient of a bounded function of a sample is the CPU's, within five standard errors."""
    gradients = []
    for device in ("cpu", "tpu"):
        torch.manual_seed(3)
        distribution, leaves = make(name, device, (N,), grad=True)
        sample = distribution.rsample()
        weights = torch.linspace(1, 2, sample[0].numel(), device=device).view(sample[0].shape)
        bounded = sample / (1 + sample.abs())  # whose moments all exist
        gradients.append(torch.autograd.grad((bounded * weights).sum(), leaves))
    for expected, actual in zip(*gradients, strict=True):
        actual = actual.cpu()
        error = ((actual.var(0) + expected.var(0)) / N).sqrt()
        assert ((actual.mean(0) - expected.mean(0)).abs() <= 5 * error + 1e-4).all()
