"""What T predictions for one image say together. Entropies are in nats."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from npmatch.functional.precision import at_least_float32


def probabilities(logits_TNK: Tensor) -> Tensor:
    """Softmax over the classes, in float32 at least, under autocast too -> (T, N, K)."""
    return at_least_float32(logits_TNK).softmax(-1)


def mean_probs(logits_TNK: Tensor) -> Tensor:
    """The prediction: the mean of the T softmax outputs -> (N, K)."""
    return probabilities(logits_TNK).mean(0)


def entropy(probs_NK: Tensor) -> Tensor:
    """Entropy over the last axis, whatever axes stand before it -> (N,). A probability of 0 adds nothing.

    For reading, not for training: its gradient at a probability of 0 is infinite.
    """
    return (-torch.xlogy(probs_NK, probs_NK).sum(-1)).clamp_min(0)


def normalized_entropy(probs_NK: Tensor) -> Tensor:
    """Entropy as a share of log K, its highest value: in [0, 1], comparable between numbers of classes -> (N,)."""
    return (entropy(probs_NK) / math.log(probs_NK.shape[-1])).clamp_max(1)


def expected_entropy(probs_TNK: Tensor) -> Tensor:
    """The aleatoric part: what each of the T predictions finds ambiguous by itself -> (N,)."""
    return entropy(probs_TNK).mean(0)


def mutual_information(probs_TNK: Tensor) -> Tensor:
    """The epistemic part: what the T predictions disagree on; with the aleatoric part it makes the entropy -> (N,)."""
    return (entropy(probs_TNK.mean(0)) - expected_entropy(probs_TNK)).clamp_min(0)


def variance(probs_TNK: Tensor) -> Tensor:
    """How far the T predictions spread, for each class, unbiased -> (N, K). One prediction alone has none."""
    if len(probs_TNK) == 1:
        return torch.zeros_like(probs_TNK[0])
    return probs_TNK.var(0)
