"""Moments of work, on whatever device it runs."""

from __future__ import annotations

import time
from itertools import pairwise

import numpy as np
import torch


class Marks:
    """Moments noted between pieces of work. A GPU notes them itself when it gets there; nothing waits for it."""

    def __init__(self, device: torch.device) -> None:
        self.on_gpu = device.type == "cuda"
        self.events: list[torch.cuda.Event] = []
        self.seconds: list[float] = []

    def note(self) -> None:
        if self.on_gpu:
            self.events.append(torch.cuda.Event(enable_timing=True))
            self.events[-1].record()
        else:
            self.seconds.append(time.perf_counter())

    def times(self) -> np.ndarray:
        """Milliseconds between one moment and the next."""
        if self.on_gpu:
            torch.cuda.synchronize()
            return np.array([a.elapsed_time(b) for a, b in pairwise(self.events)])
        return 1000 * np.diff(self.seconds)


def summary(ms: np.ndarray) -> dict[str, float]:
    """Median and spread of some times in milliseconds, and how many they are."""
    low, middle, high = np.percentile(ms, [25, 50, 75])
    return {"ms_median": float(middle), "ms_iqr": float(high - low), "samples": len(ms)}
