"""Splits: the published draw, nothing on two sides, and what cannot be drawn."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from npmatch.data.source import Source
from npmatch.data.sources import open_source
from npmatch.data.splits import Split, draw_split
from npmatch.errors import UserError


def source(labels: object, parts: object = "train", *, groups: object = None, benchmark: bool = False) -> Source:
    numbers = np.asarray(labels, np.int64)
    return Source(
        name="made",
        images=torch.zeros(len(numbers), 1, 1, 1, dtype=torch.uint8),
        image_size=1,
        labels=numbers,
        classes=tuple("abcdefghij"[: numbers.max() + 1]),
        parts=np.broadcast_to(np.asarray(parts), numbers.shape),
        ids=[str(i) for i in range(len(numbers))],
        groups=None if groups is None else np.asarray(groups),
        benchmark=benchmark,
    )


@pytest.mark.parametrize("seed", [0, 1, 2, 12345])
@pytest.mark.parametrize("labels", [40, 250])
def test_the_published_draw(seed: int, labels: int) -> None:
    """As the published code writes it, on NumPy's global generator."""
    y = np.random.RandomState(9).randint(0, 10, 5000)
    before = np.random.get_state()
    np.random.seed(seed)
    expected: list[int] = []
    for c in range(10):
        expected.extend(np.random.choice(np.where(y == c)[0], labels // 10, False))
    np.random.set_state(before)
    drawn = draw_split(source(y, benchmark=True), labels=labels, seed=seed)
    assert drawn.labeled.tolist() == expected and drawn.labeled.dtype == np.int64
    assert drawn.unlabeled.tolist() == list(range(5000))
    again = draw_split(source(y, benchmark=True), labels_per_class=labels // 10, seed=seed, include_labeled=False)
    assert again.labeled.tolist() == expected and set(again.unlabeled) == set(range(5000)) - set(expected)
    # Test images do not take part, wherever they stand.
    mixed = source(np.concatenate([y[:9], y]), ["test"] * 9 + ["train"] * 5000, benchmark=True)
    assert (draw_split(mixed, labels=labels, seed=seed).labeled - 9).tolist() == expected


CIFAR10_SUMS = {
    40: (1085470, 1009723, 1001555),
    250: (6273007, 6159224, 6345456),
    4000: (100021006, 99890166, 100672712),
}


@pytest.mark.skipif(
    not (Path(os.environ.get("NPMATCH_DATA", "")) / "cifar10.npz").is_file(),
    reason="needs cifar10.npz in the folder NPMATCH_DATA names",
)
def test_the_published_cifar10_splits() -> None:
    """Spec 1.1: sums of the indices drawn from the real labels, and the first four of seed 0 to 2."""
    cifar = open_source("cifar10")
    assert cifar.canonical
    for labels, sums in CIFAR10_SUMS.items():
        assert tuple(draw_split(cifar, labels=labels, seed=seed).labeled.sum() for seed in range(3)) == sums
    first = [draw_split(cifar, labels=40, seed=seed).labeled[:4].tolist() for seed in range(3)]
    assert first == [[4030, 38518, 48266, 45556], [27777, 47651, 38321, 35373], [35952, 42618, 19237, 41222]]


def test_digits() -> None:
    digits = open_source("digits")
    split = draw_split(digits, labels_per_class=4, seed=3)
    assert (len(split.labeled), len(split.unlabeled), len(split.val), len(split.test)) == (40, 1437, 0, 360)
    assert set(split.labeled) <= set(split.unlabeled) and not set(split.unlabeled) & set(split.test)


def test_a_users_labels_are_all_used_unless_fewer_are_asked_for() -> None:
    labels = [0, 1, -1, 1, 0, 1, -1, 0, 1]
    parts = ["train"] * 7 + ["val", "test"]
    every = draw_split(source(labels, parts))
    assert every.labeled.tolist() == [0, 1, 3, 4, 5] and every.unlabeled.tolist() == list(range(7))
    assert every.val.tolist() == [7] and every.test.tolist() == [8]
    assert draw_split(source(labels, parts), include_labeled=False).unlabeled.tolist() == [2, 6]
    fewer = draw_split(source(labels, parts), labels=4, include_labeled=False)
    assert len(fewer.labeled) == 4 and sorted([*fewer.labeled, *fewer.unlabeled]) == list(range(7))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "say how many labels"),
        ({"labels": 4, "labels_per_class": 2}, "one of them"),
        ({"labels": 5}, "the nearest is 4 or 6"),
        ({"labels": 1}, "the nearest is 2"),
        ({"labels": 0}, "the nearest is 2"),
        ({"labels": -2}, "the nearest is 2"),
        ({"labels_per_class": 0}, "at least 1"),
        ({"labels": 8}, "b: 3"),
        ({"labels": 4, "seed": -1}, "seed=-1"),
        ({"labels": 4, "val_share": 1.0}, "below 1"),
        ({"labels": 4, "val_share": -0.1}, "at least 0"),
        ({"labels": 2, "val_share": 0.5}, "no validation images"),
    ],
)
def test_what_cannot_be_drawn(options: dict[str, float], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        draw_split(source([0] * 9 + [1] * 3, benchmark=True), **options)  # pyright: ignore[reportArgumentType]


def test_validation_images_are_a_share_of_each_class_and_change_with_the_seed_alone() -> None:
    made = source(np.repeat([0, 1, -1], [40, 20, 30]))
    split = draw_split(made, val_share=0.25, seed=5)
    assert np.bincount(made.labels[split.val]).tolist() == [10, 5]
    assert not set(split.val) & set(split.unlabeled) and len(split.unlabeled) == 75 and len(split.labeled) == 45
    assert draw_split(made, val_share=0.25, seed=5).val.tolist() == split.val.tolist()
    assert draw_split(made, val_share=0.25, seed=6).val.tolist() != split.val.tolist()
    drawn = draw_split(made, labels=20, seed=5).labeled
    carved = draw_split(made, labels=20, seed=5, val_share=0.2)
    assert [place for place in drawn if place not in carved.val] == carved.labeled.tolist()
    with pytest.raises(UserError, match="of its own"):
        draw_split(source([0, 1, 0], ["train", "train", "val"]), val_share=0.5)


def test_a_group_on_two_sides_is_refused() -> None:
    groups = ["p1", "", "p2", "p2", "p1", ""]
    with pytest.raises(UserError, match=r"p1: in test, train$"):
        draw_split(source([0, 1, 0, 1, 0, 1], ["train"] * 4 + ["test"] * 2, groups=groups))
    many = [f"p{i}" for i in range(30)] * 2
    with pytest.raises(UserError) as caught:
        draw_split(source([0, 1] * 30, ["train"] * 30 + ["val"] * 30, groups=many))
    assert len(str(caught.value).splitlines()) == 22 and "… and 10 more" in str(caught.value)


@given(
    labels=st.lists(st.integers(-1, 2), min_size=12, max_size=60),
    grouping=st.integers(1, 12),
    share=st.floats(0.1, 0.6),
    seed=st.integers(0, 2**32 - 1),
    include=st.booleans(),
    held_out=st.integers(0, 5),
)
@settings(max_examples=150, deadline=None)
def test_nothing_is_on_two_sides(
    labels: list[int], grouping: int, share: float, seed: int, include: bool, held_out: int
) -> None:
    labels = [0, 0, 0, 1, 1, 1, 2, 2, 2, *labels]
    groups = [f"g{i // 3}" if i % grouping else "" for i in range(len(labels))]
    parts = ["train"] * len(labels) + ["test"] * held_out
    made = source([*labels, *[1] * held_out], parts, groups=[*groups, *["t"] * held_out])
    try:
        split = draw_split(made, seed=seed, val_share=share, include_labeled=include)
    except UserError as error:
        assert "no validation images" in str(error)
        return
    check_disjoint(made, split, include)
    assert set(made.labels[split.labeled]) == {0, 1, 2}


def check_disjoint(made: Source, split: Split, include: bool) -> None:
    train = set(split.labeled) | set(split.unlabeled)
    val, test = set(split.val), set(split.test)
    assert not train & val and not train & test and not val & test and val
    assert (set(split.labeled) <= set(split.unlabeled)) if include else not set(split.labeled) & set(split.unlabeled)
    assert made.groups is not None
    names: list[str] = made.groups.tolist()
    sides = [{names[place] for place in side} - {""} for side in (train, val, test)]
    assert not sides[0] & sides[1] and not sides[0] & sides[2] and not sides[1] & sides[2]
    assert (made.labels[split.val] >= 0).all() and (made.labels[split.labeled] >= 0).all()
    for places in (split.labeled, split.unlabeled, split.val, split.test):
        assert places.dtype == np.int64 and len(set(places.tolist())) == len(places)
