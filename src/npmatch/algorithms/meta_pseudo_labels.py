"""Meta Pseudo Labels (Pham et al., 2021, Sec. 2 and 3): a labeler learns from how its labels change a student.

The student is the model. It never learns from a true label: the labeler, a network like it, does, and labels for it. In
a step the student moves first (`step`); what that did to its labeled loss then rewards the labeler (`answer`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.functional.losses import cross_entropy, soft_cross_entropy
from npmatch.functional.pseudo import (
    PseudoLabels,
    kept_metrics,
    labeled_points,
    pseudo_labels,
    target_points,
    trusted,
)
from npmatch.functional.ramps import linear_ramp
from npmatch.functional.uncertainty import mean_probs
from npmatch.nets import frozen_batch_norm
from npmatch.types import Facts, Model, Step, Views


@dataclass(frozen=True)
class MetaPseudoLabelsState:
    baseline: Tensor  # () b, the running mean of the reward
    num_steps: Tensor  # () of the run


@dataclass(frozen=True, kw_only=True)
class MetaPseudoLabels:
    """A labeler teaches a student, and is rewarded by how much better the student then does on the true labels."""

    paper: ClassVar[str] = "Pham et al., CVPR 2021"
    needs: ClassVar[tuple[str, ...]] = ("labeled", "weak", "strong")

    label: Literal["sampled", "argmax", "soft"] = "sampled"  # with soft ones the reward has no gradient at all
    reward: Literal["gain", "loss"] = "gain"  # gain: loss before - after; both released codes have after - before
    min_confidence: float = 0.6  # tau, of the labeler's own consistency loss (UDA)
    unlabeled_weight: float = 8.0  # lambda, of that loss
    ramp_share: float = 1 / 60  # of the run, over which that weight grows: 5,000 steps of 300,000
    guess_temperature: float = 0.7  # of its targets
    label_smoothing: float = 0.15  # epsilon
    wait_share: float = 0.01  # of the run, before the student begins
    baseline_decay: float = 0.99

    def init(self, facts: Facts) -> MetaPseudoLabelsState:
        num_steps = torch.full((), float(facts.num_steps), device=facts.device)
        return MetaPseudoLabelsState(torch.zeros_like(num_steps), num_steps)

    def extras(self, facts: Facts) -> dict[str, nn.Module]:
        assert facts.another is not None
        return {"labeler": facts.another()}

    def step(
        self, model: Model, teacher: Model, views: Views, state: MetaPseudoLabelsState
    ) -> Step[MetaPseudoLabelsState]:
        """The student learns the labeler's labels of the strong view."""
        # 1. Labels. The labeler passes these images again in its own half, so this pass leaves no trace.
        labeler = labeler_of(model)
        with torch.no_grad(), frozen_batch_norm(labeler.backbone):
            seen = labeler.features(views)
            pseudo = self.guess(labeler, seen["weak"])
            target = self.labels(mean_probs(labeler.head(seen["strong"])))

        # 2. The student's loss. That of the true labels is only measured: alone, and in its own half again likewise.
        before = labeled_loss(model, views)
        features = model.features(views, ("labeled", "strong"))
        every = torch.ones_like(pseudo.confidence)
        out = model.head.learn(
            labeled_points(features["labeled"], views.y, pseudo.num_classes),
            target_points(features["strong"], target, every),
        )
        student = soft_cross_entropy(out.unlabeled, self.smoothed(target)).mean()
        loss = student * (views.step >= self.wait_share * state.num_steps)

        metrics = {"student": student.detach(), "student_labeled": before}
        metrics |= kept_metrics(pseudo, trusted(pseudo, min_confidence=self.min_confidence))
        return Step(loss, metrics, state, carried=(target, before))  # both constant from here to the labeler's half

    def answer(
        self,
        model: Model,
        teacher: Model,
        views: Views,
        state: MetaPseudoLabelsState,
        carried: tuple[Tensor, Tensor],
    ) -> Step[MetaPseudoLabelsState]:
        """The labeler learns the true labels, consistency, and more or less of the labels it has just given."""
        # 3. The reward h, against its running mean.
        target, before = carried
        after = labeled_loss(model, views)
        change = before - after if self.reward == "gain" else after - before
        reward = change - state.baseline
        baseline = self.baseline_decay * state.baseline + (1 - self.baseline_decay) * change

        # 4. Supervised and UDA's loss, and REINFORCE: a label that helped becomes likelier.
        labeler = labeler_of(model)
        features = labeler.features(views)
        with torch.no_grad():
            pseudo = self.guess(labeler, features["weak"])
        keep = trusted(pseudo, min_confidence=self.min_confidence)
        truth = F.one_hot(views.y, pseudo.num_classes).to(pseudo.probs.dtype)
        out = labeler.head.learn(
            labeled_points(features["labeled"], views.y, pseudo.num_classes),
            target_points(features["strong"], pseudo.probs, keep),
        )
        labeled = soft_cross_entropy(out.labeled, self.smoothed(truth)).mean()
        unlabeled = (soft_cross_entropy(out.unlabeled, pseudo.probs) * keep).mean()
        meta = soft_cross_entropy(out.unlabeled, target).mean()
        weight = self.unlabeled_weight * linear_ramp(views.step, self.ramp_share * state.num_steps)
        loss = labeled + weight * unlabeled + reward * meta

        metrics = {"labeled": cross_entropy(out.labeled, views.y).mean(), "unlabeled": unlabeled, "reward": reward}
        metrics = {name: value.detach() for name, value in metrics.items()}
        return Step(loss, metrics, MetaPseudoLabelsState(baseline, state.num_steps))

    def guess(self, labeler: Model, features_UF: Tensor) -> PseudoLabels:
        return pseudo_labels(labeler.head(features_UF) / self.guess_temperature)

    def labels(self, probs_UK: Tensor) -> Tensor:
        """What the student is taught -> (U, K), rows that sum to 1."""
        if self.label == "soft":
            return probs_UK
        # The first of K exponential clocks to ring, with the probabilities as rates, is a sample of them.
        rates = probs_UK / torch.empty_like(probs_UK).exponential_() if self.label == "sampled" else probs_UK
        return F.one_hot(rates.argmax(1), probs_UK.shape[1]).to(probs_UK.dtype)

    def smoothed(self, target_NK: Tensor) -> Tensor:
        return (1 - self.label_smoothing) * target_NK + self.label_smoothing / target_NK.shape[1]


def labeler_of(model: Model) -> Model:
    return cast(Model, model.extras["labeler"])


@torch.no_grad()
def labeled_loss(model: Model, views: Views) -> Tensor:
    """The student's loss of the labeled images, passed alone -> (). It is compared, so it must not depend on others."""
    with frozen_batch_norm(model.backbone):
        return cross_entropy(model.head(model.alone(views["labeled"])), views.y).mean()
