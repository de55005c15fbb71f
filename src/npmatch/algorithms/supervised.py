"""Training on the labels alone: what every method here has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from npmatch.functional.losses import cross_entropy
from npmatch.functional.pseudo import labeled_points
from npmatch.types import Facts, Model, Points, Step, Views


@dataclass(frozen=True)
class SupervisedState:
    """Nothing is remembered."""


@dataclass(frozen=True, kw_only=True)
class Supervised:
    """The labeled images alone, under the same augmentation and the same number of steps."""

    paper: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ("labeled",)

    def init(self, facts: Facts) -> SupervisedState:
        return SupervisedState()

    def step(self, model: Model, teacher: Model, views: Views, state: SupervisedState) -> Step[SupervisedState]:
        features = model.features(views, ("labeled",))["labeled"]
        labeled = labeled_points(features, views.y, model.head.num_classes)
        out = model.head.learn(labeled, Points(*(part[:0] for part in labeled)))
        loss = cross_entropy(out.labeled, views.y).mean()
        return Step(loss, {"labeled": loss.detach()}, state)
