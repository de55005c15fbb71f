"""Divergences between diagonal Gaussians (paper, Definition 1 and Theorem 1).

Theorem 1 as printed subtracts large numbers that are nearly equal: in float32, means of 50 that differ by 1e-3 come
out 59 times too far apart. The forms here are the same algebraically and contain only differences of the two
Gaussians, with l = log v, d = l1 - l2 and w = skew * (1 - skew); tests/paper checks them against the printed ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from npmatch.functional.precision import at_least_float32

Divergence = Callable[["Gaussian", "Gaussian", "Tensor | float"], Tensor]

# exp() of a larger log ratio of variances overflows float32 when it is squared.
_MAX_LOG_RATIO = 40.0


class Gaussian(NamedTuple):
    """A diagonal Gaussian, by its variance and not its standard deviation."""

    mean_Z: Tensor
    var_Z: Tensor

    def sample(self, num_samples: int) -> Tensor:
        """Reparameterized draws from torch's default generator -> (num_samples, Z)."""
        noise = torch.randn(num_samples, *self.mean_Z.shape, dtype=self.mean_Z.dtype, device=self.mean_Z.device)
        return torch.addcmul(self.mean_Z, self.var_Z.sqrt(), noise)


def skew(u_context: Tensor, u_target: Tensor) -> Tensor:
    """alpha_u in [0, 1] from two mean uncertainties; 0.5 where neither has any. No gradient flows through it.

    The less certain the context, the nearer the intermediate distribution is to the target.
    """
    both = (u_context + u_target).detach()
    return torch.where(both < 1e-12, 0.5, u_context.detach() / both.clamp_min(1e-12))


def skew_js(context: Gaussian, target: Gaussian, skew: Tensor | float) -> Tensor:
    """The skew-geometric Jensen-Shannon divergence, summed over dimensions; 0 at skew 0 and at skew 1."""
    log_ratio, gap = _differences(context, target)
    share = log_ratio.new_ones(()) * skew
    weight = share * (1 - share)
    p, q = 1 / at_least_float32(context.var_Z), 1 / at_least_float32(target.var_Z)

    spread = 4 * weight * torch.sinh(log_ratio / 2) ** 2 - _log_gap(log_ratio, share)
    shift = weight * gap**2 * (share * q**2 + (1 - share) * p**2) / ((1 - share) * p + share * q)
    return 0.5 * (spread.clamp_min(0) + shift).sum()


def dual_skew_js(context: Gaussian, target: Gaussian, skew: Tensor | float) -> Tensor:
    """Its dual form: the intermediate distribution stands first in each KL. Also 0 at skew 0 and at skew 1."""
    log_ratio, gap = _differences(context, target)
    share = log_ratio.new_ones(()) * skew
    crossed = (1 - share) * at_least_float32(target.var_Z) + share * at_least_float32(context.var_Z)
    return 0.5 * (_log_gap(log_ratio, share) + share * (1 - share) * gap**2 / crossed).sum()


def kl(p: Gaussian, q: Gaussian) -> Tensor:
    """KL(p || q), summed over dimensions."""
    log_ratio, gap = _differences(p, q)
    spread = torch.expm1(log_ratio) - log_ratio
    return 0.5 * (spread.clamp_min(0) + gap**2 / at_least_float32(q.var_Z)).sum()


def kl_to_context(context: Gaussian, target: Gaussian, skew: Tensor | float) -> Tensor:
    """KL(target || context), the evidence bound's own term; the skew plays no part in it."""
    return kl(target, context)


DIVERGENCES: dict[str, Divergence] = {"js": skew_js, "dual_js": dual_skew_js, "kl": kl_to_context}


def _differences(p: Gaussian, q: Gaussian) -> tuple[Tensor, Tensor]:
    """log v_p - log v_q and mean_p - mean_q, each (Z,)."""
    log_ratio = at_least_float32(p.var_Z).log() - at_least_float32(q.var_Z).log()
    gap = at_least_float32(p.mean_Z) - at_least_float32(q.mean_Z)
    return log_ratio.clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO), gap


def _log_gap(log_ratio: Tensor, share: Tensor) -> Tensor:
    """log((1 - share) + share * exp(d)) - share * d, at least 0 and 0 at d = 0.

    Turned so that the exponent is never negative: log1p(expm1(-40)) would be minus infinity.
    """
    size = log_ratio.abs()
    side = torch.where(log_ratio >= 0, share, 1 - share)
    return (torch.log1p(side * torch.expm1(size)) - side * size).clamp_min(0)
