"""Whatever a person gives to predict -> a name for each image, and how to read one as it is kept for training.

A folder, a file, a PIL image, an array (channels last), a tensor (channels first), or a list of single ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps
from torch import Tensor

from npmatch.data.decode import Resize, Unreadable, decode, decoded, eight_bits, fit, planes_of
from npmatch.data.folder import Walk
from npmatch.data.manifest import Root
from npmatch.errors import UserError, refuse

ACCEPTED = "a folder, a file, a PIL image, a list of these, an array (N, H, W) or (N, H, W, C), a tensor (N, C, H, W)"
ONE_IMAGE = (str, Path, Image.Image, np.ndarray, Tensor)


def read_any(images: Any, size: int, resize: Resize, channels: int) -> tuple[Sequence[str], Callable[[int], Tensor]]:
    """Names of the images, and a function that reads one of them -> (channels, size, size) uint8."""
    if isinstance(images, str | Path):
        root = Path(images)
        if root.is_dir():
            walk = Walk(Root(root, allow_outside=True))
            names = list(walk.images(""))
            refuse(f"{root}: not all of it can be read", walk.problems)
            if not names:
                raise UserError(f"{root}: holds no images")
            return names, lambda i: decode(root / names[i], size, resize, channels)
        if not root.exists():
            raise UserError(f"{root}: no such file or folder")
        images = [root]
    if isinstance(images, Image.Image):
        images = [images]
    if not isinstance(images, Sequence) or isinstance(images, bytes):
        images = _stack(images, channels)
    elif strange := {type(one).__name__ for one in images if not isinstance(one, ONE_IMAGE)}:
        raise UserError(f"images in a {type(images).__name__} of {', '.join(sorted(strange))}; give {ACCEPTED}")
    names = [str(one) if isinstance(one, str | Path) else str(i) for i, one in enumerate(images)]
    return names, lambda i: _read_one(images[i], f"image {i}", size, resize, channels)


def _read_one(image: Any, where: str, size: int, resize: Resize, channels: int) -> Tensor:
    """One of ONE_IMAGE as it is stored for training: the pixels that a lossless file of it would give."""
    if isinstance(image, str | Path):
        return decode(Path(image), size, resize, channels)
    if isinstance(image, Image.Image):
        try:
            upright = ImageOps.exif_transpose(image)  # a copy: the caller's stays as it is
        except Exception as error:  # one that was opened and not read yet, from broken bytes
            raise Unreadable(where, str(error) or type(error).__name__) from error
        return fit([decoded(upright, size, channels, where)], size, resize)
    pixels = _channels_last(image, 3)
    pixels = pixels[..., None] if pixels.ndim == 2 else pixels
    if pixels.ndim != 3 or 0 in pixels.shape:
        raise Unreadable(where, f"an array of shape {tuple(image.shape)}, not (H, W) or with channels")
    return fit(planes_of(eight_bits(pixels, where), channels, where), size, resize)


def _stack(images: Any, channels: int) -> np.ndarray:
    """Images in one array or tensor -> (N, H, W, C)."""
    pixels = _channels_last(images, 4)
    if not pixels.ndim or pixels.dtype == object:
        raise UserError(f"images of type {type(images).__name__}; give {ACCEPTED}")
    pixels = pixels[..., None] if pixels.ndim == 3 else pixels
    order = "(N, C, H, W) in a tensor" if isinstance(images, Tensor) else "(N, H, W, C) in an array"
    if pixels.ndim != 4 or 0 in pixels.shape[1:]:
        raise UserError(f"an array of shape {tuple(np.shape(images))}: images are (N, H, W) or {order}")
    if pixels.shape[3] != channels and not {pixels.shape[3], channels} <= {1, 3}:
        raise UserError(f"the images have {pixels.shape[3]} channels, not {channels}; the axes are {order}")
    return pixels


def _channels_last(images: Any, axes: int) -> np.ndarray:
    """Pixels as NumPy has them; a tensor of that many axes has its channels before height and width."""
    if not isinstance(images, Tensor):
        return np.asarray(images)
    pixels = images.detach().cpu().numpy()
    return np.moveaxis(pixels, -3, -1) if pixels.ndim == axes else pixels
