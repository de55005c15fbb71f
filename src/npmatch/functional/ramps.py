"""What grows over a run. The step is a tensor, so that a captured step sees it change."""

from __future__ import annotations

import torch
from torch import Tensor


def linear_ramp(step: Tensor, length: Tensor) -> Tensor:
    """From 0 at the first step to 1 after `length` steps, and 1 from then on; always 1 if there is no length -> ()."""
    return torch.where(length > 0, (step / length.clamp_min(1e-6)).clamp(max=1), 1.0)


def cosine_ramp(step: Tensor, length: Tensor) -> Tensor:
    """The same, slow at both ends -> ()."""
    return (1 - torch.cos(torch.pi * linear_ramp(step, length))) / 2
