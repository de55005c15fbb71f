from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npmatch.algorithms.adamatch import AdaMatch
from tests.algorithms import fixed


@pytest.mark.parametrize("align_to", ["labeled", "uniform", "none"])
@pytest.mark.parametrize("decay", [0.999, 0.5, 0.0])
def test_three_steps_by_hand(align_to: Any, decay: float) -> None:
    """Both labels and confidence are of the aligned prediction. With a decay of 0 the means are the batch's."""
    method = AdaMatch(decay=decay, align_to=align_to, unlabeled_weight=0.5)
    state: Any = method.init(fixed.FACTS)
    mean, target, kept, changed = None, np.full(3, 1 / 3), [], False
    for step in range(3):
        given = fixed.batch("labeled", "weak", "strong", step=step)
        weak, labeled = given.probs("weak"), given.probs("labeled")
        mean = weak.mean(0) if mean is None else decay * mean + (1 - decay) * weak.mean(0)
        if align_to == "labeled":
            target = decay * target + (1 - decay) * labeled.mean(0)
        aligned = weak * target / mean
        aligned = weak if align_to == "none" else aligned / aligned.sum(1, keepdims=True)
        label = aligned.argmax(1)
        keep = aligned.max(1) >= 0.95 * labeled.max(1).mean()
        unlabeled = (fixed.log_loss(given.probs("strong"), label) * keep).sum() / fixed.U
        found = given.step(method, state)
        assert found.loss.item() == pytest.approx(fixed.labeled_loss(given) + 0.5 * unlabeled, rel=1e-5)
        assert found.metrics["threshold"].item() == pytest.approx(0.95 * labeled.max(1).mean())
        state = found.state
        np.testing.assert_allclose(state.mean_probs.numpy(), mean, rtol=1e-5)
        np.testing.assert_allclose(state.target.numpy(), target, rtol=1e-5)
        kept.append(keep.mean())
        changed |= bool((label != weak.argmax(1)).any())
    assert 0 < np.mean(kept) < 1 and changed == (align_to != "none"), "the batch must exercise what this test is about"


@pytest.mark.parametrize(("step", "ramp"), [(0, 0.0), (10, 0.0954915), (25, 0.5), (50, 1.0), (80, 1.0)])
def test_the_papers_ramp(step: int, ramp: float) -> None:
    """1/2 - cos(min(pi, 2 pi t / T)) / 2, of 100 steps."""
    given = fixed.batch("labeled", "weak", "strong", step=step)
    found = given.step(AdaMatch(ramp_share=0.5, relative_confidence=0.5))
    assert found.loss.item() == pytest.approx(fixed.labeled_loss(given) + ramp * found.metrics["unlabeled"].item())
    assert found.metrics["unlabeled"] > 0


def test_labeled_predictions_are_measured_and_not_trained_by_it() -> None:
    """The threshold and the alignment carry no gradient: the labeled images have that of their labels alone."""
    given = fixed.batch("labeled", "weak", "strong")
    labeled = given.views["labeled"].requires_grad_()
    given.step(AdaMatch()).loss.backward()
    slope = (given.probs("labeled") - np.eye(fixed.CLASSES)[given.views.y]) / fixed.B
    assert labeled.grad is not None
    by_hand = slope @ given.model.head.classifier.weight.detach().numpy()
    np.testing.assert_allclose(labeled.grad.numpy(), by_hand, atol=1e-12)
