"""Weak and strong views of a batch of uint8 images, made on the device, by the recipes the papers' codes share.

Spec §1.3 and §1.4. What happens to an image depends on the key and on its place in the global batch, not on the rest
of the batch. The layout of the draws is part of what makes a run repeatable; from the view's key k it is
    scramble(k + 1)      crop: mirrored, left, top; or mirrored, left, top and ten pairs of (area, aspect ratio)
    scramble(k + 2)      cutout: center x, center y, side
    scramble(k + 3 + r)  operation r: which, whether applied, level, sign
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import log
from typing import Literal

import torch
from torch import Tensor

from npmatch.data import operations
from npmatch.errors import UserError
from npmatch.functional import chance

Crop = Callable[[Tensor, Tensor, Tensor], Tensor]  # (images, key, places in the batch) -> images
RecipeName = Literal["ra_torchssl", "ra_fixmatch", "ra_max"]

_CROP, _CUTOUT, _ROUND = 1, 2, 3
_ATTEMPTS = 10  # of a resized crop, as in torchvision
_BITS = 24  # of a draw
_NEAR = 1 << 20  # levels


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a strong view does. A pair of numbers is an operation's magnitude at level 0 and at full level."""

    num_ops: int  # N, drawn with replacement
    probability: float  # that a drawn operation is applied
    levels: tuple[int, int, int]  # lowest, highest, full
    enhance: tuple[float, float]  # factor of brightness, color, contrast, sharpness
    posterize: tuple[float, float]  # bits, cut to a whole number
    solarize: tuple[float, float]  # threshold
    rotate: tuple[float, float]  # degrees
    shear: tuple[float, float]
    translate: tuple[float, float]  # pixels, or shares of the side
    translate_by_share: bool
    random_sign: bool  # of rotate, shear and translate
    fill: int  # gray level of what comes in from outside
    cutout_side: int | None  # pixels; none: U[0, 0.5] of the width
    cutout_color: tuple[int, int, int]
    before_crop: bool  # whether all this comes before flip and crop
    color: bool = True  # whether the operations on color are among those drawn
    geometry: bool = True  # and those that move pixels
    cutout: bool = True


_FIXMATCH = Recipe(
    num_ops=2,
    probability=0.5,
    levels=(1, 9, 10),
    enhance=(0.1, 1.9),
    posterize=(4.9, 0.9),  # 4 - int(4 * level / 10), as the code has it
    solarize=(256.0, 0.0),
    rotate=(0.0, 30.0),
    shear=(0.0, 0.3),
    translate=(0.0, 10.0),
    translate_by_share=False,
    random_sign=True,
    fill=127,
    cutout_side=16,
    cutout_color=(127, 127, 127),
    before_crop=False,
)

RECIPES: dict[RecipeName, Recipe] = {
    "ra_torchssl": Recipe(
        num_ops=3,
        probability=1.0,
        levels=(0, 65535, 65536),
        enhance=(0.05, 0.95),
        posterize=(4.0, 8.0),
        solarize=(0.0, 256.0),
        rotate=(-30.0, 30.0),
        shear=(-0.3, 0.3),
        translate=(-0.3, 0.3),
        translate_by_share=True,
        random_sign=False,
        fill=0,
        cutout_side=None,
        cutout_color=(125, 123, 114),
        before_crop=True,
    ),
    "ra_fixmatch": _FIXMATCH,
    # CoMatch's tables of posterize and solarize run the other way, so its full level leaves 4 bits, and 256: no change.
    "ra_max": replace(
        _FIXMATCH,
        levels=(10, 10, 10),
        posterize=(0.0, 4.0),
        solarize=(0.0, 256.0),
        fill=128,
        cutout_color=(128, 128, 128),
    ),
}


def recipe(
    name: RecipeName, *, num_ops: int | None = None, color: bool = True, geometry: bool = True, cutout: bool = True
) -> Recipe:
    """A recipe by name, with another number of operations, or without the kinds that would ruin the data."""
    chosen = replace(RECIPES[name], color=color, geometry=geometry, cutout=cutout)
    return chosen if num_ops is None else replace(chosen, num_ops=num_ops)


def strong(images: Tensor, key: Tensor, places_N: Tensor, *, recipe: Recipe, crop: Crop) -> Tensor:
    """A strong view: RandAugment, cutout, and the crop of the weak view, in the recipe's order."""
    if not recipe.before_crop:
        images = crop(images, key, places_N)
    parts = [_augmented(part, key, places, recipe) for part, places in _in_parts(images, places_N)]
    images = parts[0] if len(parts) == 1 else torch.cat(parts)
    return crop(images, key, places_N) if recipe.before_crop else images


def _in_parts(images: Tensor, places_N: Tensor) -> list[tuple[Tensor, Tensor]]:
    """A CPU that runs step by step takes half the time for large images in parts whose interim results stay near."""
    if images.device.type != "cpu" or torch.compiler.is_compiling():
        return [(images, places_N)]
    size = max(1, _NEAR // images.shape[1:].numel())
    return list(zip(images.split(size), places_N.split(size)))


def _augmented(images: Tensor, key: Tensor, places_N: Tensor, recipe: Recipe) -> Tensor:
    size = (images.shape[2], images.shape[3])
    for number in range(recipe.num_ops):
        images = _changed(images, key + number, places_N, recipe, size)  # pyright: ignore[reportCallIssue] it is untyped
    if not recipe.cutout:
        return images
    return operations.cutout(images, cutout_box(key, places_N, recipe.cutout_side, size), recipe.cutout_color)


@torch.compiler.nested_compile_region  # compiled once for all rounds
def _changed(images: Tensor, key: Tensor, places_N: Tensor, recipe: Recipe, size: tuple[int, int]) -> Tensor:
    operation_N, magnitude_N = drawn(key, places_N, recipe, size)
    if recipe.geometry:
        images = operations.warp(images, operation_N, magnitude_N, recipe.fill)
    return operations.recolor(images, operation_N, magnitude_N) if recipe.color else images


def drawn(key: Tensor, places_N: Tensor, recipe: Recipe, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The operation of each image in round r, for the view's key + r, and its magnitude -> (N,) int64, (N,) float32."""
    draws = chance.bits(chance.scramble(key + _ROUND), places_N, 4)
    # Operations stand in the order: identity, five that move pixels, eight on color.
    operation_N = draws[:, 0] % (1 + 5 * recipe.geometry + 8 * recipe.color)
    if not recipe.geometry:
        operation_N = torch.where(operation_N > 0, operation_N + 5, 0)
    applied = draws[:, 1] >> (63 - _BITS) < round(recipe.probability * 2**_BITS)
    operation_N = torch.where(applied, operation_N, operations.IDENTITY)
    lowest, highest, full = recipe.levels
    level_N = lowest + draws[:, 2] % (highest - lowest + 1)
    magnitude_N = _magnitude(operation_N, level_N, full, recipe, size)
    if recipe.random_sign:
        turned = (draws[:, 3] % 2 == 1) & (operation_N >= operations.ROTATE) & (operation_N < operations.AUTO_CONTRAST)
        magnitude_N = torch.where(turned, -magnitude_N, magnitude_N)
    return operation_N, magnitude_N


def _magnitude(operation_N: Tensor, level_N: Tensor, full: int, recipe: Recipe, size: tuple[int, int]) -> Tensor:
    """In whole numbers up to the last step, so that every device and compiler finds the same float32."""
    height, width = size if recipe.translate_by_share else (1, 1)
    ranges = {
        operations.ROTATE: recipe.rotate,
        operations.SHEAR_X: recipe.shear,
        operations.SHEAR_Y: recipe.shear,
        operations.TRANSLATE_X: (recipe.translate[0] * width, recipe.translate[1] * width),
        operations.TRANSLATE_Y: (recipe.translate[0] * height, recipe.translate[1] * height),
        operations.POSTERIZE: recipe.posterize,
        operations.SOLARIZE: recipe.solarize,
    }
    start, end = _whole(recipe.enhance)
    start_N, span_N = torch.full_like(level_N, start), torch.full_like(level_N, end - start)
    for operation, pair in ranges.items():
        start, end = _whole(pair)
        start_N = torch.where(operation_N == operation, start, start_N)
        span_N = torch.where(operation_N == operation, end - start, span_N)
    magnitude_N = start_N + torch.div(span_N * level_N, full, rounding_mode="floor")
    return magnitude_N.to(torch.float32) * 2.0**-36


def _whole(pair: tuple[float, float]) -> tuple[int, int]:
    return round(pair[0] * 2**36), round(pair[1] * 2**36)


def cutout_box(key: Tensor, places_N: Tensor, side: int | None, size: tuple[int, int]) -> Tensor:
    """The square cut out of each image -> (N, 4) int64: left, top, right, bottom, the last two included.

    A given side is centered on a pixel and counts 8 before and 7 behind it, if 16. A random one does what TorchSSL and
    Pillow's ImageDraw do: it starts at int(max(0, center - side / 2)) and ends at int(start + side), both painted.
    """
    height, width = size
    x, y, share = (chance.bits(chance.scramble(key + _CUTOUT), places_N, 3) >> (63 - _BITS)).unbind(1)
    if side is not None:
        left, top = ((x * width) >> _BITS) - side // 2, ((y * height) >> _BITS) - side // 2
        return torch.stack([left, top, left + side - 1, top + side - 1], 1)
    # center = x * width / 2**24 and side = share * width / 2**25, so a unit of 2**-26 holds both and half a side.
    left = ((4 * x * width - share * width) >> (_BITS + 2)).clamp(min=0)
    top = ((4 * y * height - share * width) >> (_BITS + 2)).clamp(min=0)
    reach = (share * width) >> (_BITS + 1)
    return torch.stack([left, top, left + reach, top + reach], 1)


def crop_and_flip(
    images: Tensor,
    key: Tensor,
    places_N: Tensor,
    *,
    kind: Literal["shift", "resized"],
    size: int,
    padding: int,
    min_area: float,
    flip: bool,
) -> Tensor:
    """The weak view, of square images: a shift for small ones, a resized crop for photographs."""
    if kind == "shift":
        return weak(images, key, places_N, flip=flip, padding=padding, size=(size, size))
    return resized_crop(images, key, places_N, size=size, min_area=min_area, flip=flip)


def weak(
    images: Tensor,
    key: Tensor,
    places_N: Tensor,
    *,
    flip: bool,
    padding: int,
    size: tuple[int, int] | None = None,
) -> Tensor:
    """Mirrored half the time, padded by reflection, and cut out anywhere, to (height, width) or the size it had."""
    height, width = size or (images.shape[2], images.shape[3])
    room_y, room_x = images.shape[2] + 2 * padding - height, images.shape[3] + 2 * padding - width
    if min(room_y, room_x) < 0:
        raise UserError(f"no crop of {width}x{height} fits images of {images.shape[3]}x{images.shape[2]}: resize them")
    side, x, y = (chance.bits(chance.scramble(key + _CROP), places_N, 3) >> (63 - _BITS)).unbind(1)
    flip_N = (side % 2 == 1) & flip
    left, top = (x * (room_x + 1)) >> _BITS, (y * (room_y + 1)) >> _BITS
    return operations.flip_and_crop(images, flip_N, left, top, padding=padding, size=(height, width))


def resized_crop(
    images: Tensor, key: Tensor, places_N: Tensor, *, size: int, min_area: float = 0.2, flip: bool = True
) -> Tensor:
    """A random part of each image, resized to a square, mirrored half the time: torchvision's RandomResizedCrop.

    The part has U[min_area, 1] of the image's area and a log-uniform aspect ratio from 3/4 to 4/3; of ten drawn, the
    first that fits is taken; if none does, which takes a min_area near 1, the first is cut to the image. Sampled
    bilinearly in float32: devices may differ by one gray level.
    """
    height, width = images.shape[-2:]
    draws = chance.uniform(chance.scramble(key + _CROP), places_N, 3 + 2 * _ATTEMPTS)
    area = (min_area + (1 - min_area) * draws[:, 3::2]) * (height * width)
    ratio = torch.exp(log(4 / 3) * (2 * draws[:, 4::2] - 1))
    part_width, part_height = torch.sqrt(area * ratio), torch.sqrt(area / ratio)
    first = ((part_width <= width) & (part_height <= height)).to(torch.uint8).argmax(1, keepdim=True)
    part_width = part_width.gather(1, first).clamp(max=width)
    part_height = part_height.gather(1, first).clamp(max=height)
    steps = (torch.arange(size, device=images.device) + 0.5) / size
    across = torch.where((draws[:, :1] < 0.5) & flip, 1 - steps, steps)
    x = draws[:, 1:2] * (width - part_width) + across * part_width
    y = draws[:, 2:3] * (height - part_height) + steps * part_height
    x, y = (2 * x / width - 1)[:, None, :].expand(-1, size, -1), (2 * y / height - 1)[:, :, None].expand(-1, -1, size)
    sampled = torch.nn.functional.grid_sample(
        images.to(torch.float32), torch.stack([x, y], 3), padding_mode="border", align_corners=False
    )
    return sampled.round().clamp(0, 255).to(torch.uint8)


def center_crop(images: Tensor, size: int) -> Tensor:
    """The middle square of each image."""
    height, width = images.shape[-2:]
    if size > min(height, width):
        raise UserError(f"no crop of {size}x{size} fits images of {width}x{height}: resize them")
    top, left = (height - size) // 2, (width - size) // 2
    return images[:, :, top : top + size, left : left + size]
