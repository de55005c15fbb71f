"""Theorem 1 and Definition 1, written out as printed, against the forms the library computes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import Independent, MultivariateNormal, Normal, kl_divergence

from npmatch.functional.divergence import Gaussian, dual_skew_js, kl, kl_to_context, skew_js

SKEWS = [0.0, 0.05, 0.3, 0.5, 0.8, 0.97, 1.0]


def some_gaussian(seed: int, dims: int = 6) -> Gaussian:
    generator = torch.Generator().manual_seed(seed)
    mean, raw = torch.randn(2, dims, generator=generator, dtype=torch.float64)
    return Gaussian(mean, (0.1 + 0.9 * torch.nn.functional.softplus(raw)) ** 2)


def printed(one: Gaussian, two: Gaussian, a: float) -> tuple[Tensor, Tensor]:
    """Both closed forms of Theorem 1, in its own letters and with full matrices."""
    (m1, s1), (m2, s2) = ((g.mean_Z, torch.diag(g.var_Z)) for g in (one, two))
    p1, p2 = s1.inverse(), s2.inverse()
    pa = (1 - a) * p1 + a * p2
    sa = pa.inverse()
    ma = sa @ ((1 - a) * p1 @ m1 + a * p2 @ m2)
    log_det = torch.logdet(sa) - (1 - a) * torch.logdet(s1) - a * torch.logdet(s2)
    trace = torch.trace(pa @ ((1 - a) * s1 + a * s2))
    squares = (1 - a) * (ma - m1) @ pa @ (ma - m1) + a * (ma - m2) @ pa @ (ma - m2)
    js = 0.5 * (trace + squares + log_det - len(m1))
    dual = 0.5 * (-log_det + a * m2 @ p2 @ m2 - ma @ pa @ ma + (1 - a) * m1 @ p1 @ m1)
    return js, dual


@pytest.mark.parametrize("a", SKEWS)
def test_closed_forms_as_printed(a):
    one, two = some_gaussian(0), some_gaussian(1)
    js, dual = printed(one, two, a)
    torch.testing.assert_close(skew_js(one, two, a), js, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(dual_skew_js(one, two, a), dual, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("a", SKEWS)
def test_definition_by_the_kl_of_torch(a):
    one, two = some_gaussian(2), some_gaussian(3)
    precision = (1 - a) / one.var_Z + a / two.var_Z
    mean = ((1 - a) * one.mean_Z / one.var_Z + a * two.mean_Z / two.var_Z) / precision
    p, q, middle = (
        MultivariateNormal(g.mean_Z, torch.diag(g.var_Z)) for g in (one, two, Gaussian(mean, 1 / precision))
    )
    js = (1 - a) * kl_divergence(p, middle) + a * kl_divergence(q, middle)
    dual = (1 - a) * kl_divergence(middle, p) + a * kl_divergence(middle, q)
    torch.testing.assert_close(skew_js(one, two, a), js, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(dual_skew_js(one, two, a), dual, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("m1", "s1", "m2", "s2", "a"),
    [(0.0, 1.0, 0.0, 1.0, 0.5), (0.3, 0.5, -1.2, 2.0, 0.3), (1.0, 0.2, -0.5, 1.3, 0.9), (5.0, 0.9, 5.5, 0.4, 0.01)],
)
def test_definition_by_quadrature(m1, s1, m2, s2, a):
    """Definition 1 from densities alone: the intermediate one is normalized numerically, no closed form is used."""
    x = torch.linspace(-40, 40, 400_001, dtype=torch.float64)
    width = x[1] - x[0]
    one, two = (Gaussian(*torch.tensor([[m], [s**2]], dtype=torch.float64)) for m, s in ((m1, s1), (m2, s2)))
    log_p, log_q = (Normal(g.mean_Z, g.var_Z.sqrt()).log_prob(x) for g in (one, two))
    log_g = (1 - a) * log_p + a * log_q
    log_g = log_g - (log_g.exp() * width).sum().log()

    def divergence(log_u: Tensor, log_v: Tensor) -> Tensor:
        return (log_u.exp() * (log_u - log_v) * width).sum()

    js = (1 - a) * divergence(log_p, log_g) + a * divergence(log_q, log_g)
    dual = (1 - a) * divergence(log_g, log_p) + a * divergence(log_g, log_q)
    torch.testing.assert_close(skew_js(one, two, a), js, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(dual_skew_js(one, two, a), dual, rtol=1e-8, atol=1e-9)


def test_kl_has_the_direction_of_the_evidence_bound():
    context, target = some_gaussian(4), some_gaussian(5)
    p, q = (Independent(Normal(g.mean_Z, g.var_Z.sqrt()), 1) for g in (context, target))
    torch.testing.assert_close(kl(context, target), kl_divergence(p, q), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(kl_to_context(context, target, 0.5), kl_divergence(q, p), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("a", SKEWS)
def test_the_two_forms_share_the_symmetrised_kl(a):
    one, two = some_gaussian(6), some_gaussian(7)
    both = skew_js(one, two, a) + dual_skew_js(one, two, a)
    torch.testing.assert_close(both, a * (1 - a) * (kl(one, two) + kl(two, one)), rtol=1e-12, atol=1e-13)
