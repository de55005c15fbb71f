"""Monte-Carlo dropout (Gal and Ghahramani, 2016), the uncertainty NP-Match is compared with."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn

from npmatch.heads.linear import classifier
from npmatch.types import Head, Learnt, Points


class DropoutHead(Head):
    """A linear classifier whose samples are passes of the whole network with its dropout on (`Model.sample`).

    `dropout` is that of the features; 0 where the backbone's own blocks hold the dropout modules.
    """

    repeats_backbone: ClassVar[bool] = True

    def __init__(self, feature_dim: int, num_classes: int, *, dropout: float, num_samples: int = 10) -> None:
        super().__init__()
        self.feature_dim, self.num_classes = feature_dim, num_classes
        self.num_samples = num_samples
        self.dropout = nn.Dropout(dropout)
        self.classifier = classifier(feature_dim, num_classes)

    def forward(self, features_NF: Tensor, num_samples: int | None = None) -> Tensor:
        return self.classifier(self.dropout(features_NF))[None]  # (1, N, K)

    def learn(self, labeled: Points, unlabeled: Points) -> Learnt:
        return Learnt(self(labeled.features), self(unlabeled.features), labeled.features.new_zeros(()), {})
