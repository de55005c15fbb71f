"""Watching for numbers that are not finite, on the device."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from npmatch.errors import Diverged

Precision = Literal["fp32", "bf16", "fp16"]


class Guard(nn.Module):
    """What was not finite, and fp16's loss scale: kept on the device, so that no step waits for the host."""

    first: Tensor
    tensors: Tensor
    scale: Tensor
    streak: Tensor

    GROWTH = 2000  # finite steps after which the scale is doubled
    PATIENCE = 50  # steps in a row that were not finite, which a falling scale should have cured

    def __init__(self, num_tensors: int, precision: Precision) -> None:
        super().__init__()
        self.scaled = precision == "fp16"
        self.register_buffer("first", torch.full((), -1, dtype=torch.int64))  # step of the first bad gradient
        self.register_buffer("tensors", torch.zeros(num_tensors, dtype=torch.bool))  # which gradients it was
        self.register_buffer("scale", torch.full((), 2.0**16 if self.scaled else 1.0))
        self.register_buffer("streak", torch.zeros((), dtype=torch.int64))  # steps since the last change of fortune

    def see(self, norms_P: Tensor, step: Tensor) -> Tensor:
        """Note the gradients' norms at a step, () int64 -> () float, 1.0 where this step must not count."""
        wrong = ~norms_P.isfinite()
        bad = wrong.any()
        new = bad & (self.first < 0)
        self.tensors.copy_(torch.where(new, wrong, self.tensors))
        self.first.copy_(torch.where(new, step, self.first))
        if self.scaled:
            self.streak.copy_(torch.where(bad, self.streak.clamp(max=0) - 1, self.streak.clamp(min=0) + 1))
            grow = (self.streak > 0) & (self.streak % self.GROWTH == 0)
            self.scale.mul_(torch.where(bad, 0.5, torch.where(grow, 2.0, 1.0)))
            forget = ~bad & (self.streak > 0)  # an overflow that a lower scale cured is no divergence
            self.first.copy_(torch.where(forget, -1, self.first))
        return bad.float()

    def check(self, names: list[str]) -> None:
        """Raise `Diverged` if a number was not finite (fp16: if it stayed so). The only look from the host."""
        if int(self.first) < 0 or (self.scaled and int(self.streak) > -self.PATIENCE):
            return
        found = [name for name, wrong in zip(names, self.tensors.tolist()) if wrong]
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise Diverged(
            f"step {int(self.first)}: the gradient of {found[0]}{more} is not finite; "
            "try a lower optimizer.lr or optimizer.clip_norm, and train.precision=fp32 if it is another"
        )
