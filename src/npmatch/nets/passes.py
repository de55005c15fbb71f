"""One batch in several passes."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor

from npmatch import ranks
from npmatch.functional.mixing import interleaving
from npmatch.nets.batch_norm import frozen_batch_norm
from npmatch.types import Model


def features_in_passes(model: Model, images: Tensor, rows: int, *, follow: int = 0) -> Tensor:
    """Features of the images of all ranks -> (N, F), in passes of so many rows. Each pass is normalized by itself and
    only that of number `follow` moves the running statistics of batch norm.

    The rows are interleaved: else the first pass would have the labeled images alone, and their statistics.
    """
    order = interleaving(len(images) // rows, rows, images.device)
    parts = images[order].split(rows)
    found: list[Tensor] = []
    for number, part in enumerate(parts):
        with nullcontext() if number == follow % len(parts) else frozen_batch_norm(model.backbone):
            found.append(model.alone(ranks.share(part)))
    return torch.cat(found)[order]
