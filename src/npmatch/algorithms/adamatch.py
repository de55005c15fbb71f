"""AdaMatch (Berthelot et al., 2022, Sec. 3), for semi-supervised learning, as USB has it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from npmatch.functional.corrections import align_ema, running_mean
from npmatch.functional.losses import cross_entropy
from npmatch.functional.pseudo import (
    kept_metrics,
    labeled_points,
    pseudo_labels,
    pseudo_points,
    relabeled,
    trusted,
)
from npmatch.functional.ramps import cosine_ramp
from npmatch.functional.uncertainty import mean_probs
from npmatch.types import Facts, Model, Step, Views


@dataclass(frozen=True)
class AdaMatchState:
    mean_probs: Tensor  # (K,) running mean prediction for unlabeled images, zeros before the first
    target: Tensor  # (K,) the same for labeled images
    ramp_steps: Tensor  # () steps until the unlabeled loss has its whole weight


@dataclass(frozen=True, kw_only=True)
class AdaMatch:
    """FixMatch with a threshold relative to the confidence on labeled images, and guesses aligned to those on them."""

    paper: ClassVar[str] = "Berthelot et al., ICLR 2022"
    needs: ClassVar[tuple[str, ...]] = ("labeled", "weak", "strong")

    relative_confidence: float = 0.95  # tau, as a share of the labeled images' mean confidence; the paper has .9
    unlabeled_weight: float = 1.0  # mu, at its largest
    ramp_share: float = 0.0  # of the run, in which that weight grows from 0; the paper has .5
    align_to: Literal["labeled", "uniform", "none"] = "labeled"
    decay: float = 0.999  # of the running means; 0 is the paper, which takes the batch's own

    def init(self, facts: Facts) -> AdaMatchState:
        equal = torch.full((facts.num_classes,), 1 / facts.num_classes, device=facts.device)
        steps = self.ramp_share * facts.num_steps
        return AdaMatchState(torch.zeros_like(equal), equal, torch.full((), steps, device=facts.device))

    def step(self, model: Model, teacher: Model, views: Views, state: AdaMatchState) -> Step[AdaMatchState]:
        features = model.features(views)

        # 1. Guesses after alignment: how often each class is predicted is to be as it is for labeled images.
        target = state.target
        with torch.no_grad():
            given = mean_probs(model.head(features["labeled"]))
            pseudo = pseudo_labels(model.head(features["weak"]))
            if self.align_to == "labeled":
                target = running_mean(target, given.mean(0), self.decay)
            aligned, mean = align_ema(pseudo.probs, state.mean_probs, target, decay=self.decay)
            if self.align_to != "none":
                pseudo = relabeled(pseudo, aligned)

        # 2. A threshold relative to what the network is capable of, on this batch's labeled images.
        threshold = self.relative_confidence * given.amax(-1).mean()
        keep = trusted(pseudo, min_confidence=threshold)

        # 3. FixMatch's loss.
        out = model.head.learn(
            labeled_points(features["labeled"], views.y, pseudo.num_classes),
            pseudo_points(features["strong"], pseudo, keep),
        )
        labeled = cross_entropy(out.labeled, views.y).mean()
        unlabeled = (cross_entropy(out.unlabeled, pseudo.label) * keep).mean()  # over all, kept or not
        ramp = cosine_ramp(views.step, state.ramp_steps)
        loss = labeled + ramp * self.unlabeled_weight * unlabeled

        metrics = {"labeled": labeled.detach(), "unlabeled": unlabeled.detach(), **kept_metrics(pseudo, keep)}
        return Step(loss, metrics | {"threshold": threshold}, AdaMatchState(mean, target, state.ramp_steps))
