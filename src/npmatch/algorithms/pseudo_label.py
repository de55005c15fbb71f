"""Pseudo-Label (Lee, 2013, Eq. 15 and 16), with a threshold, as TorchSSL has it and NP-Match's tables with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from npmatch.functional.losses import cross_entropy
from npmatch.functional.pseudo import kept_metrics, labeled_points, pseudo_labels, pseudo_points, trusted
from npmatch.functional.ramps import linear_ramp
from npmatch.nets import frozen_batch_norm
from npmatch.types import Facts, Model, Step, Views


@dataclass(frozen=True)
class PseudoLabelState:
    ramp_steps: Tensor  # () steps until the unlabeled loss has its whole weight


@dataclass(frozen=True, kw_only=True)
class PseudoLabel:
    """Learn the confident guesses of the network as if they were labels, more and more of their loss."""

    paper: ClassVar[str] = "Lee, ICML workshop 2013"
    needs: ClassVar[tuple[str, ...]] = ("labeled", "weak")

    min_confidence: float = 0.95  # not in the paper, which keeps every guess: 0
    unlabeled_weight: float = 1.0  # alpha_f
    ramp_share: float = 0.4  # of the run, in which that weight grows from 0

    def init(self, facts: Facts) -> PseudoLabelState:
        steps = self.ramp_share * facts.num_steps
        return PseudoLabelState(torch.full((), steps, device=facts.device))

    def step(self, model: Model, teacher: Model, views: Views, state: PseudoLabelState) -> Step[PseudoLabelState]:
        # 1. Unlabeled images pass alone, and batch norm's running statistics are of labeled ones (TorchSSL).
        features = model.alone(views["labeled"])
        with frozen_batch_norm(model.backbone):
            unlabeled_features = model.alone(views["weak"])

        # 2. Guess and learn on the same view: what is learnt is to be sure.
        with torch.no_grad():
            pseudo = pseudo_labels(model.head(unlabeled_features))
        keep = trusted(pseudo, min_confidence=self.min_confidence)
        out = model.head.learn(
            labeled_points(features, views.y, pseudo.num_classes),
            pseudo_points(unlabeled_features, pseudo, keep),
        )
        labeled = cross_entropy(out.labeled, views.y).mean()
        unlabeled = (cross_entropy(out.unlabeled, pseudo.label) * keep).mean()  # over all, kept or not
        ramp = linear_ramp(views.step, state.ramp_steps)
        loss = labeled + ramp * self.unlabeled_weight * unlabeled

        metrics = {"labeled": labeled.detach(), "unlabeled": unlabeled.detach(), **kept_metrics(pseudo, keep)}
        return Step(loss, metrics | {"ramp": ramp}, state)
