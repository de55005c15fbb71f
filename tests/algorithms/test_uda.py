from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from npmatch.algorithms.uda import UDA
from npmatch.functional.corrections import sharpen
from npmatch.types import Views
from tests import toy
from tests.algorithms import fixed


def test_a_target_is_sharpened() -> None:
    """Spec 2.3."""
    sharp = sharpen(torch.tensor([[0.6, 0.3, 0.1]]), UDA().temperature)
    torch.testing.assert_close(sharp, torch.tensor([[0.8417, 0.1488, 0.0095]]), atol=5e-5, rtol=0)


def test_the_loss_by_hand_keeps_by_the_prediction_as_it_was() -> None:
    """Sharpened, more of them would be above the threshold."""
    given = fixed.batch("labeled", "weak", "strong")
    probs = given.probs("weak")
    target = fixed.softmax(given.logits("weak") / 0.4)
    keep = probs.max(1) >= 0.8
    assert 0 < keep.sum() < (target.max(1) >= 0.8).sum(), "the batch must exercise what this test is about"
    unlabeled = (-(target * np.log(given.probs("strong"))).sum(1) * keep).sum() / fixed.U
    found = given.step(UDA(unlabeled_weight=0.5))
    assert found.loss.item() == pytest.approx(fixed.labeled_loss(given) + 0.5 * unlabeled)


# Spec 2.3, of 10 classes at half of the run; 1 / K at the start but for exp, whose start is near it; 1 at the end.
ETA = {"linear": (0.1, 0.55, 1.0), "exp": (0.1061, 0.1739, 1.0), "log": (0.1, 0.9261, 0.9939)}


@pytest.mark.parametrize("annealing", ETA)
@pytest.mark.parametrize("when", [0, 1, 2])
def test_the_annealing_leaves_out_labels_that_are_predicted_above_eta(annealing: str, when: int) -> None:
    """By the probability of the right class, not by the largest one."""
    eta = ETA[annealing][when]
    method = UDA(annealing=annealing)
    rest = 0.9 - min(eta - 0.002, 0.9)
    probs = torch.full((3, 10), (0.1 - 0.05) / 9)  # wrong, and sure of it
    probs[0, 4] = 1 - 9 * (0.1 - 0.05) / 9
    for row, correct in ((1, eta - 0.002), (2, eta + 0.002)):
        probs[row] = (1 - correct) / 9
        probs[row, 0] = correct
    assert rest >= 0
    views = Views({}, torch.tensor([0, 0, 0]), torch.arange(3), torch.arange(0), torch.tensor(50 * when))
    state = method.init(toy.facts(num_classes=10, num_steps=100))
    left = method.not_learnt_yet(probs.clamp_min(1e-9).log()[None], views, state)
    possible = eta + 0.002 < 1
    assert left.tolist()[: 2 + possible] == [1, 1, 0][: 2 + possible]


def test_the_labeled_loss_is_the_mean_of_the_labels_left() -> None:
    for step in (0, 25):
        given = fixed.batch("labeled", "weak", "strong", step=step)
        correct = given.probs("labeled")[np.arange(fixed.B), given.views.y]
        left = correct <= step / 100 * 2 / 3 + 1 / 3
        assert 0 < left.sum() < fixed.B
        found = given.step(UDA(annealing="linear"))
        assert found.metrics["labeled"].item() == pytest.approx(-np.log(correct)[left].mean())
        assert found.metrics["labels_used"].item() == pytest.approx(left.mean())


def test_no_label_left_gives_a_finite_loss() -> None:
    given = fixed.batch("labeled", "weak", "strong")
    given.views.y.copy_(torch.from_numpy(given.probs("labeled").argmax(1)))  # all are predicted well at once
    found = given.step(UDA(annealing="linear", min_confidence=1.1))
    assert found.loss.item() == 0 and math.isfinite(found.metrics["labels_used"].item())
    found.loss.backward()
    assert all(p.grad is not None and not p.grad.any() for p in given.model.parameters())
