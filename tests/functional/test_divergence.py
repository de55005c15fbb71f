from __future__ import annotations

import math

import pytest
import torch

from npmatch.functional.divergence import DIVERGENCES, Gaussian, dual_skew_js, kl_to_context, skew, skew_js


def line(mean: float, var: float, dtype: torch.dtype = torch.float64) -> Gaussian:
    return Gaussian(torch.tensor([mean], dtype=dtype), torch.tensor([var], dtype=dtype))


def some(seed: int, dims: int = 16, dtype: torch.dtype = torch.float64) -> Gaussian:
    mean, raw = torch.randn(2, dims, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return Gaussian(mean, (0.1 + 0.9 * torch.nn.functional.softplus(raw)) ** 2)


@pytest.mark.parametrize(
    ("q", "a", "js", "dual", "kl"),
    [
        ((1, 1), 0.5, 0.125, 0.125, 0.5),
        ((0, 4), 0.5, 0.169678, 0.111572, 0.806853),
        ((1, 4), 0.3, 0.253131, 0.114369, 1.306853),
        ((1, 4), 0.7, 0.199254, 0.168246, 1.306853),
    ],
)
def test_hand_worked(q, a, js, dual, kl):
    p, q = line(0, 1), line(*q)
    found = [float(form(p, q, a)) for form in (skew_js, dual_skew_js, kl_to_context)]
    assert found == pytest.approx([js, dual, kl], abs=1e-6)


@pytest.mark.parametrize("ratio", [-39.0, -12.0, 12.0, 39.0])
def test_variances_far_apart(ratio):
    """Theorem 1 as printed, for N(0, 1) and N(0, e^ratio) at skew 1/2, where no large numbers cancel."""
    var = math.exp(ratio)
    precision = (1 + 1 / var) / 2
    trace, log_det = precision * (1 + var) / 2, -math.log(precision) - ratio / 2
    by_hand = [(trace + log_det - 1) / 2, -log_det / 2, (var - ratio - 1) / 2]
    p, q = line(0, 1), line(0, var)
    found = [float(form(p, q, 0.5)) for form in (skew_js, dual_skew_js, kl_to_context)]
    assert found == pytest.approx(by_hand, rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("a", [0.0, 0.3, 1.0])
def test_zero_where_nothing_differs_or_nothing_is_skewed(a, dtype):
    p, q = some(0, dtype=dtype), some(1, dtype=dtype)
    for name, form in DIVERGENCES.items():
        assert form(p, p, a) == 0
        if a in (0, 1) and name != "kl":
            assert 0 <= form(p, q, a) < 1e-6


@pytest.mark.parametrize("form", [skew_js, dual_skew_js])
def test_turning_both_round_changes_nothing(form):
    p, q = some(2), some(3)
    torch.testing.assert_close(form(p, q, 0.3), form(q, p, 0.7), rtol=1e-12, atol=0)


def test_small_skew_is_a_share_of_a_kl():
    p, q = some(4), some(5)
    pq, qp = kl_to_context(q, p, 0.5), kl_to_context(p, q, 0.5)  # KL(p || q), KL(q || p)
    torch.testing.assert_close(skew_js(p, q, 1e-7) / 1e-7, qp, rtol=1e-4, atol=0)
    torch.testing.assert_close(dual_skew_js(p, q, 1e-7) / 1e-7, pq, rtol=1e-4, atol=0)


def test_float32_keeps_small_gaps_between_large_means():
    """The printed forms are 59 times (dual) and 7 % (JS) off here."""
    mean, raw, gap, ratio = torch.randn(4, 128, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    var = (0.1 + 0.9 * torch.nn.functional.softplus(raw)) ** 2
    p, q = Gaussian(mean + 50, var), Gaussian(mean + 50 + 1e-3 * gap, var * torch.exp(1e-3 * ratio))
    p32, q32 = (Gaussian(g.mean_Z.float(), g.var_Z.float()) for g in (p, q))
    exactly = [Gaussian(g.mean_Z.double(), g.var_Z.double()) for g in (p32, q32)]
    for form in DIVERGENCES.values():
        torch.testing.assert_close(form(p32, q32, 0.4).double(), form(*exactly, 0.4), rtol=5e-3, atol=0)


def test_variances_of_any_ratio_stay_finite():
    for a in (0.0, 1e-6, 0.5, 1.0):
        for var in (1e-10, 1e10):
            p, q = line(0, 1, torch.float32), line(3, var, torch.float32)
            q.var_Z.requires_grad_()
            for form in (skew_js, dual_skew_js):
                value = form(p, q, a)
                assert value.isfinite() and value >= 0
                assert torch.autograd.grad(value, q.var_Z)[0].isfinite()


@pytest.mark.parametrize("name", DIVERGENCES)
def test_gradients(name):
    tensors = [t.clone().requires_grad_() for t in (*some(6, 4), *some(7, 4))]
    share = torch.tensor(0.37, dtype=torch.float64)
    assert torch.autograd.gradcheck(
        lambda m1, v1, m2, v2: DIVERGENCES[name](Gaussian(m1, v1), Gaussian(m2, v2), share), tensors
    )


def test_half_precision_is_computed_in_float32():
    p, q = some(8, dtype=torch.float32), some(9, dtype=torch.float32)
    p16, q16 = (Gaussian(g.mean_Z.bfloat16(), g.var_Z.bfloat16()) for g in (p, q))
    for form in DIVERGENCES.values():
        assert form(p16, q16, 0.5).dtype == torch.float32
        torch.testing.assert_close(form(p16, q16, 0.5), form(p, q, 0.5), rtol=0.05, atol=0)


def test_samples_have_the_stated_mean_and_variance():
    torch.manual_seed(0)
    draws = Gaussian(torch.tensor([1.0, -2.0]), torch.tensor([0.25, 4.0])).sample(200_000)
    assert draws.shape == (200_000, 2)
    torch.testing.assert_close(draws.mean(0), torch.tensor([1.0, -2.0]), rtol=0, atol=0.02)
    torch.testing.assert_close(draws.var(0), torch.tensor([0.25, 4.0]), rtol=0.02, atol=0)


def test_skew_leans_to_the_surer_side_and_carries_no_gradient():
    u_context, u_target = torch.tensor(0.3, requires_grad=True), torch.tensor(0.1, requires_grad=True)
    alpha = skew(u_context, u_target)
    assert float(alpha) == pytest.approx(0.75) and not alpha.requires_grad
    assert skew(torch.tensor(0.0), torch.tensor(0.0)) == 0.5
    assert skew(torch.tensor(0.0), torch.tensor(1.0)) == 0
