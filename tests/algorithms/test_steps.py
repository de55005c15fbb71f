"""One step of each method against numbers worked out by hand: no network, and a head that predicts what it is told."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from npmatch.algorithms import ALGORITHMS
from npmatch.algorithms.fixmatch import FixMatch, FixMatchState
from npmatch.algorithms.flexmatch import FlexMatch, FlexMatchState
from npmatch.algorithms.npmatch import NPMatch, NPMatchState
from npmatch.algorithms.supervised import Supervised, SupervisedState
from npmatch.types import Algorithm, Head, Learnt, Model, Points, Step, Views
from tests import toy

WEAK_UK = torch.tensor(  # confident with .97, .60, .34, .96, .97; entropies .15, .72, 1.10, .20, .15
    [[0.97, 0.02, 0.01], [0.60, 0.39, 0.01], [0.34, 0.33, 0.33], [0.02, 0.96, 0.02], [0.97, 0.02, 0.01]]
)
STRONG_UK = torch.tensor([[0.5, 0.3, 0.2], [0.4, 0.4, 0.2], [0.2, 0.3, 0.5], [0.1, 0.8, 0.1], [0.9, 0.05, 0.05]])
LABELED_BK = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.4, 0.1]])
Y, PLACE = torch.tensor([0, 2]), torch.tensor([3, 1, 0, 5, 4])
LABELED_LOSS = -(math.log(0.7) + math.log(0.1)) / 2
STRONG_LOSSES = [-math.log(p) for p in (0.5, 0.4, 0.2, 0.8, 0.9)]  # of the guesses 0, 0, 0, 1, 0
PENALTY = 7.0
# Of a pool of 6, two were last taken for class 0, one for class 1, three for none. So beta is 2/3, 1/3, 0, and the
# threshold of .95 becomes .475, .19, 0.
LAST_LABEL = torch.tensor([-1, -1, 0, 0, 1, -1])
NO_MEAN = torch.zeros(3)


class Told(Head):
    """Predicts what it is told, and keeps what it was given to learn."""

    num_classes = 3
    given: tuple[Points, Points]

    def forward(self, features_NF: Tensor, num_samples: int | None = None) -> Tensor:
        if (features_NF == 0).all():  # AdaMatch asks how confident the labeled images are
            return LABELED_BK.log()[None]
        assert (features_NF == 1).all(), "only the weak view may be guessed from"
        return WEAK_UK.log()[None]

    def learn(self, labeled: Points, unlabeled: Points) -> Learnt:
        self.given = labeled, unlabeled
        return Learnt(LABELED_BK.log()[None], STRONG_UK.log()[None], torch.tensor(PENALTY), {})


def one_step(algorithm: Algorithm[Any], state: object) -> tuple[Step[Any], Points, Points]:
    """What a step returns, and the labeled and unlabeled points it had the head learn. A view's pixels name it."""
    head = Told()
    model = Model(nn.Identity(), head)
    images = {"labeled": torch.zeros(2, 1), "weak": torch.ones(5, 1), "strong": torch.full((5, 1), 2.0)}
    views = Views(images, Y, torch.arange(2), PLACE, torch.tensor(0))
    return algorithm.step(model, model, views, state), *head.given


def mean_strong_loss(*kept: int, over: int) -> float:
    return sum(STRONG_LOSSES[i] for i in kept) / over


def test_npmatch_averages_over_the_kept_and_remembers_the_sure() -> None:
    chosen = NPMatch(alignment="none", max_uncertainty=0.8, unlabeled_weight=0.5, divergence_weight=0.1)
    step, _, unlabeled = one_step(chosen, NPMatchState(LAST_LABEL, NO_MEAN))
    assert unlabeled.weight.tolist() == [1, 1, 0, 1, 1]
    by_hand = LABELED_LOSS + 0.5 * mean_strong_loss(0, 1, 3, 4, over=4) + 0.1 * PENALTY
    assert step.loss.item() == pytest.approx(by_hand)
    assert step.state.last_label.tolist() == [-1, -1, 0, 0, 0, 1]  # .97 and .96 are written, .60 is not
    assert not step.state.mean_probs.any()


@pytest.mark.parametrize(
    ("limit", "unit", "kept", "refused"),
    [
        (0.1, "nats", [0, 0, 0, 0, 0], 0.8),  # four are confident, none is certain
        (0.1, "share", [0, 0, 0, 0, 0], 0.8),  # .1 log 3 = .11 nats
        (0.6, "nats", [1, 0, 0, 1, 1], 0.2),
        (0.6, "share", [1, 0, 0, 1, 1], 0.2),  # .66 nats; .6 log2(3) = .95 would let the second pass
        (0.68, "share", [1, 1, 0, 1, 1], 0.0),  # .747 nats
    ],
)
def test_npmatch_wants_certainty_too(limit: float, unit: Any, kept: list[int], refused: float) -> None:
    chosen = NPMatch(alignment="none", max_uncertainty=limit, uncertainty_unit=unit)
    step, _, unlabeled = one_step(chosen, NPMatchState(LAST_LABEL, NO_MEAN))
    assert unlabeled.weight.tolist() == kept
    assert step.metrics["refused_by_uncertainty"].item() == pytest.approx(refused)
    assert step.state.last_label.tolist() == ([-1, -1, 0, 0, 0, 1] if any(kept) else LAST_LABEL.tolist())


def test_npmatch_takes_uncertainty_before_alignment_and_confidence_after() -> None:
    """Divided by the column means .58, .344, .076 the five rows have .90, .49, .74, .90, .90 for 0, 1, 2, 1, 0.

    Class 0 has passed everywhere: it needs .95, the others nothing. The third entropy is .75 after alignment, and the
    first and last confidence .97 before it.
    """
    taken_for_0 = torch.zeros(6, dtype=torch.long)
    step, _, unlabeled = one_step(NPMatch(alignment="batch", max_uncertainty=0.8), NPMatchState(taken_for_0, NO_MEAN))
    assert unlabeled.labels.argmax(1).tolist() == [0, 1, 2, 1, 0]
    assert unlabeled.weight.tolist() == [0, 1, 0, 1, 0]
    assert step.metrics["uncertainty"].item() == pytest.approx((0.15 + 0.72 + 1.10 + 0.20 + 0.15) / 5, abs=0.01)
    assert step.state.last_label.tolist() == [0] * 6  # none is sure


def test_npmatch_aligns_by_its_running_mean() -> None:
    """Divided by .7, .2, .1 the second row is for class 1, the third for class 2."""
    mean = torch.tensor([0.7, 0.2, 0.1])
    step, _, unlabeled = one_step(NPMatch(alignment="ema"), NPMatchState(LAST_LABEL, mean))
    assert unlabeled.labels.argmax(1).tolist() == [0, 1, 2, 1, 0]
    torch.testing.assert_close(step.state.mean_probs, 0.999 * mean + 0.001 * torch.tensor([0.58, 0.344, 0.076]))


def test_flexmatch_averages_over_all_and_remembers_the_sure() -> None:
    step, _, unlabeled = one_step(FlexMatch(unlabeled_weight=0.5), FlexMatchState(LAST_LABEL))
    assert unlabeled.weight.tolist() == [1, 1, 0, 1, 1]
    assert step.loss.item() == pytest.approx(LABELED_LOSS + 0.5 * mean_strong_loss(0, 1, 3, 4, over=5))
    assert step.state.last_label.tolist() == [-1, -1, 0, 0, 0, 1]


def test_fixmatch_averages_over_all() -> None:
    step, _, unlabeled = one_step(FixMatch(unlabeled_weight=0.5), FixMatchState())
    assert unlabeled.weight.tolist() == [1, 0, 0, 1, 1]
    assert step.loss.item() == pytest.approx(LABELED_LOSS + 0.5 * mean_strong_loss(0, 3, 4, over=5))


def test_supervised_learns_no_unlabeled_image() -> None:
    step, _, unlabeled = one_step(Supervised(), SupervisedState())
    assert step.loss.item() == pytest.approx(LABELED_LOSS) and len(unlabeled.features) == 0


@pytest.mark.parametrize("warmup", [True, False])
def test_without_warmup_the_unused_images_are_no_class(warmup: bool) -> None:
    """Then beta is 1, 1/2, 0, the threshold .95, .32, 0, and .60 for class 0 does not pass."""
    for step in (
        one_step(FlexMatch(threshold_warmup=warmup), FlexMatchState(LAST_LABEL)),
        one_step(
            NPMatch(threshold_warmup=warmup, alignment="none", max_uncertainty=0.8), NPMatchState(LAST_LABEL, NO_MEAN)
        ),
    ):
        assert step[2].weight.tolist() == [1, int(warmup), 0, 1, 1]


def test_nothing_passed_before_the_first_step() -> None:
    facts = toy.facts(num_unlabeled=6)
    for method in (FlexMatch(), NPMatch()):
        assert method.init(facts).last_label.tolist() == [-1] * 6
    assert NPMatch().init(facts).mean_probs.tolist() == [0] * 3


WITHOUT_ALIGNMENT = {"adamatch": {"align_to": "none"}, "npmatch": {"alignment": "none"}}


@pytest.mark.parametrize(  # of the methods that learn their guesses and have no network beside the head's
    "algorithm", ["uda", "fixmatch", "flexmatch", "freematch", "softmatch", "adamatch", "ups", "npmatch"]
)
def test_the_head_learns_labels_and_the_guesses_on_the_strong_view(algorithm: str) -> None:
    method = ALGORITHMS[algorithm](**WITHOUT_ALIGNMENT.get(algorithm, {}))
    _, labeled, unlabeled = one_step(method, method.init(toy.facts(num_unlabeled=6)))
    assert labeled.features.eq(0).all() and unlabeled.features.eq(2).all()
    assert labeled.labels.tolist() == [[1, 0, 0], [0, 0, 1]] and labeled.weight.tolist() == [1, 1]
    assert unlabeled.labels.argmax(1).tolist() == [0, 0, 0, 1, 0]
    torch.testing.assert_close(unlabeled.labels.sum(1), torch.ones(5))
