"""Numbers in plain words: how the report writes them and what it says about them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from npmatch.report.folder import number


@dataclass(frozen=True)
class Metric:
    """One number of result.json and what it means to somebody who has not read the paper."""

    key: str
    name: str
    unit: str
    meaning: str


METRICS = (
    Metric(
        "error",
        "Error, last model",
        "%",
        "Images given a wrong class by the last (averaged) model. The number to quote.",
    ),
    Metric(
        "error_median20", "Error, median of last 20", "%", "The middle one of the last 20 evaluations: less luck in it."
    ),
    Metric(
        "error_best_on_test",
        "Error, best (selected on test)",
        "%",
        "The smallest of all evaluations. Choosing it looks at the test labels, so it flatters; "
        "only for tables that were made that way.",
    ),
    Metric("top5", "Top-5 error", "%", "Images whose class is not among the five most probable ones."),
    Metric(
        "ece",
        "Calibration error (ECE)",
        "%",
        "How far probabilities are from how often they are right, 15 bins. 0 is perfect.",
    ),
    Metric(
        "uce",
        "Uncertainty calibration error (UCE)",
        "%",
        "How far uncertainty, as a share of its maximum log K, is from how often the model is wrong, 15 bins.",
    ),
    Metric("uce_nats", "UCE in nats", "nats", "The same with uncertainty as it is, not divided by its maximum."),
    Metric(
        "aurc",
        "Area under risk-coverage (AURC)",
        "%",
        "Mean error over all shares of images one may accept, the most certain first. Small: uncertainty ranks well.",
    ),
    Metric("nll", "Negative log-likelihood", "nats", "Surprise at the given class. Punishes confident mistakes hard."),
    Metric("brier", "Brier score", "", "Squared distance between probabilities and the given class, from 0 to 2."),
)


def figure(value: object, unit: str = "") -> str:
    """A number to read: two decimals for percent, three otherwise, with its unit."""
    found = number(value)
    if found is None:
        return "–"
    return f"{found:.2f} %" if unit == "%" else f"{found:.3f} {unit}".rstrip()


def interval(ends: object, unit: str = "") -> str:
    """A 95 % interval to read, empty if there is none."""
    if not isinstance(ends, list | tuple) or len(ends) != 2 or any(number(end) is None for end in ends):
        return ""
    decimals = 2 if unit == "%" else 3
    return f"{ends[0]:.{decimals}f} to {ends[1]:.{decimals}f}" + (f" {unit}" if unit else "")


def duration(seconds: object) -> str:
    """Seconds as a person says them: 48 s, 1 min 32 s, 2 h 05 min."""
    found = number(seconds)
    if found is None:
        return "an unknown time"
    whole = round(found)
    if whole < 60:
        return f"{found:.1f} s" if found < 10 else f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def count(amount: int, one: str, many: str = "") -> str:
    """An amount with its noun: 1 image, 1,437 images."""
    return f"{amount:,} {one if amount == 1 else many or one + 's'}"


def most_uncertainty(confidence: float, num_classes: int) -> float:
    """The largest entropy, in nats, that a prediction of at least this probability can have: the rest spread evenly.

    Below 1 / num_classes the confidence binds nothing, and the answer is log(num_classes).
    """
    top = max(confidence, 1 / num_classes)
    rest = 1 - top
    return -top * math.log(top) - (rest * math.log(rest / (num_classes - 1)) if rest > 0 else 0.0)


def kept_sentence(kept: Sequence[float]) -> str:
    """How many pseudo-labels were used, from the shares of the run in order, each in 0 to 1."""
    if max(kept) == 0:
        return (
            "No pseudo-label was ever kept: the unlabeled images had no part in this model. "
            "Lower algorithm.min_confidence, train longer, or give more labels."
        )
    end = kept[-max(1, len(kept) // 10) :]
    share = 100 * sum(end) / len(end)
    if share == 0:
        return (
            "Pseudo-labels were kept early and none in the last tenth of training: the model has lost its confidence. "
            "Look at the curves, and lower algorithm.min_confidence or optimizer.lr."
        )
    return f"In the last tenth of training {share:.1f} % of the pseudo-labels were kept."


def refused_sentence(refused: Sequence[float], algorithm: dict[str, Any], num_classes: int, aligned: bool) -> str:
    """How many pseudo-labels uncertainty alone refused, and where that is none, whether it could have been any."""
    if max(refused) > 0:
        mean = 100 * sum(refused) / len(refused)
        return (
            f"Uncertainty alone refused {mean:.2f} % of the pseudo-labels, {100 * max(refused):.2f} % at most: "
            "their probability was high enough, their uncertainty was too high."
        )
    said = "Uncertainty alone refused no pseudo-label in this run."
    confidence, limit = number(algorithm.get("min_confidence")), number(algorithm.get("max_uncertainty"))
    if confidence is None or limit is None or num_classes < 2:
        return said
    if algorithm.get("uncertainty_unit") == "share":
        limit *= math.log(num_classes)
    if aligned:
        # The bound below needs both limits to look at the same probabilities.
        return f"{said} It could have: the probability is taken after alignment, the uncertainty before."
    most = most_uncertainty(confidence, num_classes)
    if most > limit:
        return f"{said} It could have: a probability of {confidence:g} can go with {most:.2f} nats, above {limit:.2g}."
    return (
        f"{said} With {num_classes} classes it never can at the full confidence limit: a probability of {confidence:g} "
        f"or more leaves at most {most:.2f} nats, and the limit is {limit:.2g}. This result owes nothing to that limit."
    )
