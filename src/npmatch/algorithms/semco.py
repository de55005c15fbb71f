"""SemCo (Nassar et al., 2021, Sec. 3): a class head and a head for word vectors of the class names teach each other."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.data.word_vectors import read_word_vectors
from npmatch.errors import UserError
from npmatch.functional.losses import cross_entropy
from npmatch.functional.precision import at_least_float32, product
from npmatch.functional.pseudo import kept_metrics, labeled_points, pseudo_labels, pseudo_points, trusted
from npmatch.types import Facts, Model, Step, Views

FEWEST_GROUPS = 6  # fewer would say next to nothing: then each class is a group of its own, as in the official code


@dataclass(frozen=True)
class SemCoState:
    """What the class names say. It does not change, but belongs to the run: the file may be gone by its end."""

    vectors: Tensor  # (K, D) of the class names
    group: Tensor  # (K,) classes of alike names have the same number


@dataclass(frozen=True, kw_only=True)
class SemCo:
    """A second head predicts the class name's word vector, and teaches where only alike classes are left."""

    paper: ClassVar[str] = "Nassar et al., CVPR 2021"
    needs: ClassVar[tuple[str, ...]] = ("labeled", "weak", "strong")

    word_vectors: str | None = None  # a file with a vector for each class name; the method is nothing without it
    min_confidence: float = 0.95  # tau
    min_group_similarity: float = 0.7  # tau_e: mean cosine of a group's classes
    unlabeled_weight: float = 1.0  # lambda_u
    semantic_weight: float = 3.0  # lambda_e
    group_radius: float | None = None  # eps of DBSCAN, a cosine distance; none: by the length of the vectors
    hidden_dim: int = 2048  # of the embedding head

    def init(self, facts: Facts) -> SemCoState:
        vectors = self.read(facts)
        group = groups(vectors, self.group_radius)
        return SemCoState(*(torch.from_numpy(part).to(facts.device) for part in (vectors, group)))

    def extras(self, facts: Facts) -> dict[str, nn.Module]:
        hidden, dim = self.hidden_dim, self.read(facts).shape[1]
        layers = nn.Linear(facts.feature_dim, hidden), nn.ReLU(), nn.Linear(hidden, dim)
        return {"embedding": nn.Sequential(*layers)}

    def read(self, facts: Facts) -> np.ndarray:
        if self.word_vectors is None:
            raise UserError(
                "--algorithm semco: needs a vector for each class name; "
                "--set algorithm.word_vectors=FILE (.npz by name, or text: a name and its numbers a line)"
            )
        return read_word_vectors(Path(self.word_vectors), facts.classes)

    def step(self, model: Model, teacher: Model, views: Views, state: SemCoState) -> Step[SemCoState]:
        features = model.features(views)
        words = F.normalize(state.vectors, dim=1)

        # 1. Two guesses from the weak view: the class head's, and the other's if it is sure of a group of classes.
        with torch.no_grad():
            pseudo = pseudo_labels(model.head(features["weak"]))
            similarity, share = in_nearest_group(product(embedded(model, features["weak"]), words.T), state.group)
            alike = (similarity >= self.min_group_similarity).to(similarity.dtype)  # m_e
            meant = F.normalize(product(share, state.vectors), dim=1)  # e^: in the direction of the group's classes
        keep = trusted(pseudo, min_confidence=self.min_confidence)  # m

        # 2. Class head: FixMatch's loss (L_low), and the other head's guess.
        out = model.head.learn(
            labeled_points(features["labeled"], views.y, pseudo.num_classes),
            pseudo_points(features["strong"], pseudo, keep),
        )
        labeled = cross_entropy(out.labeled, views.y).mean()
        unlabeled = (cross_entropy(out.unlabeled, pseudo.label) * keep).mean()
        taught = (cross_entropy(out.unlabeled, share.argmax(1)) * alike).mean()

        # 3. Embedding head (L_up): the distance from the true word, from the group's, and from the class head's guess.
        strong = embedded(model, features["strong"])
        named = distance(embedded(model, features["labeled"]), words[views.y]).mean()
        grouped = (distance(strong, meant) * alike).mean()
        agreed = (distance(strong, words[pseudo.label]) * keep).mean()

        semantic = named + self.unlabeled_weight * (grouped + agreed + taught / 3)
        loss = labeled + self.unlabeled_weight * unlabeled + self.semantic_weight * semantic

        metrics = {"labeled": labeled, "unlabeled": unlabeled, "taught": taught}
        metrics |= {"named": named, "grouped": grouped, "agreed": agreed, "alike": alike.mean()}
        metrics = {name: value.detach() for name, value in metrics.items()}
        return Step(loss, metrics | kept_metrics(pseudo, keep), state)


def groups(vectors_KD: np.ndarray, radius: float | None = None) -> np.ndarray:
    """Which classes have alike names -> (K,) int64, by clustering with cosine distances; once, on the host."""
    from sklearn.cluster import DBSCAN

    length = vectors_KD.shape[1]
    usual = 0.15 if length < 100 else 0.2 if length < 256 else 0.28
    found = DBSCAN(eps=usual if radius is None else radius, metric="cosine", min_samples=1).fit_predict(vectors_KD)
    found = np.unique(found, return_inverse=True)[1].astype(np.int64)
    return found if found.max() + 1 >= FEWEST_GROUPS else np.arange(len(found))


def in_nearest_group(similarity_NK: Tensor, group_K: Tensor) -> tuple[Tensor, Tensor]:
    """The group whose classes are most similar on average: that mean (N,), and the share of each of its classes, 0 for
    all others (N, K)."""
    member_KG = F.one_hot(group_K, len(group_K)).to(similarity_NK.dtype)  # of as many groups as there could be
    size_G = member_KG.sum(0)
    mean_NG = (product(similarity_NK, member_KG) / size_G.clamp_min(1)).masked_fill(size_G == 0, -torch.inf)
    similarity, nearest = mean_NG.max(1)
    return similarity, similarity_NK.masked_fill(group_K != nearest[:, None], -torch.inf).softmax(1)


def embedded(model: Model, features_NF: Tensor) -> Tensor:
    """Where images lie among the words -> (N, D), of length 1."""
    return F.normalize(at_least_float32(model.extras["embedding"](features_NF)), dim=1)


def distance(left_ND: Tensor, right_ND: Tensor) -> Tensor:
    """1 - cosine, of vectors of length 1 -> (N,)."""
    return 1 - (left_ND * right_ND).sum(1)
