"""Where half precision is not enough."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_float32(x: Tensor) -> Tensor:
    """Half-precision numbers as float32; float32 and float64 stay as they are.

    A float16 softmax is 0 from a logit gap of 17 on, and logarithms of such zeros are where NaN comes from.
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))


def product(left: Tensor, right: Tensor) -> Tensor:
    """The matrix product in float32 at least, under autocast too: for similarities and sums of probabilities."""
    dtype = torch.promote_types(torch.promote_types(left.dtype, right.dtype), torch.float32)
    with torch.autocast(left.device.type, enabled=False):
        return left.to(dtype) @ right.to(dtype)
