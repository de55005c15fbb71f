"""The constants of the metrics: where a logarithm ends, and how much of the chance an interval holds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from npmatch.functional import metrics


def test_a_class_that_is_ruled_out_costs_what_the_smallest_normal_float32_does():
    """2^-126: a logit gap of 104 gives 0 (spec 3.6), and a subnormal number is as good as that."""
    floor = 126 * math.log(2)
    probs = torch.tensor([[200.0, 0.0], [0.0, 0.0], [0.0, 85.0], [0.0, 90.0]]).softmax(1)
    assert probs[0, 1] == 0 and 0 < probs[3, 0] < 2.0**-126 < probs[2, 0]
    found = metrics.images(probs, torch.tensor([1, 0, 0, 0])).nll_N
    assert found == pytest.approx([floor, math.log(2), 85, floor], abs=1e-5)
    assert metrics.summary(probs[:1], torch.tensor([1]))["nll"] == pytest.approx(87.33654, abs=1e-5)


def test_an_interval_leaves_out_a_fortieth_at_each_end():
    """Means of 3,000 images are nearly normal: 1.96 standard errors to each side, not 1.64 or 2.58."""
    rng = np.random.default_rng(3)
    share = rng.uniform(0.2, 0.9, 3000)
    probs, y = np.stack([share, 1 - share], 1), (rng.random(3000) > share).astype(np.int64)
    own = {"nll": -np.log(np.where(y == 0, share, 1 - share)), "brier": 2 * np.where(y == 0, 1 - share, share) ** 2}
    own["error"] = 100.0 * ((share < 0.5) == (y == 0))
    found = metrics.bootstrap(probs, y, num_resamples=4000)
    for name, each in own.items():
        interval = found[name]
        assert interval is not None
        reach = 1.96 * each.std() / math.sqrt(3000)
        assert each.mean() - interval[0] == pytest.approx(reach, rel=0.05), name
        assert interval[1] - each.mean() == pytest.approx(reach, rel=0.05), name


@pytest.mark.parametrize(
    ("hits", "trials", "low", "high"),
    [(8, 10, 0.4902, 0.9433), (0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (50, 100, 0.4038, 0.5962)],
)
def test_wilsons_interval_is_the_published_one(hits: int, trials: int, low: float, high: float):
    """By hand for 10 of 10: 10 / (10 + 1.96^2)."""
    assert metrics.wilson(hits, trials) == pytest.approx((low, high), abs=5e-5)


def test_a_clopper_pearson_bound_is_sure_by_90_percent_unless_told():
    """All of n right: the bound b has b^n = .1, by hand."""
    for trials in (1, 10, 45):
        assert metrics.clopper_pearson_lower(trials, trials) == pytest.approx(0.1 ** (1 / trials))
        assert metrics.clopper_pearson_lower(trials, trials, 0.95) == pytest.approx(0.05 ** (1 / trials))
