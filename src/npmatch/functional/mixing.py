"""MixUp as MixMatch has it, and the order of rows that lets several passes over one batch see images of every kind."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def mixup(images: Tensor, labels_NK: Tensor, alpha: float, *, each: bool = False) -> tuple[Tensor, Tensor]:
    """Each image and its label blended with those of another place in the batch, drawn as a permutation.

    One share for the whole batch or, with `each`, one per image. It is at least a half, so that each mixture stands
    closer to the image whose place it takes (MixMatch, Eq. 8 to 11). With an alpha of 0 nothing is mixed.
    """
    share = larger_share(alpha, len(images) if each else 1, images.device)
    order = torch.rand(len(images), device=images.device).argsort(stable=True)
    share_N1, share_NCHW = share[:, None], share.view(-1, *[1] * (images.ndim - 1))
    return (
        share_NCHW * images + (1 - share_NCHW) * images[order],
        share_N1 * labels_NK + (1 - share_N1) * labels_NK[order],
    )


def larger_share(alpha: float, count: int, device: torch.device) -> Tensor:
    """max(x, 1 - x) of x from Beta(alpha, alpha) -> (count,) float32.

    Exact, from two uniform numbers: sampling by rejection would wait for the device. If t has Student's distribution
    with 2 alpha degrees of freedom, 1/2 + t / (2 sqrt(2 alpha + t^2)) is such an x; and Bailey (1994) gives
    t^2 / (2 alpha) = (U^(-1 / alpha) - 1) cos^2(2 pi V).
    """
    if alpha == 0:
        return torch.ones(count, device=device)
    u, v = torch.rand(2, count, device=device).unbind(0)
    square = torch.expm1(-u.log() / alpha) * torch.cos(2 * math.pi * v).square()
    return (1 + (1 + 1 / square).rsqrt()) / 2


def interleaving(parts: int, rows: int, device: torch.device) -> Tensor:
    """An order of `parts` times `rows` places in which the first part has rows of all, and every other some of the
    first -> (parts * rows,). It is its own inverse.

    A part's rows are divided among the parts, and what the first part has of part p changes place with p's own.
    """
    row = torch.arange(rows, device=device)
    theirs = parts - 1 - (rows - 1 - row) * parts // rows  # nearly equal groups, the larger ones last
    part = torch.arange(parts, device=device)[:, None]
    swapped = torch.where(part == 0, theirs, torch.where(part == theirs, 0, part))
    return (swapped * rows + row).flatten()


def quarter_turns(images: Tensor, turns_N: Tensor) -> Tensor:
    """Each square image turned left by its number of quarter turns, 0 to 3."""
    found = images
    for turns in (1, 2, 3):
        found = torch.where((turns_N == turns).view(-1, 1, 1, 1), images.rot90(turns, (2, 3)), found)
    return found
