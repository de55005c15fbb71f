"""Features to embeddings: a small network beside the classifier, for methods that compare images."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.functional.precision import at_least_float32


class Projector(nn.Module):
    """Two layers, and then length 1: an inner product of two embeddings is the cosine of their angle."""

    def __init__(self, feature_dim: int, embedding_dim: int, *, negative_slope: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(feature_dim, feature_dim),
            nn.LeakyReLU(negative_slope),  # of slope 0 it is a ReLU
            nn.Linear(feature_dim, embedding_dim),
        )

    def forward(self, features_NF: Tensor) -> Tensor:
        return F.normalize(at_least_float32(self.layers(features_NF)), dim=1)  # (N, embedding_dim)
