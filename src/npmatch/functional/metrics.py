"""How good predictions are, and how far their uncertainty can be believed. On the host, in float64.

Everything reads mean probabilities (N, K) and true classes (N,). Uncertainty is the entropy of the mean prediction, as
a share of log K unless a name says nats. Functions return shares in [0, 1]; `summary` and `bootstrap` turn those of
the run folder's contract into percent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Numbers = Tensor | NDArray[np.generic]

NUM_BINS = 15

_Z = 1.959964  # 95 %, two-sided

_MOST_ACCEPTED = 100_000  # images: a claim that takes more is too close to what the model can do

# A float32 softmax gives 0 below this: a class it ruled out costs 87 nats, and not infinitely many.
_LEAST_PROBABILITY = float(np.finfo(np.float32).tiny)


class Curve(NamedTuple):
    """Selective prediction: the error among the share of images one is surest of."""

    coverage_N: Floats
    risk_N: Floats


class Reliability(NamedTuple):
    """Predicted against observed, in bins of equal width; NaN in a bin that is empty."""

    count_M: Ints
    predicted_M: Floats
    observed_M: Floats


class PerClass(NamedTuple):
    """Per true class; NaN for a class without images, and for an interval that one image alone cannot have."""

    count_K: Ints
    accuracy_K: Floats
    uncertainty_K: Floats  # mean, in nats
    accuracy_ci95_K2: Floats  # Wilson
    uncertainty_ci95_K2: Floats  # bootstrap within the class


class Images(NamedTuple):
    """What the metrics need to know of each image."""

    wrong_N: Floats  # 1.0 where the likeliest class is not the true one
    outside_top5_N: Floats | None  # none with five classes or fewer, where it says nothing
    nll_N: Floats
    brier_N: Floats  # summed over classes, in [0, 2]
    confidence_N: Floats
    nats_N: Floats  # entropy
    share_N: Floats  # entropy / log K


def images(probs_NK: Numbers, y_N: Numbers) -> Images:
    """Each image's part in the metrics. Of equally likely classes the first counts as likelier."""
    probs, y = _float64(probs_NK), _float64(y_N).astype(np.int64)
    num_images, num_classes = probs.shape
    if num_classes < 2:
        raise ValueError("with a single class there is nothing to measure")
    if not num_images or y.shape != (num_images,):
        raise ValueError(f"one true class for each of at least one image: {probs.shape} against {y.shape}")
    if y.min() < 0 or y.max() >= num_classes:
        raise ValueError(f"true classes must be in 0 .. {num_classes - 1}: found {y.min()} .. {y.max()}")

    of_truth = probs[np.arange(num_images), y]
    before = (probs == of_truth[:, None]) & (np.arange(num_classes) < y[:, None])
    rank = ((probs > of_truth[:, None]) | before).sum(1)
    nats = np.maximum(-(probs * np.log(np.where(probs > 0, probs, 1))).sum(1), 0)
    return Images(
        wrong_N=(rank > 0).astype(np.float64),
        outside_top5_N=(rank >= 5).astype(np.float64) if num_classes > 5 else None,
        nll_N=-np.log(np.maximum(of_truth, _LEAST_PROBABILITY)),
        brier_N=(probs**2).sum(1) - 2 * of_truth + 1,
        confidence_N=probs.max(1),
        nats_N=nats,
        share_N=np.minimum(nats / np.log(num_classes), 1),
    )


def summary(probs_NK: Numbers, y_N: Numbers) -> dict[str, float | None]:
    """The run folder's numbers. error, top5 (an error too), ece, uce and aurc in percent; top5 none if K <= 5."""
    each = images(probs_NK, y_N)
    return {name: None if v is None else float(v[0]) for name, v in _measured(each, np.ones((1, len(each.wrong_N))))}


def bootstrap(
    probs_NK: Numbers, y_N: Numbers, *, num_resamples: int = 1000, seed: int = 0
) -> dict[str, tuple[float, float] | None]:
    """95 % percentile intervals of the numbers of `summary`, from resampled images.

    They speak of other test images of the same kind, not of another training run. Those of ece and uce lean upwards:
    resampling adds noise to every bin, and its absolute value counts.
    """
    each = images(probs_NK, y_N)
    rng = np.random.default_rng(seed)
    num_images = len(each.wrong_N)
    at_once = max(1, 2**20 // num_images)  # about 8 MB for each array of this shape
    found: dict[str, list[Floats] | None] = {}
    for start in range(0, num_resamples, at_once):
        counts = _resample_counts(rng, min(at_once, num_resamples - start), num_images)
        for name, values in _measured(each, counts):
            found[name] = None if values is None else [*(found.get(name) or []), values]
    return {name: None if parts is None else _middle(np.concatenate(parts)) for name, parts in found.items()}


def ece(probs_NK: Numbers, y_N: Numbers, *, num_bins: int = NUM_BINS) -> float:
    """Expected calibration error: how far confidence is from accuracy, bin by bin."""
    each = images(probs_NK, y_N)
    gap_N = 1 - each.wrong_N - each.confidence_N
    return float(_calibration(_once(each), _bins(each.confidence_N, num_bins), gap_N)[0])


def uce(probs_NK: Numbers, y_N: Numbers, *, num_bins: int = NUM_BINS, laves_strict: bool = False) -> float:
    """Expected uncertainty calibration error (Laves et al., 2019): how far uncertainty is from the error rate.

    An uncertainty of exactly 0 belongs to the first bin; laves_strict leaves such images out, as the authors' code
    does, whose bins are open below.
    """
    each = images(probs_NK, y_N)
    gap_N = each.wrong_N - each.share_N
    if laves_strict:
        gap_N = np.where(each.share_N > 0, gap_N, 0)
    return float(_calibration(_once(each), _bins(each.share_N, num_bins), gap_N)[0])


def risk_coverage(uncertainty_N: Numbers, wrong_N: Numbers) -> Curve:
    """The error among the 1, 2, ... N least uncertain images. Of equal ones each counts with their mean error."""
    uncertainty, wrong = _float64(uncertainty_N), _float64(wrong_N)
    _, group, size = np.unique(uncertainty, return_inverse=True, return_counts=True)
    expected = (np.bincount(group, weights=wrong) / size)[group]
    so_far = np.arange(1, len(wrong) + 1)
    return Curve(so_far / len(wrong), np.cumsum(expected[np.argsort(uncertainty, kind="stable")]) / so_far)


def aurc(uncertainty_N: Numbers, wrong_N: Numbers) -> float:
    """The area under the risk-coverage curve: 0 at best, the error rate where uncertainty says nothing."""
    uncertainty = _float64(uncertainty_N)
    return float(_area(np.ones((1, len(uncertainty))), uncertainty, _float64(wrong_N))[0])


def reliability(predicted_N: Numbers, observed_N: Numbers, *, num_bins: int = NUM_BINS) -> Reliability:
    """For a diagram: confidence against correctness, or uncertainty share against error."""
    predicted, observed = _float64(predicted_N), _float64(observed_N)
    place = _bins(predicted, num_bins)
    count = np.bincount(place, minlength=num_bins)
    return Reliability(count, _means(predicted, place, count), _means(observed, place, count))


def per_class(
    probs_NK: Numbers, y_N: Numbers, label_N: Numbers | None = None, *, num_resamples: int = 1000, seed: int = 0
) -> PerClass:
    """Images, accuracy and mean uncertainty (nats) of each true class, with 95 % intervals.

    `label_N` are the classes that were given, where those need not be the likeliest ones.
    """
    each = images(probs_NK, y_N)
    y, num_classes = _float64(y_N).astype(np.int64), probs_NK.shape[1]
    right = 1 - each.wrong_N if label_N is None else (_float64(label_N) == y).astype(np.float64)
    count = np.bincount(y, minlength=num_classes)
    accuracy_ends, uncertainty_ends = np.full((2, num_classes, 2), np.nan)
    for k in np.flatnonzero(count):
        own = y == k
        accuracy_ends[k] = wilson(right[own].sum(), int(count[k]))
        if count[k] > 1:  # an image resampled alone is always itself: a width of 0 would be a lie
            rng = np.random.default_rng([seed, int(k)])  # other classes have no part in it
            uncertainty_ends[k] = _middle(_resampled_means(rng, each.nats_N[own], num_resamples))
    return PerClass(count, _means(right, y, count), _means(each.nats_N, y, count), accuracy_ends, uncertainty_ends)


def confusion(probs_NK: Numbers, y_N: Numbers) -> Ints:
    """How often an image of class i was taken for class j -> (K, K)."""
    probs, y = _float64(probs_NK), _float64(y_N).astype(np.int64)
    num_classes = probs.shape[1]
    return np.bincount(y * num_classes + probs.argmax(1), minlength=num_classes**2).reshape(num_classes, num_classes)


@dataclass(frozen=True)
class Acceptance:
    """Which predictions may be accepted unseen: those of at least min_confidence, or none, and then why."""

    min_confidence: float | None
    accepted: int  # held-out images accepted
    coverage: float  # their share of the held-out images
    accuracy_bound: float  # their accuracy is at least this, 90 % sure
    needed: int  # no fewer than this many accepted held-out images can support such a claim
    missing: int  # so many more held-out labels are needed; 0 where labels alone will not do
    reason: str  # empty where there is a threshold


def clopper_pearson_lower(successes: int, trials: int, confidence: float = 0.90) -> float:
    """A one-sided lower bound on a rate, exact for binomial counts: too high in 1 - confidence of all cases at most."""
    from scipy.special import betaincinv

    if successes == 0:
        return 0.0
    return float(betaincinv(successes, trials - successes + 1, 1 - confidence))


def wilson(hits: float, trials: int) -> tuple[float, float]:
    """The 95 % interval of hits / trials (Wilson, 1927): within [0, 1] and of some width even at 0 and at 1."""
    share, spread = hits / trials, _Z**2 / trials
    middle = (share + spread / 2) / (1 + spread)
    reach = _Z * math.sqrt(share * (1 - share) / trials + spread / (4 * trials)) / (1 + spread)
    # at 0 and 1 the end is known, and rounding may not move it inside
    return 0.0 if hits <= 0 else max(0.0, middle - reach), 1.0 if hits >= trials else min(1.0, middle + reach)


def accept_threshold(correct_N: Numbers, confidence_N: Numbers, target: float, confidence: float = 0.90) -> Acceptance:
    """The lowest confidence at which accepted predictions reach the target accuracy, with a bound that holds.

    Trying every threshold and keeping the best would break the promise: one of many would pass by luck. So the
    thresholds are the confidences at ranks fixed before a label is looked at: a fifth of the held-out images (or as
    many as the claim needs at all), then a twentieth more each time, from the most confident on, and the search ends at
    the first that fails (fixed-sequence testing). It may then accept less than was possible, but where accuracy
    does not rise as confidence falls, the claim is false with probability 1 - confidence at most. It speaks of images
    of the same kind as the held-out ones, which must have had no part in training.
    """
    if not 0 < target < 1:
        raise ValueError(f"target must be between 0 and 1: {target}")
    correct, certainty = _float64(correct_N), _float64(confidence_N)
    num_images = len(correct)
    needed = math.ceil(math.log(1 - confidence) / math.log(target))  # with no error among them
    if num_images < needed:
        missing = needed - num_images
        reason = f"{target:.1%} needs at least {needed} held-out labels and there are {num_images}: {missing} missing"
        return Acceptance(None, 0, 0.0, 0.0, needed, missing, reason)

    ranked = np.sort(certainty)[::-1]
    step = max(1, math.ceil(num_images / 20))
    found = Acceptance(None, 0, 0.0, 0.0, needed, 0, "")
    for rank in [*range(max(needed, math.ceil(num_images / 5)), num_images, step), num_images]:
        least = float(ranked[rank - 1])
        accepted = certainty >= least  # more than rank where several are equally confident
        total, right = int(accepted.sum()), int(correct[accepted].sum())
        bound = clopper_pearson_lower(right, total, confidence)
        if bound >= target:
            found = Acceptance(least, total, total / num_images, bound, needed, 0, "")
        elif found.min_confidence is None:
            missing = _missing(right, total, num_images, target, confidence)
            reason = f"of the {total} most confident held-out images {right} are right: sure of {bound:.1%} only; " + (
                f"at that accuracy {missing:,} more held-out labels are needed"
                if missing
                else f"more labels alone will not do for {target:.1%}: train a better model, or ask for less"
            )
            return Acceptance(None, 0, 0.0, bound, needed, missing, reason)
        else:
            break
    return found


def _missing(right: int, total: int, num_images: int, target: float, confidence: float) -> int:
    """How many more held-out images let the first threshold tried pass, if accuracy stays that of its `total` images;
    0 where no number does, or only one beyond reason."""
    from scipy.special import betainc

    if right <= target * total:
        return 0
    trials = np.arange(total + 1, _MOST_ACCEPTED)
    hits = right * trials // total
    # the Clopper-Pearson bound reaches the target where so many hits are this unlikely at it
    passes = np.flatnonzero(betainc(hits, trials - hits + 1, target) <= 1 - confidence)
    # that many accepted images come to be the first threshold where they are a fifth of the held-out ones
    return 5 * int(trials[passes[0]] - 1) + 1 - num_images if len(passes) else 0


def _measured(each: Images, counts_RN: Floats) -> Iterator[tuple[str, Floats | None]]:
    """Every number of `summary` for R weightings of the images: each is (R,)."""

    def mean(values_N: Floats) -> Floats:
        return counts_RN @ values_N / counts_RN.sum(1)

    confidence_bins, share_bins = _bins(each.confidence_N, NUM_BINS), _bins(each.share_N, NUM_BINS)
    yield "error", 100 * mean(each.wrong_N)
    yield "top5", None if each.outside_top5_N is None else 100 * mean(each.outside_top5_N)
    yield "nll", mean(each.nll_N)
    yield "brier", mean(each.brier_N)
    yield "ece", 100 * _calibration(counts_RN, confidence_bins, 1 - each.wrong_N - each.confidence_N)
    yield "uce", 100 * _calibration(counts_RN, share_bins, each.wrong_N - each.share_N)
    yield "uce_nats", _calibration(counts_RN, share_bins, each.wrong_N - each.nats_N)
    yield "aurc", 100 * _area(counts_RN, each.share_N, each.wrong_N)


def _bins(values_N: Floats, num_bins: int) -> Ints:
    """The bin of each value in [0, 1]; bins are (low, high], and 0 is in the first."""
    return np.searchsorted(np.linspace(0, 1, num_bins + 1)[1:-1], values_N, side="left").astype(np.int64)


def _calibration(counts_RN: Floats, place_N: Ints, gap_N: Floats) -> Floats:
    """Sum over bins of |B| / N * |mean gap|, which is the sum of |sum of gaps| / N."""
    in_bin_NM = (place_N[:, None] == np.arange(place_N.max() + 1)) * gap_N[:, None]
    return np.abs(counts_RN @ in_bin_NM).sum(1) / counts_RN.sum(1)


def _area(counts_RN: Floats, uncertainty_N: Floats, wrong_N: Floats) -> Floats:
    """The mean over n of the expected error among the n least uncertain images, equal ones in any order.

    Before a group of equals stand `seen` images with `errors` errors; then the error after k of the group is
    (errors + rate * k) / (seen + k) = rate + (errors - rate * seen) / (seen + k), a sum of harmonic numbers. So an
    image that a resample holds twice costs nothing extra, and no resample has to be sorted.
    """
    order = np.argsort(uncertainty_N, kind="stable")
    starts = np.flatnonzero(np.diff(uncertainty_N[order], prepend=-np.inf))
    size = np.add.reduceat(counts_RN[:, order], starts, axis=1)
    mistakes = np.add.reduceat((counts_RN * wrong_N)[:, order], starts, axis=1)
    until, errors = np.cumsum(size, axis=1).astype(np.int64), np.cumsum(mistakes, axis=1) - mistakes
    seen = until - size.astype(np.int64)
    harmonic = np.concatenate([[0.0], np.cumsum(1 / np.arange(1, until[:, -1].max() + 1))])
    rate = mistakes / np.maximum(size, 1)
    total = mistakes + (errors - rate * seen) * (harmonic[until] - harmonic[seen])
    return total.sum(1) / counts_RN.sum(1)


def _resample_counts(rng: np.random.Generator, num_resamples: int, num_images: int) -> Floats:
    """How often each image is drawn, with replacement -> (R, N)."""
    drawn = rng.integers(0, num_images, (num_resamples, num_images)) + num_images * np.arange(num_resamples)[:, None]
    counts = np.bincount(drawn.ravel(), minlength=num_resamples * num_images)
    return counts.reshape(num_resamples, num_images).astype(np.float64)


def _resampled_means(rng: np.random.Generator, values_N: Floats, num_resamples: int) -> Floats:
    """The means of so many resamples, each as large as the sample."""
    at_once = max(1, 2**20 // len(values_N))
    sizes = [min(at_once, num_resamples - start) for start in range(0, num_resamples, at_once)]
    return np.concatenate([rng.choice(values_N, (size, len(values_N))).mean(1) for size in sizes])


def _middle(values: Floats) -> tuple[float, float]:
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def _once(each: Images) -> Floats:
    return np.ones((1, len(each.wrong_N)))


def _means(values_N: Floats, group_N: Ints, count: Ints) -> Floats:
    """The mean of each group, NaN where it is empty."""
    total = np.bincount(group_N, weights=values_N, minlength=len(count)).astype(np.float64)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _float64(values: Numbers) -> Floats:
    return torch.as_tensor(values).detach().cpu().double().numpy()
