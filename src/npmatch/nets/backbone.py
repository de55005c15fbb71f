"""What every network here is: images in, one feature vector per image out, never a classifier."""

from __future__ import annotations

from torch import Tensor, nn


class Backbone(nn.Module):
    """A network that says how long its feature vectors are. Abstract: forward is (N, C, H, W) -> (N, F)."""

    feature_dim: int  # F


class Wrapped(Backbone):
    """A network from elsewhere that already gives features, with dropout on them."""

    def __init__(self, network: nn.Module, feature_dim: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.network = network
        self.dropout = dropout_module(dropout)
        self.feature_dim = feature_dim

    def forward(self, images: Tensor) -> Tensor:
        return self.dropout(self.network(images))


def dropout_module(dropout: float) -> nn.Module:
    """A module and not a function call, so that Monte-Carlo dropout can switch it on by its class."""
    return nn.Dropout(dropout) if dropout > 0 else nn.Identity()
