"""CoMatch: a projector of its own, a queue of embeddings and predictions, alignment by a list of batch means."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from npmatch.functional.uncertainty import mean_probs
from npmatch.heads.memory_bank import MemoryBank
from npmatch.types import Algorithm, Facts, HasExtras, Model, Step, Views


@dataclass(frozen=True)
class CoMatchState:
    recent_means: Tensor  # (32, K)


@dataclass(frozen=True, kw_only=True)
class CoMatch:
    needs: ClassVar[tuple[str, ...]] = ("labeled", "weak", "strong", "strong2")
    queue_size: int = 2560

    def init(self, facts: Facts) -> CoMatchState:
        return CoMatchState(torch.zeros(32, facts.num_classes, device=facts.device))

    def extras(self, facts: Facts) -> dict[str, nn.Module]:
        return {
            "projector": nn.Linear(facts.feature_dim, 64),
            "queue": MemoryBank(self.queue_size, 64 + facts.num_classes),
        }

    def step(self, model: Model, teacher: Model, views: Views, state: CoMatchState) -> Step[CoMatchState]:
        features = model.features(views, self.needs)
        embedded = {name: model.extras["projector"](f) for name, f in features.items()}
        with torch.no_grad():
            probs = mean_probs(model.head(features["weak"]))
            queue = model.extras["queue"]
            assert isinstance(queue, MemoryBank)
            similar = (embedded["weak"] @ queue.codes[: queue.size, :64].T).softmax(-1)
            probs = 0.9 * probs + 0.1 * similar @ queue.codes[: queue.size, 64:]
            queue.push(torch.cat([embedded["weak"], probs], 1), torch.ones(len(probs), device=probs.device))
        means = torch.cat([state.recent_means[1:], probs.mean(0, keepdim=True)])
        loss = (embedded["strong"] - embedded["strong2"]).square().mean()
        return Step(loss, {"unlabeled": loss.detach()}, CoMatchState(means))


method: Algorithm[CoMatchState] = CoMatch()
own_modules: HasExtras = CoMatch()
