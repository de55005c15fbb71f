"""Meta Pseudo Labels: the reward's sign against exact differentiation, a step of each half, both in the engine."""

from __future__ import annotations

import itertools
from copy import deepcopy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.algorithms.meta_pseudo_labels import MetaPseudoLabels, MetaPseudoLabelsState, labeled_loss
from npmatch.engine import train, update_ema
from npmatch.heads.linear import LinearHead
from npmatch.types import Head, Learnt, Model, Points, Step, Views
from tests import toy

CLASSES, LR = 3, 0.1
Y = torch.tensor([0, 2, 1])


class Table(Head):
    """Logits that are weights: of the weak, the labeled, and two strong images."""

    num_classes, num_samples = CLASSES, 1

    def __init__(self) -> None:
        super().__init__()
        self.weak, self.labeled, self.strong = (nn.Parameter(torch.randn(n, CLASSES).double()) for n in (2, 3, 2))
        with torch.no_grad():
            self.weak[0] *= 5  # a sure guess, and one that is not
            self.weak[1] *= 0.1

    def forward(self, features_NF: Tensor, num_samples: int | None = None) -> Tensor:
        return (self.weak if (features_NF[:, 0] == 1).all() else self.strong)[None]

    def learn(self, labeled: Points, unlabeled: Points) -> Learnt:
        assert (unlabeled.features[:, 0] == 2).all()
        return Learnt(self.labeled[None], self.strong[None], torch.zeros(()), {})


class Given(MetaPseudoLabels):
    """With labels that are given, and not drawn."""

    given: Tensor

    def labels(self, probs_UK: Tensor) -> Tensor:
        return self.given


def world() -> tuple[Model, Views]:
    """A linear student, and images that begin with the number of their view."""
    torch.manual_seed(3)
    model = Model(nn.Identity(), LinearHead(4, CLASSES), {"labeler": Model(nn.Identity(), Table())}).double()
    images = {name: torch.randn(n, 4).double() for name, n in (("labeled", 3), ("weak", 2), ("strong", 2))}
    for number, name in enumerate(images):
        images[name][:, 0] = number
    places = torch.arange(3)
    return model, Views(images, Y, places, places[:2], torch.tensor(30))


def both_halves(chosen: MetaPseudoLabels, model: Model, views: Views, baseline: float = 0.0) -> tuple[Step, Step]:
    """The student moves in between; what the labeler's loss leaves are its gradients."""
    state = MetaPseudoLabelsState(torch.tensor(baseline), torch.tensor(200.0))
    step = chosen.step(model, model, views, state)
    step.loss.backward()
    with torch.no_grad():
        for p in model.head.parameters():
            assert p.grad is not None
            p -= LR * p.grad
    model.zero_grad()
    answer = chosen.answer(model, model, views, step.state, step.carried)
    answer.loss.backward()
    assert all(p.grad is None for p in model.head.parameters()), "its own half is the student's only one"
    return step, answer


def exact_gradient(model: Model, views: Views) -> Tensor:
    """Of the student's next labeled loss in the labeler's logits, through the student's step with expected labels."""
    head, labeler = model.head, model.extras["labeler"]
    assert isinstance(head, LinearHead) and isinstance(labeler, Model) and isinstance(labeler.head, Table)
    weight, bias, strong = head.classifier.weight, head.classifier.bias, labeler.head.strong
    logits = views["strong"] @ weight.T + bias
    loss = -(strong.softmax(1) * logits.log_softmax(1)).sum(1).mean()
    of_weight, of_bias = torch.autograd.grad(loss, (weight, bias), create_graph=True)
    after = F.cross_entropy(views["labeled"] @ (weight - LR * of_weight).T + bias - LR * of_bias, Y)
    return torch.autograd.grad(after, strong)[0]


@pytest.mark.parametrize(("reward", "cosine"), [("gain", 1.0), ("loss", -1.0)])
def test_only_a_gain_rewards_what_helped(reward: Any, cosine: float) -> None:
    """Spec 2.8: the mean over all labels there are, by their probability, points where exact differentiation does."""
    model, views = world()
    labeler = model.extras["labeler"]
    assert isinstance(labeler, Model) and isinstance(labeler.head, Table)
    probs = labeler.head.strong.detach().softmax(1)
    mean = torch.zeros_like(probs)
    for one, two in itertools.product(range(CLASSES), repeat=2):
        again = deepcopy(model)
        chosen = Given(unlabeled_weight=0.0, label_smoothing=0.0, wait_share=0.0, reward=reward)
        object.__setattr__(chosen, "given", F.one_hot(torch.tensor([one, two]), CLASSES).double())
        both_halves(chosen, again, views)
        gradient = again.extras["labeler"].head.strong.grad  # pyright: ignore
        mean += probs[0, one] * probs[1, two] * gradient
    assert F.cosine_similarity(mean.flatten(), exact_gradient(model, views).flatten(), 0).item() == pytest.approx(
        cosine, abs=0.01
    )


def test_soft_labels_teach_the_labeler_nothing() -> None:
    """Spec 2.8: the reward's term of the released TensorFlow code has no gradient."""
    model, views = world()
    both_halves(MetaPseudoLabels(unlabeled_weight=0.0, label="soft", wait_share=0.0, label_smoothing=0.1), model, views)
    gradient = model.extras["labeler"].head.strong.grad  # pyright: ignore
    assert gradient is not None and gradient.abs().max() < 1e-12
    assert model.extras["labeler"].head.labeled.grad.abs().max() > 0.01  # pyright: ignore


def test_both_halves_are_those_of_the_page() -> None:
    model, views = world()
    table = deepcopy(model.extras["labeler"].head)
    assert isinstance(table, Table)
    chosen = MetaPseudoLabels(
        label="argmax", min_confidence=0.8, unlabeled_weight=2.0, ramp_share=0.6, guess_temperature=0.5,
        label_smoothing=0.3, wait_share=0.125,
    )  # fmt: skip
    at_first = deepcopy(model.head)
    step, answer = both_halves(chosen, model, views, baseline=0.02)

    def loss(logits: Tensor, target: Tensor, smoothing: float) -> Tensor:
        return F.cross_entropy(logits, target, label_smoothing=smoothing, reduction="none")

    label = table.strong.argmax(1)
    assert step.loss.item() == pytest.approx(loss(at_first(views["strong"])[0], label, 0.3).mean().item())
    before, after = (F.cross_entropy(head(views["labeled"])[0], Y) for head in (at_first, model.head))
    change = (before - after).item()
    target = (table.weak / 0.5).softmax(1)
    keep = (target.max(1).values >= 0.8).double()
    assert keep.tolist() == [1, 0], "the numbers must exercise what this test is about"
    by_hand = loss(table.labeled, Y, 0.3).mean() + 2.0 * 30 / 120 * (loss(table.strong, target, 0.0) * keep).mean()
    by_hand += (change - 0.02) * loss(table.strong, label, 0.0).mean()
    assert abs(change) > 1e-3 and answer.loss.item() == pytest.approx(by_hand.item())
    assert answer.state.baseline.item() == pytest.approx(0.99 * 0.02 + 0.01 * change)
    assert model.extras["labeler"].head.weak.grad is None  # pyright: ignore


def test_labels_are_drawn_by_their_probabilities() -> None:
    torch.manual_seed(0)
    probs = torch.tensor([[0.2, 0.5, 0.3], [0.0, 0.9, 0.1]]).repeat(5000, 1)
    drawn = MetaPseudoLabels().labels(probs)
    assert drawn.sum(1).eq(1).all()
    torch.testing.assert_close(drawn.view(-1, 2, 3).mean(0), probs[:2], atol=0.02, rtol=0)


def test_the_student_waits_and_the_average_moves_once_a_step() -> None:
    run = toy.training("meta_pseudo_labels", "linear")
    run.algorithm = MetaPseudoLabels(wait_share=1.0)
    views = toy.stream(run.algorithm.needs)[0]
    assert run.algorithm.step(run.model, run.teacher, views, run.state).loss == 0

    run = toy.training("meta_pseudo_labels", "linear")
    average, at_first = deepcopy(run.teacher), deepcopy(run.model)
    for _ in train(run, toy.stream(run.algorithm.needs), until=1, log_every=1):
        pass
    moved = [not torch.equal(a, b) for a, b in zip(at_first.parameters(), run.model.parameters())]
    assert sum(moved) >= len(moved) - 2  # a bias before batch norm has no gradient, but for rounding
    update_ema(average, run.model, run.ema_weight)
    for a, b in zip(average.state_dict().values(), run.teacher.state_dict().values()):
        torch.testing.assert_close(a, b)
    # What is measured, and the labeler's first pass, leave no trace.
    assert [b.item() for n, b in run.model.named_buffers() if n.endswith("num_batches_tracked")] == [1, 1]


@pytest.mark.filterwarnings("ignore")
def test_the_labelers_half_is_one_graph_too() -> None:
    run = toy.training("meta_pseudo_labels", "linear")
    batches = toy.stream(run.algorithm.needs)
    views = batches[0]
    carried = run.algorithm.step(run.model, run.teacher, views, run.state).carried

    def loss(now: Tensor) -> Tensor:
        return run.algorithm.answer(run.model, run.teacher, batches.views(now), run.state, carried).loss  # pyright: ignore

    assert torch._dynamo.explain(loss)(run.now).graph_break_count == 0
    assert not labeled_loss(run.model, views).requires_grad
