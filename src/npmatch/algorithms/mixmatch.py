"""MixMatch (Berthelot et al., 2019, Algorithm 1): labels for unlabeled images, and then mixtures of all images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from npmatch import ranks
from npmatch.functional.corrections import sharpen
from npmatch.functional.losses import brier, soft_cross_entropy
from npmatch.functional.mixing import mixup
from npmatch.functional.pseudo import target_points
from npmatch.functional.ramps import linear_ramp
from npmatch.functional.uncertainty import mean_probs
from npmatch.nets import features_in_passes, frozen_batch_norm
from npmatch.types import Facts, Model, Step, Views


@dataclass(frozen=True)
class MixMatchState:
    ramp_steps: Tensor  # () steps in which the unlabeled weight grows from 0 to its full size


@dataclass(frozen=True, kw_only=True)
class MixMatch:
    """Average and sharpen the guesses on two weak views, mix all images and labels, learn the mixtures."""

    paper: ClassVar[str] = "Berthelot et al., NeurIPS 2019"
    needs: ClassVar[tuple[str, ...]] = ("labeled", "weak", "weak2")

    temperature: float = 0.5  # T
    mixing: float = 0.5  # alpha of Beta(alpha, alpha), where the shares of a mixture come from; the paper's is .75
    mix_each: bool = False  # a share for each image, as the paper's code draws them; TorchSSL draws one per batch
    unlabeled_weight: float = 100.0  # lambda_u
    ramp_share: float = 0.4  # rho: of the run, over which lambda_u grows linearly; the paper's code takes 1/64

    def init(self, facts: Facts) -> MixMatchState:
        return MixMatchState(torch.full((), self.ramp_share * facts.num_steps, device=facts.device))

    def step(self, model: Model, teacher: Model, views: Views, state: MixMatchState) -> Step[MixMatchState]:
        # 1. One label for both views of an image (Sec. 3.2): the mean of two guesses, sharpened. Each view has a pass
        #    of its own, normalized by its own statistics, which leaves no trace in the running ones.
        with torch.no_grad(), frozen_batch_norm(model.backbone):
            guess, guess2 = (mean_probs(model.head(model.alone(views[name]))) for name in ("weak", "weak2"))
        guess = (guess + guess2) / 2
        target = sharpen(guess, self.temperature)

        # 2. MixUp of everything with everything (Sec. 3.3).
        batch_size = len(views.y)
        images = torch.cat([ranks.gather(views[name]) for name in self.needs])
        labels = torch.cat([F.one_hot(views.y, target.shape[1]).to(target.dtype), target, target])
        images, labels = mixup(images, labels, self.mixing, each=self.mix_each)

        # 3. Cross-entropy on what was labeled, squared error on what was not (Eq. 3 and 4).
        parts = [batch_size, len(labels) - batch_size]
        features_l, features_u = features_in_passes(model, images, batch_size).split(parts)
        labels_l, labels_u = labels.split(parts)
        all_l, all_u = torch.ones_like(labels[:, 0]).split(parts)
        out = model.head.learn(target_points(features_l, labels_l, all_l), target_points(features_u, labels_u, all_u))
        labeled = soft_cross_entropy(out.labeled, labels_l).mean()
        unlabeled = brier(out.unlabeled, labels_u).mean()
        ramp = linear_ramp(views.step, state.ramp_steps)
        loss = labeled + self.unlabeled_weight * ramp * unlabeled

        metrics = {"labeled": labeled.detach(), "unlabeled": unlabeled.detach(), "ramp": ramp}
        return Step(loss, metrics | {"confidence": guess.amax(-1).mean()}, state)
