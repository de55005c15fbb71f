"""FixMatch (Sohn et al., 2020, Algorithm 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from npmatch.functional.losses import cross_entropy
from npmatch.functional.pseudo import kept_metrics, labeled_points, pseudo_labels, pseudo_points, trusted
from npmatch.types import Facts, Model, Step, Views


@dataclass(frozen=True)
class FixMatchState:
    """FixMatch remembers nothing."""


@dataclass(frozen=True, kw_only=True)
class FixMatch:
    """Guess from a weak view, keep the guess if it is confident, learn it on a strong view."""

    paper: ClassVar[str] = "Sohn et al., NeurIPS 2020"
    needs: ClassVar[tuple[str, ...]] = ("labeled", "weak", "strong")

    min_confidence: float = 0.95  # tau
    unlabeled_weight: float = 1.0  # lambda_u

    def init(self, facts: Facts) -> FixMatchState:
        return FixMatchState()

    def step(self, model: Model, teacher: Model, views: Views, state: FixMatchState) -> Step[FixMatchState]:
        features = model.features(views)
        with torch.no_grad():
            pseudo = pseudo_labels(model.head(features["weak"]))
        keep = trusted(pseudo, min_confidence=self.min_confidence)

        out = model.head.learn(
            labeled_points(features["labeled"], views.y, pseudo.num_classes),
            pseudo_points(features["strong"], pseudo, keep),
        )
        labeled = cross_entropy(out.labeled, views.y).mean()
        unlabeled = (cross_entropy(out.unlabeled, pseudo.label) * keep).mean()  # over all, kept or not
        loss = labeled + self.unlabeled_weight * unlabeled

        metrics = {"labeled": labeled.detach(), "unlabeled": unlabeled.detach(), **kept_metrics(pseudo, keep)}
        return Step(loss, metrics, state)
