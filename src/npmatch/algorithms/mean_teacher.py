"""Mean Teacher (Tarvainen and Valpola, 2017, Sec. 2), as TorchSSL has it and NP-Match's tables with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from npmatch.functional.losses import brier, cross_entropy
from npmatch.functional.pseudo import labeled_points, target_points
from npmatch.functional.ramps import linear_ramp
from npmatch.functional.uncertainty import mean_probs
from npmatch.nets import frozen_batch_norm, running_batch_norm, training_batch_norm
from npmatch.types import Facts, Model, Step, Views


@dataclass(frozen=True)
class MeanTeacherState:
    ramp_steps: Tensor  # () steps until the unlabeled loss has its whole weight


@dataclass(frozen=True, kw_only=True)
class MeanTeacher:
    """Predict for one weak view what the average of the weights so far predicts for another."""

    paper: ClassVar[str] = "Tarvainen and Valpola, NeurIPS 2017"
    needs: ClassVar[tuple[str, ...]] = ("labeled", "weak", "weak2")

    unlabeled_weight: float = 50.0  # of the squared distance, which is a mean over the classes
    ramp_share: float = 0.4  # of the run, in which that weight grows from 0
    statistics: Literal["batch", "running"] = "batch"  # of batch norm in the teacher's pass

    def init(self, facts: Facts) -> MeanTeacherState:
        steps = self.ramp_share * facts.num_steps
        return MeanTeacherState(torch.full((), steps, device=facts.device))

    def step(self, model: Model, teacher: Model, views: Views, state: MeanTeacherState) -> Step[MeanTeacherState]:
        # 1. Each view passes alone, and batch norm's running statistics are of labeled images (TorchSSL).
        features = model.alone(views["labeled"])
        with frozen_batch_norm(model.backbone):
            student_features = model.alone(views["weak2"])

        # 2. The teacher's prediction is the target, and carries no gradient.
        passes = training_batch_norm if self.statistics == "batch" else running_batch_norm
        with torch.no_grad(), passes(teacher.backbone), frozen_batch_norm(teacher.backbone):
            target = mean_probs(teacher.head(teacher.alone(views["weak"])))

        # 3. Every image counts, whatever the teacher's confidence.
        everyone = torch.ones_like(views.place, dtype=target.dtype)
        out = model.head.learn(
            labeled_points(features, views.y, model.head.num_classes),
            target_points(student_features, target, everyone),
        )
        labeled = cross_entropy(out.labeled, views.y).mean()
        unlabeled = brier(out.unlabeled, target).mean()
        ramp = linear_ramp(views.step, state.ramp_steps)
        loss = labeled + ramp * self.unlabeled_weight * unlabeled

        metrics = {"labeled": labeled.detach(), "unlabeled": unlabeled.detach(), "ramp": ramp}
        return Step(loss, metrics | {"confidence": target.amax(-1).mean()}, state)
