"""Batches as the published code makes them, to compare with: worker processes augment one image at a time.

TorchSSL's recipe (spec §1.3, §1.4) in Pillow's own calls: weak is a flip and a crop of the reflect-padded image, strong
is RandAugment and cutout before these. Each worker has a generator of its own, so a batch is not the one that
`data.stream` would make of this step: the two are alike in distribution, which is enough to compare their speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, RandomSampler, get_worker_info

from npmatch.data.augment import RECIPES
from npmatch.data.normal import Normal
from npmatch.types import Views

PADDING = 4
RECIPE = RECIPES["ra_torchssl"]
ENDLESS = 2**62  # draws: there are no epochs

Picture = Image.Image
Pair = tuple[float, float]


def _moved(picture: Picture, matrix: tuple[float, ...]) -> Picture:
    return picture.transform(picture.size, Image.Transform.AFFINE, matrix)


# Each operation with its magnitude's range; translations are shares of the side.
OPERATIONS: dict[str, tuple[Callable[[Picture, float], Picture], Pair]] = {
    "identity": (lambda picture, _: picture, (0, 0)),
    "rotate": (lambda picture, degrees: picture.rotate(degrees), RECIPE.rotate),
    "shear_x": (lambda picture, shear: _moved(picture, (1, shear, 0, 0, 1, 0)), RECIPE.shear),
    "shear_y": (lambda picture, shear: _moved(picture, (1, 0, 0, shear, 1, 0)), RECIPE.shear),
    "translate_x": (lambda picture, share: _moved(picture, (1, 0, share * picture.width, 0, 1, 0)), RECIPE.translate),
    "translate_y": (lambda picture, share: _moved(picture, (1, 0, 0, 0, 1, share * picture.height)), RECIPE.translate),
    "auto_contrast": (lambda picture, _: ImageOps.autocontrast(picture), (0, 0)),
    "equalize": (lambda picture, _: ImageOps.equalize(picture), (0, 0)),
    "brightness": (lambda picture, factor: ImageEnhance.Brightness(picture).enhance(factor), RECIPE.enhance),
    "color": (lambda picture, factor: ImageEnhance.Color(picture).enhance(factor), RECIPE.enhance),
    "contrast": (lambda picture, factor: ImageEnhance.Contrast(picture).enhance(factor), RECIPE.enhance),
    "sharpness": (lambda picture, factor: ImageEnhance.Sharpness(picture).enhance(factor), RECIPE.enhance),
    "posterize": (lambda picture, bits: ImageOps.posterize(picture, int(bits)), RECIPE.posterize),
    "solarize": (lambda picture, level: ImageOps.solarize(picture, level), RECIPE.solarize),  # pyright: ignore[reportArgumentType] takes floats too
}


def magnitude(name: str, level: float) -> float:
    """The magnitude of an operation at a level in [0, 1)."""
    _, (low, high) = OPERATIONS[name]
    return low + (high - low) * level


def strong(picture: Picture, chance: np.random.Generator) -> Picture:
    """RandAugment and cutout; flip and crop come after."""
    for name in chance.choice(list(OPERATIONS), RECIPE.num_ops):
        operation, _ = OPERATIONS[name]
        picture = operation(picture, magnitude(name, chance.random()))
    return cutout(picture, chance)


def cutout(picture: Picture, chance: np.random.Generator) -> Picture:
    """A square of up to half the width, centered anywhere, painted over."""
    side = chance.uniform(0, 0.5) * picture.width
    left = int(max(0, chance.uniform(0, picture.width) - side / 2))
    top = int(max(0, chance.uniform(0, picture.height) - side / 2))
    red, green, blue = RECIPE.cutout_color
    color = RECIPE.cutout_color if picture.mode == "RGB" else round(0.299 * red + 0.587 * green + 0.114 * blue)
    painted = picture.copy()
    ImageDraw.Draw(painted).rectangle((left, top, left + int(side), top + int(side)), color)
    return painted


def flip_and_crop(picture: Picture, chance: np.random.Generator, *, flip: bool) -> Picture:
    if flip and chance.random() < 0.5:
        picture = ImageOps.mirror(picture)
    pixels = np.asarray(picture)
    room = ((PADDING, PADDING), (PADDING, PADDING), (0, 0))[: pixels.ndim]
    left, top = chance.integers(0, 2 * PADDING + 1, 2).tolist()
    padded = Image.fromarray(np.pad(pixels, room, mode="reflect"))
    return padded.crop((left, top, left + picture.width, top + picture.height))


class Images(Dataset[tuple[Any, ...]]):
    """A pool whose item is a weak view, a strong one if wanted, and its place."""

    def __init__(self, images: Tensor, indices: Tensor, normal: Normal, *, with_strong: bool, seed: int, flip: bool):
        self.images, self.indices, self.with_strong = images, indices, with_strong
        self.seed, self.flip = seed, flip
        self.mean, self.std = (np.array(v, np.float32)[:, None, None] for v in (normal.mean, normal.std))
        self.chance: np.random.Generator | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, place: int) -> tuple[Any, ...]:
        if self.chance is None:  # in each worker afresh, or all would draw the same
            worker = get_worker_info()
            self.chance = np.random.default_rng(self.seed if worker is None else worker.seed)
        pixels = self.images[int(self.indices[place])].permute(1, 2, 0).numpy()
        picture = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
        pictures = [picture, strong(picture, self.chance)] if self.with_strong else [picture]
        views = [flip_and_crop(one, self.chance, flip=self.flip) for one in pictures]
        return *(self.tensor(view) for view in views), place

    def tensor(self, picture: Picture) -> Tensor:
        """Normalized float32 (C, H, W)."""
        pixels = np.atleast_3d(np.asarray(picture, np.float32)).transpose(2, 0, 1)
        return torch.from_numpy((pixels / 255 - self.mean) / self.std)


class Conventional:
    """`conventional[step]` is a batch of normalized views on the device, as `Stream`'s; steps are taken in order."""

    def __init__(
        self,
        source_images_uint8: Tensor,  # (N, C, H, W), 1 or 3 channels
        labeled: Sequence[int] | np.ndarray | Tensor,  # indices into them
        unlabeled: Sequence[int] | np.ndarray | Tensor,
        labels: Sequence[int] | np.ndarray | Tensor,  # (N,), of all images
        *,
        batch_size: int,
        unlabeled_batch: int,  # 0: only labeled images are wanted
        normal: Normal,
        device: torch.device,
        workers: int,  # for the unlabeled images; the labeled ones have one of their own
        seed: int,
        flip: bool = True,
    ) -> None:
        self.device = device
        images = source_images_uint8.cpu()  # workers are sent it as shared memory

        def loader(indices: Any, batch: int, number: int, *, with_strong: bool, seed: int) -> Iterator[list[Tensor]]:
            pool = torch.as_tensor(indices, dtype=torch.int64)
            data = Images(images, pool, normal, with_strong=with_strong, seed=seed, flip=flip)
            generator = torch.Generator().manual_seed(seed)
            batches = DataLoader(
                data,
                batch,
                sampler=RandomSampler(data, replacement=True, num_samples=ENDLESS, generator=generator),
                num_workers=number,
                persistent_workers=number > 0,
                pin_memory=device.type == "cuda",
                multiprocessing_context="spawn" if number else None,  # forking a process that holds a GPU is not safe
                generator=generator,
            )
            return iter(batches)

        self.labels = torch.as_tensor(labels, dtype=torch.int64)[torch.as_tensor(labeled, dtype=torch.int64)].to(device)
        self.labeled = loader(labeled, batch_size, min(workers, 1), with_strong=False, seed=2 * seed)
        self.unlabeled = None
        if unlabeled_batch:
            self.unlabeled = loader(unlabeled, unlabeled_batch, workers, with_strong=True, seed=2 * seed + 1)

    def __getitem__(self, step: int) -> Views:
        return self.views(torch.tensor(step, dtype=torch.int64, device=self.device), *self.bring(step))

    def bring(self, step: int) -> tuple[Tensor, ...]:
        """The next batch, on its way to the device: labeled images, places; weak ones, strong ones, places."""
        batches = [self.labeled] if self.unlabeled is None else [self.labeled, self.unlabeled]
        return tuple(part.to(self.device, non_blocking=True) for batch in batches for part in next(batch))

    def views(self, step: Tensor, *brought: Tensor) -> Views:
        labeled, labeled_place, *rest = brought
        weak, strong, place = rest or (labeled[:0], labeled[:0], labeled_place[:0])
        images = {"labeled": labeled, "weak": weak, "strong": strong}
        return Views(images, self.labels[labeled_place], labeled_place, place, step)
