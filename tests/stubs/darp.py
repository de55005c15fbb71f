"""DARP: a table of predictions over the pool, refined between steps by a solver."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from npmatch.functional.losses import soft_cross_entropy
from npmatch.functional.uncertainty import mean_probs
from npmatch.types import Algorithm, Facts, Model, Refreshes, Step, Views


@dataclass(frozen=True)
class DARPState:
    table: Tensor  # (pool, K)


@dataclass(frozen=True, kw_only=True)
class DARP:
    needs: ClassVar[tuple[str, ...]] = ("labeled", "weak", "strong")
    refresh_every: int = 10

    def init(self, facts: Facts) -> DARPState:
        uniform = 1 / facts.num_classes
        return DARPState(torch.full((facts.num_unlabeled, facts.num_classes), uniform, device=facts.device))

    def step(self, model: Model, teacher: Model, views: Views, state: DARPState) -> Step[DARPState]:
        features = model.features(views)
        loss = soft_cross_entropy(model.head(features["strong"]), state.table[views.place]).mean()
        with torch.no_grad():
            table = state.table.index_copy(0, views.place, mean_probs(model.head(features["weak"])))
        return Step(loss, {"unlabeled": loss.detach()}, DARPState(table))

    def refresh(self, state: DARPState) -> DARPState:
        return replace(state, table=state.table / state.table.sum(0))


method: Algorithm[DARPState] = DARP()
solver: Refreshes = DARP()
