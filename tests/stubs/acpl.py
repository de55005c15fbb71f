"""ACPL: rounds for multi-label images: labels (N, K), soft, with a weight; the loss is a sigmoid's."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from npmatch.types import Algorithm, Facts, Model, Points, Step, Views


@dataclass(frozen=True)
class Anchors:
    features: Tensor  # (A, F)
    labels: Tensor  # (A, K), soft


@dataclass(frozen=True)
class ACPLState:
    pass


@dataclass(frozen=True, kw_only=True)
class MultiLabel:
    needs: ClassVar[tuple[str, ...]] = ("labeled",)

    def init(self, facts: Facts) -> ACPLState:
        return ACPLState()

    def step(self, model: Model, teacher: Model, views: Views, state: ACPLState) -> Step[ACPLState]:
        features = model.features(views, ("labeled",))["labeled"]
        points = Points(features, views.y, torch.ones(len(features), device=features.device))
        out = model.head.learn(points, Points(*(part[:0] for part in points)))
        loss = F.binary_cross_entropy_with_logits(out.labeled, views.y.expand_as(out.labeled)) + out.penalty
        return Step(loss, {"labeled": loss.detach()}, state)


def informative(density_N: Tensor, num_modes: int) -> Tensor:
    """Which images of the pool a round looks at -> (N,) bool."""
    return density_N <= density_N.quantile(1 / num_modes)


def label(features_NF: Tensor, anchors: Anchors, neighbors: int) -> Tensor:
    """A soft label from the nearest anchors -> (N, K)."""
    nearest = torch.cdist(features_NF, anchors.features).topk(neighbors, largest=False).indices
    return anchors.labels[nearest].mean(1)


method: Algorithm[ACPLState] = MultiLabel()
