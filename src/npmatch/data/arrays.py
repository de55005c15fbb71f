"""Images that are already arrays -> `Source`: .npz files, NumPy arrays (channels last), torch tensors (channels first).

Names: x or images with y or labels; or x_train, y_train and any of x_unlabeled, x_val, y_val, x_test, y_test. Labels
are numbers or text, -1 or "" for none; `classes` may give the names of the numbers. Any other name is refused.
"""

from __future__ import annotations

import difflib
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from npmatch.data.decode import default_image_size, eight_bits, fit, planes_of, stored_size
from npmatch.data.labels import number, read_labels
from npmatch.data.listing import Storing, check_channels
from npmatch.data.source import Names, Source
from npmatch.errors import UserError, refuse

# (part, images, labels), in the source's order; the first of a layout must be there
LAYOUTS = (
    (
        ("train", "x_train", "y_train"),
        ("train", "x_unlabeled", ""),
        ("val", "x_val", "y_val"),
        ("test", "x_test", "y_test"),
    ),
    (("train", "x", "y"),),
    (("train", "images", "labels"),),
)
MOST_CHANNELS = 16  # above it an axis is more likely a height


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file. Pickled objects are refused."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"{path}: not an .npz file of plain arrays ({str(error).splitlines()[0]})") from error


def from_arrays(name: str, arrays: Mapping[str, object], storing: Storing) -> Source:
    """The source made of named arrays, in the order train, unlabeled, val, test."""
    images: list[Tensor] = []
    values: list[object] = []
    parts: list[str] = []
    for part, images_name, labels_name in _sets(name, arrays):
        pixels = _images(arrays[images_name], f"{name}: {images_name}")
        images.append(pixels)
        values += _labels(arrays.get(labels_name), len(pixels), f"{name}: {labels_name}")
        parts += [part] * len(pixels)
    if len({pixels.shape[1:] for pixels in images}) != 1:
        shapes = ", ".join(str(tuple(pixels.shape[1:])) for pixels in images)
        raise UserError(f"{name}: the images differ in shape (channels, height, width): {shapes}")

    places = [f"image {index}" for index in range(len(parts))]
    classes = _class_names(arrays)
    texts, problems = read_labels(values, places)
    if classes is not None:
        texts = _named(name, values, texts, classes)
    labels, classes, more = number(texts, parts, places, classes)
    refuse(f"{name}: the labels do not fit together", problems + more)
    pixels, image_size = _fitted(torch.cat(images), storing, name)
    return Source(
        name=name,
        images=pixels,
        image_size=image_size,
        labels=labels,
        classes=classes,
        parts=np.array(parts),
        ids=Names(str(index) for index in range(len(parts))),
    )


def _sets(name: str, arrays: Mapping[str, object]) -> list[tuple[str, str, str]]:
    """The sets that are there, of the first layout that fits. Labels may be missing only where that is their mark."""
    layout = next((layout for layout in LAYOUTS if layout[0][1] in arrays), None)
    if layout is None:
        found = ", ".join(arrays) or "nothing"
        raise UserError(f"{name}: holds {found}: it needs x and y, or x_train and y_train (and x_test, y_test)")
    _refuse_others(name, arrays, [*(each for _, *names in layout for each in names if each), "classes"])
    for _, images_name, labels_name in layout:
        if labels_name and labels_name not in arrays and images_name in arrays:
            raise UserError(f"{name}: {images_name} has no {labels_name} beside it (-1 marks images without label)")
        if labels_name in arrays and images_name not in arrays:
            raise UserError(f"{name}: {labels_name} has no {images_name} beside it: add the images or leave it out")
    return [each for each in layout if each[1] in arrays]


def _refuse_others(name: str, arrays: Mapping[str, object], known: Sequence[str]) -> None:
    """A name that is misspelt would be missing without a word."""
    free = [each for each in known if each not in arrays]
    others: list[str] = []
    for other in map(str, arrays):
        if other not in known:
            near = difflib.get_close_matches(other, free, n=1)
            others.append(f"{other} (did you mean {near[0]}?)" if near else other)
    if others:
        raise UserError(f"{name}: holds {', '.join(others)}: the names read with {known[0]} are {', '.join(known[1:])}")


def _images(array: object, what: str) -> Tensor:
    """Images as (N, C, H, W) uint8."""
    channels_first = isinstance(array, Tensor)
    pixels = array.detach().cpu().numpy() if isinstance(array, Tensor) else np.asarray(array)
    if pixels.ndim == 3:
        pixels = pixels[:, None] if channels_first else pixels[..., None]
    if pixels.ndim != 4 or 0 in pixels.shape:
        raise UserError(f"{what}: an array of shape {pixels.shape}, not images (N, H, W) or with channels")
    if not channels_first:
        pixels = pixels.transpose(0, 3, 1, 2)
    if pixels.shape[1] > MOST_CHANNELS:
        order = "(N, C, H, W)" if channels_first else "(N, H, W, C)"
        raise UserError(f"{what}: {pixels.shape[1]} channels? The axes must be {order}")
    return torch.from_numpy(eight_bits(pixels, what))


def _labels(array: object, count: int, what: str) -> list[object]:
    """One label for each image, all None where there is no array of them."""
    if array is None:
        return [None] * count
    labels = array.cpu().numpy() if isinstance(array, Tensor) else np.asarray(array)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.shape != (count,):
        raise UserError(f"{what}: labels of shape {labels.shape} for {count} images: one label for each is needed")
    return labels.tolist()


def _class_names(arrays: Mapping[str, object]) -> list[str] | None:
    return [str(name) for name in np.asarray(arrays["classes"]).tolist()] if "classes" in arrays else None


def _named(
    name: str, values: Sequence[object], texts: Sequence[str | None], classes: Sequence[str]
) -> list[str | None]:
    """The labels with class names for numbers; text is a name already."""
    numbers = [int(v) if isinstance(v, (int, float)) and v >= 0 and v % 1 == 0 else -1 for v in values]
    if (largest := max(numbers, default=-1)) >= len(classes):
        raise UserError(
            f"{name}: classes has {len(classes)} names and the labels go up to {largest}: give a name for each number "
            "from 0 on"
        )
    return [text if number < 0 else classes[number] for number, text in zip(numbers, texts)]


def _fitted(pixels: Tensor, storing: Storing, name: str) -> tuple[Tensor, int]:
    """Images at the stored size, and the size training sees. Squares are left as they are unless another is asked."""
    _, have, height, width = pixels.shape
    check_channels(storing.channels, [have], name)
    channels = storing.channels or have
    if height == width and storing.image_size in (None, height):
        image_size = size = height
    else:
        image_size = storing.image_size or default_image_size([min(height, width)])
        size = stored_size(image_size)
    size = storing.kept_size or size
    if (height, width, have) == (size, size, channels):
        return pixels.contiguous(), image_size
    images = (planes_of(image.permute(1, 2, 0).contiguous().numpy(), channels, name) for image in pixels)
    return torch.stack([fit(planes, size, storing.resize) for planes in images]), image_size
