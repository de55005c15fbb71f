from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from npmatch.functional.mixing import interleaving, larger_share, mixup, quarter_turns

CPU = torch.device("cpu")


@pytest.mark.parametrize("alpha", [0.05, 0.5, 0.75, 1.0, 8.0])
def test_the_share_is_that_of_a_beta_distribution_folded_to_at_least_a_half(alpha):
    torch.manual_seed(0)
    share = larger_share(alpha, 20_000, CPU).numpy()
    assert share.min() >= 0.5 and share.max() <= 1
    x = np.random.default_rng(0).beta(alpha, alpha, 20_000)
    assert stats.ks_2samp(share, np.maximum(x, 1 - x).astype(np.float32)).pvalue > 0.01
    if alpha >= 0.5:  # else many round to 1
        beta = stats.beta(alpha, alpha)
        assert stats.kstest(share, lambda x: beta.cdf(x) - beta.cdf(1 - x)).pvalue > 0.01


def test_the_share_has_no_nan_at_the_edges_of_its_draws(monkeypatch):
    """rand gives 0 but never 1."""
    edge = 1 - 2.0**-24
    draws = torch.cartesian_prod(torch.tensor([0.0, 1e-30, edge]), torch.tensor([0.0, 0.25, 0.5, edge])).T
    monkeypatch.setattr(torch, "rand", lambda *shape, device: draws)
    for alpha in (0.02, 0.5, 100.0):
        share = larger_share(alpha, 12, CPU)
        assert ((share >= 0.5) & (share <= 1)).all()


@pytest.mark.parametrize("each", [False, True])
def test_image_and_label_are_mixed_alike_and_stay_mostly_themselves(each):
    """Images that are their own number, labels that are one-hot of it: both tell with whom and how much."""
    torch.manual_seed(0)
    number = torch.arange(40)
    images, labels = mixup(number[:, None, None, None].float(), torch.eye(40), 0.75, each=each)
    share = labels.diagonal()
    assert (share >= 0.5).all() and len(set(share[share < 1].tolist())) == (1 if not each else (share < 1).sum())
    torch.testing.assert_close(labels.sum(1), torch.ones(40))
    torch.testing.assert_close(images.flatten(), labels @ number.float())
    if not each:  # a permutation: each image is the smaller part of exactly one mixture
        torch.testing.assert_close(labels.sum(0), torch.ones(40))


def test_with_alpha_0_nothing_is_mixed():
    images, labels = mixup(torch.arange(6.0).view(6, 1, 1, 1), torch.eye(6), 0.0)
    assert images.flatten().tolist() == list(range(6)) and torch.equal(labels, torch.eye(6))


@pytest.mark.parametrize(("parts", "rows"), [(3, 64), (4, 64), (3, 65), (7, 4), (1, 5), (15, 32)])
def test_interleaving_is_its_own_inverse_and_spreads_the_first_part(parts, rows):
    order = interleaving(parts, rows, CPU)
    assert sorted(order.tolist()) == list(range(parts * rows))
    assert torch.equal(order[order], torch.arange(parts * rows))
    came_from = (order // rows).view(parts, rows)
    of_first = (came_from == 0).sum(1)
    assert (of_first - rows / parts).abs().max() < 1
    assert all(set(row.tolist()) <= {0, part} for part, row in enumerate(came_from[1:], 1))
    if (parts, rows) == (3, 64):  # as TorchSSL and the TensorFlow code divide 64 rows
        assert of_first.tolist() == [21, 21, 22]


def test_quarter_turns():
    images = torch.arange(4.0).view(1, 1, 2, 2).repeat(4, 2, 1, 1)
    turned = quarter_turns(images, torch.tensor([0, 1, 2, 3]))[:, 1].flatten(1)
    assert turned.tolist() == [[0, 1, 2, 3], [1, 3, 0, 2], [3, 2, 1, 0], [2, 0, 3, 1]]
