"""Where the model goes wrong: pairs of classes, single classes, single images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from npmatch.functional import metrics
from npmatch.report import words
from npmatch.report.examples import most_confidently_wrong, most_uncertain
from npmatch.report.folder import Predictions
from npmatch.report.images import data_address
from npmatch.report.svg import Axis, Point, heat_map, scatter, shorten

_MOST_CELLS = 30  # classes; a larger matrix cannot be read, the most confused pairs can
_MOST_BARS = 40
_MOST_PAIRS = 12
_MOST_PAIRS_BESIDE = 5  # a matrix that shows them all
_SMALL = 96  # pixels: below, an image is shown in its own pixels instead of blurred


@dataclass(frozen=True)
class Pair:
    """Images of one class taken for another."""

    given: str
    predicted: str
    images: int
    share: str


@dataclass(frozen=True)
class ClassRow:
    """One class in the table. `order` sorts, `width` is the length of the bar in percent."""

    name: str
    accuracy: str
    order: float
    width: float
    interval: str
    uncertainty: str
    uncertainty_order: float
    uncertainty_interval: str
    images: int
    labels: int | None


@dataclass(frozen=True)
class Mistakes:
    """The section of the page."""

    sentence: str
    matrix: Markup | None  # none with too many classes
    pairs: list[Pair]
    pairs_note: str
    classwise: Markup | None
    classwise_caption: str
    classes: list[ClassRow]


@dataclass(frozen=True)
class Thumbnail:
    """One image of a contact sheet with what is to say about it."""

    address: str
    small: bool
    says: str
    given: str
    predicted: str
    right: bool
    probability: str
    uncertainty: str
    id: str
    short_id: str


@dataclass(frozen=True)
class Sheet:
    """Images with something in common."""

    title: str
    note: str
    images: list[Thumbnail]


def mistakes(found: Predictions, names: Sequence[str], labels: Sequence[int]) -> Mistakes:
    """Pairs, classes and the figure of the paper (class-wise uncertainty against accuracy)."""
    counts = metrics.confusion(found.probabilities, found.labels)
    per_class = metrics.per_class(found.probabilities, found.labels)
    pairs = _pairs(counts, names)
    wrong, total = int(counts.sum() - np.trace(counts)), int(counts.sum())
    matrix = None
    if len(names) <= _MOST_CELLS:
        matrix = heat_map(counts.tolist(), names, f"Confusion matrix: {wrong} of {total} images off the diagonal")
    chart, caption = _classwise(per_class, names)
    return Mistakes(
        sentence=f"{wrong:,} of {words.count(total, 'image')} got a wrong class.",
        matrix=matrix,
        pairs=pairs[: _MOST_PAIRS_BESIDE if matrix else _MOST_PAIRS],
        pairs_note=f"Of {words.count(len(pairs), 'pair')} of classes that were confused at all."
        + ("" if matrix else f" A matrix of {len(names)} classes would be too fine to read."),
        classwise=chart,
        classwise_caption=caption,
        classes=[_class_row(name, k, per_class, labels) for k, name in enumerate(names)],
    )


def contact_sheets(found: Predictions, names: Sequence[str], images: dict[int, NDArray[np.uint8]]) -> list[Sheet]:
    """The most uncertain images and the most confidently wrong ones, as far as evaluation stored them."""
    uncertain = most_uncertain(found.uncertainty)
    wrong = most_confidently_wrong(found.probabilities, found.labels)
    sheets = [
        Sheet(
            "Most uncertain",
            "Difficult or unlike the others. New labels help most here.",
            [_thumbnail(found, names, images[row], row) for row in uncertain.tolist() if row in images],
        ),
        Sheet(
            "Most confidently wrong",
            "Sure and not right: a blind spot of the model, or a wrong label in the data.",
            [_thumbnail(found, names, images[row], row) for row in wrong.tolist() if row in images],
        ),
    ]
    return [sheet for sheet in sheets if sheet.images]


def _pairs(counts: NDArray[np.int64], names: Sequence[str]) -> list[Pair]:
    """Confused pairs, the most frequent first."""
    off = counts.copy()
    np.fill_diagonal(off, 0)
    order = np.argsort(-off, axis=None, kind="stable")[: np.count_nonzero(off)]
    totals = counts.sum(axis=1)
    pairs = []
    for place in order:
        given, predicted = divmod(int(place), len(names))
        images = int(off[given, predicted])
        pairs.append(Pair(names[given], names[predicted], images, f"{100 * images / totals[given]:.1f} %"))
    return pairs


def _classwise(per_class: metrics.PerClass, names: Sequence[str]) -> tuple[Markup | None, str]:
    seen = [k for k in range(len(names)) if per_class.count_K[k]]
    if not seen:
        return None, ""
    # The worst classes first: they get a name where there is no room for all.
    seen.sort(key=lambda k: (per_class.accuracy_K[k], -per_class.uncertainty_K[k]))
    bars = len(seen) <= _MOST_BARS
    points = []
    for k in seen:
        count, accuracy, nats = (
            int(per_class.count_K[k]),
            float(per_class.accuracy_K[k]),
            float(per_class.uncertainty_K[k]),
        )
        low, high = (100 * per_class.accuracy_ci95_K2[k]).tolist() if bars else (None, None)
        says = (
            f"{names[k]}: accuracy {100 * accuracy:.1f} %, uncertainty {nats:.3f} nats, {words.count(count, 'image')}"
        )
        points.append(Point(nats, 100 * accuracy, names[k], says, low, high))
    heights = [end for p in points for end in (p.y, p.low, p.high) if end is not None]
    chart = scatter(
        points,
        Axis.around("mean uncertainty (nats)", [p.x for p in points]),
        Axis.around("accuracy (%)", heights, floor=None),
        f"Accuracy against mean uncertainty of {len(points)} classes",
    )
    caption = (
        "A point is a class. Where uncertainty can be believed, the points fall from the upper left to the lower right."
    )
    across, up = np.array([p.x for p in points]), np.array([p.y for p in points])
    if len(points) > 2 and across.std() > 0 and up.std() > 0:
        caption += f" Here their correlation is {np.corrcoef(across, up)[0, 1]:.2f}."
    return chart, caption + (" Lines are 95 % intervals." if bars else "")


def _class_row(name: str, k: int, per_class: metrics.PerClass, labels: Sequence[int]) -> ClassRow:
    given = int(labels[k]) if k < len(labels) else None
    count = int(per_class.count_K[k])
    if not count:
        return ClassRow(name, "–", -1.0, 0.0, "", "–", -1.0, "", 0, given)
    accuracy, uncertainty = 100 * float(per_class.accuracy_K[k]), float(per_class.uncertainty_K[k])
    return ClassRow(
        name=name,
        accuracy=f"{accuracy:.1f} %",
        order=accuracy,
        width=round(accuracy, 1),
        interval=words.interval((100 * per_class.accuracy_ci95_K2[k]).tolist(), "%"),
        uncertainty=f"{uncertainty:.3f}",
        uncertainty_order=uncertainty,
        uncertainty_interval=words.interval(per_class.uncertainty_ci95_K2[k].tolist()),
        images=count,
        labels=given,
    )


def _thumbnail(found: Predictions, names: Sequence[str], image: NDArray[np.uint8], row: int) -> Thumbnail:
    predicted = int(found.probabilities[row].argmax())
    given = int(found.labels[row])
    probability, uncertainty = f"{100 * found.probabilities[row, predicted]:.1f} %", f"{found.uncertainty[row]:.3f}"
    name = found.ids[row]
    return Thumbnail(
        address=data_address(image),
        small=max(image.shape[:2]) < _SMALL,
        says=f"given {names[given]}, predicted {names[predicted]} at {probability}, uncertainty {uncertainty} nats",
        given=names[given],
        predicted=names[predicted],
        right=given == predicted,
        probability=probability,
        uncertainty=uncertainty,
        id=name,
        short_id=shorten(name, 17),
    )
