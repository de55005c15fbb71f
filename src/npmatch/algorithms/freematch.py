"""FreeMatch (Wang et al., 2023, Sec. 4): thresholds that follow how well the network is doing, and a fairness loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from npmatch.functional.corrections import running_mean
from npmatch.functional.losses import cross_entropy
from npmatch.functional.pseudo import (
    PseudoLabels,
    class_shares,
    kept_metrics,
    labeled_points,
    pseudo_labels,
    pseudo_points,
    trusted,
)
from npmatch.functional.uncertainty import mean_probs
from npmatch.types import Facts, Model, Step, Views

_LEAST_SHARE = 1e-12  # of which a logarithm is taken


@dataclass(frozen=True)
class FreeMatchState:
    confidence: Tensor  # () tau_t, running mean of the confidence
    mean_probs: Tensor  # (K,) p_t, running mean prediction
    class_share: Tensor  # (K,) h_t, running share of each class among the guesses


@dataclass(frozen=True, kw_only=True)
class FreeMatch:
    """FixMatch with thresholds that rise with the network's confidence, in all and for each class."""

    paper: ClassVar[str] = "Wang et al., ICLR 2023"
    needs: ClassVar[tuple[str, ...]] = ("labeled", "weak", "strong")

    unlabeled_weight: float = 1.0  # w_u
    fairness_weight: float = 0.001  # w_f
    decay: float = 0.999  # lambda, of the running means
    max_threshold: float = 1.0  # published code: .95 with its option clip_thresh

    def init(self, facts: Facts) -> FreeMatchState:
        equal = torch.full((facts.num_classes,), 1 / facts.num_classes, device=facts.device)
        return FreeMatchState(equal.mean(), equal, equal.clone())

    def step(self, model: Model, teacher: Model, views: Views, state: FreeMatchState) -> Step[FreeMatchState]:
        features = model.features(views)

        # 1. Self-adaptive thresholds (Sec. 4.1): the batch enters the means before they are used.
        with torch.no_grad():
            pseudo = pseudo_labels(model.head(features["weak"]))
        state = self.followed(state, pseudo)
        threshold_K = state.confidence * state.mean_probs / state.mean_probs.max()
        keep = trusted(pseudo, min_confidence=threshold_K[pseudo.label])

        # 2. FixMatch's loss.
        out = model.head.learn(
            labeled_points(features["labeled"], views.y, pseudo.num_classes),
            pseudo_points(features["strong"], pseudo, keep),
        )
        labeled = cross_entropy(out.labeled, views.y).mean()
        unlabeled = (cross_entropy(out.unlabeled, pseudo.label) * keep).mean()  # over all, kept or not

        # 3. Self-adaptive fairness (Sec. 4.2).
        fairness = fairness_loss(mean_probs(out.unlabeled), keep, state)
        loss = labeled + self.unlabeled_weight * unlabeled + self.fairness_weight * fairness

        metrics = {"labeled": labeled, "unlabeled": unlabeled, "fairness": fairness}
        metrics = {name: value.detach() for name, value in metrics.items()} | kept_metrics(pseudo, keep)
        return Step(loss, metrics | {"threshold": state.confidence}, state)

    def followed(self, state: FreeMatchState, pseudo: PseudoLabels) -> FreeMatchState:
        """The running means with this batch in them."""
        confidence = running_mean(state.confidence, pseudo.confidence.mean(), self.decay)
        probs = running_mean(state.mean_probs, pseudo.probs.mean(0), self.decay)
        guessed = class_shares(pseudo.label, torch.ones_like(pseudo.confidence), pseudo.num_classes)
        share = running_mean(state.class_share, guessed, self.decay)
        return FreeMatchState(confidence.clamp(max=self.max_threshold), probs, share)


def fairness_loss(probs_UK: Tensor, keep_U: Tensor, state: FreeMatchState) -> Tensor:
    """Minus the cross-entropy between two mean predictions, each divided by how often its classes are guessed: the
    running one of the weak view, and that of the kept images on the strong view. 0 where nothing is kept."""
    guessed = class_shares(probs_UK.argmax(-1), keep_U, probs_UK.shape[-1])
    long_run = _relative(state.mean_probs, state.class_share)
    batch = _relative((probs_UK * keep_U[:, None]).sum(0), guessed)
    return (long_run * (batch + _LEAST_SHARE).log()).sum() * (keep_U > 0).any()


def _relative(mass_K: Tensor, share_K: Tensor) -> Tensor:
    """SumNorm(mass / share): a class that was never guessed gets 0, as in the published code."""
    quotient = torch.where(share_K > 0, mass_K / torch.where(share_K > 0, share_K, 1.0), 0.0)
    return quotient / quotient.sum().clamp_min(_LEAST_SHARE)
