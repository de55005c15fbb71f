"""The ordinary classifier, in the shape every head has."""

from __future__ import annotations

from torch import Tensor, nn

from npmatch.types import Head, Learnt, Points


class LinearHead(Head):
    """One prediction per image."""

    def __init__(self, feature_dim: int, num_classes: int) -> None:
        super().__init__()
        self.feature_dim, self.num_classes = feature_dim, num_classes
        self.num_samples = 1
        self.classifier = classifier(feature_dim, num_classes)

    def forward(self, features_NF: Tensor, num_samples: int | None = None) -> Tensor:
        return self.classifier(features_NF)[None]  # (1, N, K)

    def learn(self, labeled: Points, unlabeled: Points) -> Learnt:
        return Learnt(self(labeled.features), self(unlabeled.features), labeled.features.new_zeros(()), {})


def classifier(feature_dim: int, num_classes: int) -> nn.Linear:
    """A linear layer as the published code starts it: Xavier-normal weight, zero bias."""
    layer = nn.Linear(feature_dim, num_classes)
    nn.init.xavier_normal_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer
