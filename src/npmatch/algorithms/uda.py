"""UDA (Xie et al., 2020, Sec. 2): Unsupervised Data Augmentation for Consistency Training."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from npmatch.functional.corrections import sharpen
from npmatch.functional.losses import cross_entropy, soft_cross_entropy
from npmatch.functional.pseudo import kept_metrics, labeled_points, pseudo_labels, target_points, trusted
from npmatch.functional.uncertainty import mean_probs
from npmatch.types import Facts, Model, Step, Views


@dataclass(frozen=True)
class UDAState:
    num_steps: Tensor  # () of the whole run, for the annealing


@dataclass(frozen=True, kw_only=True)
class UDA:
    """Predict for the strong view what was predicted for the weak one, sharpened, where it was confident."""

    paper: ClassVar[str] = "Xie et al., NeurIPS 2020"
    needs: ClassVar[tuple[str, ...]] = ("labeled", "weak", "strong")

    min_confidence: float = 0.8  # beta, of the prediction before it is sharpened
    temperature: float = 0.4  # tau of the paper's softmax
    unlabeled_weight: float = 1.0  # lambda
    annealing: Literal["none", "linear", "log", "exp"] = "none"  # TSA: how labels are let in that are learnt already

    def init(self, facts: Facts) -> UDAState:
        return UDAState(torch.full((), float(facts.num_steps), device=facts.device))

    def step(self, model: Model, teacher: Model, views: Views, state: UDAState) -> Step[UDAState]:
        features = model.features(views)

        # 1. A soft target from the weak view. What is confident is asked of the prediction as it was.
        with torch.no_grad():
            pseudo = pseudo_labels(model.head(features["weak"]))
        keep = trusted(pseudo, min_confidence=self.min_confidence)
        target = sharpen(pseudo.probs, self.temperature)

        # 2. The divergence of the strong view's prediction from it: of a KL the cross-entropy, the rest is constant.
        out = model.head.learn(
            labeled_points(features["labeled"], views.y, pseudo.num_classes),
            target_points(features["strong"], target, keep),
        )
        unlabeled = (soft_cross_entropy(out.unlabeled, target) * keep).mean()  # over all, kept or not

        # 3. Labels that are predicted too well for this early in the run are left out (training signal annealing, TSA).
        learn = self.not_learnt_yet(out.labeled, views, state)
        labeled = (cross_entropy(out.labeled, views.y) * learn).sum() / learn.sum().clamp_min(1)
        loss = labeled + self.unlabeled_weight * unlabeled

        metrics = {"labeled": labeled.detach(), "unlabeled": unlabeled.detach(), **kept_metrics(pseudo, keep)}
        return Step(loss, metrics | {"labels_used": learn.mean()}, state)

    def not_learnt_yet(self, logits_TBK: Tensor, views: Views, state: UDAState) -> Tensor:
        """1.0 for labels whose class has at most the probability eta, which rises from 1 / K to 1 -> (B,)."""
        correct = mean_probs(logits_TBK.detach()).gather(1, views.y[:, None])[:, 0]
        if self.annealing == "none":
            return torch.ones_like(correct)
        done = views.step / state.num_steps
        match self.annealing:
            case "linear":
                share = done
            case "log":
                share = 1 - torch.exp(-5 * done)
            case "exp":
                share = torch.exp(5 * (done - 1))
        chance = 1 / logits_TBK.shape[-1]
        return (correct <= share * (1 - chance) + chance).to(correct.dtype)
