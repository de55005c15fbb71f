"""NP-Match (Wang et al., 2022, Sec. 3.2): FlexMatch's curriculum and a gate on uncertainty, over a neural process."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from npmatch.functional.corrections import align_batch, align_ema
from npmatch.functional.losses import cross_entropy
from npmatch.functional.pseudo import (
    PseudoLabels,
    curriculum,
    flexible_threshold,
    kept_metrics,
    labeled_points,
    pseudo_labels,
    pseudo_points,
    relabeled,
    remember,
    trusted,
)
from npmatch.types import Facts, Model, Step, Views


@dataclass(frozen=True)
class NPMatchState:
    last_label: Tensor  # (pool,) newest pseudo-label that passed both full thresholds, -1 before the first
    mean_probs: Tensor  # (K,) running mean prediction, for alignment "ema"


@dataclass(frozen=True, kw_only=True)
class NPMatch:
    """Pseudo-labels that are confident and certain, and a divergence that keeps the latent variable honest."""

    paper: ClassVar[str] = "Wang et al., ICML 2022; TPAMI 2023"
    needs: ClassVar[tuple[str, ...]] = ("labeled", "weak", "strong")

    min_confidence: float = 0.95  # tau_c
    max_uncertainty: float = 0.4  # tau_u
    uncertainty_unit: Literal["nats", "share"] = "nats"  # share: of log K, so that it means the same for any K
    unlabeled_weight: float = 1.0  # lambda_u
    divergence_weight: float = 0.01  # beta
    alignment: Literal["batch", "ema", "none"] = "batch"  # in no equation of the paper; its code does "batch"
    threshold_warmup: bool = True

    def init(self, facts: Facts) -> NPMatchState:
        last_label = torch.full((facts.num_unlabeled,), -1, device=facts.device)
        return NPMatchState(last_label, torch.zeros(facts.num_classes, device=facts.device))

    def step(self, model: Model, teacher: Model, views: Views, state: NPMatchState) -> Step[NPMatchState]:
        features = model.features(views)

        # 1. Pseudo-labels from the banks. Uncertainty is that of the prediction before it is aligned.
        with torch.no_grad():
            pseudo = pseudo_labels(model.head(features["weak"]))
            pseudo, mean_probs = self.aligned(pseudo, state.mean_probs)
        bound = self.max_uncertainty * (math.log(pseudo.num_classes) if self.uncertainty_unit == "share" else 1.0)
        learnt = curriculum(state.last_label, pseudo.num_classes, warmup=self.threshold_warmup)
        threshold = flexible_threshold(self.min_confidence, learnt)[pseudo.label]
        confident = trusted(pseudo, min_confidence=threshold)
        keep = trusted(pseudo, min_confidence=threshold, max_uncertainty=bound)

        # 2. Three terms (Eq. 8 and 9). Unlike FixMatch's, the mean runs over the kept images only.
        out = model.head.learn(
            labeled_points(features["labeled"], views.y, pseudo.num_classes),
            pseudo_points(features["strong"], pseudo, keep),
        )
        labeled = cross_entropy(out.labeled, views.y).mean()
        unlabeled = (cross_entropy(out.unlabeled, pseudo.label) * keep).sum() / keep.sum().clamp_min(1)
        loss = labeled + self.unlabeled_weight * unlabeled + self.divergence_weight * out.penalty

        # 3. The curriculum counts labels that pass the full thresholds, not the flexible one.
        sure = trusted(pseudo, min_confidence=self.min_confidence, max_uncertainty=bound)
        last_label = remember(state.last_label, views.place, pseudo.label, sure)

        metrics = {"labeled": labeled, "unlabeled": unlabeled, "divergence": out.penalty}
        metrics = {name: value.detach() for name, value in metrics.items()} | out.metrics
        metrics |= kept_metrics(pseudo, keep) | {"refused_by_uncertainty": (confident - keep).mean()}
        return Step(loss, metrics, NPMatchState(last_label, mean_probs))

    def aligned(self, pseudo: PseudoLabels, mean_probs: Tensor) -> tuple[PseudoLabels, Tensor]:
        """Guesses after the prediction is pulled toward equal classes, and the running mean that does it."""
        probs = pseudo.probs
        if self.alignment == "batch":
            probs = align_batch(probs)
        elif self.alignment == "ema":
            probs, mean_probs = align_ema(probs, mean_probs)
        return relabeled(pseudo, probs), mean_probs
