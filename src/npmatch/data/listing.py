"""`Listing`: image files with labels, as a folder or a manifest states them, and how they become a `Source`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from npmatch.data.decode import Header, Resize, Unreadable, default_image_size, read_header, stored_size
from npmatch.data.labels import number
from npmatch.data.source import Files, Names, Progress, Source, attempt_each
from npmatch.errors import UserError, refuse

Value = TypeVar("Value")


@dataclass(frozen=True, kw_only=True)
class Storing:
    """How images are brought to one shape and kept."""

    image_size: int | None = None  # None: default_image_size of the files
    kept_size: int | None = None  # side of the squares kept; None: what suits image_size and the kind of data
    resize: Resize = "crop"
    channels: int | None = None  # None: 1 if every image is gray, else 3
    skip_unreadable: bool = False
    max_memory: int = 2 * 2**30  # bytes of pixels up to which they are decoded once and kept
    progress: Progress | None = None  # told of each pass over the files (headers, then pixels)

    def __post_init__(self) -> None:
        if self.resize not in ("crop", "squash", "pad"):
            raise UserError(f"resize={self.resize!r}: it is 'crop', 'squash' or 'pad'")
        for name, value in (("image_size", self.image_size), ("channels", self.channels)):
            if value is not None and value < 1:
                raise UserError(f"{name}={value}: it must be at least 1")


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Files that are all there, in the source's order."""

    name: str
    root: Path
    paths: Sequence[str]  # relative to root, with "/"
    labels: Sequence[str | None]
    parts: Sequence[str]
    groups: Sequence[str] | None = None
    places: Sequence[str]  # where each was named, for messages
    skipped: tuple[tuple[str, str], ...] = ()


def load(listing: Listing, storing: Storing) -> Source:
    """The source a listing describes: in memory where it fits, else files that are decoded when asked for."""
    results: list[object] = []
    results += attempt_each(
        lambda i: read_header(listing.root / listing.paths[i]), len(listing.paths), storing.progress
    )
    headers = [result for result in results if isinstance(result, Header)]
    if not headers:
        _without_unreadable(listing, results, storing)
        raise UserError(f"{listing.name}: holds no image that can be read")
    readable = [index for index, result in enumerate(results) if isinstance(result, Header)]
    check_channels(storing.channels, (header.channels for header in headers), listing.name)
    image_size = storing.image_size or default_image_size([header.short_side for header in headers])
    channels = storing.channels or _common_channels(headers, listing.name)
    names = Names(listing.paths[index] for index in readable)
    images: Files | Tensor = Files(
        listing.root, names, storing.kept_size or stored_size(image_size), storing.resize, channels
    )
    if np.prod(images.shape, dtype=np.int64) <= storing.max_memory:
        images, decoded = _decode_all(images, storing)
        for index, result in zip(readable, decoded):
            results[index] = result
    return _source(_without_unreadable(listing, results, storing), images, image_size)


def _decode_all(files: Files, storing: Storing) -> tuple[Tensor, list[Unreadable | None]]:
    """The pixels of the files that can be decoded, and what came of each file."""
    pixels = torch.empty(files.shape, dtype=torch.uint8)

    def decode_into(index: int) -> None:
        pixels[index] = files.decode([index])[0]

    results = attempt_each(decode_into, len(files.names), storing.progress)
    whole = torch.tensor([result is None for result in results])
    return pixels if whole.all() else pixels[whole], results


def _source(listing: Listing, images: Tensor | Files, image_size: int) -> Source:
    labels, classes, problems = number(listing.labels, listing.parts, listing.places)
    refuse(f"{listing.name}: the labels do not fit together", problems)
    return Source(
        name=listing.name,
        images=images,
        image_size=image_size,
        labels=labels,
        classes=classes,
        parts=np.array(listing.parts),
        ids=Names(listing.paths),
        groups=None if listing.groups is None else np.array(listing.groups),
        skipped=listing.skipped,
    )


def _without_unreadable(listing: Listing, results: Sequence[object], storing: Storing) -> Listing:
    """The listing without the files whose result is an error: all of them are named, or skipped if so asked."""
    failed = {index: result.reason for index, result in enumerate(results) if isinstance(result, Unreadable)}
    if not failed:
        return listing
    if not storing.skip_unreadable:
        what = f"{listing.name}: {len(failed)} of {len(results)} images cannot be read; repair or remove them, or go"
        problems = [f"{listing.paths[index]}: {reason}" for index, reason in failed.items()]
        refuse(f"{what} on without them (--skip-unreadable)", problems)

    def kept(values: Sequence[Value]) -> list[Value]:
        return [value for index, value in enumerate(values) if index not in failed]

    return replace(
        listing,
        paths=kept(listing.paths),
        labels=kept(listing.labels),
        parts=kept(listing.parts),
        groups=None if listing.groups is None else kept(listing.groups),
        places=kept(listing.places),
        skipped=(*listing.skipped, *((listing.paths[index], reason) for index, reason in failed.items())),
    )


def check_channels(wanted: int | None, have: Iterable[int], name: str) -> None:
    """Refuse a setting that fits none of the images: gray and color are made from each other, all else is kept."""
    kinds = sorted(set(have))
    if wanted is not None and not any(kind == wanted or {kind, wanted} <= {1, 3} for kind in kinds):
        raise UserError(
            f"data.channels={wanted}: the images of {name} have {' or '.join(map(str, kinds))} channels; it can "
            "be 1 or 3 for image files, and for arrays (.npy) the number they have"
        )


def _common_channels(headers: Sequence[Header], name: str) -> int:
    kinds = {header.channels for header in headers}
    if len(kinds) == 1:
        return kinds.pop()
    if kinds == {1, 3}:
        return 3
    raise UserError(f"{name}: images of {', '.join(map(str, sorted(kinds)))} channels cannot be mixed")
