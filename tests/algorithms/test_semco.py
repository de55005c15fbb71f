"""SemCo: what class names say, and the loss of one step written out in NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from npmatch import UserError
from npmatch.algorithms.semco import SemCo, SemCoState, groups, in_nearest_group
from npmatch.data.word_vectors import read_word_vectors
from npmatch.types import Head, Learnt, Model, Points, Step, Views
from tests import toy

CHANCE = np.random.default_rng(0)
VECTORS_KD = np.array([[2, 0.4, 0, 0], [1, 0.5, 0.1, 0], [0, 0, 3, 0.2], [0, 0.1, 2, 0], [0, 0, 0, -1]])
GROUP = np.array([3, 3, 0, 0, 1])  # numbers mean nothing, and 2 is nobody's
Y = [4, 1]
LABELED_BD, WEAK_UD, STRONG_UD = CHANCE.normal(size=(2, 4)), CHANCE.normal(size=(6, 4)), CHANCE.normal(size=(6, 4))
WEAK_UD[:4] = VECTORS_KD[[1, 2, 4, 0]] + 0.2 * CHANCE.normal(size=(4, 4))  # near a group
LABELED_BK, WEAK_UK, STRONG_UK = (CHANCE.normal(size=(n, 5)) * scale for n, scale in ((2, 1), (6, 3), (6, 1)))


class Told(Head):
    """Predicts what it is told."""

    num_classes = 5
    given: Points

    def forward(self, features_NF: Tensor, num_samples: int | None = None) -> Tensor:
        assert torch.equal(features_NF, torch.from_numpy(WEAK_UD)), "only the weak view may be guessed from"
        return torch.from_numpy(WEAK_UK)[None]

    def learn(self, labeled: Points, unlabeled: Points) -> Learnt:
        assert torch.equal(unlabeled.features, torch.from_numpy(STRONG_UD))
        self.given = unlabeled
        logits = (torch.from_numpy(part)[None] for part in (LABELED_BK, STRONG_UK))
        return Learnt(*logits, torch.tensor(7.0), {})


def one_step(chosen: SemCo, state: SemCoState, labeled: Any, weak: Any, strong: Any, y: Any) -> tuple[Step[Any], Told]:
    """With embeddings that are the pixels."""
    head = Told()
    model = Model(nn.Identity(), head, {"embedding": nn.Identity()})
    images = {name: torch.as_tensor(x) for name, x in (("labeled", labeled), ("weak", weak), ("strong", strong))}
    places = torch.arange(len(weak))
    return chosen.step(model, model, Views(images, torch.tensor(y), places[:2], places, torch.tensor(0)), state), head


def log_softmax(z: np.ndarray) -> np.ndarray:
    return z - np.log(np.exp(z).sum())


def cos(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_a_step_is_that_of_the_page() -> None:
    chosen = SemCo(min_confidence=0.8, unlabeled_weight=0.7, semantic_weight=1.5)
    state = SemCoState(torch.from_numpy(VECTORS_KD), torch.from_numpy(GROUP))
    step, head = one_step(chosen, state, LABELED_BD, WEAK_UD, STRONG_UD, Y)

    low = np.mean([-log_softmax(z)[y] for z, y in zip(LABELED_BK, Y)])
    up = np.mean([1 - cos(e, VECTORS_KD[y]) for e, y in zip(LABELED_BD, Y)])
    keep, alike = [], []
    for image in range(6):
        s = np.array([cos(WEAK_UD[image], v) for v in VECTORS_KD])
        score, members = max((s[list(of)].mean(), of) for of in ((0, 1), (2, 3), (4,)))
        share = np.exp(s[list(members)]) / np.exp(s[list(members)]).sum()
        meant = share @ VECTORS_KD[list(members)]
        guess, log_p = WEAK_UK[image].argmax(), log_softmax(STRONG_UK[image])
        keep.append(int(np.exp(log_softmax(WEAK_UK[image])).max() >= 0.8))
        alike.append(int(score >= 0.7))
        low += 0.7 / 6 * (keep[-1] * -log_p[guess] + 1.5 / 3 * alike[-1] * -log_p[members[share.argmax()]])
        up += 0.7 / 6 * alike[-1] * (1 - cos(STRONG_UD[image], meant))
        up += 0.7 / 6 * keep[-1] * (1 - cos(STRONG_UD[image], VECTORS_KD[guess]))
    assert 0 < sum(keep) < 6 and 0 < sum(alike) < 6 and keep != alike, "the numbers must exercise what this is about"
    assert head.given.weight.tolist() == keep
    assert step.metrics["alike"].item() == pytest.approx(sum(alike) / 6)
    assert step.loss.item() == pytest.approx(low + 1.5 * up)
    assert step.state is state


def test_between_two_classes_of_one_name_it_does_not_choose() -> None:
    """Spec 2.7: two equal vectors in one group, and an image that lies there."""
    words = torch.nn.functional.normalize(torch.tensor([[1.0, 2, 0], [1, 2, 0], [0, 0, 1]]), dim=1)
    similarity, share = in_nearest_group(words[:1] @ words.T, torch.tensor([2, 2, 1]))
    assert similarity.item() == pytest.approx(1) and share.tolist() == [[0.5, 0.5, 0.0]]
    assert 1 - torch.cosine_similarity(share @ words, words[:1]).item() == pytest.approx(0, abs=1e-6)


def test_alike_names_are_grouped_unless_too_few_groups_are_left() -> None:
    """Distances count, not lengths."""
    corners = np.eye(6, dtype=np.float32)
    alike = np.concatenate([corners, 5 * corners[:2] + 0.3])
    found = groups(alike)
    assert found[6] == found[0] and found[7] == found[1] and len(set(found)) == 6
    assert len(set(groups(alike, radius=0.001))) == 8
    assert groups(alike[[0, 1, 2, 6, 7]]).tolist() == [0, 1, 2, 3, 4]
    pairs = np.repeat(np.eye(8, 300, dtype=np.float32), 2, axis=0)
    pairs[1::2, 100:108] = 0.88 * np.eye(8, dtype=np.float32)  # cosines of .75
    assert [len(set(groups(pairs[:, :d]))) for d in (300, 200)] == [8, 16]


def test_vectors_are_read_by_name_from_text_and_npz(tmp_path: Path) -> None:
    names = ("Maple tree", "cat")
    (tmp_path / "words.txt").write_text("3 2\ncat 1 2\ndog 3 4\nmaple_tree 5 6e-1\ncat 9 9\n")
    np.savez(tmp_path / "words.npz", **{"maple-tree": np.array([5, 0.6]), "cat": np.array([1, 2]), "x": np.zeros(9)})
    for file in ("words.txt", "words.npz"):
        found = read_word_vectors(tmp_path / file, names)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, [[5, 0.6], [1, 2]], rtol=1e-6)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot be read"),
        ("cat 1 2\n", "has no vector for these classes; add a line for each\n  dog"),
        ("cat 1 2\ndog 1 2 3\n", "not of one length"),
        ("cat 1 2\ndog 0 0\n", "zero or not finite\n  dog"),
        ("cat 1 2\ndog 1 two\n", "after dog stands what is no number"),
    ],
)
def test_a_bad_file_is_an_error_that_says_what(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "words.txt").write_text(text)
    with pytest.raises(UserError) as error:
        read_word_vectors(tmp_path / "words.txt", ("cat", "dog"))
    assert said in str(error.value)
    (tmp_path / "words.npz").write_text("this is no archive")
    with pytest.raises(UserError, match="is no file of word vectors"):
        read_word_vectors(tmp_path / "words.npz", ("cat", "dog"))


def test_without_word_vectors_there_is_no_semco() -> None:
    for start in (SemCo().init, SemCo().extras):
        with pytest.raises(UserError, match=r"--set algorithm\.word_vectors=FILE"):
            start(toy.facts())
    chosen = SemCo(word_vectors=toy.WORDS, hidden_dim=32)
    assert chosen.init(toy.facts()).group.tolist() == [0, 1, 2]
    assert chosen.extras(toy.facts())["embedding"](torch.zeros(5, toy.FEATURES)).shape == (5, 4)
