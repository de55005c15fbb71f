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
        mean, std = (torch.tensor(v, device=images_NCHW.device)[:, None, None] for v in (self.mean, self.std))
        return (images_NCHW.float() - 255 * mean) / (255 * std)
