from __future__ import annotations

import math
import time

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, bootstrap
from sklearn.metrics import accuracy_score, brier_score_loss, confusion_matrix, log_loss, top_k_accuracy_score

from npmatch.functional import metrics


def predictions(num_images: int, num_classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities, and classes drawn by them."""
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(num_classes, 0.3), num_images)
    y = (probs.cumsum(1) > rng.random((num_images, 1))).argmax(1)
    return probs, y


def naive_calibration(predicted, observed, num_bins=15) -> float:
    total = 0.0
    for m in range(num_bins):
        low, high = m / num_bins, (m + 1) / num_bins
        inside = [i for i, u in enumerate(predicted) if low < u <= high or (m == 0 and u == 0)]
        if inside:
            gap = np.mean([observed[i] for i in inside]) - np.mean([predicted[i] for i in inside])
            total += len(inside) / len(predicted) * abs(gap)
    return total


def naive_aurc(uncertainty, wrong) -> float:
    """For distinct uncertainties."""
    ranked = [w for _, w in sorted(zip(uncertainty, wrong))]
    return float(np.mean([np.mean(ranked[: n + 1]) for n in range(len(ranked))]))


def shares(probs) -> np.ndarray:
    return np.array([-sum(p * math.log(p) for p in row if p > 0) for row in probs]) / math.log(probs.shape[1])


def test_against_scikit_learn():
    probs, y = predictions(500, 8)
    found, classes = metrics.summary(torch.tensor(probs), torch.tensor(y)), list(range(8))
    assert found["error"] == pytest.approx(100 * (1 - accuracy_score(y, probs.argmax(1))))
    assert found["top5"] == pytest.approx(100 * (1 - top_k_accuracy_score(y, probs, k=5, labels=classes)))
    assert found["nll"] == pytest.approx(log_loss(y, probs, labels=classes))
    assert found["brier"] == pytest.approx(brier_score_loss(y, probs, labels=classes, scale_by_half=False))
    assert (metrics.confusion(probs, y) == confusion_matrix(y, probs.argmax(1), labels=classes)).all()


def test_against_naive_loops():
    probs, y = predictions(300, 8)
    found, wrong, share = metrics.summary(probs, y), (probs.argmax(1) != y).astype(float), shares(probs)
    assert found["ece"] == pytest.approx(100 * naive_calibration(probs.max(1), 1 - wrong))
    assert found["uce"] == pytest.approx(100 * naive_calibration(share, wrong))
    assert found["aurc"] == pytest.approx(100 * naive_aurc(share, wrong))
    assert metrics.ece(probs, y, num_bins=7) == pytest.approx(naive_calibration(probs.max(1), 1 - wrong, 7))
    assert metrics.uce(probs, y, num_bins=7) == pytest.approx(naive_calibration(share, wrong, 7))


def test_hand_worked_calibration():
    probs = np.array([[0.97, 0.01, 0.01, 0.01], [0.4, 0.3, 0.2, 0.1], [0.7, 0.1, 0.1, 0.1]])
    y = np.array([0, 1, 0])
    assert metrics.images(probs, y).share_N == pytest.approx([0.1210, 0.9232, 0.6784], abs=1e-4)
    assert metrics.uce(probs, y) == pytest.approx(0.29205, abs=1e-5)
    assert metrics.ece(probs, y) == pytest.approx(0.24333, abs=1e-5)
    nats = metrics.summary(probs, y)["uce_nats"]
    share, wrong = shares(probs), np.array([0, 1, 0])
    assert nats == pytest.approx(np.abs(wrong - share * math.log(4)).mean())  # one image in each bin


def test_bins_are_open_below_and_the_first_holds_zero():
    edges = np.array([0.0, 1e-9, 1 / 15, 1 / 15 + 1e-9, 1.0])
    drawn = metrics.reliability(edges, np.array([1.0, 0, 0, 1, 1]))
    assert drawn.count_M[[0, 1, 14]].tolist() == [3, 1, 1] and drawn.count_M.sum() == 5
    assert drawn.observed_M[0] == pytest.approx(1 / 3) and math.isnan(drawn.predicted_M[7])


def test_certain_images_count_unless_the_authors_bins_are_asked_for():
    probs, y = np.array([[1.0, 0, 0], [0.5, 0.5, 0]]), np.array([1, 0])  # certain and wrong; uncertain and right
    share = math.log(2) / math.log(3)
    assert metrics.uce(probs, y) == pytest.approx((1 + share) / 2)
    assert metrics.uce(probs, y, laves_strict=True) == pytest.approx(share / 2)
    found = metrics.summary(probs, y)
    assert found["top5"] is None and found["nll"] is not None and math.isfinite(found["nll"])


def test_equal_uncertainties_count_with_their_mean_error():
    uncertainty, wrong = np.array([0.0, 1.0, 1.0, 1.0]), np.array([0.0, 1.0, 0.0, 0.0])
    orders = [[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    expected = np.mean([naive_aurc(range(4), order) for order in orders])
    assert metrics.aurc(uncertainty, wrong) == pytest.approx(expected)
    curve = metrics.risk_coverage(uncertainty, wrong)
    assert curve.coverage_N.tolist() == [0.25, 0.5, 0.75, 1] and curve.risk_N.mean() == pytest.approx(expected)
    assert curve.risk_N[-1] == 0.25


def test_per_class():
    probs, y = np.array([[0.9, 0.1, 0], [0.2, 0.8, 0], [0.5, 0.4, 0.1]]), np.array([0, 0, 1])
    found = metrics.per_class(probs, y)
    assert found.count_K.tolist() == [2, 1, 0] and found.accuracy_K[:2].tolist() == [0.5, 0]
    assert found.uncertainty_K[1] == pytest.approx(shares(probs)[2] * math.log(3))
    assert math.isnan(found.accuracy_K[2])


def test_intervals_of_a_class_are_those_of_scipy():
    probs, y = predictions(400, 4)
    y[y == 2] = 0
    y[7] = 2  # one image alone: accuracy has an interval, mean uncertainty cannot have one
    given = np.where(np.arange(400) % 9 == 0, (y + 1) % 4, y)
    found = metrics.per_class(probs, torch.tensor(y), given, num_resamples=4000)
    nats = shares(probs) * math.log(4)
    for k in (0, 1, 3):
        own = y == k
        right = binomtest(int((given == y)[own].sum()), int(own.sum()))
        assert found.accuracy_K[k] == pytest.approx(right.statistic)
        assert found.accuracy_ci95_K2[k] == pytest.approx(list(right.proportion_ci(method="wilson")), abs=1e-6)
        low, high = bootstrap((nats[own],), np.mean, n_resamples=4000, method="percentile", rng=1).confidence_interval
        assert found.uncertainty_ci95_K2[k] == pytest.approx([low, high], abs=0.04 * (high - low) + 1e-9)
    assert found.accuracy_ci95_K2[2] == pytest.approx(list(binomtest(1, 1).proportion_ci(method="wilson")), abs=1e-6)
    assert np.isnan(found.uncertainty_ci95_K2[2]).all()
    nobody = metrics.per_class(probs[y != 1], y[y != 1])
    assert np.isnan([nobody.accuracy_ci95_K2[1], nobody.uncertainty_ci95_K2[1]]).all()


def test_broken_input_is_refused():
    probs, y = predictions(4, 3)
    for bad_probs, bad_y in ((probs, y[:3]), (probs[:0], y[:0]), (probs, y * 0 - 1), (probs, y * 0 + 3)):
        with pytest.raises(ValueError):
            metrics.summary(bad_probs, bad_y)
    with pytest.raises(ValueError, match="single class"):
        metrics.summary(np.ones((2, 1)), np.zeros(2))


def test_bootstrap_is_the_summary_of_resampled_images():
    """One resample, by weights, against the same images repeated."""
    probs, y = predictions(50, 8)
    probs[:20] = probs[0].copy()  # equal uncertainties too
    drawn = np.random.default_rng(5).integers(0, 50, (1, 50))[0]
    by_hand = metrics.summary(probs[drawn], y[drawn])
    for name, interval in metrics.bootstrap(probs, y, num_resamples=1, seed=5).items():
        assert interval == pytest.approx((by_hand[name], by_hand[name]))


def test_bootstrap_is_quick_repeatable_and_as_wide_as_theory_says():
    probs, y = predictions(10_000, 10)
    start = time.process_time()
    found = metrics.bootstrap(probs, y, seed=1)
    assert time.process_time() - start < 10  # 2 s on an idle core
    values = metrics.summary(probs, y)
    assert list(found) == list(values) == ["error", "top5", "nll", "brier", "ece", "uce", "uce_nats", "aurc"]
    error, interval = values["error"], found["error"]
    assert error is not None and interval is not None
    half_width = 100 * 1.96 * math.sqrt(error / 100 * (1 - error / 100) / 10_000)
    assert interval == pytest.approx((error - half_width, error + half_width), abs=0.15 * half_width)
    assert metrics.bootstrap(probs[:99], y[:99], num_resamples=9, seed=1) == metrics.bootstrap(
        probs[:99], y[:99], num_resamples=9, seed=1
    )


@pytest.mark.parametrize(("successes", "trials"), [(0, 5), (3, 7), (44, 45), (45, 45), (970, 1000)])
def test_clopper_pearson(successes, trials):
    bound = binomtest(successes, trials, alternative="greater").proportion_ci(0.9, method="exact").low
    assert metrics.clopper_pearson_lower(successes, trials) == pytest.approx(bound, abs=1e-12)


def test_acceptance_needs_45_labels_for_95_percent():
    too_few = metrics.accept_threshold(np.ones(44), np.linspace(0.5, 1, 44), 0.95)
    assert too_few.min_confidence is None and (too_few.needed, too_few.missing) == (45, 1)
    assert "45" in too_few.reason and "1 missing" in too_few.reason
    enough = metrics.accept_threshold(np.ones(45), np.linspace(0.5, 1, 45), 0.95)
    assert enough.min_confidence == 0.5 and enough.coverage == 1 and enough.accuracy_bound >= 0.95


def test_acceptance_stops_where_errors_begin():
    confidence = np.linspace(1, 0, 400)
    found = metrics.accept_threshold(confidence > 0.5, confidence, 0.95)
    assert found.min_confidence is not None and 0.46 < found.min_confidence < 0.53
    assert found.accepted == (confidence >= found.min_confidence).sum() == found.coverage * 400
    dip = np.ones(400)
    dip[80:88] = 0  # the first 80 pass, the first 100 do not, all 400 would pass again
    found = metrics.accept_threshold(dip, confidence, 0.95)
    assert found.accepted == 80 and metrics.clopper_pearson_lower(392, 400) > 0.95
    hopeless = metrics.accept_threshold(confidence < 0.5, confidence, 0.95)
    assert hopeless.min_confidence is None and "0 are right" in hopeless.reason
    with pytest.raises(ValueError):
        metrics.accept_threshold(np.ones(50), np.ones(50), 1.0)


@pytest.mark.parametrize(
    ("right", "tested", "held_out", "target"),
    [(44, 45, 45, 0.95), (44, 45, 60, 0.95), (70, 72, 360, 0.95), (21, 22, 40, 0.9)],
)
def test_the_labels_said_to_be_missing_are_enough_and_one_fewer_is_not(right, tested, held_out, target):
    """By trying more and more held-out labels, of which the most confident are right as often as now."""

    def claim(number: int, accepted: int):
        correct = np.zeros(number)
        correct[: right * accepted // tested] = 1
        ranks = np.r_[np.zeros(accepted), np.ones(number - accepted)]  # which of the first are right does not matter
        return metrics.accept_threshold(correct, -ranks - np.arange(number) / number / 2, target)

    now = claim(held_out, tested)
    assert now.min_confidence is None and now.missing > 0 and f" {now.missing:,} more held-out labels" in now.reason
    enough = held_out + now.missing
    tried = [*range(held_out + 1, enough, 5), *range(enough - 5, enough + 1)]  # the first threshold moves at each fifth
    passed = [n for n in tried if claim(n, max(now.needed, math.ceil(n / 5))).min_confidence is not None]
    assert passed == [enough]


@pytest.mark.parametrize("right", [0, 80, 95])
def test_labels_alone_do_not_raise_an_accuracy_that_is_too_low(right):
    found = metrics.accept_threshold(np.arange(100) < right, np.ones(100), 0.95)
    assert (found.min_confidence, found.missing) == (None, 0) and "labels alone will not do for 95.0%" in found.reason
    assert f"of the 100 most confident held-out images {right} are right" in found.reason


def test_an_interval_has_width_where_nothing_or_all_is_wrong():
    for trials in range(1, 200):
        for hits in (0, trials):
            low, high = metrics.wilson(hits, trials)
            exact = binomtest(hits, trials).proportion_ci(method="wilson")
            assert (low, high) == pytest.approx(list(exact), abs=1e-6) and low <= hits / trials <= high and low < high


def test_accepts_all_that_are_equally_confident():
    correct = np.r_[np.ones(60), np.zeros(40)]
    found = metrics.accept_threshold(correct, np.ones(100), 0.95)
    assert found.min_confidence is None  # a threshold of 1 lets the forty wrong ones in


def test_the_promise_is_broken_in_a_tenth_of_cases_at_most():
    """Confidence t is right with probability 1 - (1 - t)^2 / 2, so images above t are with 1 - (1 - t)^2 / 6."""
    rng, broken, promised = np.random.default_rng(0), 0, 0
    for _ in range(400):
        confidence = rng.random(300)
        correct = rng.random(300) < 1 - (1 - confidence) ** 2 / 2
        found = metrics.accept_threshold(correct, confidence, 0.95)
        promised += found.min_confidence is not None
        broken += found.min_confidence is not None and (1 - found.min_confidence) ** 2 / 6 > 0.05
    assert promised > 200 and broken <= 40
