"""RandAugment's fourteen operations, cutout, flips and crops on a batch, with Pillow's arithmetic to the last bit.

Each image has its own operation and magnitude, and nothing here depends on their values in shape, so a whole step can
be compiled or recorded as one CUDA graph. Exact means: no pixel differs from Pillow 12 and 13 as built for x86-64. It
holds eager and compiled, because no float product here is summed unless it is exact, so fusing the two changes nothing.
Rotation and auto-contrast need float64, which Apple's MPS lacks: there a rotated pixel may come from the neighbor, and
an auto-contrast level may be off by one.

Images are (N, C, H, W) uint8. Three channels are RGB; one is Pillow's "L"; in any other number the luma, which Pillow
does not define, is the channels' rounded mean.
"""

from __future__ import annotations

import torch
from torch import Tensor

from npmatch.errors import UserError

OPERATIONS = (
    "identity",
    *("rotate", "shear_x", "shear_y", "translate_x", "translate_y"),
    *("auto_contrast", "equalize", "brightness", "color", "contrast", "sharpness", "posterize", "solarize"),
)
IDENTITY, ROTATE, SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y = range(6)
AUTO_CONTRAST, EQUALIZE, BRIGHTNESS, COLOR, CONTRAST, SHARPNESS, POSTERIZE, SOLARIZE = range(6, 14)

_ONE = 1 << 16  # Pillow's fixed point: 16 bits before the point, 16 behind


def warp(images: Tensor, operation_N: Tensor, magnitude_N: Tensor, fill: int) -> Tensor:
    """The geometric operations, nearest neighbor; images with any other operation come back as they are.

    Magnitudes are float32: degrees counterclockwise (rotate), source pixels per pixel (shear), source pixels
    (translate), as in Pillow's `rotate` and `transform`. What lies outside the image becomes `fill`.
    """
    height, width = images.shape[-2:]
    xx, xy, x0, yx, yy, y0 = (part[:, None, None] for part in _matrix(operation_N, magnitude_N, height, width))
    x = torch.arange(width, device=images.device, dtype=torch.int32)
    y = torch.arange(height, device=images.device, dtype=torch.int32)[:, None]
    column = (xx * x + xy * y + x0) >> 16
    row = (yx * x + yy * y + y0) >> 16
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    source = torch.where(inside, row * width + column, height * width)  # one past the end: the fill
    return _pick(torch.nn.functional.pad(images.flatten(2), (0, 1), value=fill), source)


def _matrix(operation_N: Tensor, magnitude_N: Tensor, height: int, width: int) -> list[Tensor]:
    """Where each output pixel's center comes from -> six (N,) int32 in 16.16 fixed point.

    Pillow turns a matrix with shear or rotation into fixed point, and moves any other image by whole pixels, rounded
    half up. An image has one operation, so what the others add to its identity matrix is 0.
    """

    def only(operation: int) -> Tensor:
        return torch.where(operation_N == operation, magnitude_N, 0.0)

    shear_x, shear_y = only(SHEAR_X) * _ONE, only(SHEAR_Y) * _ONE
    parts = [shear_x, shear_x / 2, only(TRANSLATE_X), shear_y, shear_y / 2, only(TRANSLATE_Y)]
    across, start_x, left, down, start_y, top = _round(torch.stack(parts))
    xx, xy, x0, yx, yy, y0 = _rotation(only(ROTATE), height, width)
    return [xx, xy + across, x0 + start_x + left * _ONE, yx + down, yy, y0 + start_y + top * _ONE]


def _rotation(degrees_N: Tensor, height: int, width: int) -> Tensor:
    """Pillow's matrix of a rotation about the image's center, at 0 degrees the identity -> (6, N) int32."""
    wide = torch.float32 if degrees_N.device.type == "mps" else torch.float64
    angle = -torch.deg2rad(degrees_N.to(wide) % 360.0)
    cos, sin = torch.cos(angle).round(decimals=15), torch.sin(angle).round(decimals=15)
    x0 = -cos * (width / 2) - sin * (height / 2) + width / 2 + cos * 0.5 + sin * 0.5
    y0 = sin * (width / 2) - cos * (height / 2) + height / 2 - sin * 0.5 + cos * 0.5
    return torch.floor(torch.stack([cos, sin, x0, -sin, cos, y0]) * _ONE + 0.5).to(torch.int32)


def _round(value: Tensor) -> Tensor:
    """Rounds half up, exactly: `floor(value + 0.5)` would round .49999997 up in float32."""
    whole = torch.floor(value)
    return whole.to(torch.int32) + (value - whole >= 0.5).to(torch.int32)


def recolor(images: Tensor, operation_N: Tensor, magnitude_N: Tensor) -> Tensor:
    """The operations on color; images with any other operation come back as they are.

    Magnitudes are float32: Pillow's enhancement factor (brightness, color, contrast, sharpness), bits kept, cut
    to a whole number (posterize), the first level inverted (solarize).
    """
    gray = luma(images)
    index = images.flatten(2).to(torch.int64)
    table = _tables(images, index, gray, operation_N, magnitude_N)
    toned = table.gather(2, index).view_as(images)
    is_color, is_sharpness = (operation_N == operation for operation in (COLOR, SHARPNESS))
    # Products, as choosing by torch.where is slow where an image's flag is spread over its pixels. No start, factor 1.
    start = _smooth(images) * _per_image(is_sharpness) + gray * _per_image(is_color)
    return blend(start, toned, _per_image(torch.where(is_color | is_sharpness, magnitude_N, 1.0)))


def _per_image(value_N: Tensor) -> Tensor:
    return value_N[:, None, None, None]


def _tables(images: Tensor, index: Tensor, gray: Tensor, operation_N: Tensor, magnitude_N: Tensor) -> Tensor:
    """What the operations that see one level at a time make of all 256 -> (N, C, 256) uint8.

    `index` is (N, C, H * W) int64: the images' levels, as places in a table.
    """
    levels = torch.arange(256, device=gray.device, dtype=torch.int32)
    operation, magnitude = operation_N[:, None], magnitude_N[:, None]
    size = gray[0].numel()
    mean = (2 * gray.flatten(1).sum(1, keepdim=True, dtype=torch.int64) + size) // (2 * size)  # int(mean + 0.5)
    is_contrast = operation == CONTRAST
    factor = torch.where(is_contrast | (operation == BRIGHTNESS), magnitude, 1.0)
    table = blend(torch.where(is_contrast, mean, 0).to(torch.int32), levels, factor).to(torch.int32)
    bits = torch.where(operation == POSTERIZE, magnitude, 8.0).to(torch.int32)
    table = table & (255 << (8 - bits))
    table = torch.where(table < torch.where(operation == SOLARIZE, magnitude, 256.0), table, 255 - table)
    operation, table = operation[..., None], table[:, None]
    flat = images.flatten(2).to(torch.int16)  # not uint8: compiled for a CPU, torch's amin of uint8 is 0
    low, high = flat.amin(2, keepdim=True).to(torch.int64), flat.amax(2, keepdim=True).to(torch.int64)
    table = torch.where(operation == AUTO_CONTRAST, _auto_contrast_table(low, high, levels), table)
    return torch.where(operation == EQUALIZE, _equalize_table(index, high, levels), table).to(torch.uint8)


def _auto_contrast_table(low: Tensor, high: Tensor, levels: Tensor) -> Tensor:
    """Pillow's `int(level * scale - low * scale)` with scale = 255 / (high - low) in float64 -> (N, C, 256) int32.

    Each of its roundings shows: where the result is whole, Pillow often lands just below it. The scale is held as a
    whole number of 53 bits, so that its products are whole numbers too, and converting them to float64 is the
    rounding of the product: no compiler can fuse that with the subtraction.
    """
    span = (high - low).clamp(min=1)
    exponent = (span.to(torch.float32).view(torch.int32) >> 23) - 127  # floor(log2(span)), 0 to 7
    divisor = span << (7 - exponent)  # 128 to 255
    scale = ((255 << 52) + (divisor >> 1)) // divisor  # 2**(45 + exponent) * 255 / span, correctly rounded
    wide = torch.float32 if low.device.type == "mps" else torch.float64
    stretched = ((scale * levels).to(wide) - (scale * low).to(wide)).to(torch.int64) >> (45 + exponent)
    return torch.where(high > low, stretched.clamp(0, 255).to(torch.int32), levels)


def _equalize_table(index: Tensor, high: Tensor, levels: Tensor) -> Tensor:
    """Pillow's equalization: the running count, in steps that leave the highest level out -> (N, C, 256) int32."""
    counts = torch.zeros(*index.shape[:2], 256, dtype=torch.int32, device=index.device)
    one = torch.ones((), dtype=torch.int32, device=index.device)
    counts = counts.scatter_add(2, index, one.expand(index.shape))
    step = (index.shape[2] - counts.gather(2, high)) // 255
    below = counts.cumsum(2, dtype=torch.int32) - counts
    equalized = ((below + step // 2) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, equalized, levels)


def luma(images: Tensor) -> Tensor:
    """Pillow's conversion from RGB to "L" -> (N, 1, H, W) uint8."""
    channels = images.shape[1]
    if channels == 1:
        return images
    if channels != 3:
        total = images.sum(1, keepdim=True, dtype=torch.int32)
        return ((total + channels // 2) // channels).to(torch.uint8)
    red, green, blue = images.to(torch.int32).split(1, 1)
    return ((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16).to(torch.uint8)


def _smooth(images: Tensor) -> Tensor:
    """Pillow's SMOOTH filter: the center counts 5, its eight neighbors 1; the border stays.

    Thirteenths stay 1/26 away from the rounding's edge, so the float32 sum may be taken in any order.
    """
    x = images.to(torch.int16)
    rows = x[:, :, :-2] + x[:, :, 1:-1] + x[:, :, 2:]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * x[:, :, 1:-1, 1:-1]
    smooth = images.clone()
    smooth[:, :, 1:-1, 1:-1] = (total * (1 / 13) + 0.5).to(torch.int16).to(torch.uint8)
    return smooth


def blend(start: Tensor, end: Tensor, factor: Tensor) -> Tensor:
    """Pillow's `start + factor * (end - start)`: float32, rounded after each step, clipped and cut -> uint8.

    The factor comes in two halves of 12 bits, whose products with a difference of levels are exact: their sum is the
    rounded product, whether or not a compiler fuses the steps. A single product could be fused with the last sum.
    """
    high = (factor.view(torch.int32) & -4096).view(torch.float32)
    low = factor - high
    start = start.to(torch.float32)
    difference = end - start
    change = (low * difference).addcmul_(high, difference)
    return change.add_(start).clamp_(0, 255).to(torch.int16).to(torch.uint8)  # straight to uint8 is slow


def cutout(images: Tensor, box_N4: Tensor, color: tuple[int, int, int]) -> Tensor:
    """Paints a rectangle: left, top, right, bottom in whole pixels, the last two included; clipped to the image.

    Without three channels the color's luma is used.
    """
    left, top, right, bottom = (side[:, None, None, None] for side in box_N4.unbind(1))
    x = torch.arange(images.shape[3], device=images.device)
    y = torch.arange(images.shape[2], device=images.device)[:, None]
    inside = (x >= left) & (x <= right) & (y >= top) & (y <= bottom)
    gray = (19595 * color[0] + 38470 * color[1] + 7471 * color[2] + 32768) >> 16
    if images.shape[1] != 3:
        return torch.where(inside, gray, images)
    painted = [torch.where(inside, value, part) for value, part in zip(color, images.split(1, 1))]
    return torch.cat(painted, 1)


def flip_and_crop(
    images: Tensor, flip_N: Tensor, left_N: Tensor, top_N: Tensor, *, padding: int, size: tuple[int, int]
) -> Tensor:
    """Mirrors where told, pads all sides by reflection without repeating the border, and cuts (height, width) out.

    left and top count from the padded image's corner, so `padding` itself is the image's own corner.
    """
    height, width = images.shape[-2:]
    if padding >= min(height, width):
        raise UserError(f"padding {padding} cannot be reflected in images of {width}x{height}: use a smaller padding")
    column = _reflect(torch.arange(size[1], device=images.device) + left_N[:, None] - padding, width)
    column = torch.where(flip_N[:, None], width - 1 - column, column)
    row = _reflect(torch.arange(size[0], device=images.device) + top_N[:, None] - padding, height)
    return _pick(images.flatten(2), row[:, :, None] * width + column[:, None])


def _reflect(index: Tensor, size: int) -> Tensor:
    return (size - 1) - ((size - 1) - index.abs()).abs()


def _pick(pixels_NCP: Tensor, source_NHW: Tensor) -> Tensor:
    """Each output pixel's source, as a place among its image's pixels, the same for all channels."""
    index = source_NHW.to(torch.int64).flatten(1)[:, None].expand(-1, pixels_NCP.shape[1], -1)
    return pixels_NCP.gather(2, index).unflatten(2, source_NHW.shape[1:])
