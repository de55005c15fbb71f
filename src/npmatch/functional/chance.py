"""Chance as a function of (seed, step, purpose, place in the batch), never of history.

A draw is a hash of its address, in 64-bit integer arithmetic that CPUs and GPUs do alike. So a batch can be made
again anywhere: after a restart, by another number of workers, or by a rank that makes only its own slice of it.
"""

from __future__ import annotations

import torch
from torch import Tensor

# splitmix64 (Steele, Lea, Flood 2014); the constants as signed 64-bit numbers, as torch has them.
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)


def scramble(x: Tensor) -> Tensor:
    """One round of splitmix64 on int64 tensors. Shifts are made logical by masking the sign's copies away."""
    x = x + _GOLDEN
    x = (x ^ ((x >> 30) & ((1 << 34) - 1))) * _FIRST
    x = (x ^ ((x >> 27) & ((1 << 37) - 1))) * _SECOND
    return x ^ ((x >> 31) & ((1 << 33) - 1))


def key(seed: int, step: Tensor | int, purpose: int, device: torch.device | str | None = None) -> Tensor:
    """The address of one purpose at one step -> () int64. Seed and step are hashed apart, so no two pairs collide."""
    if not isinstance(step, Tensor):
        step = torch.tensor(step, dtype=torch.int64, device=device)
    start = torch.full((), seed, dtype=torch.int64, device=step.device)
    return scramble(scramble(scramble(start) + step) + purpose)


def bits(key: Tensor, places_N: Tensor, draws: int) -> Tensor:
    """Independent 63-bit numbers for each place in the batch -> (N, draws) int64, all at least 0."""
    columns = torch.arange(draws, device=places_N.device, dtype=torch.int64)
    rows = scramble(key + places_N.to(torch.int64))
    return scramble(rows[:, None] + columns) & ((1 << 63) - 1)


def uniform(key: Tensor, places_N: Tensor, draws: int) -> Tensor:
    """Numbers in [0, 1), the 24 high bits of a hash, exact in float32 -> (N, draws)."""
    return (bits(key, places_N, draws) >> 39).to(torch.float32) * 2.0**-24


def integers(key: Tensor, places_N: Tensor, high: int) -> Tensor:
    """Whole numbers in [0, high), with replacement -> (N,) int64. The modulo's bias is below high / 2**63."""
    return bits(key, places_N, 1)[:, 0] % high


def number(seed: int, step: int, purpose: int) -> int:
    """The same hash as a Python number, to seed a generator of torch's own (latent samples, dropout)."""
    return int(key(seed, step, purpose, "cpu")) & ((1 << 63) - 1)
