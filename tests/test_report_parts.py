"""The parts of the report that are plain functions: numbers into words, axes and pixels."""

from __future__ import annotations

import io
from base64 import b64decode

import numpy as np
import pytest
from PIL import Image

from npmatch.functional import metrics
from npmatch.report.examples import choose_examples, most_confidently_wrong, most_uncertain
from npmatch.report.images import data_address
from npmatch.report.svg import Axis, ticks
from npmatch.report.words import duration, kept_sentence, most_uncertainty, refused_sentence


def test_examples_are_the_extreme_ones():
    rng = np.random.default_rng(0)
    probabilities, uncertainty = rng.dirichlet(np.ones(4), 300), rng.random(300)
    labels = rng.integers(0, 4, 300)
    wrong = np.flatnonzero(probabilities.argmax(1) != labels)
    uncertain, confident = most_uncertain(uncertainty), most_confidently_wrong(probabilities, labels)
    assert set(uncertain) == {i for i in range(300) if (uncertainty > uncertainty[i]).sum() < 24}
    top = probabilities.max(1)
    assert set(confident) == {i for i in wrong if (top[wrong] > top[i]).sum() < 24}
    assert np.all(np.diff(uncertainty[uncertain]) <= 0) and np.all(np.diff(top[confident]) <= 0)
    rows = choose_examples(probabilities, uncertainty, labels)
    assert len(set(rows)) == len(rows) and set(rows) == set(uncertain) | set(confident)
    assert len(choose_examples(probabilities[:3], uncertainty[:3], labels[:3])) == 3


def test_no_prediction_can_be_more_uncertain_than_said():
    rng = np.random.default_rng(0)
    for num_classes, confidence in ((2, 0.6), (10, 0.95), (100, 0.95), (10, 0.05)):
        probs = rng.dirichlet(np.full(num_classes, 0.05), 20_000)
        probs = np.concatenate([probs, np.full((1, num_classes), (1 - confidence) / (num_classes - 1))])
        probs[-1, 0] = confidence
        entropy = metrics.images(probs, np.zeros(len(probs))).nats_N
        most = most_uncertainty(confidence, num_classes)
        assert entropy[probs.max(1) >= confidence].max() <= most + 1e-9
        assert confidence < 1 / num_classes or entropy[-1] == pytest.approx(most)


def test_what_uncertainty_refused_in_words():
    limits = {"min_confidence": 0.95, "max_uncertainty": 0.4}
    assert "With 10 classes it never can" in refused_sentence([0, 0], limits, 10, aligned=False)
    assert "It could have: a probability of 0.95 can go with 0.43 nats" in refused_sentence(
        [0], limits, 100, aligned=False
    )
    share = {"min_confidence": 0.95, "max_uncertainty": 0.2, "uncertainty_unit": "share"}  # .46 nats of log 10
    assert "the limit is 0.46" in refused_sentence([0], share, 10, aligned=False)
    assert "It could have" in refused_sentence([0], share | {"max_uncertainty": 0.05}, 10, aligned=False)
    assert "after alignment" in refused_sentence([0], limits, 10, aligned=True)
    assert "refused 1.50 % of the pseudo-labels, 3.00 % at most" in refused_sentence(
        [0, 0.03], limits, 100, aligned=False
    )
    assert "No pseudo-label was ever kept" in kept_sentence([0.0] * 30)
    assert "none in the last tenth" in kept_sentence([0.5] * 20 + [0.0] * 5)
    assert "90.0 %" in kept_sentence([0.1] * 27 + [0.9] * 3)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 7])
def test_images_keep_their_pixels(channels: int):
    image = np.random.default_rng(0).integers(0, 256, (5, 6, channels)).astype(np.uint8)
    kind, content = data_address(image).split(",")
    assert kind == "data:image/png;base64"
    shown = np.asarray(Image.open(io.BytesIO(b64decode(content))))
    np.testing.assert_array_equal(shown, image[..., :3] if channels >= 3 else image[..., 0])


def test_axes_hold_their_values_and_end_on_ticks():
    rng = np.random.default_rng(0)
    for _ in range(500):
        values = (rng.normal(size=3) * 10.0 ** rng.integers(-6, 7)).tolist()
        axis = Axis.around("", values)
        marks = ticks(axis.low, axis.high)
        slack = 1e-6 * (axis.high - axis.low)
        assert axis.low <= min(values) + slack and max(values) <= axis.high + slack
        assert 2 <= len(marks) <= 7 and np.allclose(np.diff(marks, n=2), 0, atol=slack)
    assert Axis.around("", [0.0, 0.0]).high == 1.0


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (4.25, "4.2 s"),
        (59.4, "59 s"),
        (92.4, "1 min 32 s"),
        (3599.9, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (None, "an unknown time"),
    ],
)
def test_durations(seconds: float | None, said: str):
    assert duration(seconds) == said
