"""DASO on FixMatch: a correction of probabilities by prototypes of the moving average; logit adjustment in the loss."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from npmatch.functional.losses import soft_cross_entropy
from npmatch.functional.uncertainty import mean_probs
from npmatch.types import Algorithm, Facts, Model, Step, Views


@dataclass(frozen=True)
class DASOState:
    prototypes: Tensor  # (K, F)
    share: Tensor  # (K,) of pseudo-labels
    prior: Tensor  # (K,) of labels


def blend(probs_NK: Tensor, semantic_NK: Tensor, mixing_K: Tensor) -> Tensor:
    weight = mixing_K[probs_NK.argmax(-1)][:, None]
    return (1 - weight) * probs_NK + weight * semantic_NK


@dataclass(frozen=True, kw_only=True)
class DASO:
    needs: ClassVar[tuple[str, ...]] = ("labeled", "weak", "strong")

    def init(self, facts: Facts) -> DASOState:
        counts = torch.tensor(facts.labeled_counts, dtype=facts.dtype, device=facts.device)
        zeros = torch.zeros(facts.num_classes, facts.feature_dim, device=facts.device)
        return DASOState(zeros, torch.full_like(counts, 1 / len(counts)), counts / counts.sum())

    def step(self, model: Model, teacher: Model, views: Views, state: DASOState) -> Step[DASOState]:
        features = model.features(views)
        with torch.no_grad():
            semantic = (teacher.backbone(views["weak"]) @ state.prototypes.T).softmax(-1)
            probs = blend(mean_probs(model.head(features["weak"])), semantic, state.share / state.share.max())
        adjusted = model.head(features["strong"]) + state.prior.log()
        loss = soft_cross_entropy(adjusted, probs).mean()
        share = 0.999 * state.share + 0.001 * probs.mean(0)
        return Step(loss, {"unlabeled": loss.detach()}, DASOState(state.prototypes, share, state.prior))


method: Algorithm[DASOState] = DASO()
