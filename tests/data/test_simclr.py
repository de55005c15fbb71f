"""SimCLR's view: each change against torchvision on Pillow's images, and how often and how strong they are."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import functional as tv

from npmatch.algorithms.comatch import CoMatch
from npmatch.build import build_views
from npmatch.compiled import VIEWS
from npmatch.config import Settings
from npmatch.config import Views as ViewSettings
from npmatch.data import augment, simclr
from npmatch.functional import chance
from tests.data.test_operations import random_images, tensor

KEY = chance.key(0, 0, 7)
PLACES = torch.arange(10_000)
VIEW = partial(simclr.simclr, size=16, min_area=0.2, flip=True, color=True)
CHANGES = [tv.adjust_brightness, tv.adjust_contrast, tv.adjust_saturation, tv.adjust_hue]


def numpy(images: Tensor) -> np.ndarray:
    return images.permute(0, 2, 3, 1).numpy().astype(int)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2)])
@pytest.mark.parametrize(("factors", "hue"), [((0.6, 1.4, 0.7), 0.1), ((1.33, 0.61, 1.4), -0.1), ((1, 1, 1), 0.05)])
def test_colors_are_jittered_as_torchvision_does(
    order: tuple[int, ...], factors: tuple[float, ...], hue: float
) -> None:
    """Not a pixel differs but where Pillow falls short of a whole number: by one step of hue or saturation."""
    images = random_images(40, 24, 24, 3)
    ours = simclr.jitter(
        tensor(images),
        torch.tensor(order).expand(40, 4),
        torch.tensor(factors, dtype=torch.float32).expand(40, 3),
        torch.full((40,), int(255 * hue), dtype=torch.int32),
    )
    theirs = []
    for image in images:
        changed = Image.fromarray(image)
        for change in order:
            changed = CHANGES[change](changed, (*factors, hue)[change])
        theirs.append(np.asarray(changed).astype(int))
    apart = np.abs(numpy(ours) - np.stack(theirs)).max(3)
    assert (apart > 0).mean() < 0.05 and apart.mean() < 0.06 and apart.max() < 16


def test_each_change_is_as_frequent_and_as_strong_as_it_should() -> None:
    order, factors, turn, gray = simclr.drawn(KEY, PLACES)
    plain = (factors == 1).all(1)
    assert abs(plain.float().mean() - 0.2) < 0.012 and abs(gray.float().mean() - 0.2) < 0.012
    assert not turn[plain].any() and abs(gray[plain].float().mean() - 0.2) < 0.03  # each by its own draw
    for column in factors[~plain].T:
        found = np.histogram(column.numpy(), 8, (0.6, 1.4))[0]
        assert found.sum() == len(column) and np.abs(found / len(column) - 1 / 8).max() < 0.012
    assert turn.min() == -25 and turn.max() == 25 and abs(turn.double().mean()) < 0.5
    codes = (order * torch.tensor([64, 16, 4, 1])).sum(1)
    counts = torch.unique(codes, return_counts=True)[1]
    assert len(counts) == 24 and (counts - 10_000 / 24).abs().max() < 4 * (10_000 / 24) ** 0.5
    assert abs(np.corrcoef(factors.T.numpy())[0, 1:] - 0).max() < 0.05


def test_a_view_is_a_crop_then_colors_then_gray() -> None:
    images, places = tensor(random_images(100, 32, 32, 3)), PLACES[:100]
    order, factors, turn, gray = simclr.drawn(KEY, places)
    cropped = augment.resized_crop(images, KEY, places, size=16, min_area=0.2, flip=True)
    assert torch.equal(VIEW(images, KEY, places, color=False), cropped)
    found = VIEW(images, KEY, places)
    assert found.shape == (100, 3, 16, 16) and found.dtype == torch.uint8
    assert torch.equal(found[~gray], simclr.jitter(cropped, order, factors, turn)[~gray])
    assert (found[gray] == found[gray][:, :1]).all()
    untouched = (factors == 1).all(1) & ~gray
    assert torch.equal(found[untouched], cropped[untouched]) and 5 < untouched.sum() < 30
    halves = [VIEW(images[part], KEY, places[part]) for part in (slice(0, 37), slice(37, 100))]
    assert torch.equal(torch.cat(halves), found)  # place and key alone decide
    assert not torch.equal(VIEW(images, chance.key(0, 1, 7), places), found)


def test_it_is_the_view_of_that_name_and_obeys_the_settings_of_views() -> None:
    images, places = tensor(random_images(50, 24, 24, 3)), PLACES[:50]
    for color, flip in ((True, False), (False, True)):
        chosen = ViewSettings(color=color, flip=flip, min_area=0.5)
        view = build_views(Settings(algorithm=CoMatch(), views=chosen), 16)["simclr"]
        expected = VIEW(images, KEY, places, min_area=0.5, color=color, flip=flip)
        assert torch.equal(view(images, KEY, places), expected)


@pytest.mark.parametrize("channels", [1, 4])
def test_without_three_channels_there_is_no_hue(channels: int) -> None:
    images = torch.randint(0, 256, (20, channels, 12, 12), dtype=torch.uint8)
    found = VIEW(images, KEY, PLACES[:20])
    assert found.shape == (20, channels, 16, 16)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_as_one_graph_it_makes_the_same_pixels() -> None:
    images, places = tensor(random_images(200, 32, 32, 3)), PLACES[:200]
    compiled = torch.compile(VIEW, fullgraph=True, options=VIEWS)
    apart = (compiled(images, KEY, places).to(int) - VIEW(images, KEY, places).to(int)).abs()
    assert (apart > 0).float().mean() < 0.001 and apart.max() < 16  # the crop's float32 may round a pixel another way
