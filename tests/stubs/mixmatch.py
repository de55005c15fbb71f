"""MixMatch: two weak views, guesses under frozen batch norm, several passes of which the first moves the statistics."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F

from npmatch.functional.corrections import sharpen
from npmatch.functional.losses import soft_cross_entropy
from npmatch.functional.uncertainty import mean_probs
from npmatch.nets import frozen_batch_norm
from npmatch.types import Algorithm, Facts, Model, Step, Views


@dataclass(frozen=True)
class MixMatchState:
    pass


@dataclass(frozen=True, kw_only=True)
class MixMatch:
    needs: ClassVar[tuple[str, ...]] = ("labeled", "weak", "weak2")
    alpha: float = 0.5
    temperature: float = 0.5

    def init(self, facts: Facts) -> MixMatchState:
        return MixMatchState()

    def step(self, model: Model, teacher: Model, views: Views, state: MixMatchState) -> Step[MixMatchState]:
        with torch.no_grad(), frozen_batch_norm(model):
            guess = (mean_probs(model(views["weak"])) + mean_probs(model(views["weak2"]))) / 2
        target = sharpen(guess, self.temperature)
        x = torch.cat([views["labeled"], views["weak"], views["weak2"]])
        y = torch.cat([F.one_hot(views.y, guess.shape[1]).to(target), target, target])
        order, mix = torch.randperm(len(x), device=x.device), torch.distributions.Beta(self.alpha, self.alpha).sample()
        mix = torch.maximum(mix, 1 - mix)
        parts = (mix * x + (1 - mix) * x[order]).split(len(views.y))
        logits = [model(parts[0])]
        with frozen_batch_norm(model):
            logits += [model(part) for part in parts[1:]]
        loss = soft_cross_entropy(torch.cat(logits, 1), mix * y + (1 - mix) * y[order]).mean()
        return Step(loss, {"labeled": loss.detach()}, state)


method: Algorithm[MixMatchState] = MixMatch()
