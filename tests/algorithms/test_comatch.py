"""CoMatch against numpy: a whole step on given features, written out image by image."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from npmatch.algorithms.comatch import CoMatch, CoMatchState, contrastive_loss, label_graph, recall
from npmatch.errors import UserError
from npmatch.heads.linear import LinearHead
from npmatch.predictor import compact
from npmatch.presets import BUILTIN, paper
from npmatch.types import Model, Step, Views
from tests import toy

B, U, K, F, D = 4, 6, 3, 5, 4
CHOSEN = CoMatch(
    min_confidence=0.65, unlabeled_weight=0.7, contrast_weight=0.3, own_share=0.6, min_similarity=0.35, embedding_dim=D
)


def prepared() -> tuple[Model, Views, CoMatchState]:
    """Features as images, and memories of which a part is written."""
    torch.manual_seed(3)
    head = LinearHead(F, K)
    extras = CHOSEN.extras(toy.facts(feature_dim=F))
    model = Model(nn.Identity(), head, extras).double()
    counts = {"labeled": B, "weak": U, "strong": U, "simclr": U}
    images = {name: 2 * torch.randn(count, F).double() for name, count in counts.items()}
    views = Views(images, torch.tensor([2, 0, 1, 0]), torch.arange(B), torch.arange(U), torch.tensor(6))
    embeddings = nn.functional.normalize(torch.randn(12, D).double(), dim=1)
    probs, means = torch.rand(12, K).double(), torch.rand(4, K).double()
    embeddings[:3], probs[:3], means[:2] = 0, 0, 0
    return model, views, CoMatchState(embeddings, probs / probs.sum(1, keepdim=True).clamp_min(1e-9), means)


def one_step(model: Model, views: Views, state: CoMatchState) -> Step[CoMatchState]:
    return CHOSEN.step(model, model, views, state)


def softmax(z: np.ndarray) -> np.ndarray:
    return np.exp(z) / np.exp(z).sum(-1, keepdims=True)


def by_hand(model: Model, views: Views, state: CoMatchState, *, smooth: bool) -> tuple[float, np.ndarray]:
    """The loss (spec 2.6), and the guesses that memory takes in."""
    weights = [p.detach().numpy() for p in model.extras["projector"].parameters()]
    classifier = model.head.get_submodule("classifier")
    last, bias = (p.detach().numpy() for p in classifier.parameters())
    x = {name: image.numpy() for name, image in views.images.items()}

    def code(row: np.ndarray) -> np.ndarray:
        hidden = weights[0] @ row + weights[1]
        out = weights[2] @ np.where(hidden > 0, hidden, 0.1 * hidden) + weights[3]
        return out / np.sqrt((out**2).sum())

    def predicted(name: str) -> np.ndarray:
        return np.stack([softmax(last @ row + bias) for row in x[name]])

    p = predicted("weak")
    means = [row for row in state.recent_means.numpy() if row.any()] + [p.mean(0)]
    p = p / np.mean(means, axis=0)
    p = own = p / p.sum(1, keepdims=True)
    rows = range(3, 12)
    if smooth:
        mixed = []
        for i in range(U):
            alike = np.array([np.exp(code(x["weak"][i]) @ state.embeddings[j].numpy() / 0.2) for j in rows])
            near = sum(a * state.probs[j].numpy() for a, j in zip(alike / alike.sum(), rows))
            mixed.append(0.6 * p[i] + 0.4 * near)
        p = np.stack(mixed)
    labeled = -np.mean(np.log(predicted("labeled")[range(B), views.y.numpy()]))
    said = np.log(predicted("strong"))
    unlabeled = np.mean([-(p[i] * said[i]).sum() * (p[i].max() >= 0.65) for i in range(U)])
    contrast = 0.0
    for i in range(U):
        row = np.array([1.0 if i == j else p[i] @ p[j] for j in range(U)])
        row = row * (row >= 0.35) / row[row >= 0.35].sum()
        alike = softmax(np.array([code(x["strong"][i]) @ code(x["simclr"][j]) for j in range(U)]) / 0.2)
        contrast -= (row * np.log(alike + 1e-7)).sum() / U
    return float(labeled + 0.7 * unlabeled + 0.3 * contrast), own


@pytest.mark.parametrize(("step", "smooth"), [(5, False), (6, True)])
def test_a_step_is_the_specifications(step: int, smooth: bool) -> None:
    model, views, state = prepared()
    views = Views(**vars(views) | {"step": torch.tensor(step)})
    loss, own = by_hand(model, views, state, smooth=smooth)
    found = one_step(model, views, state)
    assert found.loss.item() == pytest.approx(loss, rel=1e-9)
    assert 0 < found.metrics["kept"] < 1 and found.metrics["contrast"] > 0
    # Memory: the guesses before smoothing and the labels, behind what was there.
    assert torch.equal(found.state.probs[:2], state.probs[10:])
    np.testing.assert_allclose(found.state.probs[2:8].numpy(), own)
    assert found.state.probs[8:].tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0], [1, 0, 0]]
    coded = model.extras["projector"](torch.cat([views["weak"], views["labeled"]])).detach()
    assert torch.allclose(found.state.embeddings, torch.cat([state.embeddings[10:], coded]))


def test_the_graph_of_guesses_joins_what_agrees() -> None:
    graph = label_graph(torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9]]), 0.7)
    expected = torch.tensor([[0.5747, 0.4253, 0], [0.4253, 0.5747, 0], [0, 0, 1]])
    assert torch.allclose(graph, expected, atol=1e-4)  # spec 2.6
    flat = label_graph(torch.full((3, 2), 0.5), 0.8)
    assert torch.equal(flat, torch.eye(3))  # an image is its own target at least


def test_memory_that_is_not_written_neither_takes_mass_nor_gives_it() -> None:
    """At step 0 of a method that smooths at once, and where similarities are large."""
    codes, embeddings, probs = torch.ones(2, 1), torch.zeros(3, 1), torch.zeros(3, 2)
    assert not recall(codes, embeddings, probs, 0.01).any()
    embeddings[2], probs[2] = -1.0, torch.tensor([0.3, 0.7])  # the only one there is, and far away
    assert torch.allclose(recall(codes, embeddings, probs, 0.001), probs[2].expand(2, 2))
    model, views, state = prepared()
    empty = CoMatchState(*(torch.zeros_like(part) for part in vars(state).values()))
    found = one_step(model, views, empty)
    assert found.loss.item() == pytest.approx(by_hand(model, views, empty, smooth=False)[0], rel=1e-9)


def test_two_views_that_are_far_apart_have_a_finite_loss_and_slope() -> None:
    codes, far = torch.eye(2).requires_grad_(), -torch.eye(2)
    loss = contrastive_loss(codes, far, torch.eye(2), 0.001).mean()
    loss.backward()
    assert 16 < loss.item() < 16.2 and codes.grad is not None and codes.grad.isfinite().all()


def test_the_queue_holds_five_batches() -> None:
    state = CoMatch().init(toy.facts(batch_size=64, unlabeled_ratio=7))
    assert state.embeddings.shape == (2560, 64) and state.recent_means.shape == (32, 3)


def test_published_settings() -> None:
    """Spec 2.6."""
    rows = {data: paper(BUILTIN[data], "comatch") for data in ("cifar10", "stl10", "imagenet")}
    assert all(row.views.strong == "ra_max" and row.train.steps == 2**20 for row in rows.values())
    assert [row.algorithm.contrast_weight for row in rows.values()] == [1, 5, 1]
    assert rows["cifar10"].algorithm == CoMatch() and rows["imagenet"].algorithm.min_similarity == 0.2
    original = paper(BUILTIN["stl10"], "comatch", "original")
    assert original.train.steps == 512 * 1024 and not original.data.include_labeled and original.net.block == "correct"
    with pytest.raises(UserError, match="teacher"):
        paper(BUILTIN["imagenet"], "comatch", "original")


def test_what_predicts_has_no_projector() -> None:
    model = prepared()[0]
    assert not any("projector" in name for name in compact(model).state_dict()) and "projector" in model.extras
