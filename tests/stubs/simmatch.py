"""SimMatch: the moving average is asked for weak features; a memory of the labeled images, written by their place."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from npmatch.functional.uncertainty import mean_probs
from npmatch.types import Algorithm, Facts, HasExtras, Model, Step, Views


@dataclass(frozen=True)
class SimMatchState:
    memory: Tensor  # (labeled pool, 128)


@dataclass(frozen=True, kw_only=True)
class SimMatch:
    needs: ClassVar[tuple[str, ...]] = ("labeled", "weak", "strong")

    def init(self, facts: Facts) -> SimMatchState:
        return SimMatchState(torch.zeros(facts.num_labeled, 128, device=facts.device))

    def extras(self, facts: Facts) -> dict[str, nn.Module]:
        return {"projector": nn.Linear(facts.feature_dim, 128)}

    def step(self, model: Model, teacher: Model, views: Views, state: SimMatchState) -> Step[SimMatchState]:
        with torch.no_grad():
            weak, labeled = teacher.backbone(views["weak"]), teacher.backbone(views["labeled"])
            target = mean_probs(teacher.head(weak))
            memory = state.memory.index_copy(0, views.labeled_place, teacher.extras["projector"](labeled))
        strong = model.extras["projector"](model.features(views, ("labeled", "strong"))["strong"])
        loss = -((strong @ state.memory.T).log_softmax(-1).mean() + target.mean())
        return Step(loss, {"unlabeled": loss.detach()}, SimMatchState(memory))


method: Algorithm[SimMatchState] = SimMatch()
own_modules: HasExtras = SimMatch()
