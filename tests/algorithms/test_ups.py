"""UPS: what its passes say, what it keeps of it, and the loss of one step written out in NumPy."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from npmatch.algorithms.ups import UPS, UPSState, negative_cross_entropy
from npmatch.heads.dropout import DropoutHead
from npmatch.types import Head, Learnt, Model, Points, Views
from tests import toy

Y, PLACE, LAST_LABEL = [0, 2], [3, 1, 0, 5, 4, 3], [-1, -1, -1, 0, 0, 1]
CHANCE = np.random.default_rng(3)
LABELED_BK, STRONG_UK = CHANCE.normal(size=(2, 4)), CHANCE.normal(size=(6, 4))
WEAK_TUK = np.array([8.0, 1, 0, -3]) + CHANCE.normal(size=(3, 6, 4)) * np.array([0.01, 1, 3, 0.05, 1.5, 0.1])[:, None]
WEAK_TUK[:, 1] = WEAK_TUK[:, 1, ::-1]
WEAK_TUK[:, 3] /= 3
WEAK_TUK[:, 2] = np.array([[9.0, 0, 0, 0], [9.0, 0, 0, 0], [3.2, 0, 0, 0]])  # confident on average, and not stable
WEAK_TUK[:, 5] = np.array([0.2, 0.1, 0, -9]) + CHANCE.normal(size=(3, 4)) * 0.01  # of three classes any, not the fourth


class Told(Head):
    """Predicts what it is told, another thing in each pass."""

    repeats_backbone: ClassVar[bool] = True
    num_classes, num_samples = 4, 3
    given: Points

    def __init__(self) -> None:
        super().__init__()
        self.passes = iter(WEAK_TUK)

    def forward(self, features_NF: Tensor, num_samples: int | None = None) -> Tensor:
        assert (features_NF == 1).all(), "only the weak view may be guessed from"
        return torch.from_numpy(next(self.passes))[None]

    def learn(self, labeled: Points, unlabeled: Points) -> Learnt:
        assert (labeled.features == 0).all() and (unlabeled.features == 2).all()
        self.given = unlabeled
        logits = (torch.from_numpy(part)[None] for part in (LABELED_BK, STRONG_UK))
        return Learnt(*logits, torch.tensor(7.0), {})


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@pytest.mark.parametrize("warmup", [True, False])
def test_a_step_is_that_of_the_page(warmup: bool) -> None:
    settings = {"max_deviation": 0.04, "max_negative_deviation": 0.02, "unlabeled_weight": 0.7, "negative_weight": 0.3}
    chosen = UPS(**settings, min_confidence=0.9, negative_temperature=1.5, threshold_warmup=warmup)
    images = {"labeled": torch.zeros(2, 1), "weak": torch.ones(6, 1), "strong": torch.full((6, 1), 2.0)}
    views = Views(images, torch.tensor(Y), torch.arange(2), torch.tensor(PLACE), torch.tensor(0))
    head = Told()
    model = Model(nn.Identity(), head)
    step = chosen.step(model, model, views, UPSState(torch.tensor(LAST_LABEL)))

    beta = np.array([2, 1, 0, 0]) / (3 if warmup else 2)  # of LAST_LABEL; three places have none yet
    loss, keeps, refusals, last = 0.0, [], 0, list(LAST_LABEL)
    labeled = np.mean([-np.log(softmax(z)[y]) for z, y in zip(LABELED_BK, Y)])
    for image in range(6):
        p = softmax(WEAK_TUK[:, image])
        guess = p.mean(0).argmax()
        stable = p[:, guess].std(ddof=1) <= 0.04
        confidence, b = p.mean(0)[guess], beta[guess]
        keeps.append(int(stable and confidence >= 0.9 * b / (2 - b)))
        soft, right = softmax(WEAK_TUK[:, image] / 1.5), softmax(STRONG_UK[image])
        if keeps[-1]:
            loss += 0.7 * -np.log(right[guess])
        else:
            no = [k for k in range(4) if k != guess and soft[:, k].mean() < 0.05 and soft[:, k].std(ddof=1) < 0.02]
            loss += 0.3 * -np.mean([np.log(1 - right[k]) for k in no]) if no else 0.0
            refusals += len(no)
        if stable and confidence >= 0.9:
            last[PLACE[image]] = int(guess)
    assert 0 < sum(keeps) < 6 and refusals and last != LAST_LABEL, "the numbers must exercise what this test is about"
    assert head.given.weight.tolist() == keeps
    assert step.loss.item() == pytest.approx(labeled + loss / 6)
    assert step.state.last_label.tolist() == last
    assert step.metrics["negative_labels"].item() == pytest.approx(refusals / 6)


def test_negative_labels_of_the_specification() -> None:
    """Spec 2.10: p = (.7, .2, .1) and negative labels 1 and 2. A class that is certain does not give infinity."""
    logits = torch.tensor([[0.7, 0.2, 0.1], [0.7, 0.2, 0.1]]).log()[None]
    found = negative_cross_entropy(logits, torch.tensor([[0.0, 1, 1], [0.0, 0, 0]]))
    assert found.tolist() == [pytest.approx(0.164252, abs=1e-6), 0.0]
    assert negative_cross_entropy(torch.tensor([[[0.0, 99.0]]]), torch.tensor([[0.0, 1]])).isfinite().all()


def test_a_guess_is_no_negative_label_and_a_kept_image_has_none() -> None:
    """Of 40 classes the likeliest can be below .05 too."""
    logits = torch.zeros(3, 2, 40)
    found = UPS().negative_labels(logits, torch.tensor([7, 8]), torch.tensor([0.0, 1.0]))
    assert found.sum(1).tolist() == [39, 0] and found[0, 7] == 0


def views_and_model(dropout: float) -> tuple[Views, Model]:
    torch.manual_seed(0)
    model = Model(toy.backbone(), DropoutHead(toy.FEATURES, toy.CLASSES, dropout=dropout, num_samples=5))
    return toy.stream(UPS.needs)[0], model


@pytest.mark.parametrize("training", [True, False])
def test_passes_differ_by_dropout_alone(training: bool) -> None:
    """Spec 2.10. In evaluation mode dropout is on too, and off again after it."""
    for dropout, differ in ((0.0, False), (0.3, True)):
        views, model = views_and_model(dropout)
        logits = model.train(training).sample_all(views["weak"])
        assert logits.shape == (5, len(views.place), toy.CLASSES)
        assert bool((logits[0] != logits[1]).any()) == differ
        assert model.head.training == training and all(m.training == training for m in model.modules())
    views, model = views_and_model(0.0)
    strict = UPS(min_confidence=0.0, max_deviation=0.0)
    step = strict.step(model, model, views, strict.init(toy.facts()))
    assert step.metrics["kept"] == 1 and step.metrics["deviation"] == 0


def test_the_passes_leave_no_trace_in_batch_norm() -> None:
    """One step moves the running statistics once, by the labeled and the strong images."""
    found, buffers = [], []
    for statistics in ("batch", "running"):
        views, model = views_and_model(0.3)
        views, alone = replace(views, images=dict(views.images) | {"weak": 3 * views["weak"]}), views_and_model(0.3)[1]
        alone.features(views, ("labeled", "strong"))
        chosen = UPS(statistics=statistics)
        torch.manual_seed(1)
        step = chosen.step(model, model, views, chosen.init(toy.facts()))
        found.append(step.metrics["confidence"])
        buffers = list(zip(model.buffers(), alone.buffers()))
        assert len(buffers) == 3 and all(torch.equal(one, other) for one, other in buffers)
        assert all(m.training for m in model.modules())
    assert found[0] != found[1]
