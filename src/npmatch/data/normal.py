"""How pixels become a network's input."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Normal:
    """Mean and standard deviation of each channel, of pixels / 255, and the side of what the network sees."""

    image_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __call__(self, images_NCHW: Tensor) -> Tensor:
        """uint8 to float32."""
        mean, std = (_column(values, images_NCHW.device) for values in (self.mean, self.std))
        return (images_NCHW.float() - 255 * mean) / (255 * std)


def _column(values: tuple[float, ...], device: torch.device) -> Tensor:
    """A number for each channel -> (C, 1, 1). Filled in on the device: a copy from the host would have to wait."""
    return torch.stack([torch.full((1, 1), value, device=device) for value in values])
