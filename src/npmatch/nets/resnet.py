"""ResNet-50 as ImageNet experiments use it."""

from __future__ import annotations

from torch import nn

from npmatch.nets.backbone import Backbone, Wrapped


def resnet50(channels: int, *, dropout: float = 0.0) -> Backbone:
    """For ImageNet: 24 million parameters, 2048 features.

    Torchvision's network (v1.5: stride on the 3x3 convolution) and initialization, without its classifier.
    """
    from torchvision.models import resnet50 as torchvision_resnet50

    network = torchvision_resnet50(weights=None)
    network.fc = nn.Identity()  # pyright: ignore[reportAttributeAccessIssue]
    if channels != 3:
        network.conv1 = nn.Conv2d(channels, 64, 7, 2, padding=3, bias=False)
        nn.init.kaiming_normal_(network.conv1.weight, mode="fan_out", nonlinearity="relu")
    return Wrapped(network, 2048, dropout=dropout)
