"""Data sets known by name -> `Source`: all training labels are known, and an experiment draws a few of them.

Each is taken from `<data_dir>/<name>.npz` (x_train, y_train, x_test, y_test), else from the folder torchvision keeps
it in, whose checksums it verifies. Nothing is downloaded unless asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from npmatch.data.arrays import from_arrays, read_npz
from npmatch.data.folder import IMAGENET_LAYOUT, read_folder
from npmatch.data.listing import Storing, load
from npmatch.data.source import Source
from npmatch.errors import UserError

Arrays = Mapping[str, object]

DIGITS = "0 1 2 3 4 5 6 7 8 9"
CIFAR10 = "airplane automobile bird cat deer dog frog horse ship truck"
STL10 = "airplane bird car cat deer dog horse monkey ship truck"
FASHION = "T-shirt/top Trouser Pullover Dress Coat Sandal Shirt Sneaker Bag Ankle_boot"
CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant flatfish
forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree motorcycle
mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy porcupine
possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm"""
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What is known of a data set beside its files."""

    classes: str  # names in the order of their numbers
    folder: str  # where torchvision keeps it
    read: Callable[[str, bool], Arrays]  # (data folder, download) -> named arrays
    mean: tuple[float, ...] | None = None  # of pixels in 0..255, as the papers give them
    std: tuple[float, ...] | None = None
    flip: bool = True
    first_labels: tuple[int, ...] = ()  # of the published order, to tell another one


@dataclass(frozen=True)
class Asked:
    """How a data set is to be opened."""

    data_dir: Path
    storing: Storing
    download: bool
    allow_outside: bool


def open_builtin(name: str, data_dir: Path, storing: Storing, *, download: bool, allow_outside: bool) -> Source:
    """A data set by its name."""
    return BUILTIN[name](Asked(data_dir, storing, download, allow_outside))


def _benchmark(name: str, asked: Asked) -> Source:
    known = BENCHMARKS[name]
    arrays = _arrays(name, known, asked.data_dir, asked.download)
    source = from_arrays(name, {"classes": known.classes.split(), **arrays}, asked.storing)
    first = tuple(source.labels[: len(known.first_labels)].tolist())
    return replace(
        source,
        benchmark=True,
        canonical=first == known.first_labels,
        mean=_unit(known.mean),
        std=_unit(known.std),
        flip=known.flip,
    )


def _arrays(name: str, known: Benchmark, data_dir: Path, download: bool) -> Arrays:
    file, folder = data_dir / f"{name}.npz", data_dir / known.folder
    if file.is_file():
        return read_npz(file)
    if not folder.exists() and not download:
        raise UserError(
            f"{name}: neither {file} nor {folder} exists: fetch it with --download, or say with --data-dir where it is"
        )
    try:
        return known.read(str(data_dir), download)
    except (RuntimeError, OSError) as error:  # torchvision's checksum failed, or the network did
        doing = "downloaded to" if download else "read from"
        raise UserError(f"{name}: cannot be {doing} {data_dir}: {str(error).splitlines()[0]}") from error


def _digits(asked: Asked) -> Source:
    """scikit-learn's 1,797 digits in its order; 360 of them, the same each time, are the test images."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    pixels, target = load_digits(return_X_y=True)
    images = np.rint(np.reshape(pixels, (-1, 8, 8)) * (255 / 16)).astype(np.uint8)  # from 0..16; 8 becomes 128
    source = from_arrays("digits", {"x": images, "y": target, "classes": DIGITS.split()}, asked.storing)
    _, test = train_test_split(np.arange(len(images)), test_size=360, random_state=0, stratify=target)
    parts = np.full(len(images), "train", "<U5")
    parts[test] = "test"
    return replace(source, parts=parts, benchmark=True, flip=False)


def _imagenet(asked: Asked) -> Source:
    """ImageNet as it is commonly unpacked: train/<wnid>/ and val/<wnid>/, the latter for testing."""
    data_dir, storing = asked.data_dir, asked.storing
    folder = next((folder for folder in (data_dir / "imagenet", data_dir) if (folder / "train").is_dir()), None)
    if folder is None:
        raise UserError(
            f"imagenet: neither {data_dir / 'imagenet'} nor {data_dir} holds train/<wnid>/ and val/<wnid>/: it "
            "cannot be downloaded without an account; say with --data-dir where it is"
        )
    listing = read_folder(folder, layout=IMAGENET_LAYOUT, allow_outside=asked.allow_outside)
    source = load(replace(listing, name="imagenet"), replace(storing, image_size=storing.image_size or 224, channels=3))
    return replace(source, benchmark=True, mean=IMAGENET_MEAN, std=IMAGENET_STD)


def _unit(values: tuple[float, ...] | None) -> tuple[float, ...] | None:
    return None if values is None else tuple(value / 255 for value in values)


def _cifar10(folder: str, download: bool) -> Arrays:
    from torchvision.datasets import CIFAR10

    train, test = (CIFAR10(folder, train=train, download=download) for train in (True, False))
    return _train_and_test(train.data, train.targets, test.data, test.targets)


def _cifar100(folder: str, download: bool) -> Arrays:
    from torchvision.datasets import CIFAR100

    train, test = (CIFAR100(folder, train=train, download=download) for train in (True, False))
    return _train_and_test(train.data, train.targets, test.data, test.targets)


def _fashion_mnist(folder: str, download: bool) -> Arrays:
    from torchvision.datasets import FashionMNIST

    train, test = (FashionMNIST(folder, train=train, download=download) for train in (True, False))
    return _train_and_test(train.data, train.targets, test.data, test.targets)


def _svhn(folder: str, download: bool) -> Arrays:
    from torchvision.datasets import SVHN

    train, test = (SVHN(folder, split=split, download=download) for split in ("train", "test"))
    return _train_and_test(_channels_first(train.data), train.labels, _channels_first(test.data), test.labels)


def _stl10(folder: str, download: bool) -> Arrays:
    from torchvision.datasets import STL10

    train, more, test = (STL10(folder, split=split, download=download) for split in ("train", "unlabeled", "test"))
    labeled = _train_and_test(_channels_first(train.data), train.labels, _channels_first(test.data), test.labels)
    return {**labeled, "x_unlabeled": _channels_first(more.data)}


def _train_and_test(x_train: object, y_train: object, x_test: object, y_test: object) -> Arrays:
    return {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test}


def _channels_first(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(pixels)  # what tells the order of axes is the type


# Means and deviations: spec 1.2. Mirrored clothes are clothes, so Fashion-MNIST flips; house numbers do not.
BENCHMARKS = {
    "cifar10": Benchmark(
        classes=CIFAR10,
        folder="cifar-10-batches-py",
        read=_cifar10,
        mean=(125.3, 123.0, 113.9),
        std=(63.0, 62.1, 66.7),
        first_labels=(6, 9, 9, 4, 1, 1, 2, 7, 8, 3),
    ),
    "cifar100": Benchmark(
        classes=CIFAR100,
        folder="cifar-100-python",
        read=_cifar100,
        mean=(129.3, 124.1, 112.4),
        std=(68.2, 65.4, 70.4),
        first_labels=(19, 29, 0, 11, 1, 86, 90, 28, 23, 31),
    ),
    "stl10": Benchmark(
        classes=STL10, folder="stl10_binary", read=_stl10, mean=(112.4, 109.1, 98.6), std=(68.4, 66.6, 68.5)
    ),
    "svhn": Benchmark(classes=DIGITS, folder="train_32x32.mat", read=_svhn, flip=False),
    "fashion_mnist": Benchmark(classes=FASHION, folder="FashionMNIST", read=_fashion_mnist),
}
BUILTIN: dict[str, Callable[[Asked], Source]] = {
    "digits": _digits,
    **{name: partial(_benchmark, name) for name in BENCHMARKS},
    "imagenet": _imagenet,
}
