"""FlexMatch (Zhang et al., 2021, Algorithm 1): FixMatch with a threshold for each class that follows its learning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

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
from npmatch.types import Facts, Model, Step, Views


@dataclass(frozen=True)
class FlexMatchState:
    last_label: Tensor  # (pool,) newest pseudo-label that passed the full threshold, -1 before the first


@dataclass(frozen=True, kw_only=True)
class FlexMatch:
    """FixMatch with class-wise thresholds: a class that is not learnt yet gets a lower one."""

    paper: ClassVar[str] = "Zhang et al., NeurIPS 2021"
    needs: ClassVar[tuple[str, ...]] = ("labeled", "weak", "strong")

    min_confidence: float = 0.95  # tau
    unlabeled_weight: float = 1.0  # lambda_u
    threshold_warmup: bool = True

    def init(self, facts: Facts) -> FlexMatchState:
        return FlexMatchState(torch.full((facts.num_unlabeled,), -1, device=facts.device))

    def step(self, model: Model, teacher: Model, views: Views, state: FlexMatchState) -> Step[FlexMatchState]:
        features = model.features(views)

        # 1. Guesses, and thresholds from how often each class passed the full one.
        with torch.no_grad():
            pseudo = pseudo_labels(model.head(features["weak"]))
        learnt = curriculum(state.last_label, pseudo.num_classes, warmup=self.threshold_warmup)
        keep = trusted(pseudo, min_confidence=flexible_threshold(self.min_confidence, learnt)[pseudo.label])

        # 2. FixMatch's loss.
        out = model.head.learn(
            labeled_points(features["labeled"], views.y, pseudo.num_classes),
            pseudo_points(features["strong"], pseudo, keep),
        )
        labeled = cross_entropy(out.labeled, views.y).mean()
        unlabeled = (cross_entropy(out.unlabeled, pseudo.label) * keep).mean()
        loss = labeled + self.unlabeled_weight * unlabeled

        # 3. What passes the full threshold is counted from the next step on.
        sure = trusted(pseudo, min_confidence=self.min_confidence)
        last_label = remember(state.last_label, views.place, pseudo.label, sure)

        metrics = {"labeled": labeled.detach(), "unlabeled": unlabeled.detach(), **kept_metrics(pseudo, keep)}
        return Step(loss, metrics, FlexMatchState(last_label))
