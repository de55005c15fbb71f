from __future__ import annotations

import numpy as np
import torch

from npmatch.functional.corrections import align_recent
from npmatch.functional.precision import product
from npmatch.functional.queues import mean_of_written, pushed, written


def test_a_queue_keeps_its_newest_rows_in_order() -> None:
    rows = torch.arange(1.0, 15.0)[:, None]
    queue = torch.zeros(5, 1)
    for first, last in ((0, 2), (2, 4), (4, 7), (7, 14)):  # at last more than it holds
        queue = pushed(queue, rows[first:last].requires_grad_())
        newest = [0.0] * (5 - min(5, last)) + list(range(max(1, last - 4), last + 1))
        assert queue[:, 0].tolist() == newest and written(queue).tolist() == [row > 0 for row in newest]
        assert mean_of_written(queue).item() == np.mean([row for row in newest if row])
    assert not queue.requires_grad and not mean_of_written(torch.zeros(3, 2)).any()


def test_alignment_by_recent_batches_takes_this_one_in_first() -> None:
    probs = torch.tensor([[0.8, 0.2], [0.6, 0.4]])
    aligned, queue = align_recent(probs, torch.zeros(2, 2))
    assert torch.allclose(aligned, torch.tensor([[0.6316, 0.3684], [0.3913, 0.6087]]), atol=1e-4)  # spec 3.7 T8
    assert torch.allclose(queue, torch.tensor([[0.0, 0.0], [0.7, 0.3]]))  # a row of zeros is in no mean
    aligned, queue = align_recent(torch.tensor([[0.5, 0.5]]), queue)
    assert torch.allclose(aligned, torch.tensor([[0.4, 0.6]]))  # .5 / .6 to .5 / .4
    assert align_recent(torch.tensor([[1.0, 0.0]]), torch.zeros(2, 2))[0].tolist() == [[1, 0]]


def test_products_of_probabilities_are_not_rounded_to_half_precision() -> None:
    weights = torch.full((1, 3000), 1 / 3000, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert abs(product(weights, torch.ones(3000, 1)).item() - 1) < 1e-4
        assert product(weights.bfloat16(), torch.ones(3000, 1)).dtype == torch.float32
    assert product(weights, torch.ones(3000, 1, dtype=torch.float64)).dtype == torch.float64
