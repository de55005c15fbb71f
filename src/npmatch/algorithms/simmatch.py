"""SimMatch (Zheng et al., 2022, Section 3; spec 2.9): views that are alike in class and in what they resemble."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.functional.corrections import align_recent
from npmatch.functional.losses import cross_entropy, soft_cross_entropy
from npmatch.functional.precision import product
from npmatch.functional.pseudo import (
    kept_metrics,
    labeled_points,
    last_places,
    pseudo_labels,
    relabeled,
    target_points,
    trusted,
)
from npmatch.nets.projector import Projector
from npmatch.types import Facts, Model, Step, Views


@dataclass(frozen=True)
class SimMatchState:
    memory: Tensor  # (labeled pool, D) an embedding of every labeled image
    labels: Tensor  # (labeled pool,) its class, -1 before it was first seen
    recent_means: Tensor  # (batches, K) the mean predictions of the last batches, for alignment


@dataclass(frozen=True, kw_only=True)
class SimMatch:
    """A weak and a strong view must agree on the class, and on which labeled images they resemble."""

    paper: ClassVar[str] = "Zheng et al., CVPR 2022"
    needs: ClassVar[tuple[str, ...]] = ("labeled", "weak", "strong")

    min_confidence: float = 0.95  # tau
    unlabeled_weight: float = 1.0  # lambda_u
    instance_weight: float = 1.0  # lambda_in
    own_share: float = 0.9  # alpha, of an image's own prediction; the rest is that of similar labeled images
    temperature: float = 0.1  # t, of similarities
    embedding_dim: int = 128
    memory_momentum: float = 0.7  # share of a labeled image's old embedding that stays; 0 on ImageNet
    guesses_by: Literal["student", "teacher"] = "student"  # teacher: the moving average, on ImageNet
    alignment_batches: int = 32  # whose mean prediction is made even; 256 on ImageNet
    warmup_steps: int = 1024  # the first epoch, in which memory fills and is not asked

    def init(self, facts: Facts) -> SimMatchState:
        return SimMatchState(
            torch.zeros(facts.num_labeled, self.embedding_dim, device=facts.device, dtype=facts.dtype),
            torch.full((facts.num_labeled,), -1, device=facts.device),
            torch.zeros(self.alignment_batches, facts.num_classes, device=facts.device, dtype=facts.dtype),
        )

    def extras(self, facts: Facts) -> dict[str, nn.Module]:
        return {"projector": Projector(facts.feature_dim, self.embedding_dim)}

    def step(self, model: Model, teacher: Model, views: Views, state: SimMatchState) -> Step[SimMatchState]:
        if self.guesses_by == "student":
            features = guide = model.features(views)
            guesser = model
        else:
            features = model.features(views, ("labeled", "strong"))
            guesser = teacher
            with torch.no_grad():
                guide = teacher.features(views, ("labeled", "weak"))

        # 1. Two opinions on the weak view: its class, toward equal classes, and which labeled images it resembles.
        #    Each corrects the other ("unfolding" and "aggregation"), once memory has something to say.
        with torch.no_grad():
            pseudo = pseudo_labels(guesser.head(guide["weak"]))
            probs, recent_means = align_recent(pseudo.probs, state.recent_means)
            instances = self.resemblance(guesser.extras["projector"](guide["weak"]), state).softmax(1)
            instance_target = unfold(instances, probs, state.labels)
            ready = (views.step >= self.warmup_steps) & (state.labels >= 0).any()
            resembled = aggregate(instances, state.labels, pseudo.num_classes)
            blended = self.own_share * probs + (1 - self.own_share) * resembled
            pseudo = relabeled(pseudo, torch.where(ready, blended, probs))
        keep = trusted(pseudo, min_confidence=self.min_confidence)

        # 2. Both are learnt on the strong view ; resemblance by every image, kept or not.
        out = model.head.learn(
            labeled_points(features["labeled"], views.y, pseudo.num_classes),
            target_points(features["strong"], pseudo.probs, keep),
        )
        labeled = cross_entropy(out.labeled, views.y).mean()
        unlabeled = (soft_cross_entropy(out.unlabeled, pseudo.probs) * keep).mean()
        logits = self.resemblance(model.extras["projector"](features["strong"]), state)
        instance = soft_cross_entropy(logits[None], instance_target).mean() * ready
        loss = labeled + self.unlabeled_weight * unlabeled + self.instance_weight * instance

        # 3. Memory takes in the labeled images after it was used. Of an image drawn twice the last view stays.
        with torch.no_grad():
            new = guesser.extras["projector"](guide["labeled"]).to(state.memory.dtype)
            old = state.memory[views.labeled_place]
            new = F.normalize(self.memory_momentum * old + (1 - self.memory_momentum) * new, dim=1)
            place = last_places(views.labeled_place, views.y >= 0, len(state.memory))
            memory = F.pad(state.memory, (0, 0, 0, 1)).index_copy(0, place, new)[:-1]
            labels = F.pad(state.labels, (0, 1)).index_copy(0, place, views.y)[:-1]

        metrics = {"labeled": labeled, "unlabeled": unlabeled, "instance": instance}
        metrics = {name: value.detach() for name, value in metrics.items()} | kept_metrics(pseudo, keep)
        return Step(loss, metrics, SimMatchState(memory, labels, recent_means))

    def resemblance(self, codes_UD: Tensor, state: SimMatchState) -> Tensor:
        """Logits of which labeled image an image resembles; one that was never seen has no chance -> (U, labeled)."""
        return (product(codes_UD, state.memory.T) / self.temperature).masked_fill(state.labels < 0, -1e4)


def unfold(instances_UL: Tensor, probs_UK: Tensor, labels_L: Tensor) -> Tensor:
    """Resemblances after each is weighed by what the guess gives that labeled image's class -> (U, L)."""
    mass = instances_UL * probs_UK[:, labels_L.clamp_min(0)] * (labels_L >= 0)
    return mass / mass.sum(1, keepdim=True).clamp_min(torch.finfo(mass.dtype).tiny)


def aggregate(instances_UL: Tensor, labels_L: Tensor, num_classes: int) -> Tensor:
    """The classes of the labeled images that each image resembles -> (U, K)."""
    classes_LK = F.one_hot(labels_L.clamp_min(0), num_classes) * (labels_L >= 0)[:, None]
    return product(instances_UL, classes_LK)
