"""Batches as a pure function of (seed, step): the same one whenever, and on whatever machine, it is asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import count

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from npmatch.data.normal import Normal
from npmatch.data.source import Files
from npmatch.functional import chance
from npmatch.types import Views

LABELED, UNLABELED = 1, 2  # purposes of chance; those of the views follow, by their place in VIEWS
VIEWS = ("labeled", "weak", "strong", "weak2", "strong2", "simclr")

View = Callable[[Tensor, Tensor, Tensor], Tensor]  # (uint8 images, key, places in the batch) -> uint8 images


@dataclass(frozen=True)
class Pool:
    """Some images of a source, with their labels: the only form in which data enters training."""

    images: Tensor | Files  # uint8 (all, C, H, W), or files decoded by workers
    indices: Tensor  # (N,) which of them
    labels: Tensor  # (N,) class index, -1 for none

    def __len__(self) -> int:
        return len(self.indices)

    def to(self, device: torch.device) -> Pool:
        """Images in memory move to the device once and stay there; files stay where they are."""
        images = self.images.to(device) if isinstance(self.images, Tensor) else self.images
        return Pool(images, self.indices.to(device), self.labels.to(device))

    def take(self, places: Tensor) -> Tensor:
        indices = self.indices[places]
        return self.images[indices] if isinstance(self.images, Tensor) else self.images.decode(indices.tolist())


@dataclass(frozen=True)
class Batches:
    """Which images make which batch: drawn with replacement, as the published code does; an epoch has no meaning."""

    labeled: Pool
    unlabeled: Pool
    batch_size: int  # B
    unlabeled_batch: int  # U, 0 where no view of an unlabeled image is wanted
    seed: int
    rank: int = 0  # whose images are read here
    ranks: int = 1  # that the images of a batch are dealt to

    def places(self, step: Tensor) -> tuple[Tensor, Tensor]:
        """Places in the two pools -> (B,), (U,)."""
        b = torch.arange(self.batch_size, device=step.device)
        u = torch.arange(self.unlabeled_batch, device=step.device)
        return (
            chance.integers(chance.key(self.seed, step, LABELED), b, len(self.labeled)),
            chance.integers(chance.key(self.seed, step, UNLABELED), u, len(self.unlabeled)),
        )

    def images(self, labeled_place: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        """Labeled and unlabeled images of those places: the rank's slice of each."""
        labeled, unlabeled = (every.chunk(self.ranks)[self.rank] for every in (labeled_place, place))
        return self.labeled.take(labeled), self.unlabeled.take(unlabeled)


def view_key(seed: int, step: Tensor | int, name: str) -> Tensor:
    """Where one view of one step has its chance from."""
    return chance.key(seed, step, UNLABELED + 1 + VIEWS.index(name))


class Stream:
    """`stream[step]` is the batch of that step, made into views on the device."""

    def __init__(
        self,
        batches: Batches,
        views: Mapping[str, View],
        *,
        normal: Normal,
        device: torch.device,
        workers: int = 0,
    ) -> None:
        unlabeled = batches.unlabeled.to(device)
        same = batches.labeled.images is batches.unlabeled.images  # as they are where all come from one source
        labeled = replace(batches.labeled, images=unlabeled.images) if same else batches.labeled
        self.batches = replace(batches, labeled=labeled.to(device), unlabeled=unlabeled)
        self.views_of = dict(views)
        self.device = device
        self.normal = normal
        in_memory = isinstance(batches.labeled.images, Tensor)
        self.decoded = None if in_memory else Decoded(batches, workers)

    def __getitem__(self, step: int) -> Views:
        return self.views(torch.tensor(step, dtype=torch.int64, device=self.device), *self.bring(step))

    def bring(self, step: int) -> tuple[Tensor, ...]:
        """Labeled and unlabeled images that workers decoded for a step; nothing where all are on the device already."""
        if self.decoded is None:
            return ()
        return tuple(part.to(self.device, non_blocking=True) for part in self.decoded[step])

    def views(self, step: Tensor, *brought: Tensor) -> Views:
        """The batch of a step, () int64 on the device: drawn, unless it was brought, and made into views."""
        labeled_place, place = self.batches.places(step)
        if brought:
            labeled, unlabeled = brought
        else:
            labeled, unlabeled = self.batches.images(labeled_place, place)
        images = {}
        for name in self.views_of:
            batch = labeled if name == "labeled" else unlabeled
            images[name] = self.view(name, batch, step)
        return Views(images, self.batches.labeled.labels[labeled_place], labeled_place, place, step)

    def view(self, name: str, batch: Tensor, step: Tensor) -> Tensor:
        """One view of a step's labeled or unlabeled images."""
        key = view_key(self.batches.seed, step, name)
        first = self.batches.rank * len(batch)
        places = torch.arange(first, first + len(batch), device=self.device)
        return self.normal(self.views_of[name](batch, key, places))


class Decoded:
    """The undecoded images of each step, read ahead by workers. A step out of turn starts them afresh.

    A worker draws the addresses itself: chance is integer arithmetic, so they are those of the device.
    """

    def __init__(self, batches: Batches, workers: int) -> None:
        self.batches = batches
        self.workers = workers
        self.next: int | None = None
        self.reader: Iterator[tuple[Tensor, Tensor]] | None = None

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        if self.reader is None or self.next != step:
            self.reader = iter(
                DataLoader(
                    _Steps(self.batches),
                    batch_size=None,
                    sampler=count(step),  # pyright: ignore[reportArgumentType] an endless sampler is one
                    num_workers=self.workers,
                    prefetch_factor=4 if self.workers else None,
                    multiprocessing_context="spawn" if self.workers else None,
                    worker_init_fn=_leave_group,
                )
            )
        self.next = step + 1
        return next(self.reader)


def _leave_group(worker: int) -> None:
    """Ctrl-C and torchrun signal a whole group of processes, and the run needs its workers for the step under way."""
    if sys.platform != "win32":
        os.setpgrp()


class _Steps(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, batches: Batches) -> None:
        self.batches = batches

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        return self.batches.images(*self.batches.places(torch.tensor(step)))
