from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from npmatch.algorithms.pseudo_label import PseudoLabel
from npmatch.heads.linear import LinearHead
from npmatch.types import Model
from tests.algorithms import fixed


@pytest.mark.parametrize(("step", "ramp"), [(0, 0.0), (10, 0.25), (40, 1.0), (99, 1.0)])
def test_the_loss_by_hand(step: int, ramp: float) -> None:
    """Of 100 steps the first 40 raise the weight of the unlabeled loss."""
    given = fixed.batch("labeled", "weak", step=step)
    probs = given.probs("weak")
    keep = probs.max(1) >= 0.7
    assert 0 < keep.sum() < fixed.U, "the batch must exercise what this test is about"
    unlabeled = (fixed.log_loss(probs, probs.argmax(1)) * keep).sum() / fixed.U
    found = given.step(PseudoLabel(min_confidence=0.7, unlabeled_weight=2.0))
    assert found.loss.item() == pytest.approx(fixed.labeled_loss(given) + ramp * 2.0 * unlabeled)
    assert found.metrics["ramp"].item() == pytest.approx(ramp)
    assert found.metrics["kept"].item() == pytest.approx(keep.mean())


def test_the_gradient_is_that_of_a_given_label_and_reaches_the_kept_images_alone() -> None:
    """(p - onehot) / U for the logits: if it went through the guess too it would be another."""
    given = fixed.batch("labeled", "weak", step=50)
    weak = given.views["weak"].requires_grad_()
    given.step(PseudoLabel(min_confidence=0.7)).loss.backward()
    probs = given.probs("weak")
    slope = (probs - np.eye(fixed.CLASSES)[probs.argmax(1)]) * (probs.max(1) >= 0.7)[:, None] / fixed.U
    by_hand = slope @ given.model.head.classifier.weight.detach().numpy()
    assert weak.grad is not None
    np.testing.assert_allclose(weak.grad.numpy(), by_hand, atol=1e-12)
    assert (by_hand == 0).all(1).any() and (by_hand != 0).any()


def test_running_statistics_are_of_the_labeled_images() -> None:
    given = fixed.batch("labeled", "weak", step=50)
    norm = nn.BatchNorm1d(fixed.FEATURES).double()
    given.model = Model(norm, LinearHead(fixed.FEATURES, fixed.CLASSES)).double()
    before = given.step(PseudoLabel()).loss
    alone = nn.BatchNorm1d(fixed.FEATURES).double()
    alone(given.views["labeled"])
    assert torch.equal(norm.running_mean, alone.running_mean) and torch.equal(norm.running_var, alone.running_var)
    given.views["weak"].mul_(3).add_(1)  # which their own batch's statistics take out
    torch.testing.assert_close(given.step(PseudoLabel()).loss, before, rtol=1e-5, atol=1e-5)
