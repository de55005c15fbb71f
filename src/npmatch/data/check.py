"""What is in a data set, as facts: counts, originals, exact copies, broken images. What to make of them is said in
`npmatch.check`.

Copies are found by the hash of the pixels as stored, so the same picture saved twice in different formats without loss
is found, and one that was compressed again is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import combinations
from pathlib import Path
from statistics import median, median_high
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from npmatch.data.decode import FORMATS, Unreadable
from npmatch.data.folder import NO_IMAGE, NO_PART
from npmatch.data.source import Files, Progress, Source, attempt_each

EXAMPLES = 20  # named of each kind
CHUNK = 512  # images in memory that are looked at together
EXIF_ORIENTATION = 0x0112


@dataclass(frozen=True, kw_only=True)
class Originals:
    """The files before they were brought to one shape."""

    width: tuple[int, int, int]  # smallest, median, largest
    height: tuple[int, int, int]
    distinct: int  # different width x height
    beyond_square: float  # median share of an image that lies outside its centered square
    modes: dict[str, int]  # Pillow's names: L, RGB, I;16, CMYK, ...
    formats: dict[str, int]
    rotated: int  # by a note in EXIF


@dataclass(frozen=True)
class Copies:
    """Images of one part that stand, pixel for pixel, in another part as well."""

    parts: tuple[str, str]
    images: tuple[int, int]  # of the first part, of the second
    examples: tuple[tuple[str, str], ...]  # an image of the second part, after one of the first


@dataclass(frozen=True)
class Conflicts:
    """Images that are the same, pixel for pixel, with labels that are not."""

    images: int
    examples: tuple[tuple[str, str, str, str], ...]  # an image, its class, the same again, its class


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What `examine` found. Parts are labeled, unlabeled, val and test; a benchmark's labeled images are its pool,
    from which an experiment draws. Only images that can be read are counted."""

    name: str
    benchmark: bool
    classes: tuple[str, ...]
    known: str  # the part whose labels can be trained with: labeled or pool
    counts: dict[str, int]  # by part
    class_counts: dict[str, dict[str, int]]  # by class, then by part with labels
    image_size: int
    stored_size: int
    channels: int
    memory: int  # bytes of pixels
    originals: Originals | None  # where there are files
    unreadable: tuple[tuple[str, str], ...]  # (id, reason), known from the header
    undecodable: tuple[tuple[str, str], ...]  # (id, reason), known from the pixels
    ignored: tuple[str, ...]  # files that are no images
    ignored_folders: tuple[str, ...]  # folders that are no parts
    within: dict[str, int]  # by part, images that could be left out because an earlier one is the same
    within_examples: dict[str, tuple[tuple[str, str], ...]]
    between: tuple[Copies, ...]  # all pairs of parts
    conflicts: Conflicts
    plain: tuple[str, ...]  # images of one color

    @property
    def broken(self) -> frozenset[str]:
        """The ids of images that cannot be read."""
        return frozenset(name for name, _ in self.unreadable + self.undecodable)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON. `between` counts the images of the second part that stand in the first."""
        originals = self.originals
        found = [(copies.parts, copies.examples) for copies in self.between]
        found += [((part, part), examples) for part, examples in self.within_examples.items()]
        return {
            "name": self.name,
            "benchmark": self.benchmark,
            "classes": list(self.classes),
            "counts": {"labeled": None} | self.counts if self.benchmark else self.counts,
            "class_counts": self.class_counts,
            "sizes": originals
            and {"width": originals.width, "height": originals.height, "distinct": originals.distinct},
            "modes": originals and originals.modes,
            "formats": originals and originals.formats,
            "exif_rotated": originals and originals.rotated,
            "image_size": self.image_size,
            "stored_size": self.stored_size,
            "channels": self.channels,
            "memory_mib": round(self.memory / 2**20, 1),
            "unreadable": [{"path": path, "reason": reason} for path, reason in self.unreadable + self.undecodable],
            "ignored": list(self.ignored),
            "ignored_folders": list(self.ignored_folders),
            "duplicates": {
                "within": self.within,
                "between": {"+".join(copies.parts): copies.images[1] for copies in self.between},
                "images": {"+".join(copies.parts): list(copies.images) for copies in self.between},
                "examples": [{"parts": "+".join(parts), "images": pair} for parts, pairs in found for pair in pairs],
            },
            "conflicts": {"images": self.conflicts.images, "examples": self.conflicts.examples},
            "one_color": list(self.plain),
        }


class _Original(NamedTuple):
    width: int
    height: int
    mode: str
    format: str
    rotated: bool


class _Look(NamedTuple):
    """What is remembered of one image."""

    digest: bytes
    plain: bool
    original: _Original | None


def examine(source: Source, *, progress: Progress | None = None) -> Findings:
    """Look at every image once. Of files, a few pictures at a time are in memory.

    What is to be known of the originals and of all files that cannot be decoded needs a source opened with
    `skip_unreadable=True` and `max_memory=0`.
    """
    looks = _look_at_all(source.images, progress)
    seen = [look if isinstance(look, _Look) else None for look in looks]
    known = "pool" if source.benchmark else "labeled"
    parts = (known, "unlabeled", "val", "test")
    train_N = np.where(source.labels >= 0, known, "unlabeled")
    part_N = np.where(source.parts == "train", train_N, source.parts)
    part_N = np.where([look is not None for look in seen], part_N, "")
    number: dict[bytes, int] = {}
    group_N = np.array([-1 if look is None else number.setdefault(look.digest, len(number)) for look in seen])
    places = {part: np.flatnonzero(part_N == part) for part in parts}
    repeats = {part: _repeats(group_N, places[part]) for part in parts}
    originals = [look.original for look in seen if look is not None and look.original is not None]
    _, channels, stored_size, _ = source.images.shape
    return Findings(
        name=source.name,
        benchmark=source.benchmark,
        classes=source.classes,
        known=known,
        counts={part: len(places[part]) for part in parts},
        class_counts=_class_counts(source, places),
        image_size=source.image_size,
        stored_size=stored_size,
        channels=channels,
        memory=int(np.prod(source.images.shape, dtype=np.int64)),
        originals=_summary(originals) if originals else None,
        unreadable=tuple((name, reason) for name, reason in source.skipped if reason not in (NO_IMAGE, NO_PART)),
        undecodable=tuple((name, look.reason) for name, look in zip(source.ids, looks) if isinstance(look, Unreadable)),
        ignored=tuple(name for name, reason in source.skipped if reason == NO_IMAGE),
        ignored_folders=tuple(name for name, reason in source.skipped if reason == NO_PART),
        within={part: len(pairs) for part, pairs in repeats.items()},
        within_examples={part: _named(pairs, source.ids) for part, pairs in repeats.items() if pairs},
        between=tuple(_copies(group_N, places, pair, source.ids) for pair in combinations(parts, 2)),
        conflicts=_conflicts(group_N, part_N, source),
        plain=tuple(name for name, look in zip(source.ids, seen) if look is not None and look.plain),
    )


def _look_at_all(images: Tensor | Files, progress: Progress | None) -> list[_Look | Unreadable]:
    if isinstance(images, Files):
        return attempt_each(lambda i: _look_at_file(images, i), len(images.names), progress)
    looks: list[_Look | Unreadable] = []
    for chunk in images.split(CHUNK):
        looks += [_Look(digest, plain, None) for digest, plain in prints(chunk)]
        if progress is not None:
            progress(len(looks), len(images))
    return looks


def _look_at_file(files: Files, index: int) -> _Look:
    """Raises Unreadable."""
    ((digest, plain),) = prints(files.decode([index]))
    return _Look(digest, plain, _original(files.root / files.names[index]))


def prints(images_NCHW: Tensor) -> list[tuple[bytes, bool]]:
    """Of each image a hash of its pixels, and whether all of them are alike."""
    pixels = np.ascontiguousarray(images_NCHW.numpy())
    plain_N = (pixels == pixels[:, :, :1, :1]).all((1, 2, 3))
    return [(blake2b(image, digest_size=16).digest(), bool(plain)) for image, plain in zip(pixels, plain_N)]


def _original(path: Path) -> _Original:
    """What the header of a file says that has been decoded before."""
    if path.suffix.lower() == ".npy":
        pixels = np.load(path, mmap_mode="r", allow_pickle=False)
        return _Original(pixels.shape[1], pixels.shape[0], f"array {pixels.dtype}", "NPY", False)
    with Image.open(path, formats=FORMATS) as picture:
        # Pillow decodes a whole PNG to find a note that hardly any has; most that have it, have it in front.
        noted = picture.format != "PNG" or "exif" in picture.info
        rotated = noted and picture.getexif().get(EXIF_ORIENTATION, 1) != 1
        return _Original(*picture.size, picture.mode, picture.format or "", rotated)


def _summary(originals: Sequence[_Original]) -> Originals:
    widths, heights = [one.width for one in originals], [one.height for one in originals]
    return Originals(
        width=(min(widths), median_high(widths), max(widths)),
        height=(min(heights), median_high(heights), max(heights)),
        distinct=len(set(zip(widths, heights))),
        beyond_square=median(1 - min(size) / max(size) for size in zip(widths, heights)),
        modes=dict(Counter(one.mode for one in originals).most_common()),
        formats=dict(Counter(one.format for one in originals).most_common()),
        rotated=sum(one.rotated for one in originals),
    )


def _class_counts(source: Source, places: Mapping[str, np.ndarray]) -> dict[str, dict[str, int]]:
    labeled = {part: source.labels[own] for part, own in places.items() if part != "unlabeled"}
    counts = {part: np.bincount(labels, minlength=len(source.classes)) for part, labels in labeled.items()}
    return {name: {part: int(counts[part][k]) for part in counts} for k, name in enumerate(source.classes)}


def _repeats(group_N: np.ndarray, places: np.ndarray) -> list[tuple[int, int]]:
    """Within a part, each image that is the same as an earlier one, after that one."""
    groups, first, of = np.unique(group_N[places], return_index=True, return_inverse=True)
    if len(groups) == len(places):
        return []
    later = np.setdiff1d(np.arange(len(places)), first)
    return list(zip(places[first[of[later]]].tolist(), places[later].tolist()))


def _copies(group_N: np.ndarray, places: Mapping[str, np.ndarray], pair: tuple[str, str], ids: Sequence[str]) -> Copies:
    first, second = places[pair[0]], places[pair[1]]
    groups, where = np.unique(group_N[first], return_index=True)
    shared = second[np.isin(group_N[second], groups)]
    also = first[np.isin(group_N[first], group_N[second])]
    met = first[where[np.searchsorted(groups, group_N[shared])]] if len(shared) else shared
    pairs = list(zip(met.tolist(), shared.tolist()))
    return Copies(pair, (len(also), len(shared)), _named(pairs, ids))


def _conflicts(group_N: np.ndarray, part_N: np.ndarray, source: Source) -> Conflicts:
    """Images with a label, of which another of the same pixels has a different one."""
    places = np.flatnonzero((part_N != "") & (source.labels >= 0))
    first: dict[int, int] = {}  # group -> its first image with a label
    differing: dict[int, int] = {}  # group -> the first whose label is not that one's
    for place, group, label in zip(places.tolist(), group_N[places].tolist(), source.labels[places].tolist()):
        if label != source.labels[first.setdefault(group, place)]:
            differing.setdefault(group, place)
    examples = [(first[group], other) for group, other in differing.items()][:EXAMPLES]
    return Conflicts(
        images=int(np.isin(group_N[places], list(differing)).sum()),
        examples=tuple(
            (source.ids[a], source.classes[source.labels[a]], source.ids[b], source.classes[source.labels[b]])
            for a, b in examples
        ),
    )


def _named(pairs: Sequence[tuple[int, int]], ids: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return tuple((ids[a], ids[b]) for a, b in pairs[:EXAMPLES])
