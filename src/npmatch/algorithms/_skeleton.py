"""A method to copy (docs/add_an_algorithm.md): it trusts guesses surer than its usual one. Not in ALGORITHMS.

Name the paper and the section here: the file is read beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from npmatch.functional.losses import cross_entropy
from npmatch.functional.pseudo import kept_metrics, labeled_points, pseudo_labels, pseudo_points, trusted
from npmatch.types import Facts, Model, Step, Views


@dataclass(frozen=True)
class SkeletonState:
    """What the next step must know, as tensors: saved and restored by their names. May be empty."""

    usual: Tensor  # () running mean of the confidence


@dataclass(frozen=True, kw_only=True)
class Skeleton:
    """One sentence, which `npmatch list algorithms` shows."""

    paper: ClassVar[str] = ""  # such as "Lee, ICML workshop 2013"
    needs: ClassVar[tuple[str, ...]] = ("labeled", "weak", "strong")  # the views it asks for

    # Every field is a setting: --set algorithm.min_confidence=0.7
    min_confidence: float = 0.5  # the threshold never falls below it
    unlabeled_weight: float = 1.0  # lambda_u
    decay: float = 0.99  # of the running mean

    def init(self, facts: Facts) -> SkeletonState:
        return SkeletonState(torch.full((), 1 / facts.num_classes, device=facts.device))

    def step(self, model: Model, teacher: Model, views: Views, state: SkeletonState) -> Step[SkeletonState]:
        features = model.features(views)  # one pass over all views, so that batch norm sees them together

        # 1. Guess from the weak view. A target carries no gradient, and a given state is not changed in place.
        with torch.no_grad():
            pseudo = pseudo_labels(model.head(features["weak"]))
        usual = self.decay * state.usual + (1 - self.decay) * pseudo.confidence.mean()
        keep = trusted(pseudo, min_confidence=usual.clamp_min(self.min_confidence))

        # 2. Learn labels, and guesses on the strong view. Weight 0 leaves an image out: no shape depends on the data.
        out = model.head.learn(
            labeled_points(features["labeled"], views.y, pseudo.num_classes),
            pseudo_points(features["strong"], pseudo, keep),
        )
        labeled = cross_entropy(out.labeled, views.y).mean()
        unlabeled = (cross_entropy(out.unlabeled, pseudo.label) * keep).mean()
        loss = labeled + self.unlabeled_weight * unlabeled

        # 3. Metrics are detached scalars and never leave the device here.
        metrics = {"labeled": labeled.detach(), "unlabeled": unlabeled.detach(), **kept_metrics(pseudo, keep)}
        return Step(loss, metrics | {"threshold": usual}, SkeletonState(usual))
