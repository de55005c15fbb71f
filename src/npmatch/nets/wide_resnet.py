"""Pre-activation wide residual networks (Zagoruyko and Komodakis, 2016) as semi-supervised learning uses them."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from npmatch.nets.backbone import Backbone, dropout_module

Block = Literal["torchssl", "correct"]
Activate = Literal["branch", "both", "neither"]

_SLOPE = 0.1  # of the leaky rectifier
_BLOCKS = 4  # in each group


class WideResNet(Backbone):
    """A stem, groups of four residual blocks that double the width and halve the map, and the mean over the map.

    block "torchssl" repeats a slip of TorchSSL and of the code that descends from it, NP-Match's too: where a block
    changes the number of channels, its first convolution reads the raw input and not the normalized one, except in the
    first group. That batch norm is then computed for nothing and never gets a gradient. "correct" is TensorFlow's.
    """

    def __init__(
        self,
        channels: int,
        *,
        width: int,
        groups: int = 3,
        first_stride: int = 1,
        block: Block = "torchssl",
        dropout: float = 0.0,
        momentum: float = 0.001,  # torch's convention
        eps: float = 0.001,
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, 16, 3, padding=1)
        blocks: list[nn.Module] = []
        wide_in = 16
        for group in range(groups):
            wide_out = 16 * width * 2**group
            first: Activate = "both" if group == 0 else "branch" if block == "correct" else "neither"
            stride = first_stride if group == 0 else 2
            blocks.append(_Residual(wide_in, wide_out, stride, first, dropout, momentum, eps))
            blocks += [_Residual(wide_out, wide_out, 1, "branch", dropout, momentum, eps) for _ in range(_BLOCKS - 1)]
            wide_in = wide_out
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(wide_in, eps=eps, momentum=momentum)
        self.activation = nn.LeakyReLU(_SLOPE)
        self.feature_dim = wide_in
        self.apply(_initialize)

    def forward(self, images: Tensor) -> Tensor:
        return self.activation(self.norm(self.blocks(self.stem(images)))).mean((2, 3))


class _Residual(nn.Module):
    """Two 3x3 convolutions, each after batch norm and rectifier, beside a shortcut.

    activate says what reads the first activation: the branch alone, both branch and shortcut, or neither.
    """

    def __init__(
        self,
        wide_in: int,
        wide_out: int,
        stride: int,
        activate: Activate,
        dropout: float,
        momentum: float,
        eps: float,
    ) -> None:
        super().__init__()
        self.activate = activate
        self.norm1 = nn.BatchNorm2d(wide_in, eps=eps, momentum=momentum)
        self.conv1 = nn.Conv2d(wide_in, wide_out, 3, stride, padding=1)
        self.norm2 = nn.BatchNorm2d(wide_out, eps=eps, momentum=momentum)
        self.conv2 = nn.Conv2d(wide_out, wide_out, 3, padding=1)
        self.activation = nn.LeakyReLU(_SLOPE)
        self.dropout = dropout_module(dropout)
        same = wide_in == wide_out and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(wide_in, wide_out, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        activated = self.activation(self.norm1(x))  # with "neither" too: its running statistics move
        branch = self.conv1(x if self.activate == "neither" else activated)
        branch = self.conv2(self.dropout(self.activation(self.norm2(branch))))
        return self.shortcut(activated if self.activate == "both" else x) + branch


def _initialize(module: nn.Module) -> None:
    """Convolutions by fan-out with the plain rectifier's gain; their biases and batch norm as torch has them."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def wrn_28_2(channels: int, *, block: Block = "torchssl", dropout: float = 0.0) -> WideResNet:
    """For CIFAR-10: 1.5 million parameters, 128 features."""
    return WideResNet(channels, width=2, block=block, dropout=dropout)


def wrn_28_8(channels: int, *, block: Block = "torchssl", dropout: float = 0.0) -> WideResNet:
    """For CIFAR-100: 23 million parameters, 512 features."""
    return WideResNet(channels, width=8, block=block, dropout=dropout)


def wrn_37_2(channels: int, *, block: Block = "torchssl", dropout: float = 0.0) -> WideResNet:
    """For STL-10's 96x96 images: a fourth group and a first one that halves the map; 6 million parameters."""
    return WideResNet(channels, width=2, groups=4, first_stride=2, block=block, dropout=dropout)
