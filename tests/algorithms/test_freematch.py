from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from npmatch.algorithms.freematch import FreeMatch, FreeMatchState
from tests.algorithms import fixed
from tests.algorithms.fixed import Array


def normalized(mass: Array) -> Array:
    return mass / mass.sum()


def fairness(long_run: tuple[Array, Array], probs: Array) -> float:
    """Sec. 4.2 over the kept images' predictions, class by class."""
    guesses = probs.argmax(1)
    quotients = []
    for c in range(fixed.CLASSES):
        share = np.mean(guesses == c)
        quotients.append(probs[:, c].mean() / share if share else 0.0)
    p = normalized(long_run[0] / long_run[1])
    return float((p * np.log(normalized(np.array(quotients)) + 1e-12)).sum())


@pytest.mark.parametrize("decay", [0.999, 0.5])
def test_three_steps_by_hand(decay: float) -> None:
    """The batch enters the running means before they make thresholds."""
    method = FreeMatch(decay=decay, fairness_weight=0.05, unlabeled_weight=0.5)
    state: Any = method.init(fixed.FACTS)
    usual, mean, share = 1 / 3, np.full(3, 1 / 3), np.full(3, 1 / 3)
    for step in range(3):
        given = fixed.batch("labeled", "weak", "strong", step=step)
        weak, strong = given.probs("weak"), given.probs("strong")
        confidence, label = weak.max(1), weak.argmax(1)
        usual = decay * usual + (1 - decay) * confidence.mean()
        mean = decay * mean + (1 - decay) * weak.mean(0)
        share = decay * share + (1 - decay) * np.bincount(label, minlength=3) / fixed.U
        keep = confidence >= (mean / mean.max() * usual)[label]
        unlabeled = (fixed.log_loss(strong, label) * keep).sum() / fixed.U
        found = given.step(method, state)
        by_hand = fixed.labeled_loss(given) + 0.5 * unlabeled + 0.05 * fairness((mean, share), strong[keep])
        assert found.loss.item() == pytest.approx(by_hand, rel=1e-5)
        state = found.state
        assert state.confidence.item() == pytest.approx(usual, rel=1e-5)
        np.testing.assert_allclose(state.mean_probs.numpy(), mean, rtol=1e-5)
        np.testing.assert_allclose(state.class_share.numpy(), share, rtol=1e-5)
        assert decay == 0.999 or 0 < keep.sum() < fixed.U, "the batch must exercise what this test is about"


def test_a_class_that_is_usual_needs_more() -> None:
    """Of two classes with means .6 and .3 the second has half of the first's threshold."""
    given = fixed.batch("labeled", "weak", "strong")
    means = torch.tensor([0.6, 0.3, 0.1]).double()
    state = FreeMatchState(torch.tensor(0.8).double(), means, torch.full((3,), 1 / 3).double())
    found = given.step(FreeMatch(decay=1.0, fairness_weight=0.0), state)
    probs = given.probs("weak")
    keep = probs.max(1) >= np.array([0.8, 0.4, 0.8 / 6])[probs.argmax(1)]
    assert found.metrics["kept"].item() == pytest.approx(keep.mean()) and 0 < keep.mean() < 1


def test_nothing_kept_gives_no_fairness_loss_and_a_finite_gradient() -> None:
    given = fixed.batch("labeled", "weak", "strong")
    strong = given.views["strong"].requires_grad_()
    state = FreeMatchState(torch.tensor(30.0), torch.full((3,), 1 / 3), torch.full((3,), 1 / 3))
    found = given.step(FreeMatch(max_threshold=50.0, fairness_weight=1.0), state)
    found.loss.backward()
    assert found.metrics["kept"] == 0 and found.metrics["fairness"] == 0
    assert strong.grad is not None and not strong.grad.any()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in given.model.parameters())


def test_fairness_draws_predictions_toward_what_is_predicted_too_rarely() -> None:
    """Its gradient leaves the others alone: a class nobody guesses, a threshold nobody passes."""
    given = fixed.batch("labeled", "weak", "strong")
    given.model.head.classifier.bias.data[2] = -50  # never guessed
    strong = given.views["strong"].requires_grad_()
    found = given.step(FreeMatch(fairness_weight=1.0, unlabeled_weight=0.0, decay=0.5))
    found.loss.backward()
    assert found.loss.isfinite() and strong.grad is not None and strong.grad.isfinite().all() and strong.grad.any()
