"""CoMatch (Li, Xiong, Hoi, 2021, Section 3; spec 2.6): class probabilities and embeddings that correct each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.functional.corrections import align_recent
from npmatch.functional.losses import cross_entropy, soft_cross_entropy
from npmatch.functional.precision import product
from npmatch.functional.pseudo import (
    kept_metrics,
    labeled_points,
    pseudo_labels,
    relabeled,
    target_points,
    trusted,
)
from npmatch.functional.queues import pushed, written
from npmatch.nets.projector import Projector
from npmatch.types import Facts, Model, Step, Views


@dataclass(frozen=True)
class CoMatchState:
    embeddings: Tensor  # (Q, D) of the newest labeled and weak images
    probs: Tensor  # (Q, K) what was known of their class
    recent_means: Tensor  # (batches, K) the mean predictions of the last batches, for alignment


@dataclass(frozen=True, kw_only=True)
class CoMatch:
    """Similar images smooth a guess, and similar guesses pull two strong views of images together."""

    paper: ClassVar[str] = "Li et al., ICCV 2021"
    needs: ClassVar[tuple[str, ...]] = ("labeled", "weak", "strong", "simclr")

    min_confidence: float = 0.95  # tau
    unlabeled_weight: float = 1.0  # lambda_cls
    contrast_weight: float = 1.0  # lambda_ctr
    own_share: float = 0.9  # alpha, of an image's own prediction; the rest is that of similar images
    temperature: float = 0.2  # t, of similarities
    min_similarity: float = 0.8  # T: two guesses that agree less are not joined in the graph
    embedding_dim: int = 64
    queue_batches: int = 5  # that the queue holds: Q = 5 (mu + 1) B
    smoothing_from: int = 6  # the step: when the queue is full; 1,024 in USB
    alignment_batches: int = 32  # whose mean prediction is made even

    def init(self, facts: Facts) -> CoMatchState:
        size = self.queue_batches * (1 + facts.unlabeled_ratio) * facts.batch_size
        shapes = ((size, self.embedding_dim), (size, facts.num_classes), (self.alignment_batches, facts.num_classes))
        return CoMatchState(*(torch.zeros(shape, device=facts.device, dtype=facts.dtype) for shape in shapes))

    def extras(self, facts: Facts) -> dict[str, nn.Module]:
        return {"projector": Projector(facts.feature_dim, self.embedding_dim, negative_slope=0.1)}

    def step(self, model: Model, teacher: Model, views: Views, state: CoMatchState) -> Step[CoMatchState]:
        features = model.features(views, self.needs)
        codes = {name: model.extras["projector"](part) for name, part in features.items()}

        # 1. Guesses from the weak view, toward equal classes, and smoothed by memory: the paper's
        #    "memory-smoothed pseudo-labels".
        with torch.no_grad():
            pseudo = pseudo_labels(model.head(features["weak"]))
            probs, recent_means = align_recent(pseudo.probs, state.recent_means)
            recalled = recall(codes["weak"], state.embeddings, state.probs, self.temperature)
            # Rows not written yet have no mass: while there are none, or early on, the own prediction is all.
            smooth = (views.step >= self.smoothing_from) & written(state.probs).any()
            smoothed = self.own_share * probs + (1 - self.own_share) * recalled
            pseudo = relabeled(pseudo, torch.where(smooth, smoothed, probs))
        keep = trusted(pseudo, min_confidence=self.min_confidence)

        # 2. They are learnt on the first strong view, as they are, not as one class. Images that they make alike are
        #    pulled together between the first strong view and the second ("contrastive graph regularization").
        out = model.head.learn(
            labeled_points(features["labeled"], views.y, pseudo.num_classes),
            target_points(features["strong"], pseudo.probs, keep),
        )
        labeled = cross_entropy(out.labeled, views.y).mean()
        unlabeled = (soft_cross_entropy(out.unlabeled, pseudo.probs) * keep).mean()
        graph = label_graph(pseudo.probs, self.min_similarity)
        contrast = contrastive_loss(codes["strong"], codes["simclr"], graph, self.temperature).mean()
        loss = labeled + self.unlabeled_weight * unlabeled + self.contrast_weight * contrast

        # 3. Memory takes in guesses before they were smoothed, and labels.
        y_BK = F.one_hot(views.y, pseudo.num_classes)
        following = CoMatchState(
            pushed(state.embeddings, torch.cat([codes["weak"], codes["labeled"]])),
            pushed(state.probs, torch.cat([probs, y_BK.to(probs.dtype)])),
            recent_means,
        )
        metrics = {"labeled": labeled, "unlabeled": unlabeled, "contrast": contrast}
        metrics = {name: value.detach() for name, value in metrics.items()} | kept_metrics(pseudo, keep)
        return Step(loss, metrics, following)


def recall(codes_UD: Tensor, embeddings_QD: Tensor, probs_QK: Tensor, temperature: float) -> Tensor:
    """The mean prediction of what is remembered, by its similarity to each image -> (U, K). Zeros if there is none."""
    alike = product(codes_UD, embeddings_QD.T) / temperature
    weights = alike.masked_fill(~written(probs_QK), torch.finfo(alike.dtype).min).softmax(1)
    return product(weights, probs_QK)


def label_graph(probs_UK: Tensor, min_similarity: float) -> Tensor:
    """How far each image's target is each of the others, by their guesses; rows sum to 1 -> (U, U)."""
    alike = product(probs_UK, probs_UK.T)
    itself = torch.eye(len(probs_UK), device=probs_UK.device, dtype=alike.dtype)
    alike = torch.where(itself > 0, itself, alike)
    alike = torch.where(alike >= min_similarity, alike, 0.0)
    return alike / alike.sum(1, keepdim=True)


def contrastive_loss(codes_UD: Tensor, others_UD: Tensor, graph_UU: Tensor, temperature: float) -> Tensor:
    """Cross-entropy of the graph of embeddings, against that of guesses -> (U,). It never exceeds 16.2 nats."""
    alike = (product(codes_UD, others_UD.T) / temperature).softmax(1)
    return -(graph_UU * (alike + 1e-7).log()).sum(1)
