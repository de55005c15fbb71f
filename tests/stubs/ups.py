"""UPS: the spread of ten dropout passes decides; negative labels for what is surely not a class."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from npmatch.functional.losses import cross_entropy
from npmatch.functional.pseudo import labeled_points, pseudo_labels, pseudo_points, trusted
from npmatch.functional.uncertainty import probabilities
from npmatch.nets import frozen_batch_norm
from npmatch.types import Algorithm, Facts, Model, Step, Views


@dataclass(frozen=True)
class UPSState:
    pass


@dataclass(frozen=True, kw_only=True)
class UPS:
    needs: ClassVar[tuple[str, ...]] = ("labeled", "weak", "strong")
    max_deviation: float = 0.05  # kappa_p

    def init(self, facts: Facts) -> UPSState:
        return UPSState()

    def step(self, model: Model, teacher: Model, views: Views, state: UPSState) -> Step[UPSState]:
        with torch.no_grad(), frozen_batch_norm(model):
            logits_TUK = model.sample(views["weak"], 10)
        pseudo = pseudo_labels(logits_TUK)
        spread = probabilities(logits_TUK).std(0).gather(1, pseudo.label[:, None])[:, 0]
        keep = trusted(pseudo, min_confidence=0.95) * (spread <= self.max_deviation)
        features = model.features(views, ("labeled", "strong"))
        out = model.head.learn(
            labeled_points(features["labeled"], views.y, pseudo.num_classes),
            pseudo_points(features["strong"], pseudo, keep),
        )
        unlabeled = (cross_entropy(out.unlabeled, pseudo.label) * keep).mean()
        loss = cross_entropy(out.labeled, views.y).mean() + unlabeled
        return Step(loss, {"unlabeled": unlabeled.detach()}, state)


method: Algorithm[UPSState] = UPS()
