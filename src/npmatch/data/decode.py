"""One image, from a file or bytes, to the square of uint8 pixels the library keeps. Training and prediction both
read through here, so they see the same pixels.

JPEG, PNG, WEBP, BMP, GIF and TIFF are read, the first frame of each, and .npy arrays (H, W) or (H, W, C). Pillow's
other formats are never tried: some start other programs (EPS), some have let attackers in (FITS).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, Literal, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from npmatch.errors import UserError

Resize = Literal["crop", "squash", "pad"]

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
EXTENSIONS = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".npy")
)
MAX_PIXELS = 64_000_000  # checked in the header: a PNG of 10 kB can ask for gigabytes
NPY_MAGIC = b"\x93NUMPY"
GRAY_MODES = frozenset(("1", "L", "LA", "La", "I", "I;16", "I;16B", "I;16L", "I;16N", "F"))


class Unreadable(UserError):
    """An image that cannot be read. `reason` says why, without the name."""

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(where, reason)  # both, so that it survives the way back from a worker process
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.args[0]}: {self.reason}"


class Header(NamedTuple):
    """What is known of an image before it is decoded."""

    short_side: int
    channels: int  # 1 gray, 3 color, or what a .npy array holds


def stored_size(image_size: int) -> int:
    """The side of the squares kept for training at `image_size`.

    Small images (64 or less) are kept at that size: training shifts them by a padded crop. Larger ones keep a margin
    of 8/7 (256 for 224), from which training cuts a random resized crop and evaluation the center.
    """
    return image_size if image_size <= 64 else round(image_size * 8 / 7)


def default_image_size(short_sides: Sequence[int]) -> int:
    """32, 96 or 224: where the median short side is at most 48, at most 144, or above."""
    median = float(np.median(short_sides))
    return 32 if median <= 48 else 96 if median <= 144 else 224


def read_header(image: str | Path | bytes) -> Header:
    """Size and channels of an image, from its first bytes. Raises Unreadable."""
    with _opened(image) as (file, where):
        if _is_npy(file):
            pixels = _npy(image, where)
            return Header(min(pixels.shape[:2]), pixels.shape[2])
        picture = _picture(file, where)
        return Header(min(picture.size), 1 if picture.mode in GRAY_MODES else 3)


def decode(image: str | Path | bytes, size: int, resize: Resize = "crop", channels: int = 3) -> Tensor:
    """An image file as (channels, size, size) uint8. Raises Unreadable.

    `crop` keeps the centered square, `squash` the whole image with its aspect distorted, `pad` the whole image on
    black. Transparent pixels show white, as in a viewer, so that dark drawings stay visible. 16 bits become 8 by
    rounding v / 257, floats from 0..1 by 255 v. Rotation noted in EXIF is applied.
    """
    with _opened(image) as (file, where):
        if _is_npy(file):
            planes = planes_of(eight_bits(_npy(image, where), where), channels, where)
        else:
            planes = [decoded(_picture(file, where), size, channels, where)]
    return fit(planes, size, resize)


def fit(planes: Sequence[Image.Image], size: int, resize: Resize) -> Tensor:
    """Pillow images, the channels of one image in order, as one square (C, size, size) uint8."""
    pixels = [np.atleast_3d(np.asarray(_square(plane, size, resize))) for plane in planes]  # each (size, size, c)
    return torch.from_numpy(np.ascontiguousarray(np.concatenate(pixels, axis=2).transpose(2, 0, 1)))


def planes_of(pixels_HWC: np.ndarray, channels: int, where: str) -> list[Image.Image]:
    """A uint8 array as Pillow images with that many channels in all: gray and color are made from each other."""
    have = pixels_HWC.shape[2]
    if {have, channels} <= {1, 3}:
        whole = Image.fromarray(pixels_HWC[:, :, 0] if have == 1 else pixels_HWC)
        return [whole.convert("L" if channels == 1 else "RGB")]
    if have != channels:
        raise Unreadable(where, f"has {have} channels, not {channels}")
    return [Image.fromarray(np.ascontiguousarray(pixels_HWC[:, :, channel])) for channel in range(have)]


def eight_bits(pixels: np.ndarray, where: str) -> np.ndarray:
    """Pixels of any accepted type as uint8, on a fixed scale: images of one set stay comparable."""
    if pixels.dtype == np.uint8:
        return pixels
    if pixels.dtype == np.bool_:
        return pixels.astype(np.uint8) * 255
    if pixels.dtype.kind == "u" and pixels.dtype.itemsize == 2:
        return ((pixels.astype(np.uint32) + 128) // 257).astype(np.uint8)
    if pixels.dtype.kind == "f":
        if not (np.isfinite(pixels).all() and pixels.min() >= 0 and pixels.max() <= 1):
            raise Unreadable(where, "float pixels must lie in 0..1: scale them, or store 8 or 16 bits")
        return np.rint(pixels * 255).astype(np.uint8)
    raise Unreadable(where, f"pixels of type {pixels.dtype}: convert them to uint8, uint16 or floats in 0..1")


@contextmanager
def _opened(image: str | Path | bytes) -> Iterator[tuple[BinaryIO, str]]:
    """The bytes of an image and its name for messages. Opening a pipe or a device could hang: only files are."""
    if isinstance(image, bytes):
        if not image:
            raise Unreadable("image", "the file is empty")
        yield BytesIO(image), "image"
        return
    try:
        status = os.stat(image)
        if not stat.S_ISREG(status.st_mode):
            raise Unreadable(str(image), "not a regular file")
        if status.st_size == 0:
            raise Unreadable(str(image), "the file is empty")
        file = open(image, "rb")  # noqa: SIM115, closed below: errors of whoever reads it are not errors of opening
    except FileNotFoundError as error:
        raise Unreadable(str(image), "no such file") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise Unreadable(str(image), f"cannot be opened ({error})") from error
    with file:
        yield file, str(image)


def _is_npy(file: BinaryIO) -> bool:
    magic = file.read(len(NPY_MAGIC))
    file.seek(0)
    return magic == NPY_MAGIC


def _npy(image: str | Path | bytes, where: str) -> np.ndarray:
    """An array (H, W, C) that is not read yet when it lies in a file."""
    try:
        if isinstance(image, bytes):
            pixels = np.load(BytesIO(image), allow_pickle=False)
        else:
            pixels = np.load(image, mmap_mode="r", allow_pickle=False)
    except Exception as error:
        raise Unreadable(where, f"not an array of numbers ({_first_line(error)})") from error
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.ndim != 3 or 0 in pixels.shape:
        raise Unreadable(where, f"an array of shape {pixels.shape}, not (H, W) or (H, W, C)")
    _check_pixels(pixels.shape[1], pixels.shape[0], where)
    return pixels


def _picture(file: BinaryIO, where: str) -> Image.Image:
    """A Pillow image of which only the header has been read."""
    try:
        picture = Image.open(file, formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise Unreadable(where, f"more than {MAX_PIXELS // 10**6} million pixels") from error
    except Image.UnidentifiedImageError as error:
        raise Unreadable(where, "not a JPEG, PNG, WEBP, BMP, GIF or TIFF image") from error
    except Exception as error:  # whatever a parser makes of broken bytes
        raise Unreadable(where, _first_line(error)) from error
    _check_pixels(*picture.size, where)
    return picture


def decoded(picture: Image.Image, size: int, channels: int, where: str) -> Image.Image:
    """The picture in mode L or RGB, upright. Large JPEGs are decoded at 1/2, 1/4 or 1/8 of their size, never below
    twice the size wanted, which is several times faster."""
    if channels not in (1, 3):
        raise Unreadable(where, f"an image has 1 or 3 channels, not {channels}: use .npy arrays")
    try:
        picture.draft(None, (2 * size, 2 * size))
        picture = ImageOps.exif_transpose(picture)
    except Exception as error:  # whatever a decoder makes of broken bytes
        raise Unreadable(where, _first_line(error)) from error
    return _flat(picture, where).convert("L" if channels == 1 else "RGB")


def _flat(picture: Image.Image, where: str) -> Image.Image:
    """8 bits and no transparency. Pillow alone would clip 16-bit gray: all above 255 becomes white."""
    if picture.mode == "I":
        pixels = np.asarray(picture)
        if pixels.min() < 0 or pixels.max() > 65535:
            raise Unreadable(where, "32-bit pixels beyond 0..65535: store 8 or 16 bits")
        return Image.fromarray(eight_bits(pixels.astype(np.uint16), where))
    if picture.mode == "F" or picture.mode.startswith("I;16"):
        return Image.fromarray(eight_bits(np.asarray(picture), where))
    if picture.has_transparency_data:
        white = Image.new("RGBA", picture.size, "white")
        white.alpha_composite(picture.convert("RGBA"))
        return white.convert("RGB")
    return picture


def _square(plane: Image.Image, size: int, resize: Resize) -> Image.Image:
    width, height = plane.size
    if resize == "squash":
        return plane.resize((size, size), Image.Resampling.BILINEAR)
    if resize == "crop":
        # The same as resizing all and cutting the center, but a strip of 1 x 60,000 pixels would then need gigabytes.
        side = min(width, height)
        left, top = (width - side) // 2, (height - side) // 2
        box = (left, top, left + side, top + side)
        return plane.resize((size, size), Image.Resampling.BILINEAR, box=box)
    scale = size / max(width, height)
    inner = (max(1, round(width * scale)), max(1, round(height * scale)))
    canvas = Image.new(plane.mode, (size, size))
    place = ((size - inner[0]) // 2, (size - inner[1]) // 2)
    canvas.paste(plane.resize(inner, Image.Resampling.BILINEAR), place)
    return canvas


def _check_pixels(width: int, height: int, where: str) -> None:
    if width * height > MAX_PIXELS:
        raise Unreadable(where, f"{width} x {height} is more than {MAX_PIXELS // 10**6} million pixels")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
