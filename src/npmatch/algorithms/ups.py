"""UPS (Rizve et al., 2021, Sec. 3), as NP-Match's tables have it: online, with RandAugment and FlexMatch's curriculum.

The paper trains in rounds, each from fresh weights; here every step selects for itself (docs/methods/ups.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from npmatch.functional.losses import cross_entropy
from npmatch.functional.pseudo import (
    curriculum,
    flexible_threshold,
    kept_metrics,
    labeled_points,
    pseudo_labels,
    pseudo_points,
    remember,
    trusted,
)
from npmatch.functional.uncertainty import probabilities, variance
from npmatch.nets import frozen_batch_norm, running_batch_norm
from npmatch.types import Facts, Model, Step, Views


@dataclass(frozen=True)
class UPSState:
    last_label: Tensor  # (pool,) newest pseudo-label that passed the full thresholds, -1 before the first


@dataclass(frozen=True, kw_only=True)
class UPS:
    """Guesses that stay the same over many passes with dropout, and what an image surely is not."""

    paper: ClassVar[str] = "Rizve et al., ICLR 2021"
    needs: ClassVar[tuple[str, ...]] = ("labeled", "weak", "strong")

    min_confidence: float = 0.95  # tau_p; the paper's rounds have .7
    max_deviation: float = 0.05  # kappa_p, of the guessed class's probability over the passes
    unlabeled_weight: float = 1.0  # lambda_u
    negative_weight: float = 1.0  # lambda_n, 0 leaves negative labels out
    max_negative_confidence: float = 0.05  # tau_n: a class less likely than this is one the image is not
    max_negative_deviation: float = 0.005  # kappa_n
    negative_temperature: float = 2.0  # of the probabilities that negative labels are chosen by
    threshold_warmup: bool = True
    statistics: Literal["batch", "running"] = "batch"  # of batch norm in the passes; running ones lag behind early

    def init(self, facts: Facts) -> UPSState:
        return UPSState(torch.full((facts.num_unlabeled,), -1, device=facts.device))

    def step(self, model: Model, teacher: Model, views: Views, state: UPSState) -> Step[UPSState]:
        # 1. T passes over the weak view, of which batch norm's running statistics see nothing.
        passes = frozen_batch_norm if self.statistics == "batch" else running_batch_norm
        with torch.no_grad(), passes(model.backbone):
            logits = model.sample_all(views["weak"])

        # 2. A guess is kept where it is confident (each class has its own threshold) and stable.
        pseudo = pseudo_labels(logits)
        deviation = variance(probabilities(logits)).sqrt().gather(1, pseudo.label[:, None])[:, 0]
        stable = (deviation <= self.max_deviation).to(deviation.dtype)
        learnt = curriculum(state.last_label, pseudo.num_classes, warmup=self.threshold_warmup)
        confident = trusted(pseudo, min_confidence=flexible_threshold(self.min_confidence, learnt)[pseudo.label])
        keep = confident * stable
        negative = self.negative_labels(logits, pseudo.label, keep)

        # 3. Labels, kept guesses, and negative labels for images without one, all over the whole batch.
        features = model.features(views, ("labeled", "strong"))
        out = model.head.learn(
            labeled_points(features["labeled"], views.y, pseudo.num_classes),
            pseudo_points(features["strong"], pseudo, keep),
        )
        labeled = cross_entropy(out.labeled, views.y).mean()
        unlabeled = (cross_entropy(out.unlabeled, pseudo.label) * keep).mean()
        refused = negative_cross_entropy(out.unlabeled, negative).mean()
        loss = labeled + self.unlabeled_weight * unlabeled + self.negative_weight * refused

        # 4. The curriculum counts guesses that pass the full threshold and are stable.
        sure = trusted(pseudo, min_confidence=self.min_confidence) * stable
        last_label = remember(state.last_label, views.place, pseudo.label, sure)

        metrics = {"labeled": labeled, "unlabeled": unlabeled, "negative": refused}
        metrics = {name: value.detach() for name, value in metrics.items()} | out.metrics | kept_metrics(pseudo, keep)
        metrics |= {"deviation": deviation.mean(), "negative_labels": negative.sum(1).mean()}
        metrics |= {"refused_by_uncertainty": (confident - keep).mean()}
        return Step(loss, metrics, UPSState(last_label))

    def negative_labels(self, logits_TUK: Tensor, label_U: Tensor, keep_U: Tensor) -> Tensor:
        """1.0 for a class that an image surely is not, where no guess is kept for it -> (U, K)."""
        probs = probabilities(logits_TUK / self.negative_temperature)
        unlikely = probs.mean(0) < self.max_negative_confidence
        stable = variance(probs).sqrt() < self.max_negative_deviation
        other = torch.ones_like(unlikely).scatter(1, label_U[:, None], False)
        return (unlikely & stable & other & (keep_U[:, None] == 0)).to(probs.dtype)


def negative_cross_entropy(logits_TNK: Tensor, negative_NK: Tensor) -> Tensor:
    """How likely the classes are that an image is not, mean over them and over the T predictions -> (N,).

    0 where there are none.
    """
    other = (1 - probabilities(logits_TNK)).clamp_min(1e-7)  # a class held certain would make it infinite
    return -(negative_NK * other.log()).sum(-1).mean(0) / negative_NK.sum(-1).clamp_min(1)
