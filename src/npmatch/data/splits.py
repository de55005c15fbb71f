"""`Split`: which images train with their labels, which without, and which are held out. A function of (source, seed).

Labels are drawn as the published experiments draw them (spec 1.1), so the same seed gives the same images.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npmatch.data.source import Source
from npmatch.errors import UserError, refuse


@dataclass(frozen=True, eq=False)
class Split:
    """Places in the source, int64. Validation and test images are in no other set; labeled ones may be in unlabeled."""

    labeled: np.ndarray  # in the order of drawing, class by class
    unlabeled: np.ndarray
    val: np.ndarray
    test: np.ndarray


def draw_split(
    source: Source,
    *,
    labels: int | None = None,
    labels_per_class: int | None = None,
    seed: int = 0,
    include_labeled: bool = True,
    val_share: float = 0.0,
) -> Split:
    """Draw a split.

    `labels` (in all) or `labels_per_class` says how many labels are used, the same number of each class. Without
    either, all labels of a user's data are; a benchmark needs one of them. Labels not used are forgotten: their images
    train without. `include_labeled` puts labeled images among the unlabeled too, as FixMatch and its kin do.
    `val_share` moves that share of the labeled images of each class to validation; whole groups move together, and
    with them their unlabeled images leave training.
    """
    train = np.flatnonzero(source.parts == "train")
    val = np.flatnonzero(source.parts == "val")
    test = np.flatnonzero(source.parts == "test")
    _check_groups(source)
    per_class = _labels_per_class(source, labels, labels_per_class)
    known = train[source.labels[train] >= 0]
    labeled = known if per_class is None else _draw(source, known, per_class, seed)
    if val_share:
        if len(val):
            raise UserError(
                f"val_share={val_share}: {source.name} has {len(val)} validation images of its own: leave it 0"
            )
        val = _carve(source, labeled, val_share, seed)
        held_out = np.isin(np.arange(len(source)), val) | in_groups_of(source, val)
        labeled, train = labeled[~held_out[labeled]], train[~held_out[train]]
    unlabeled = train if include_labeled else np.setdiff1d(train, labeled)
    return Split(labeled=labeled, unlabeled=unlabeled, val=val, test=test)


def _labels_per_class(source: Source, labels: int | None, per_class: int | None) -> int | None:
    """How many labels of each class are asked for; None for all."""
    classes = len(source.classes)
    if labels is not None and per_class is not None:
        raise UserError("labels and labels_per_class: give one of them")
    if labels is None and per_class is None:
        if source.benchmark:
            raise UserError(f"{source.name}: say how many labels to use, such as --labels {4 * classes}")
        return None
    if per_class is not None:
        if per_class < 1:
            raise UserError(f"labels_per_class={per_class}: it must be at least 1")
        return per_class
    assert labels is not None
    there = int(((source.labels >= 0) & (source.parts == "train")).sum())
    if labels > there:
        raise UserError(f"labels={labels}: {source.name} has {there} labeled training images; ask for no more")
    if labels < classes or labels % classes:
        below = labels // classes * classes
        near = f"{below} or {below + classes}" if below > 0 else f"{classes}"
        raise UserError(f"labels={labels} cannot be shared evenly by {classes} classes: the nearest is {near}")
    return labels // classes


def _draw(source: Source, known: np.ndarray, per_class: int, seed: int) -> np.ndarray:
    """The published rule: for each class in order, choice without replacement from its images in order."""
    of_class = [known[source.labels[known] == label] for label in range(len(source.classes))]
    refuse(
        f"{source.name}: {per_class} labels of each class are asked for, but there are fewer of some",
        [f"{name}: {len(own)}" for name, own in zip(source.classes, of_class) if len(own) < per_class],
    )
    chance = np.random.RandomState(_checked_seed(seed))  # the generator behind np.random.seed
    return np.concatenate([chance.choice(own, per_class, replace=False) for own in of_class])


def _carve(source: Source, labeled: np.ndarray, share: float, seed: int) -> np.ndarray:
    """The labeled images that become validation images: whole groups, in a random order, as long as each brings the
    classes' counts nearer to their share and leaves a labeled image of each class to train on."""
    if not 0 < share < 1:
        raise UserError(f"val_share={share}: it must be at least 0 and below 1")
    classes = len(source.classes)
    have = np.bincount(source.labels[labeled], minlength=classes)
    wanted = np.minimum(np.rint(share * have), have - 1)
    taken = np.zeros(classes, np.int64)
    groups = members(source, labeled)
    val: list[np.ndarray] = []
    # A stream of its own, so that asking for validation images does not change which labels are drawn.
    for place in np.random.RandomState([_checked_seed(seed), 1]).permutation(len(groups)):
        with_it = taken + np.bincount(source.labels[groups[place]], minlength=classes)
        if (with_it < have).all() and np.abs(with_it - wanted).sum() < np.abs(taken - wanted).sum():
            taken = with_it
            val.append(groups[place])
    if not val:
        raise UserError(
            f"val_share={share}: no validation images can be taken from {len(labeled)} labeled ones: too few, or too "
            "large groups; take a larger share or none"
        )
    return np.sort(np.concatenate(val))


def members(source: Source, places: np.ndarray) -> list[np.ndarray]:
    """The places group by group, in the order in which groups appear; an image without group is its own."""
    if source.groups is None:
        return [places[i : i + 1] for i in range(len(places))]
    found: dict[tuple[str, int], list[int]] = {}
    for place in places.tolist():
        group = str(source.groups[place])
        found.setdefault((group, 0) if group else ("", place), []).append(place)
    return [np.array(group) for group in found.values()]


def in_groups_of(source: Source, places: np.ndarray) -> np.ndarray:
    """(N,) whether each image of the source shares a group with one of these places."""
    if source.groups is None:
        return np.zeros(len(source), bool)
    groups = np.unique(source.groups[places])
    return np.isin(source.groups, groups[groups != ""])


def _check_groups(source: Source) -> None:
    """A group on both sides of a split would let a model be tested on what it has seen."""
    if source.groups is None:
        return
    parts_of: dict[str, set[str]] = {}
    for group, part in zip(source.groups.tolist(), source.parts.tolist()):
        if group:
            parts_of.setdefault(group, set()).add(part)
    refuse(
        f"{source.name}: groups may not be split over training, validation and test",
        [f"{group}: in {', '.join(sorted(parts))}" for group, parts in parts_of.items() if len(parts) > 1],
    )


def _checked_seed(seed: int) -> int:
    if not 0 <= seed < 2**32:
        raise UserError(f"seed={seed}: it must lie in 0..{2**32 - 1}")
    return seed
