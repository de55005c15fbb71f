"""Every operation against Pillow itself, called the way the published code calls it: not one pixel may differ.

Eager and compiled, on the CPU and, where there is one, on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from torch import Tensor

from npmatch.data import operations
from npmatch.errors import UserError

AFFINE = Image.Transform.AFFINE
DEVICES = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
PART = 250  # images at a time: compiled code is for one shape
PILLOW: dict[str, Callable[[Image.Image, float], Image.Image]] = {
    "identity": lambda image, v: image,
    "rotate": lambda image, v: image.rotate(v),
    "shear_x": lambda image, v: image.transform(image.size, AFFINE, (1, v, 0, 0, 1, 0)),
    "shear_y": lambda image, v: image.transform(image.size, AFFINE, (1, 0, 0, v, 1, 0)),
    "translate_x": lambda image, v: image.transform(image.size, AFFINE, (1, 0, v, 0, 1, 0)),
    "translate_y": lambda image, v: image.transform(image.size, AFFINE, (1, 0, 0, 0, 1, v)),
    "auto_contrast": lambda image, v: ImageOps.autocontrast(image),
    "equalize": lambda image, v: ImageOps.equalize(image),
    "brightness": lambda image, v: ImageEnhance.Brightness(image).enhance(v),
    "color": lambda image, v: ImageEnhance.Color(image).enhance(v),
    "contrast": lambda image, v: ImageEnhance.Contrast(image).enhance(v),
    "sharpness": lambda image, v: ImageEnhance.Sharpness(image).enhance(v),
    "posterize": lambda image, v: ImageOps.posterize(image, int(v)),
    "solarize": lambda image, v: ImageOps.solarize(image, v),  # pyright: ignore[reportArgumentType] takes floats too
}
RANGES = {
    "rotate": (-45, 45),
    "shear_x": (-0.3, 0.3),
    "shear_y": (-0.3, 0.3),
    "posterize": (1, 9),
    "solarize": (0, 256),
}


def magnitudes(name: str, number: int, side: int, rng: np.random.Generator) -> np.ndarray:
    """Uniform in a wide range, and every tenth a round number, where ties and decimal fractions live."""
    if name.startswith("translate"):
        drawn = rng.uniform(-0.4 * side, 0.4 * side, number)
        drawn[::10] = np.round(2 * drawn[::10]) / 2
    elif name in RANGES:
        low, high = RANGES[name]
        drawn = rng.uniform(low, high, number)
        drawn[::10] = np.trunc(drawn[::10])
    else:
        drawn = rng.uniform(0.01, 2.0, number)
        drawn[::10] = np.round(drawn[::10], 2)
    return drawn.astype(np.float32)


@cache
def random_images(number: int, height: int, width: int, channels: int) -> np.ndarray:
    """Noise, narrow noise, flat, two-valued, gradients and enlarged digits in turn -> (N, H, W, C) uint8."""
    rng = np.random.default_rng(number)
    shape = (number // 6 + 1, height, width, channels)
    color = rng.integers(0, 256, (2, shape[0], 1, 1, channels))
    low, high = np.sort(color, axis=0)
    ramp = np.linspace(0, 1, height)[:, None, None] * rng.random((shape[0], 1, 1, 1))
    ramp = ramp + np.linspace(0, 1, width)[:, None] * (1 - ramp.max(1, keepdims=True))
    kinds = [
        rng.integers(0, 256, shape),
        rng.integers(low, high + 1, shape),
        np.broadcast_to(color[0], shape),
        np.where(rng.random((*shape[:3], 1)) < rng.random((shape[0], 1, 1, 1)), color[0], color[1]),
        low + ramp * (high - low) + rng.normal(0, 3, shape),
        digits(shape, rng),
    ]
    return np.stack(kinds, 1).reshape(-1, *shape[1:])[:number].clip(0, 255).astype(np.uint8)


def digits(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    from sklearn.datasets import load_digits

    levels, _ = load_digits(return_X_y=True)
    small = np.asarray(levels).reshape(-1, 8, 8).repeat(shape[1] // 8, 1).repeat(shape[2] // 8, 2)[..., None] * 15.9
    return np.broadcast_to(small[rng.integers(0, len(small), shape[0])], shape)


def by_pillow(images: np.ndarray, change: Callable[[Image.Image, int], Image.Image]) -> np.ndarray:
    """Runs (image, its number) -> image over a batch; one channel as mode L, three as RGB."""
    flat = images[..., 0] if images.shape[3] == 1 else images
    changed = [np.asarray(change(Image.fromarray(image), number)) for number, image in enumerate(flat)]
    return np.stack(changed).reshape(images.shape)


def tensor(images: np.ndarray) -> Tensor:
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous()


def differing(ours: Tensor, theirs: np.ndarray) -> int:
    assert ours.dtype == torch.uint8
    return int((ours.permute(0, 2, 3, 1).cpu().numpy() != theirs).sum())


def changed(images: Tensor, operation_N: Tensor, magnitude_N: Tensor) -> Tensor:
    return operations.recolor(operations.warp(images, operation_N, magnitude_N, 0), operation_N, magnitude_N)


@cache
def compiled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return torch.compile(function, fullgraph=True, dynamic=False)


def by_parts(function: Callable[..., Tensor], device: str, images: np.ndarray, *columns: np.ndarray) -> Tensor:
    """A batched function of images and a row of something for each."""
    whole = (tensor(images), *(torch.from_numpy(column) for column in columns))
    return torch.cat([function(*part) for part in zip(*(t.to(device).split(PART) for t in whole))])


def check_everywhere(function: Callable[..., Tensor], theirs: np.ndarray, *images_and_columns: np.ndarray) -> None:
    """Eager and compiled, on every device: no pixel may differ."""
    for device in DEVICES:
        assert differing(by_parts(function, device, *images_and_columns), theirs) == 0, f"{device}, eager"
        assert differing(by_parts(compiled(function), device, *images_and_columns), theirs) == 0, f"{device}, compiled"


def apply(name: str, images: np.ndarray, magnitude: np.ndarray) -> Tensor:
    return by_parts(changed, "cpu", images, numbers_of(name, images), magnitude)


def numbers_of(name: str, images: np.ndarray) -> np.ndarray:
    return np.full(len(images), operations.OPERATIONS.index(name))


def test_all_operations_are_tested() -> None:
    assert set(PILLOW) == set(operations.OPERATIONS) and len(operations.OPERATIONS) == 14


@pytest.mark.filterwarnings("ignore")  # of torch.compile's own
@pytest.mark.parametrize("name", PILLOW)
def test_no_pixel_of_10_000_images_differs_from_pillow_eager_or_compiled(name: str) -> None:
    images = random_images(10_000, 32, 32, 3)
    magnitude = magnitudes(name, 10_000, 32, np.random.default_rng([32, *name.encode()]))
    theirs = by_pillow(images, lambda image, i: PILLOW[name](image, float(magnitude[i])))
    check_everywhere(changed, theirs, images, numbers_of(name, images), magnitude)
    assert ((theirs != images).mean() > 0.01) != (name == "identity")  # something was done at all


@pytest.mark.parametrize(
    ("number", "height", "width", "channels"), [(500, 8, 8, 1), (500, 24, 40, 3), (100, 96, 96, 3)]
)
@pytest.mark.parametrize("name", PILLOW)
def test_nor_at_other_sizes(name: str, number: int, height: int, width: int, channels: int) -> None:
    rng = np.random.default_rng([height, width, *name.encode()])
    images = random_images(number, height, width, channels)
    magnitude = magnitudes(name, number, min(height, width), rng)
    theirs = by_pillow(images, lambda image, i: PILLOW[name](image, float(magnitude[i])))
    assert differing(apply(name, images, magnitude), theirs) == 0
    # Something was done at all; equalize's steps count 255 pixels, so it leaves images of 8 x 8 alone.
    idle = name == "identity" or (channels == 1 and name in ("color", "equalize"))
    assert ((theirs != images).mean() > 0.01) != idle


def test_auto_contrast_is_exact_for_every_pair_of_ends() -> None:
    low, high = np.triu_indices(256, 1)
    images = np.arange(256).clip(low[:, None], high[:, None]).astype(np.uint8).reshape(-1, 16, 16, 1)
    theirs = by_pillow(images, lambda image, i: ImageOps.autocontrast(image))
    assert differing(apply("auto_contrast", images, np.zeros(len(images), np.float32)), theirs) == 0


def test_equalize_is_exact_where_counts_are_few_or_skewed() -> None:
    rng = np.random.default_rng(0)
    peak = rng.beta(0.3, 0.3, (3000, 1, 1, 1))
    images = (255 * rng.beta(0.1 + 3 * peak, 3.1 - 3 * peak, (3000, 20, 18, 1))).astype(np.uint8)
    theirs = by_pillow(images, lambda image, i: ImageOps.equalize(image))
    assert differing(apply("equalize", images, np.zeros(3000, np.float32)), theirs) == 0


@pytest.mark.filterwarnings("ignore")
def test_a_batch_mixes_operations() -> None:
    rng = np.random.default_rng(1)
    images = random_images(1500, 32, 32, 3)
    names = [operations.OPERATIONS[i % 14] for i in range(1500)]
    magnitude = np.array([magnitudes(name, 2, 32, rng)[1] for name in names])

    def change(image: Image.Image, i: int) -> Image.Image:
        mask = Image.new("L", image.size, 255)
        moved = names[i].startswith(("rotate", "shear", "translate"))
        made = PILLOW[names[i]](image, float(magnitude[i]))
        mask = PILLOW[names[i]](mask, float(magnitude[i])) if moved else mask
        return Image.composite(made, Image.new("RGB", image.size, (128, 128, 128)), mask)

    def mixed(images: Tensor, operation_N: Tensor, magnitude_N: Tensor) -> Tensor:
        return operations.recolor(operations.warp(images, operation_N, magnitude_N, 128), operation_N, magnitude_N)

    check_everywhere(mixed, by_pillow(images, change), images, np.arange(1500) % 14, magnitude)


@pytest.mark.filterwarnings("ignore")
def test_cutout_is_image_draws_rectangle() -> None:
    rng = np.random.default_rng(2)
    images = random_images(10_000, 32, 24, 3)
    corner, reach = rng.integers(-8, 36, (10_000, 2)), rng.integers(0, 20, (10_000, 2))
    box = np.concatenate([corner, corner + reach], 1)

    def draw(image: Image.Image, i: int) -> Image.Image:
        ImageDraw.Draw(image).rectangle(box[i].tolist(), (125, 123, 114))
        return image

    def cut(images: Tensor, box_N4: Tensor) -> Tensor:
        return operations.cutout(images, box_N4, (125, 123, 114))

    check_everywhere(cut, by_pillow(images, draw), images, box)
    assert operations.cutout(tensor(images[..., :1]), torch.zeros(10_000, 4), (125, 123, 114))[0, 0, 0, 0] == 123


@pytest.mark.filterwarnings("ignore")
def test_flip_and_reflected_crop() -> None:
    rng = np.random.default_rng(3)
    images = random_images(10_000, 32, 24, 3)
    flip, left, top = rng.random(10_000) < 0.5, rng.integers(0, 9, 10_000), rng.integers(0, 9, 10_000)

    def change(image: Image.Image, i: int) -> Image.Image:
        image = ImageOps.mirror(image) if flip[i] else image
        padded = Image.fromarray(np.pad(np.asarray(image), ((4, 4), (4, 4), (0, 0)), mode="reflect"))
        return padded.crop((left[i], top[i], left[i] + 24, top[i] + 32))

    def crop(images: Tensor, flip_N: Tensor, left_N: Tensor, top_N: Tensor) -> Tensor:
        return operations.flip_and_crop(images, flip_N, left_N, top_N, padding=4, size=(32, 24))

    check_everywhere(crop, by_pillow(images, change), images, flip, left, top)
    with pytest.raises(UserError, match="padding 8"):
        zeros = torch.zeros(2, dtype=torch.int64)
        operations.flip_and_crop(torch.zeros(2, 1, 8, 8), zeros > 0, zeros, zeros, padding=8, size=(8, 8))


def test_luma_of_odd_channel_counts_is_the_rounded_mean() -> None:
    images = np.array([[[[10, 11]]], [[[255, 254]]]], np.uint8)  # means 10.5 and 254.5, up to 11 and 255
    ours = apply("color", images, np.zeros(2, np.float32))
    assert ours.flatten().tolist() == [11, 11, 255, 255]
