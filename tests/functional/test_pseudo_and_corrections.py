from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from npmatch.functional.corrections import align_batch, align_ema, sharpen
from npmatch.functional.pseudo import (
    curriculum,
    flexible_threshold,
    kept_metrics,
    labeled_points,
    pseudo_labels,
    pseudo_points,
    remember,
    trusted,
)


def table(*counts: int, unused: int) -> torch.Tensor:
    """A pool where so many images were last taken for class 0, 1, ... and the rest never passed."""
    classes = [label for label, count in enumerate(counts) for _ in range(count)]
    return torch.tensor(classes + [-1] * unused)


def guesses(*probs: list[float]) -> torch.Tensor:
    return torch.tensor(probs).log()[None]


def test_pseudo_labels_come_from_the_mean_probability():
    """Two samples whose mean logit and mean probability disagree."""
    logits = torch.stack([guesses([0.98, 0.019, 0.001])[0], guesses([0.0001, 0.6, 0.3999])[0]]).requires_grad_()
    pseudo = pseudo_labels(logits)
    assert pseudo.label.tolist() == [0] and logits.mean(0).argmax() == 1
    assert float(pseudo.confidence) == pytest.approx(0.49005) and pseudo.num_classes == 3
    assert not pseudo.confidence.requires_grad and not pseudo.uncertainty.requires_grad


def test_thresholds_themselves_pass():
    pseudo = pseudo_labels(guesses([0.9, 0.1], [0.7, 0.3]))._replace(
        confidence=torch.tensor([0.95, 0.9499999]), uncertainty=torch.tensor([0.4, 0.1])
    )
    assert trusted(pseudo, min_confidence=0.95).tolist() == [1, 0]
    assert trusted(pseudo, min_confidence=0.95, max_uncertainty=0.4).tolist() == [1, 0]
    assert trusted(pseudo, min_confidence=0.5, max_uncertainty=0.39).tolist() == [0, 1]
    best_learnt = flexible_threshold(0.95, torch.ones(2))
    assert trusted(pseudo, min_confidence=best_learnt).tolist() == [1, 0]
    assert kept_metrics(pseudo, torch.tensor([1.0, 0.0]))["kept"] == 0.5


def test_the_surest_guess_is_trusted():
    pseudo = pseudo_labels(torch.tensor([[[150.0, 0.0, 0.0]]]))
    assert trusted(pseudo, min_confidence=0.95, max_uncertainty=0.0).tolist() == [1]


@pytest.mark.parametrize(
    ("counts", "unused", "warmup", "learnt", "thresholds"),
    [
        ((40, 20, 0), 40, True, (1, 0.5, 0), (0.95, 0.3167, 0)),
        ((10, 5, 0), 85, True, (0.1176, 0.0588, 0), (0.0594, 0.0288, 0)),
        ((10, 5, 0), 85, False, (1, 0.5, 0), (0.95, 0.3167, 0)),
        ((0, 0, 0), 100, True, (0, 0, 0), (0, 0, 0)),
        ((0, 0, 0), 100, False, (0, 0, 0), (0, 0, 0)),
    ],
)
def test_curriculum(counts, unused, warmup, learnt, thresholds):
    beta = curriculum(table(*counts, unused=unused), 3, warmup=warmup)
    assert beta.tolist() == pytest.approx(learnt, abs=1e-4)
    assert flexible_threshold(0.95, beta).tolist() == pytest.approx(thresholds, abs=1e-4)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.booleans()), min_size=1, max_size=20))
def test_remember_writes_sure_labels_and_the_last_of_duplicates_wins(rows):
    before = torch.tensor([-1, 0, 1, 2, -1, 3])
    expected = before.tolist()
    for place, label, sure in rows:
        if sure:
            expected[place] = label
    place, label, sure = (torch.tensor(column) for column in zip(*rows))
    assert remember(before, place, label, sure.float()).tolist() == expected
    assert before.tolist() == [-1, 0, 1, 2, -1, 3]


def test_points():
    features = torch.randn(2, 5).bfloat16()
    labeled = labeled_points(features, torch.tensor([2, 0]), 3)
    assert labeled.labels.tolist() == [[0, 0, 1], [1, 0, 0]] and labeled.weight.tolist() == [1, 1]
    pseudo = pseudo_labels(guesses([0.1, 0.9], [0.7, 0.3]))
    points = pseudo_points(features, pseudo, torch.tensor([1.0, 0.0]))
    assert points.labels.tolist() == [[0, 1], [1, 0]] and points.weight.tolist() == [1, 0]
    assert {points.labels.dtype, points.weight.dtype, labeled.labels.dtype} == {torch.float32}


def test_align_batch():
    aligned = align_batch(torch.tensor([[0.8, 0.2], [0.6, 0.4]]))
    torch.testing.assert_close(aligned, torch.tensor([[0.6316, 0.3684], [0.3913, 0.6087]]), rtol=0, atol=5e-5)
    empty = align_batch(torch.tensor([[0.5, 0.5, 0.0], [0.9, 0.1, 0.0]]))
    torch.testing.assert_close(empty.sum(-1), torch.ones(2))  # a class without mass makes no NaN
    assert (empty[:, 2] == 0).all()


def test_align_ema_takes_the_batch_in_before_use():
    probs = torch.tensor([[0.8, 0.2], [0.6, 0.4]])
    aligned, mean = align_ema(probs, torch.zeros(2))
    torch.testing.assert_close(mean, torch.tensor([0.7, 0.3]))
    torch.testing.assert_close(aligned, align_batch(probs))
    same, mean = align_ema(probs, mean, mean)
    torch.testing.assert_close(same, probs)
    _, mean = align_ema(torch.tensor([[0.0, 1.0]]), mean, decay=0.9)
    torch.testing.assert_close(mean, torch.tensor([0.63, 0.37]))


def test_align_ema_follows_a_target_with_an_absent_class():
    probs = torch.tensor([[0.2, 0.3, 0.5], [0.0, 0.0, 1.0]])
    aligned, _ = align_ema(probs, torch.zeros(3), torch.tensor([0.5, 0.5, 0.0]))
    assert aligned.isfinite().all() and (aligned[:, 2] == 0).all()
    assert aligned[0].tolist() == pytest.approx([0.5, 0.5, 0])


def test_sharpen():
    for temperature, probs, sharp in (
        (0.5, [0.6, 0.3, 0.1], [0.7826, 0.1957, 0.0217]),
        (0.4, [0.6, 0.3, 0.1], [0.8417, 0.1488, 0.0095]),
    ):
        assert sharpen(torch.tensor([probs]), temperature)[0].tolist() == pytest.approx(sharp, abs=5e-5)
    thousand = torch.full((1, 1000), 1e-3)
    torch.testing.assert_close(sharpen(thousand, 0.01), thousand)  # 1e-3 ** 100 is 0
    assert math.isclose(float(sharpen(torch.tensor([[1.0, 0.0]]), 0.5)[0, 0]), 1)
