"""The interval of a share that was counted."""

from __future__ import annotations

import math

_Z = 1.959964  # 95 %, two-sided


def wilson(hits: float, trials: int) -> tuple[float, float]:
    """The 95 % interval of hits / trials (Wilson, 1927): within [0, 1] and of some width even at 0 and at 1."""
    share, spread = hits / trials, _Z**2 / trials
    middle = (share + spread / 2) / (1 + spread)
    reach = _Z * math.sqrt(share * (1 - share) / trials + spread / (4 * trials)) / (1 + spread)
    return max(0.0, middle - reach), min(1.0, middle + reach)
