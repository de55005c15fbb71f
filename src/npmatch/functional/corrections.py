"""Corrections of probabilities: plain functions an algorithm calls by name, in the order that stands on its page."""

from __future__ import annotations

import torch
from torch import Tensor

from npmatch.functional.queues import mean_of_written, pushed

# A class that a whole batch gives no mass must not make every row NaN.
_LEAST_MEAN = 1e-6


def align_batch(probs_NK: Tensor) -> Tensor:
    """Distribution alignment within one batch, toward equal classes -> (N, K).

    What NP-Match's code does and its paper does not mention: divide by the batch's mean and renormalize. With many
    classes and few images it lowers confidence a lot (K = 1000, N = 256: from .97 to about .24).
    """
    return _renormalized(probs_NK / probs_NK.mean(0).clamp_min(_LEAST_MEAN))


def align_ema(
    probs_NK: Tensor, mean_K: Tensor, target_K: Tensor | None = None, *, decay: float = 0.999
) -> tuple[Tensor, Tensor]:
    """Distribution alignment by a running mean (ReMixMatch) -> (N, K) and the next mean (K,).

    Toward target_K, or equal classes. The mean takes in this batch before it is used; a mean of zeros means that
    there is none yet, and the first batch makes it. A class without target mass gets probability 0.
    """
    batch_K = probs_NK.detach().mean(0)
    mean_K = torch.where(mean_K.sum() > 0, running_mean(mean_K, batch_K, decay), batch_K)
    target = 1.0 if target_K is None else target_K
    return _renormalized(probs_NK * target / mean_K.clamp_min(_LEAST_MEAN)), mean_K


def align_recent(probs_NK: Tensor, recent_means_QK: Tensor) -> tuple[Tensor, Tensor]:
    """Distribution alignment by the mean of the last Q batches, toward equal classes (CoMatch, SimMatch) -> (N, K) and
    the queue of their means (Q, K). This batch enters the queue before its mean is used."""
    recent_means_QK = pushed(recent_means_QK, probs_NK.mean(0, keepdim=True))
    return _renormalized(probs_NK / mean_of_written(recent_means_QK).clamp_min(_LEAST_MEAN)), recent_means_QK


def running_mean(mean: Tensor, batch: Tensor, decay: float) -> Tensor:
    """The next value of an exponential average over steps. Carries no gradient."""
    return decay * mean + (1 - decay) * batch.detach()


def sharpen(probs_NK: Tensor, temperature: float) -> Tensor:
    """Probabilities to the power 1 / temperature, renormalized -> (N, K)."""
    relative = probs_NK / probs_NK.amax(-1, keepdim=True)  # so that a small temperature cannot make all of them 0
    return _renormalized(relative ** (1 / temperature))


def _renormalized(mass_NK: Tensor) -> Tensor:
    return mass_NK / mass_NK.sum(-1, keepdim=True).clamp_min(torch.finfo(mass_NK.dtype).tiny)
