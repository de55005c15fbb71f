"""A ring of codes, of which only the mean is read (paper, Sec. 3.2.4)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MemoryBank(nn.Module):
    """The newest `size` codes. Buffers, so that they are saved, moved and copied with the model."""

    codes: Tensor
    count: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        self.size = size
        self.register_buffer("codes", torch.zeros(size + 1, dim))  # the last row is a bin, never read
        self.register_buffer("count", torch.ones((), dtype=torch.long))
        self.codes[0].normal_()  # one random row starts each bank, and leaves when the bank is full

    def mean(self) -> Tensor:
        """Summed afresh: a running sum drifts."""
        return self.codes[: self.size].sum(0) / self.count.clamp(max=self.size)

    @torch.no_grad()
    def push(self, codes_NZ: Tensor, weight_N: Tensor) -> None:
        """Write the codes of weight above 0 over the oldest ones. No shape depends on how many there are."""
        keep = weight_N > 0
        rank = keep.cumsum(0) - 1
        newest = keep & (rank >= keep.sum() - self.size)  # of more than the bank holds, the last ones stay
        place = torch.where(newest, (self.count + rank) % self.size, self.size)
        self.codes[place] = codes_NZ.to(self.codes.dtype)
        self.codes[self.size] = 0  # which refused row came last there is chance on a GPU
        self.count += keep.sum()

    def shrink(self) -> None:
        """Keep only the mean, as a bank of one: nothing else is read at prediction (paper, Sec. 3.2.4)."""
        mean = self.mean()
        self.size = 1
        self.codes = torch.stack([mean, torch.zeros_like(mean)])
        self.count = torch.ones_like(self.count)
