from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Categorical

from npmatch.functional.losses import brier, cross_entropy, soft_cross_entropy
from npmatch.functional.pseudo import pseudo_labels
from npmatch.functional.uncertainty import (
    entropy,
    expected_entropy,
    mean_probs,
    mutual_information,
    normalized_entropy,
    probabilities,
    variance,
)

SURE = torch.tensor([[[150.0, 0.0, 0.0]]])  # a float32 softmax of this is exactly (1, 0, 0)


def logits(*shape: int, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_entropy_is_that_of_torch_and_of_the_mean_prediction():
    probs = mean_probs(logits(5, 7, 4))
    torch.testing.assert_close(entropy(probs), Categorical(probs).entropy())
    torch.testing.assert_close(normalized_entropy(probs), entropy(probs) / math.log(4))
    assert normalized_entropy(torch.full((1, 4), 0.25)) == 1


def test_a_certain_prediction_is_certain():
    """A naive p * log p is NaN here, and the surest pseudo-labels would be the ones thrown away."""
    assert entropy(mean_probs(SURE)) == 0
    assert mutual_information(probabilities(SURE)) == 0
    assert cross_entropy(SURE, torch.tensor([0])) == 0
    assert cross_entropy(SURE, torch.tensor([1])) == 150
    assert soft_cross_entropy(SURE, torch.tensor([[0.5, 0.5, 0.0]])) == 75
    right, wrong = brier(SURE, torch.tensor([[1.0, 0.0, 0.0]])), brier(SURE, torch.tensor([[0.0, 1.0, 0.0]]))
    assert right == 0 and float(wrong) == pytest.approx(2 / 3)


def test_half_precision_logits_are_summed_in_float32():
    half = (SURE / 5).half()  # a float16 softmax of a gap of 30 is exactly (1, 0, 0)
    assert mean_probs(half).dtype == torch.float32
    assert 0 < entropy(mean_probs(half)) < 1e-10
    assert cross_entropy(half, torch.tensor([1])) == 30
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert mean_probs(half).dtype == cross_entropy(half, torch.tensor([1])).dtype == torch.float32


def test_uncertainty_splits_into_ambiguity_and_disagreement():
    probs = probabilities(logits(6, 9, 5))
    torch.testing.assert_close(expected_entropy(probs) + mutual_information(probs), entropy(probs.mean(0)))
    agree = probs[:1].expand(6, -1, -1)
    assert mutual_information(agree).max() < 1e-6
    opposed = torch.eye(2)[:, None]  # two certain predictions of different classes
    assert expected_entropy(opposed) == 0 and float(mutual_information(opposed)) == pytest.approx(math.log(2))


def test_a_pseudo_label_is_as_uncertain_as_its_mean_prediction():
    """Two samples that are certain of different classes: neither is ambiguous, together they know nothing."""
    opposed = 150 * torch.eye(2)[:, None]
    assert expected_entropy(probabilities(opposed)) == 0
    pseudo = pseudo_labels(opposed)
    assert float(pseudo.uncertainty) == pytest.approx(math.log(2)) and pseudo.confidence == 0.5


def test_variance_is_unbiased_and_zero_for_one_prediction():
    probs = probabilities(logits(6, 9, 5))
    torch.testing.assert_close(variance(probs), probs.var(0, unbiased=True))
    assert (variance(probs[:1]) == 0).all()


def test_losses_are_means_over_predictions_one_per_image():
    z, y = logits(3, 8, 4), torch.arange(8) % 4
    by_hand = torch.stack([F.cross_entropy(sample, y, reduction="none") for sample in z]).mean(0)
    torch.testing.assert_close(cross_entropy(z, y), by_hand)
    torch.testing.assert_close(soft_cross_entropy(z, F.one_hot(y, 4).float()), by_hand)
    target = mean_probs(logits(1, 8, 4, seed=1))
    by_hand = torch.stack([F.cross_entropy(sample, target, reduction="none") for sample in z]).mean(0)
    torch.testing.assert_close(soft_cross_entropy(z, target), by_hand)


def test_brier_is_a_mean_over_classes():
    uniform = torch.zeros(2, 1, 10)
    assert float(brier(uniform, F.one_hot(torch.tensor([3]), 10))) == pytest.approx(0.09)
