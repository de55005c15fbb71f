"""SimMatch against numpy: a whole step on given features, written out image by image."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from npmatch.algorithms.simmatch import SimMatch, SimMatchState, aggregate, unfold
from npmatch.heads.linear import LinearHead
from npmatch.presets import BUILTIN, paper, preset
from npmatch.types import Model, Views
from tests import toy

B, U, K, F, D, L = 4, 6, 3, 5, 4, 7
CHOSEN = SimMatch(
    min_confidence=0.65, unlabeled_weight=0.7, instance_weight=0.3, own_share=0.6, embedding_dim=D, warmup_steps=10
)


def prepared() -> tuple[Model, Model, Views, SimMatchState]:
    """A network of one layer; a teacher with other weights; a memory in which two images are still missing."""
    torch.manual_seed(4)
    model = Model(nn.Linear(F, F, bias=False), LinearHead(F, K), CHOSEN.extras(toy.facts(feature_dim=F))).double()
    teacher = deepcopy(model)
    for parameter in teacher.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    images = {name: 2 * torch.randn(count, F).double() for name, count in (("labeled", B), ("weak", U), ("strong", U))}
    views = Views(images, torch.tensor([2, 0, 1, 0]), torch.tensor([1, 3, 6, 3]), torch.arange(U), torch.tensor(10))
    memory = nn.functional.normalize(torch.randn(L, D).double(), dim=1)
    labels = torch.tensor([0, 2, -1, 0, 1, 1, -1])
    memory[labels < 0] = 0
    means = torch.rand(3, K).double()
    means[:2] = 0
    return model, teacher, views, SimMatchState(memory, labels, means)


def code(model: Model, row: np.ndarray) -> np.ndarray:
    weights = [p.detach().numpy() for p in model.extras["projector"].parameters()]
    out = weights[2] @ np.maximum(weights[0] @ feature(model, row) + weights[1], 0) + weights[3]
    return out / np.sqrt((out**2).sum())


def predicted(model: Model, row: np.ndarray) -> np.ndarray:
    weight, bias = (p.detach().numpy() for p in model.head.parameters())
    return softmax(weight @ feature(model, row) + bias)


def feature(model: Model, row: np.ndarray) -> np.ndarray:
    return next(model.backbone.parameters()).detach().numpy() @ row


def softmax(z: np.ndarray) -> np.ndarray:
    return np.exp(z) / np.exp(z).sum(-1, keepdims=True)


def by_hand(model: Model, guesser: Model, views: Views, state: SimMatchState, *, ready: bool) -> float:
    """The loss (spec 2.9)."""
    x = {name: image.numpy() for name, image in views.images.items()}
    p = np.stack([predicted(guesser, row) for row in x["weak"]])
    p = p / np.mean([state.recent_means[2].numpy(), p.mean(0)], axis=0)
    p = p / p.sum(1, keepdims=True)
    seen = [i for i in range(L) if state.labels[i] >= 0]
    y, memory = state.labels[seen].numpy(), state.memory[seen].numpy()
    unlabeled = instance = 0.0
    for i in range(U):
        q = softmax(memory @ code(guesser, x["weak"][i]) / 0.1)
        target = q * p[i][y] / (q * p[i][y]).sum()
        said = softmax(memory @ code(model, x["strong"][i]) / 0.1)
        instance -= ready * (target * np.log(said)).sum() / U
        guess = 0.6 * p[i] + 0.4 * np.array([q[y == c].sum() for c in range(K)]) if ready else p[i]
        unlabeled -= (guess.max() >= 0.65) * (guess * np.log(predicted(model, x["strong"][i]))).sum() / U
    labeled = -np.mean([np.log(predicted(model, row)[c]) for row, c in zip(x["labeled"], views.y.tolist())])
    return float(labeled + 0.7 * unlabeled + 0.3 * instance)


@pytest.mark.parametrize("guesses_by", ["student", "teacher"])
@pytest.mark.parametrize(("step", "ready"), [(9, False), (10, True)])
def test_a_step_is_the_specifications(guesses_by: str, step: int, ready: bool) -> None:
    model, teacher, views, state = prepared()
    guesser = model if guesses_by == "student" else teacher
    views = Views(**vars(views) | {"step": torch.tensor(step)})
    chosen = replace(CHOSEN, guesses_by=guesses_by)
    found = chosen.step(model, teacher, views, state)
    assert found.loss.item() == pytest.approx(by_hand(model, guesser, views, state, ready=ready), rel=1e-9)
    assert 0 < found.metrics["kept"] < 1 and (found.metrics["instance"] > 0) == ready
    # Memory: of the image drawn twice the last view, blended along each embedding and not across the batch.
    expected = state.memory.numpy().copy()
    for place, row in ((1, 0), (6, 2), (3, 3)):
        blend = 0.7 * expected[place] + 0.3 * code(guesser, views["labeled"][row].numpy())
        expected[place] = blend / np.sqrt((blend**2).sum())
    np.testing.assert_allclose(found.state.memory.numpy(), expected)
    assert found.state.labels.tolist() == [0, 2, -1, 0, 1, 1, 1]


def test_each_similarity_corrects_the_other() -> None:
    labels, q, p = torch.tensor([0, 0, 1]), torch.tensor([[0.5, 0.2, 0.3]]), torch.tensor([[0.9, 0.1]])
    assert torch.allclose(unfold(q, p, labels), torch.tensor([[0.6818, 0.2727, 0.0455]]), atol=1e-4)  # spec 2.9
    classes = aggregate(q, labels, 2)
    assert torch.allclose(classes, torch.tensor([[0.7, 0.3]]))
    assert torch.allclose(0.9 * p + 0.1 * classes, torch.tensor([[0.88, 0.12]]))
    # An image not seen yet is of no class, not of class 0.
    unseen = torch.tensor([-1, 0, 1])
    assert unfold(q, p, unseen)[0, 0] == 0 and torch.allclose(aggregate(q, unseen, 2), torch.tensor([[0.2, 0.3]]))


def test_an_empty_memory_says_nothing() -> None:
    model, teacher, views, state = prepared()
    empty = SimMatchState(torch.zeros_like(state.memory), torch.full_like(state.labels, -1), state.recent_means)
    found = replace(CHOSEN, warmup_steps=0).step(model, teacher, views, empty)
    assert found.metrics["instance"] == 0 and found.loss.isfinite()
    found.loss.backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    coded = model.extras["projector"](model.backbone(views["labeled"])).detach()
    assert torch.allclose(found.state.memory[[1, 3, 6]], coded[[0, 3, 2]])  # the first time it is all the new one


def test_published_settings() -> None:
    """Spec 2.9. On ImageNet a teacher guesses in the paper's code; a short run's warm-up is short."""
    for data in ("cifar10", "stl10"):
        assert paper(BUILTIN[data], "simmatch").algorithm == SimMatch()
        original = paper(BUILTIN[data], "simmatch", "original")
        assert original.algorithm == SimMatch() and not original.data.include_labeled
    original = paper(BUILTIN["imagenet"], "simmatch", "original")
    found = original.algorithm
    assert (found.guesses_by, found.memory_momentum, found.alignment_batches) == ("teacher", 0, 256)
    assert (found.unlabeled_weight, found.instance_weight, found.min_confidence) == (10, 5, 0.7)
    assert (original.train.batch_size, original.train.unlabeled_ratio, original.optimizer.lr) == (64, 5, 0.03)
    assert preset("quick", BUILTIN["digits"], "simmatch").algorithm.warmup_steps == 40
