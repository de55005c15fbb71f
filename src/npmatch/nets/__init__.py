"""Networks: images -> features. Ours by the names in NETWORKS, any other name is looked up in timm."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from npmatch.errors import UserError
from npmatch.nets.backbone import Backbone
from npmatch.nets.batch_norm import (
    frozen_batch_norm,
    join_batch_norm,
    running_batch_norm,
    set_batch_norm_momentum,
    training_batch_norm,
)
from npmatch.nets.passes import features_in_passes
from npmatch.nets.resnet import resnet50
from npmatch.nets.timm_model import timm_model
from npmatch.nets.tiny import Tiny
from npmatch.nets.wide_resnet import Block, wrn_28_2, wrn_28_8, wrn_37_2

__all__ = [
    "NETWORKS",
    "Backbone",
    "Block",
    "build_network",
    "features_in_passes",
    "frozen_batch_norm",
    "join_batch_norm",
    "running_batch_norm",
    "set_batch_norm_momentum",
    "training_batch_norm",
]

_WIDE = {"wrn_28_2": wrn_28_2, "wrn_28_8": wrn_28_8, "wrn_37_2": wrn_37_2}
_OTHER = {"resnet50": resnet50, "tiny": Tiny}

NETWORKS: Mapping[str, Callable[..., Backbone]] = _WIDE | _OTHER


def build_network(
    name: str, channels: int, *, block: Block = "torchssl", dropout: float = 0.0, pretrained: bool = False
) -> Backbone:
    """A network by name, its weights drawn from torch's default generator.

    `block` concerns wide residual networks only (see there), `pretrained` timm's only. `dropout` sits in the blocks of
    our own networks and on the features of the others.
    """
    if pretrained and name in NETWORKS:
        raise UserError(f"net.pretrained: {name} has no pretrained weights; use a timm name such as resnet50.a1_in1k")
    if name in _WIDE:
        return _WIDE[name](channels, block=block, dropout=dropout)
    if name in _OTHER:
        return _OTHER[name](channels, dropout=dropout)
    return timm_model(name, channels, pretrained=pretrained, dropout=dropout)
