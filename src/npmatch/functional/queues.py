"""What a method remembers of its newest batches: a queue in its state, whose rows of zeros are not written yet.

Rows move up by one batch at each step, so that no pointer has to be saved and no shape depends on what is in them.
"""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def pushed(queue_QD: Tensor, rows_ND: Tensor) -> Tensor:
    """The queue with new rows at its end; the oldest leave at its start -> (Q, D)."""
    return torch.cat([queue_QD, rows_ND.to(queue_QD.dtype)])[-len(queue_QD) :]


def written(queue_QD: Tensor) -> Tensor:
    """Which rows have been written: embeddings of length 1 and probabilities are never all zeros -> (Q,) bool."""
    return (queue_QD != 0).any(-1)


def mean_of_written(queue_QD: Tensor) -> Tensor:
    """Zeros where nothing has been written -> (D,)."""
    return queue_QD.sum(0) / written(queue_QD).sum().clamp_min(1)
