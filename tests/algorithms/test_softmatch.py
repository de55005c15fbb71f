from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from npmatch.algorithms.softmatch import SoftMatch, SoftMatchState
from tests.algorithms import fixed


@pytest.mark.parametrize("align_to", ["uniform", "labeled", "none"])
@pytest.mark.parametrize(("decay", "narrowing"), [(0.999, 2.0), (0.5, 1.0)])
def test_three_steps_by_hand(align_to: Any, decay: float, narrowing: float) -> None:
    """Weights see the aligned prediction, labels do not. The variance is the unbiased one."""
    method = SoftMatch(decay=decay, narrowing=narrowing, align_to=align_to, unlabeled_weight=0.5)
    state: Any = method.init(fixed.FACTS)
    mean, target, mu, var, changed = None, np.full(3, 1 / 3), 1 / 3, 1.0, False
    for step in range(3):
        given = fixed.batch("labeled", "weak", "strong", step=step)
        weak = given.probs("weak")
        mean = weak.mean(0) if mean is None else decay * mean + (1 - decay) * weak.mean(0)
        if align_to == "labeled":
            target = decay * target + (1 - decay) * given.probs("labeled").mean(0)
        aligned = weak * target / mean
        aligned = aligned / aligned.sum(1, keepdims=True)
        confidence = (weak if align_to == "none" else aligned).max(1)
        mu = decay * mu + (1 - decay) * confidence.mean()
        var = decay * var + (1 - decay) * confidence.var(ddof=1)
        weight = np.where(confidence < mu, np.exp(-((confidence - mu) ** 2) / (2 * var / narrowing**2)), 1.0)
        unlabeled = (fixed.log_loss(given.probs("strong"), weak.argmax(1)) * weight).mean()
        found = given.step(method, state)
        assert found.loss.item() == pytest.approx(fixed.labeled_loss(given) + 0.5 * unlabeled, rel=1e-5)
        state = found.state
        assert (state.confidence.item(), state.variance.item()) == pytest.approx((mu, var), rel=1e-5)
        np.testing.assert_allclose(state.mean_probs.numpy(), mean, rtol=1e-5)
        changed |= bool((aligned.argmax(1) != weak.argmax(1)).any())
    assert decay == 0.999 or (weight < 0.9).any(), "the batch must exercise what this test is about"
    assert changed


def test_what_is_above_the_mean_has_all_its_weight_and_two_deviations_below_little() -> None:
    """exp(-2) at one deviation below, with sigma halved as in the published code, and exp(-8) at two."""
    given = fixed.batch("labeled", "weak", "strong")
    confidence = given.probs("weak").max(1)
    usual = float(np.median(confidence))
    for deviation, weight in ((usual - confidence.min(), np.exp(-2)), ((usual - confidence.min()) / 2, np.exp(-8))):
        state = SoftMatchState(
            torch.zeros(3), torch.full((3,), 1 / 3), torch.tensor(usual).double(), torch.tensor(deviation**2).double()
        )
        found = given.step(SoftMatch(align_to="none", decay=1.0), state)
        assert np.exp(-2) != weight or found.metrics["kept"].item() > 0.5
        lowest = np.exp(-((confidence.min() - usual) ** 2) * 4 / (2 * deviation**2))
        assert lowest == pytest.approx(weight)
        by_hand = np.where(confidence >= usual, 1, np.exp(-2 * ((confidence - usual) / deviation) ** 2)).mean()
        assert found.metrics["kept"].item() == pytest.approx(by_hand, rel=1e-6)


def test_confidences_that_are_all_alike_give_a_finite_loss() -> None:
    given = fixed.batch("labeled", "weak", "strong")
    given.views["weak"].copy_(given.views["weak"][:1].clone())
    state = SoftMatchState(torch.zeros(3), torch.full((3,), 1 / 3), torch.tensor(0.9), torch.tensor(0.0))
    found = given.step(SoftMatch(decay=0.0), state)
    assert found.loss.isfinite() and found.metrics["kept"].item() == pytest.approx(1)
