"""`Source`: a data set as the rest of the library sees it."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, overload

import numpy as np
import torch
from torch import Tensor

from npmatch.data.decode import Resize, Unreadable, decode

Progress = Callable[[int, int], None]  # (images done, images in all)
Result = TypeVar("Result")

HASHED_FILES = 100_000  # above it the fingerprint goes by names and sizes
BLOCK = 64  # images a thread takes at a time


class Names(Sequence[str]):
    """Many strings in two buffers: quick to send to a worker process, and shared with a forked one, not copied."""

    def __init__(self, names: Iterable[str]) -> None:
        encoded = [name.encode("utf-8") for name in names]
        self._text = b"".join(encoded)
        self._ends = np.cumsum([0, *map(len, encoded)])

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        return self._text[self._ends[place] : self._ends[place + 1]].decode("utf-8")


@dataclass(frozen=True, eq=False)
class Files:
    """Image files, decoded when asked for."""

    root: Path
    names: Sequence[str]  # relative to root, with "/"
    size: int  # side of the stored square
    resize: Resize
    channels: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(N, C, H, W), as of a tensor."""
        return len(self.names), self.channels, self.size, self.size

    def decode(self, indices: Iterable[int]) -> Tensor:
        """The images at these places, in their order -> (n, C, H, W) uint8. Raises Unreadable."""
        images = [decode(self.root / self.names[i], self.size, self.resize, self.channels) for i in indices]
        return torch.stack(images) if images else torch.empty(0, *self.shape[1:], dtype=torch.uint8)


@dataclass(frozen=True, eq=False, kw_only=True)
class Source:
    """Images with what is known of them, in an order of their own: every index in the library counts in it."""

    name: str
    images: Tensor | Files  # uint8 (N, C, H, W)
    image_size: int  # what training and prediction see; smaller than the stored side where a crop is cut from it
    labels: np.ndarray  # (N,) int64, -1 for none
    classes: tuple[str, ...]
    parts: np.ndarray  # (N,) "train", "val" or "test"
    ids: Sequence[str]  # the path relative to the source, or the number
    groups: np.ndarray | None = None  # (N,) patient or site, never split over parts; "" stands alone
    benchmark: bool = False  # True: all training labels are known and a few are drawn
    canonical: bool = True  # False: a benchmark not in its published order, so its splits are not the published ones
    mean: tuple[float, ...] | None = None  # per channel, of pixels / 255; None: to be computed
    std: tuple[float, ...] | None = None
    flip: bool = True  # whether a mirrored image is as natural (not so with digits)
    skipped: tuple[tuple[str, str], ...] = ()  # (id, reason) of files left out

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: Sequence[int] | np.ndarray | Tensor) -> Tensor:
        """The images at these places, in their order -> (n, C, H, W) uint8."""
        places = torch.as_tensor(indices, dtype=torch.int64)
        if isinstance(self.images, Tensor):
            return self.images[places]
        return self.images.decode(places.tolist())

    def fingerprint(self) -> str:
        """SHA-256 over pixels (or names and bytes of files), labels, classes and parts.

        Above 100,000 files the sizes stand for the bytes.
        """
        digest = hashlib.sha256()
        if isinstance(self.images, Tensor):
            digest.update(repr(tuple(self.images.shape)).encode())
            for image in self.images.split(BLOCK):
                digest.update(image.contiguous().numpy().tobytes())
        else:
            digest.update(repr((self.images.shape, self.images.resize)).encode())
            for line in _file_digests(self.images):
                digest.update(line.encode())
        digest.update(self.labels.astype(np.int64).tobytes())
        digest.update(repr((self.classes, self.parts.tolist())).encode())
        return digest.hexdigest()


def attempt_each(task: Callable[[int], Result], count: int, progress: Progress | None) -> list[Result | Unreadable]:
    """`task(i)` for each i, in threads. A file that cannot be read is returned as its error, so all can be named."""
    results: list[Result | Unreadable] = []
    for found in attempt_blocks(task, count, BLOCK, ahead=count):
        results += found
        if progress is not None:
            progress(len(results), count)
    return results


def attempt_blocks(
    task: Callable[[int], Result], count: int, block: int, *, ahead: int
) -> Iterator[list[Result | Unreadable]]:
    """The same, `block` results at a time. While whoever takes them is busy, at most `ahead` more are made."""

    def attempt(indices: range) -> list[Result | Unreadable]:
        found: list[Result | Unreadable] = []
        for index in indices:
            try:
                found.append(task(index))
            except Unreadable as error:
                found.append(error.with_traceback(None))  # which would hold the images of its block
        return found

    threads = ThreadPoolExecutor(min(16, os.cpu_count() or 1))
    waiting: deque[Future[list[Result | Unreadable]]] = deque()
    try:
        for start in range(0, count, block):
            waiting.append(threads.submit(attempt, range(start, min(start + block, count))))
            if block * len(waiting) > ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        threads.shutdown(cancel_futures=True)


def _file_digests(files: Files) -> Iterable[str]:
    """One line for each file, in order: its name, and its hash or its size."""
    paths = [files.root / name for name in files.names]
    if len(paths) > HASHED_FILES:
        return (f"{name}\0{path.stat().st_size}\n" for name, path in zip(files.names, paths))
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as threads:
        hashes = list(threads.map(_file_hash, paths))
    return (f"{name}\0{file_hash}\n" for name, file_hash in zip(files.names, hashes))


def _file_hash(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
