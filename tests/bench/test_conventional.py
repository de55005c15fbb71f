"""The published loop's batches: Pillow does to an image what our batched operations do, and labels stay with images."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from npmatch.bench import conventional
from npmatch.bench.conventional import OPERATIONS, PADDING, RECIPE, Conventional, Images, cutout, flip_and_crop
from npmatch.data import augment, operations
from npmatch.data.normal import Normal
from tests.data.test_operations import by_pillow, changed, differing, random_images, tensor

SIDE = 16  # a power of two: a share of it is exact
CPU = torch.device("cpu")
LEVELS = (3, 13107, 40000, 65535)  # of the 65,536 that our recipe knows


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", operations.OPERATIONS)
def test_an_operation_at_a_level_is_our_own_at_that_level(name: str, channels: int) -> None:
    images, number = random_images(24, SIDE, SIDE, channels), operations.OPERATIONS.index(name)
    operation_N = torch.full((len(images),), number)
    for level in LEVELS:
        magnitude_N = augment._magnitude(operation_N, torch.full_like(operation_N, level), 65536, RECIPE, (SIDE, SIDE))
        ours, scale = float(magnitude_N[0]), SIDE if name.startswith("translate") else 1
        operation, (low, high) = OPERATIONS[name]
        if high > low:  # else it has none
            assert conventional.magnitude(name, level / 65536) * scale == pytest.approx(ours, abs=1e-5)
        theirs = by_pillow(images, lambda picture, _, v=ours / scale, do=operation: do(picture, v))
        assert differing(changed(tensor(images), operation_N, magnitude_N), theirs) == 0, level
    assert set(OPERATIONS) == set(operations.OPERATIONS)


class Told:
    """A generator that gives what it is told to."""

    def __init__(self, *values: float) -> None:
        self.values = list(values)

    def uniform(self, low: float, high: float) -> float:
        value = self.values.pop(0)
        assert low <= value <= high
        return value


@pytest.mark.parametrize("channels", [1, 3])
def test_cutout_paints_the_square_our_operation_paints(channels: int) -> None:
    images = random_images(6, SIDE, SIDE, channels)
    for side, x, y, box in (
        (0.5, 8.3, 3.7, (4, 0, 12, 8)),
        (0.3, 15.9, 12.2, (13, 9, 17, 13)),
        (0, 2.5, 0, (2, 0, 2, 0)),
    ):
        theirs = by_pillow(images, lambda picture, _, drawn=(side, x, y): cutout(picture, Told(*drawn)))  # pyright: ignore[reportArgumentType]
        ours = operations.cutout(tensor(images), torch.tensor([box] * len(images)), RECIPE.cutout_color)
        assert differing(ours, theirs) == 0


@pytest.mark.parametrize("mode", ["L", "RGB"])
@pytest.mark.parametrize("flip", [False, True])
def test_a_weak_view_is_a_crop_of_the_reflected_image_or_its_mirror(mode: str, flip: bool) -> None:
    pixels = np.arange(256, dtype=np.uint8).reshape(SIDE, SIDE)
    padded = np.pad(pixels, PADDING, mode="reflect")
    both = [padded, np.pad(pixels[:, ::-1], PADDING, mode="reflect")]
    crops = [
        np.ascontiguousarray(p[y : y + SIDE, x : x + SIDE]).tobytes() for p in both for y in range(9) for x in range(9)
    ]
    picture, rng = Image.fromarray(pixels).convert(mode), np.random.default_rng(0)
    views = [flip_and_crop(picture, rng, flip=flip) for _ in range(1500)]
    found = [crops.index(np.asarray(view.convert("L")).tobytes()) for view in views]
    counts = np.bincount(found, minlength=162).reshape(2, 81)
    assert all(view.mode == mode for view in views) and (counts[0] > 0).all()
    expected = 750 if flip else 0
    assert abs(counts[1].sum() - expected) < 4 * 1500**0.5 / 2 * flip + 1


def test_workers_draw_apart_and_a_seed_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(worker: int | None, seed: int = 0) -> Tensor:
        info: Any = None if worker is None else SimpleNamespace(seed=worker)
        monkeypatch.setattr(conventional, "get_worker_info", lambda: info)
        pool = tensor(random_images(6, 8, 8, 3))
        data = Images(pool, torch.arange(6), Normal(8, (0.5,) * 3, (0.2,) * 3), with_strong=True, seed=seed, flip=True)
        return torch.cat([torch.stack(data[place][:2]) for place in range(6)])

    assert torch.equal(drawn(None), drawn(None)) and torch.equal(drawn(5), drawn(5))
    assert not torch.equal(drawn(5), drawn(6)) and not torch.equal(drawn(None), drawn(None, seed=1))


@pytest.mark.parametrize("channels", [1, 3])
def test_views_keep_their_labels_and_places(channels: int) -> None:
    """Each image is of one gray level, which a weak view cannot change."""
    number, mean, std = 120, (0.4, 0.5, 0.6)[:channels], (0.2, 0.25, 0.3)[:channels]
    images = torch.arange(number, dtype=torch.uint8)[:, None, None, None].expand(-1, channels, 8, 8).contiguous()
    labels, labeled, unlabeled = torch.arange(number) % 7, torch.arange(3, 60, 4), torch.arange(20, number)
    batches = Conventional(
        images,
        labeled,
        unlabeled.numpy(),
        labels,
        batch_size=5,
        unlabeled_batch=30,
        normal=Normal(8, mean, std),
        device=CPU,
        workers=0,
        seed=0,
    )
    seen: list[int] = []
    for step in range(3):
        views = batches[step]
        assert views.step.shape == () and views.step.dtype == torch.int64 and int(views.step) == step
        assert {name: len(view) for name, view in views.images.items()} == {"labeled": 5, "weak": 30, "strong": 30}
        assert all(v.shape[1:] == (channels, 8, 8) and v.dtype == torch.float32 for v in views.images.values())
        for name, indices in (("labeled", labeled[views.labeled_place]), ("weak", unlabeled[views.place])):
            pixels = 255 * (views[name] * torch.tensor(std)[:, None, None] + torch.tensor(mean)[:, None, None])
            levels = indices[:, None, None, None].float().expand_as(pixels)
            torch.testing.assert_close(pixels, levels, rtol=0, atol=1e-3)
        assert torch.equal(views.y, labels[labeled[views.labeled_place]])
        assert views["strong"].std((1, 2, 3)).max() > 0.05, "cutout at least"
        seen += views.place.tolist()
    assert len(set(seen)) > 45, "of 90 draws with replacement from 100, about 59"


def test_a_worker_makes_the_labeled_images_where_no_others_are_wanted() -> None:
    images = torch.arange(4, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 8, 8).contiguous()
    batches = Conventional(
        images,
        [0, 2],
        [1, 3],
        [5, 6, 7, 8],
        batch_size=20,
        unlabeled_batch=0,
        normal=Normal(8, (0.0,) * 3, (1.0,) * 3),
        device=CPU,
        workers=1,
        seed=0,
        flip=False,
    )
    first, second = batches[0], batches[1]
    for views in (first, second):
        assert torch.equal((255 * views["labeled"][:, 0, 0, 0]).round().long() + 5, views.y)
        assert set(views.y.tolist()) == {5, 7} and len(views["weak"]) == len(views.place) == 0
    assert not torch.equal(first.labeled_place, second.labeled_place)
