"""Which pseudo-labels to trust, and how far each class has been learnt (FlexMatch)."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from npmatch.functional.uncertainty import entropy, mean_probs
from npmatch.types import Points


class PseudoLabels(NamedTuple):
    """A guess for each unlabeled image and how much to trust it."""

    label: Tensor  # (U,) class index
    confidence: Tensor  # (U,) the guessed class's mean probability
    uncertainty: Tensor  # (U,) entropy of the mean prediction, in nats
    probs: Tensor  # (U, K) mean prediction

    @property
    def num_classes(self) -> int:
        return self.probs.shape[-1]


@torch.no_grad()
def pseudo_labels(logits_TUK: Tensor) -> PseudoLabels:
    """The likeliest class of each image by its mean prediction. Carries no gradient."""
    probs = mean_probs(logits_TUK)
    confidence, label = probs.max(-1)
    return PseudoLabels(label, confidence, entropy(probs), probs)


def relabeled(pseudo: PseudoLabels, probs_UK: Tensor) -> PseudoLabels:
    """The guesses by corrected probabilities. Uncertainty stays that of the prediction."""
    confidence, label = probs_UK.max(-1)
    return pseudo._replace(probs=probs_UK, confidence=confidence, label=label)


def trusted(
    pseudo: PseudoLabels, *, min_confidence: Tensor | float, max_uncertainty: Tensor | float = float("inf")
) -> Tensor:
    """1.0 where a pseudo-label passes both thresholds, which themselves pass, else 0.0 -> (U,)."""
    passes = (pseudo.confidence >= min_confidence) & (pseudo.uncertainty <= max_uncertainty)
    return passes.to(pseudo.confidence.dtype)


def curriculum(last_label_P: Tensor, num_classes: int, *, warmup: bool = True) -> Tensor:
    """How well each class is learnt next to the one learnt best (beta), in [0, 1] -> (K,).

    last_label_P holds, for each image of the pool, the newest label that passed the full threshold, and -1 before
    the first. With warmup those still at -1 count as a class too, so that few early guesses do not look like success.
    """
    counts = last_label_P.new_zeros(num_classes + 1).scatter_add(0, last_label_P + 1, torch.ones_like(last_label_P))
    most = counts.max() if warmup else counts[1:].max()
    return counts[1:] / most.clamp_min(1)


def flexible_threshold(min_confidence: float, learnt: Tensor) -> Tensor:
    """tau * beta / (2 - beta): 0 for a class nobody has guessed yet, the full threshold for the one learnt best."""
    return min_confidence * learnt / (2 - learnt)


def remember(last_label_P: Tensor, place_U: Tensor, label_U: Tensor, sure_U: Tensor) -> Tensor:
    """The table with the labels of the sure images written in -> (P,). An image drawn twice keeps its last sure one."""
    places = last_places(place_U, sure_U, len(last_label_P))
    return F.pad(last_label_P, (0, 1)).scatter(0, places, label_U)[:-1]


def last_places(place_U: Tensor, sure_U: Tensor, table_size: int) -> Tensor:
    """Where in a table each sure image of a batch is written, if it is the last of its place -> (U,).

    A plain scatter leaves that to the order of GPU threads, and picking the sure rows would give a shape that depends
    on data: all other rows go to a bin behind the table.
    """
    sure = sure_U > 0
    order = torch.arange(len(place_U), device=place_U.device)
    comes_later = (place_U[:, None] == place_U) & (order[:, None] < order) & sure
    return torch.where(sure & ~comes_later.any(1), place_U, table_size)


def class_shares(label_U: Tensor, weight_U: Tensor, num_classes: int) -> Tensor:
    """The share of each class among the labels, by their weights -> (K,); zeros where nothing has weight."""
    return weight_U.new_zeros(num_classes).scatter_add(0, label_U, weight_U) / weight_U.sum().clamp_min(1)


def kept_metrics(pseudo: PseudoLabels, keep_U: Tensor) -> dict[str, Tensor]:
    """What every method that selects logs: the share it keeps, the means of what it selects by, and the share of the
    kept guesses that are of one class, which shows a collapse."""
    return {
        "kept": keep_U.mean(),
        "confidence": pseudo.confidence.mean(),
        "uncertainty": pseudo.uncertainty.mean(),
        "largest_class": class_shares(pseudo.label, keep_U, pseudo.num_classes).max(),
    }


def labeled_points(features_BF: Tensor, y_B: Tensor, num_classes: int) -> Points:
    """Labeled images as a head learns from them: all of weight 1."""
    dtype = _label_dtype(features_BF)
    return Points(features_BF, F.one_hot(y_B, num_classes).to(dtype), torch.ones_like(y_B, dtype=dtype))


def pseudo_points(features_UF: Tensor, pseudo: PseudoLabels, keep_U: Tensor) -> Points:
    """Pseudo-labeled images as a head learns from them: those not kept have weight 0."""
    dtype = _label_dtype(features_UF)
    return Points(features_UF, F.one_hot(pseudo.label, pseudo.num_classes).to(dtype), keep_U.to(dtype))


def target_points(features_UF: Tensor, target_UK: Tensor, weight_U: Tensor) -> Points:
    """Images with a soft label, a distribution over the classes, as a head learns from them."""
    dtype = _label_dtype(features_UF)
    return Points(features_UF, target_UK.to(dtype), weight_U.to(dtype))


def _label_dtype(features: Tensor) -> torch.dtype:
    """Labels and weights enter sums over the batch, so they are never half precision, even where features are."""
    return torch.promote_types(features.dtype, torch.float32)
