"""Batches against the addresses they are drawn by: the numbers of the purposes are part of every result."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from npmatch.data.normal import Normal
from npmatch.data.source import Files
from npmatch.data.stream import Batches, Pool, Stream
from npmatch.functional import chance

B, U, STEP = 6, 10, 3
CPU = torch.device("cpu")
VIEWS = ("labeled", "weak", "strong", "weak2", "strong2", "simclr")
LABELED = torch.tensor([7, 90, 12, 55, 31])  # where these pools stand in a source of 100 images
UNLABELED = torch.arange(99, 60, -1)
PIXELS = Normal(1, (0.0,), (1 / 255,))  # leaves pixels as they are


def numbered(indices: Tensor) -> Tensor:
    """Images of one pixel, which says where in the source they stand."""
    return indices.to(torch.uint8)[:, None, None, None]


class Numbered(Files):
    """The same images, as if from files."""

    def decode(self, indices: list[int]) -> Tensor:
        return numbered(torch.tensor(indices))


def batches(seed: int, images: Tensor | Files) -> Batches:
    labeled, unlabeled = Pool(images, LABELED, LABELED + 1), Pool(images, UNLABELED, torch.full((39,), -1))
    return Batches(labeled, unlabeled, B, U, seed)


class Seen:
    """A view that changes nothing and keeps what it was called with."""

    def __call__(self, images: Tensor, key: Tensor, places: Tensor) -> Tensor:
        self.key, self.places = int(key), places.tolist()
        return images


@pytest.mark.parametrize("images", [numbered(torch.arange(100)), Numbered(Path(), (), 1, "crop", 1)])
@pytest.mark.parametrize("seed", [0, 5])
def test_a_batch_is_a_function_of_seed_and_step(seed: int, images: Tensor | Files) -> None:
    seen = {name: Seen() for name in VIEWS}
    stream = Stream(batches(seed, images), seen, normal=PIXELS, device=CPU)
    for step in (0, 1, STEP, 2):  # also out of turn
        views = stream[step]
        labeled_place = chance.integers(chance.key(seed, step, 1), torch.arange(B), len(LABELED))
        place = chance.integers(chance.key(seed, step, 2), torch.arange(U), len(UNLABELED))
        assert torch.equal(views.labeled_place, labeled_place) and torch.equal(views.place, place)
        assert torch.equal(views.y, LABELED[labeled_place] + 1) and views.step == step
        torch.testing.assert_close(views["labeled"].flatten(), LABELED[labeled_place].float())
        for purpose, name in enumerate(VIEWS, start=3):
            assert seen[name].key == int(chance.key(seed, step, purpose))
            assert seen[name].places == list(range(B if name == "labeled" else U))
            if name != "labeled":
                torch.testing.assert_close(views[name].flatten(), UNLABELED[place].float())


def test_pixels_become_distances_from_the_mean_in_standard_deviations() -> None:
    images = torch.tensor([[0, 51, 255], [0, 102, 255]], dtype=torch.uint8).view(1, 2, 1, 3)
    normal = Normal(3, (0.5, 0.2), (0.25, 0.1))(images)
    torch.testing.assert_close(normal, torch.tensor([[-2.0, -1.2, 2.0], [-2.0, 2.0, 8.0]]).view(1, 2, 1, 3))
