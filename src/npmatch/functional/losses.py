"""Losses of T predictions per image. Each returns one number per image: the caller chooses the mean."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from npmatch.functional.precision import at_least_float32
from npmatch.functional.uncertainty import probabilities


def cross_entropy(logits_TNK: Tensor, y_N: Tensor) -> Tensor:
    """Against class indices, mean over the T predictions -> (N,)."""
    num_samples, num_images, _ = logits_TNK.shape
    losses = F.cross_entropy(at_least_float32(logits_TNK).flatten(0, 1), y_N.repeat(num_samples), reduction="none")
    return losses.view(num_samples, num_images).mean(0)


def soft_cross_entropy(logits_TNK: Tensor, target_NK: Tensor) -> Tensor:
    """Against a distribution over the classes, mean over the T predictions -> (N,)."""
    return -(target_NK * at_least_float32(logits_TNK).log_softmax(-1)).sum(-1).mean(0)


def brier(logits_TNK: Tensor, target_NK: Tensor) -> Tensor:
    """Squared distance of the probabilities from a distribution, mean over classes and predictions -> (N,)."""
    return (probabilities(logits_TNK) - target_NK).square().mean((0, 2))
