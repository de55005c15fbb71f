"""When a prediction may be believed: selective prediction and calibration, from the stored predictions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from npmatch.functional import metrics
from npmatch.report import words
from npmatch.report.folder import Predictions
from npmatch.report.svg import Axis, Bin, Line, calibration_bars, line_chart

Floats = NDArray[np.floating]

_SHARES = (100, 95, 90, 80, 70, 50)  # percent, the rows of the table
_START = 80  # where the slider stands at first, and the share the sentence speaks of


@dataclass(frozen=True)
class Limit:
    """Accept this share of the images: that many, with that error, up to that uncertainty."""

    share: str
    images: str
    error: str
    interval: str
    limit: str


@dataclass(frozen=True)
class Trust:
    """The section of the page: drawings, captions, the table, and what the slider says at each of its places."""

    sentence: str
    risk_coverage: Markup
    risk_caption: str
    says: list[str]
    start: int
    limits: list[Limit]
    reliability: Markup
    reliability_caption: str
    uncertainty: Markup
    uncertainty_caption: str


def trust(found: Predictions, result: dict[str, Any]) -> Trust:
    """Everything about when to believe the predictions."""
    each = metrics.images(found.probabilities, found.labels)
    curve = metrics.risk_coverage(found.uncertainty, each.wrong_N)
    risk, uncertainty = 100 * curve.risk_N, np.sort(found.uncertainty)
    total = len(risk)

    # One place for each percent, fewer where there are fewer than a hundred images.
    accepted = sorted({math.ceil(total * share / 100) for share in range(1, 101)})
    says = [
        f"If you accept the {100 * n / total:.0f} % most certain ({n:,} of {words.count(total, 'image')}, "
        f"uncertainty up to {uncertainty[n - 1]:.3f} nats), the error is {risk[n - 1]:.2f} %."
        for n in accepted
    ]
    start = accepted.index(math.ceil(total * _START / 100))
    reliability, reliability_caption = _reliability(each, result)
    share, share_caption = _uncertainty(each, result)
    return Trust(
        sentence=f"Accepting only the {100 * accepted[start] / total:.0f} % most certain images takes the error from "
        f"{risk[-1]:.2f} % to {risk[accepted[start] - 1]:.2f} %.",
        risk_coverage=_risk_coverage(risk, accepted),
        risk_caption=f"AURC, the mean height of the curve: {words.figure(result.get('aurc'), '%')}. "
        "The dashed line is what refusing at random would give.",
        says=says,
        start=start,
        limits=[_limit(risk, uncertainty, share) for share in _SHARES],
        reliability=reliability,
        reliability_caption=reliability_caption,
        uncertainty=share,
        uncertainty_caption=share_caption,
    )


def _limit(risk: Floats, uncertainty: Floats, share: int) -> Limit:
    n = math.ceil(len(risk) * share / 100)
    error = float(risk[n - 1])
    ends = [100 * end for end in metrics.wilson(n * error / 100, n)]
    return Limit(f"{share} %", f"{n:,}", f"{error:.2f} %", words.interval(ends, "%"), f"{uncertainty[n - 1]:.3f}")


def _risk_coverage(risk: Floats, accepted: list[int]) -> Markup:
    shares = [100 * n / len(risk) for n in accepted]
    heights = [float(risk[n - 1]) for n in accepted]
    says = [f"{share:.0f} % accepted: error {height:.2f} %" for share, height in zip(shares, heights)]
    line = Line("", shares, heights, says)
    describe = (
        f"Error against the share of images accepted, from {heights[0]:.2f} % to {heights[-1]:.2f} % at all of them"
    )
    x, y = Axis("accepted, most certain first (%)", 0, 100), Axis.around("error (%)", heights)
    return line_chart([line], x, y, describe, level=heights[-1])


def _reliability(each: metrics.Images, result: dict[str, Any]) -> tuple[Markup, str]:
    bins = metrics.reliability(each.confidence_N, 1 - each.wrong_N)
    claimed, right = 100 * each.confidence_N.mean(), 100 * (1 - each.wrong_N).mean()
    ece = words.figure(result.get("ece"), "%")
    describe = f"Accuracy against probability in 15 bins, calibration error {ece}"
    chart = calibration_bars(
        _bars(bins, "probability", "right"), _percent("probability of the predicted class"), _percent("right"), describe
    )
    lean = "overconfident" if claimed > right else "underconfident"
    return chart, (
        f"Calibration error (ECE) {ece}. On average the model promises {claimed:.1f} % and is right in {right:.1f} %: "
        f"{lean} by {abs(claimed - right):.1f} points. Orange is promised and not held."
    )


def _uncertainty(each: metrics.Images, result: dict[str, Any]) -> tuple[Markup, str]:
    bins = metrics.reliability(each.share_N, each.wrong_N)
    uce = words.figure(result.get("uce"), "%")
    describe = f"Error against uncertainty in 15 bins, uncertainty calibration error {uce}"
    chart = calibration_bars(
        _bars(bins, "uncertainty", "wrong"),
        _percent("uncertainty, of its maximum"),
        _percent("wrong"),
        describe,
        color=4,
        bad_above=True,
    )
    return chart, (
        f"Uncertainty calibration error (UCE) {uce}. Bars should rise from left to right: "
        "the more uncertain, the more often wrong. Orange is wrong without warning."
    )


def _bars(bins: metrics.Reliability, claim: str, outcome: str) -> list[Bin]:
    width, total = 100 / len(bins.count_M), int(bins.count_M.sum())
    return [
        Bin(
            i * width,
            (i + 1) * width,
            100 * predicted,
            100 * observed,
            int(count) / total,
            f"{claim} {i * width:.0f} to {(i + 1) * width:.0f} %: {words.count(int(count), 'image')}, "
            f"{100 * predicted:.1f} % on average, {100 * observed:.1f} % {outcome}",
        )
        for i, (count, predicted, observed) in enumerate(zip(*bins))
        if count
    ]


def _percent(label: str) -> Axis:
    return Axis(f"{label} (%)", 0, 100)
