"""SimCLR's view (Chen et al., 2020, Appendix A, without blur): a resized crop, colors jittered, and now and then gray.

Spec §2.6. Each image draws for itself, the order of its four changes of color too. The arithmetic is Pillow's on
uint8, as the published codes have it through torchvision. The draws, from the view's key k:
    scramble(k + 1)      crop and flip (data/augment.py)
    scramble(k + 2)      jittered, gray; factors of brightness, contrast, saturation; turn of hue; four for the order
"""

from __future__ import annotations

import torch
from torch import Tensor

from npmatch.data import augment, operations
from npmatch.functional import chance

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
JITTERED, GRAY = 0.8, 0.2  # how often
STRENGTH, HUE_STRENGTH = 0.4, 0.1  # factors are U[1 - .4, 1 + .4], turns U[-.1, .1] of the circle
_COLORS = 2


def simclr(
    images: Tensor, key: Tensor, places_N: Tensor, *, size: int, min_area: float, flip: bool, color: bool
) -> Tensor:
    """The view -> (N, C, size, size) uint8. Without `color` it is the crop alone."""
    images = augment.resized_crop(images, key, places_N, size=size, min_area=min_area, flip=flip)
    if not color:
        return images
    order_N4, factors_N3, turn_N, gray_N = drawn(key, places_N)
    images = jitter(images, order_N4, factors_N3, turn_N)
    return torch.where(_per_image(gray_N), operations.luma(images), images)


def drawn(key: Tensor, places_N: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What happens to each image: the order of its changes, three factors, the turn of hue in 255ths, whether gray.

    An image that is not jittered has factors of 1 and a turn of 0, which change nothing in any order.
    """
    draws = chance.uniform(chance.scramble(key + _COLORS), places_N, 10)
    jittered_N1 = draws[:, :1] < JITTERED
    factors_N3 = torch.where(jittered_N1, 1 - STRENGTH + 2 * STRENGTH * draws[:, 2:5], 1.0)
    turn_N = (255 * HUE_STRENGTH * (2 * draws[:, 5] - 1)).to(torch.int32)  # cut, as torchvision does
    order_N4 = draws[:, 6:].argsort(stable=True)
    return order_N4, factors_N3, torch.where(jittered_N1[:, 0], turn_N, 0), draws[:, 1] < GRAY


def jitter(images: Tensor, order_N4: Tensor, factors_N3: Tensor, turn_N: Tensor) -> Tensor:
    """torchvision's ColorJitter, with an order, factors and a turn of hue for each image."""
    factors_N4 = torch.nn.functional.pad(factors_N3, (0, 1), value=1.0)  # hue blends with nothing
    for change_N in order_N4.unbind(1):
        gray = operations.luma(images)
        total = gray.flatten(1).sum(1, dtype=torch.int64)
        size = gray[0].numel()
        mean = (2 * total + size) // (2 * size)  # int(mean + 0.5)
        start = gray * _per_image(change_N == SATURATION) + _per_image(mean * (change_N == CONTRAST))
        factor_N = factors_N4.gather(1, change_N[:, None])[:, 0]
        images = operations.blend(start, images, _per_image(factor_N))
        if images.shape[1] == 3:
            images = turned(images, torch.where(change_N == HUE, turn_N, 0))
    return images


def turned(images: Tensor, turn_N: Tensor) -> Tensor:
    """Colors with their hue moved along the circle of 256 steps; by 0 steps they stay as they are.

    Pillow's way there and back in whole numbers, which every device and compiler finds alike. Its floats fall just
    short of some whole numbers, and are then one step lower in hue or saturation.
    """
    red, green, blue = images.to(torch.int32).unbind(1)
    high, low = images.amax(1).to(torch.int32), images.amin(1).to(torch.int32)
    span = (high - low).clamp(min=1)
    sixths = torch.where(
        red == high, green - blue, torch.where(green == high, 2 * span + blue - red, 4 * span + red - green)
    )
    hue = 255 * (sixths % (6 * span)) // (6 * span)
    saturation = 255 * (high - low) // high.clamp(min=1)
    hue = torch.where(high > low, hue, 0) + turn_N[:, None, None] & 255
    part, rest = 6 * hue // 255, 6 * hue % 255

    def faded(share: Tensor) -> Tensor:
        """high * (1 - share / 255**2), rounded; an odd divisor leaves no ties."""
        return (2 * high * (65025 - share) + 65025) // 130050

    bottom, falling, rising = faded(255 * saturation), faded(saturation * rest), faded(saturation * (255 - rest))
    ways = torch.stack([high, falling, bottom, bottom, rising, high])  # red, as hue goes round
    place = torch.stack([part % 6, (part + 4) % 6, (part + 2) % 6])[None]  # green is two sixths behind, blue four
    back = ways.gather(0, place[0].to(torch.int64)).transpose(0, 1).to(torch.uint8)
    return torch.where(_per_image(turn_N != 0), back, images)


def _per_image(value_N: Tensor) -> Tensor:
    return value_N[:, None, None, None]
