"""SoftMatch (Chen et al., 2023, Sec. 3): a weight for each image in the place of a threshold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from npmatch.functional.corrections import align_ema, running_mean
from npmatch.functional.losses import cross_entropy
from npmatch.functional.pseudo import kept_metrics, labeled_points, pseudo_labels, pseudo_points
from npmatch.functional.uncertainty import mean_probs
from npmatch.types import Facts, Model, Step, Views


@dataclass(frozen=True)
class SoftMatchState:
    mean_probs: Tensor  # (K,) running mean prediction, zeros before the first
    target: Tensor  # (K,) what it is aligned to
    confidence: Tensor  # () mu_t, running mean of the confidence
    variance: Tensor  # () sigma_t^2, running variance of the confidence


@dataclass(frozen=True, kw_only=True)
class SoftMatch:
    """FixMatch with every guess kept, and weighed by how far its confidence lies below the usual one."""

    paper: ClassVar[str] = "Chen et al., ICLR 2023"
    needs: ClassVar[tuple[str, ...]] = ("labeled", "weak", "strong")

    unlabeled_weight: float = 1.0  # lambda_u
    decay: float = 0.999  # m, of the running means
    narrowing: float = 2.0  # sigma is divided by it: n_sigma of the published code, 1 in the paper's equation
    align_to: Literal["uniform", "labeled", "none"] = "uniform"  # what the weights' predictions are pulled toward

    def init(self, facts: Facts) -> SoftMatchState:
        equal = torch.full((facts.num_classes,), 1 / facts.num_classes, device=facts.device)
        return SoftMatchState(torch.zeros_like(equal), equal, equal.mean(), torch.ones_like(equal[0]))

    def step(self, model: Model, teacher: Model, views: Views, state: SoftMatchState) -> Step[SoftMatchState]:
        features = model.features(views)

        # 1. Guesses, and the same predictions aligned, which only the weights see (uniform alignment).
        with torch.no_grad():
            pseudo = pseudo_labels(model.head(features["weak"]))
            target = state.target
            if self.align_to == "labeled":
                given = mean_probs(model.head(features["labeled"]))
                target = running_mean(target, given.mean(0), self.decay)
            aligned, mean = align_ema(pseudo.probs, state.mean_probs, target, decay=self.decay)
            confidence = (pseudo.probs if self.align_to == "none" else aligned).amax(-1)

        # 2. A Gaussian of the confidence, cut off above its mean, with this batch in mean and variance.
        usual = running_mean(state.confidence, confidence.mean(), self.decay)
        variance = running_mean(state.variance, confidence.var(), self.decay)
        below = (confidence - usual).clamp(max=0)
        weight = torch.exp(-(below**2) * self.narrowing**2 / (2 * variance.clamp_min(1e-12)))

        # 3. FixMatch's loss with those weights.
        out = model.head.learn(
            labeled_points(features["labeled"], views.y, pseudo.num_classes),
            pseudo_points(features["strong"], pseudo, weight),
        )
        labeled = cross_entropy(out.labeled, views.y).mean()
        unlabeled = (cross_entropy(out.unlabeled, pseudo.label) * weight).mean()
        loss = labeled + self.unlabeled_weight * unlabeled

        metrics = {"labeled": labeled.detach(), "unlabeled": unlabeled.detach(), **kept_metrics(pseudo, weight)}
        metrics |= {"usual_confidence": usual, "confidence_variance": variance}
        return Step(loss, metrics, SoftMatchState(mean, target, usual, variance))
