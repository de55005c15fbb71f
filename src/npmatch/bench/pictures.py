"""JPEG files to measure with: nobody took these photographs, but they are as much work to decode."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image

DISTINCT = 64  # pictures; more files repeat their bytes
QUALITY = 95  # about 0.6 bytes a pixel at 500x375, as in ImageNet


def jpegs(width: int, height: int, count: int = DISTINCT) -> list[bytes]:
    """Smooth random pictures as JPEG files. Details are as strong as they are large, as in photographs."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(count):
        light = _clouds(rng, width, height)
        channels = [128 + 55 * light + 12 * _clouds(rng, width, height) for _ in "RGB"]
        file = BytesIO()
        Image.fromarray(np.stack(channels, 2).clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=QUALITY)
        made.append(file.getvalue())
    return made


def _clouds(rng: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Noise of about unit variance, summed over sizes from half the picture to a pixel -> (height, width)."""
    total = np.zeros((height, width), np.float32)
    cells = 2
    while cells < 2 * max(width, height):
        noise = Image.fromarray(rng.normal(size=(cells, cells)).astype(np.float32))
        total += np.asarray(noise.resize((width, height), Image.Resampling.BICUBIC)) * np.float32((2 / cells) ** 0.3)
        cells *= 2
    return total


def write_jpegs(folder: Path, files: list[bytes], number: int) -> None:
    """A folder of that many files: the given ones, and further names for them, which cost no room."""
    folder.mkdir()
    for i in range(number):
        path, first = folder / f"{i:06}.jpg", folder / f"{i % len(files):06}.jpg"
        if path == first:
            path.write_bytes(files[i])
        else:
            path.hardlink_to(first)
