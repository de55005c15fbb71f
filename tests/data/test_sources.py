"""Folders, manifests, arrays and benchmarks, opened; and everything a person can get wrong, told in one error."""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from npmatch.data.builtin import BENCHMARKS, CIFAR100
from npmatch.data.folder import NO_PART, Walk
from npmatch.data.manifest import Root
from npmatch.data.source import Files, Names, Source
from npmatch.data.sources import open_source
from npmatch.errors import UserError

LINKS = pytest.mark.skipif(os.name == "nt", reason="links need rights there")


def paint(path: Path, shade: int = 0, size: tuple[int, int] = (40, 30), mode: str = "RGB") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, shade if mode == "L" else (shade, shade, shade)).save(path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "pets"
    for index, name in enumerate(["labeled/dog/b.png", "labeled/cat/z.png", "labeled/cat/deep/a.png"]):
        paint(root / name, 10 * index)
    for index, name in enumerate(["unlabeled/2.png", "unlabeled/more/1.jpg", "val/cat/v.png", "test/dog/t.BMP"]):
        paint(root / name, 100 + 10 * index)
    for name in (".DS_Store", "labeled/Thumbs.db", "labeled/cat/.hidden.png", "unlabeled/__MACOSX/x.png"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"junk")
    (root / "labeled/cat/notes.heic").write_bytes(b"not read")
    return root


def problems(data: object, **options: object) -> list[str]:
    """The lines of the error that opening gives."""
    with pytest.raises(UserError) as caught:
        open_source(data, **options)  # pyright: ignore[reportArgumentType]
    return str(caught.value).splitlines()


def test_a_folder(folder: Path) -> None:
    source = open_source(folder)
    assert source.name == "pets" and source.classes == ("cat", "dog")
    assert list(source.ids) == [
        "labeled/cat/deep/a.png",
        "labeled/cat/z.png",
        "labeled/dog/b.png",
        "unlabeled/2.png",
        "unlabeled/more/1.jpg",
        "val/cat/v.png",
        "test/dog/t.BMP",
    ]
    assert source.labels.tolist() == [0, 0, 1, -1, -1, 0, 1]
    assert source.parts.tolist() == ["train"] * 5 + ["val", "test"]
    assert isinstance(source.images, torch.Tensor) and source.images.shape == (7, 3, 32, 32)
    assert source.images.flatten(1).float().mean(1).tolist() == [20, 10, 0, 100, 110, 120, 130]
    assert source.skipped == (("labeled/cat/notes.heic", "not a type of image that is read"),)
    assert not source.benchmark and source.flip and source.groups is None


def test_files_give_the_same_pixels_as_memory(folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    memory = open_source(folder, image_size=96, progress=lambda done, total: seen.append((done, total)))
    files = open_source(folder, image_size=96, max_memory=1000)
    assert isinstance(files.images, Files) and files.images.shape == (7, 3, 110, 110) and files.image_size == 96
    assert torch.equal(files.take([4, 0]), memory.take(np.array([4, 0])))
    assert files.take([]).shape == (0, 3, 110, 110)
    again = pickle.loads(pickle.dumps(files.images))
    assert torch.equal(again.decode([6]), memory.take(torch.tensor([6])))
    assert seen == [(7, 7)] * 2


def test_gray_images_stay_gray_and_size_follows_the_median(tmp_path: Path) -> None:
    for index in range(3):
        paint(tmp_path / f"labeled/{index}/x.png", index, (100, 90), "L")
    assert open_source(tmp_path).images.shape == (3, 1, 110, 110)
    assert open_source(tmp_path, channels=3, image_size=16, resize="pad").images.shape == (3, 3, 16, 16)
    paint(tmp_path / "unlabeled/color.png", 0, (500, 500))
    assert open_source(tmp_path).images.shape == (4, 3, 110, 110)


def test_fingerprint_sees_every_change(folder: Path) -> None:
    def both() -> tuple[str, str]:
        return open_source(folder).fingerprint(), open_source(folder, max_memory=0).fingerprint()

    first = both()
    assert first == both()
    source = open_source(folder)
    for change in (
        {"labels": np.where(source.labels == 1, 0, source.labels)},
        {"classes": ("cat", "fox")},
        {"parts": np.roll(source.parts, 1)},
        {"images": source.take(range(7)).flip(3).add(1)},
    ):
        assert replace(source, **change).fingerprint() != first[0]
    paint(folder / "unlabeled/2.png", 101)
    assert all(old != new for old, new in zip(first, both()))


def test_unreadable_files_are_all_named_or_skipped(folder: Path) -> None:
    (folder / "unlabeled/empty.png").touch()
    (folder / "unlabeled/text.png").write_text("no image")
    cut = folder / "unlabeled/cut.png"
    Image.fromarray(np.random.RandomState(0).randint(0, 256, (50, 50, 3), np.uint8)).save(cut)
    cut.write_bytes(cut.read_bytes()[:3000])  # its header is whole, its pixels are not
    lines = problems(folder)
    assert "3 of 10 images cannot be read" in lines[0]
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        f"unlabeled/{x}.png" for x in ("cut", "empty", "text")
    ]
    assert "2 of 10" in problems(folder, max_memory=0)[0]  # headers alone
    source = open_source(folder, skip_unreadable=True)
    assert len(source) == len(source.take(range(7))) == 7
    assert source.take(range(7)).float().mean((1, 2, 3)).tolist() == [20, 10, 0, 100, 110, 120, 130]
    assert source.labels.tolist() == [0, 0, 1, -1, -1, 0, 1]
    assert [name for name, _ in source.skipped[1:]] == [f"unlabeled/{x}.png" for x in ("cut", "empty", "text")]
    assert source.fingerprint() != open_source(folder, skip_unreadable=True, image_size=8).fingerprint()


@LINKS
def test_links_neither_loop_nor_leave(folder: Path, tmp_path: Path) -> None:
    (folder / "unlabeled/loop").symlink_to(folder / "unlabeled")
    (folder / "unlabeled/self").symlink_to(folder / "unlabeled/self")
    (folder / "labeled/cat/all").symlink_to(folder / "labeled")
    assert len(open_source(folder)) == 7
    secret = paint(tmp_path / "secret/x.png")
    (folder / "unlabeled/out.png").symlink_to(secret)
    (folder / "unlabeled/outer").symlink_to(secret.parent)
    lines = problems(folder)
    assert len(lines) == 3 and all("a link that leaves" in line for line in lines[1:])
    assert len(open_source(folder, allow_outside=True)) == 9


@LINKS
@pytest.mark.parametrize(
    ("links", "expected"),
    [
        ({"unlabeled/up": ".."}, ["unlabeled/up: leads out of unlabeled/ into the other parts: remove the link"]),
        ({"unlabeled/x": "../test", "val/dog": "cat"}, ["unlabeled/x: leads to test/", "val/dog: leads to val/cat/"]),
        ({"unlabeled/x": "../test/dog/.."}, ["unlabeled/x: leads to test/"]),
        ({"unlabeled/x": "../test/dog"}, ["unlabeled/x: leads to test/dog/"]),
        ({"unlabeled/x": "../labeled", "unlabeled/y": "more"}, ["x: leads to labeled/", "y: leads to unlabeled/more/"]),
        ({"labeled/a": "cat", "labeled/z": "cat"}, ["labeled/a: leads to labeled/cat/", "z: leads to labeled/cat/"]),
        ({"labeled/fox": "../test/dog"}, ["labeled/fox: leads to test/dog/"]),
        ({"unlabeled": "test"}, ["unlabeled: leads to test/"]),
        ({"test": "val", "unlabeled": "."}, ["test: leads to val/", "unlabeled: leads out of"]),
        ({"labeled/a": "../../pool", "unlabeled/b": "../../pool"}, ["unlabeled/b: leads to labeled/a/"]),
        ({"unlabeled/b": "../.."}, ["unlabeled/b/pets: leads out of unlabeled/"]),
    ],
)
def test_a_folder_that_two_parts_or_classes_share_is_refused(
    folder: Path, links: dict[str, str], expected: list[str]
) -> None:
    """Else test images train, and the test part is empty, and nobody knows."""
    paint(folder.parent / "pool/x.png")
    for name, target in links.items():
        if (folder / name).exists():
            shutil.rmtree(folder / name)
        (folder / name).symlink_to(target)
    found = problems(folder, allow_outside=True)[1:]
    assert len(found) == len(expected) and not any("holds no images" in line for line in found)
    assert all(any(each in line for line in found) for each in expected), found


@LINKS
def test_a_folder_to_predict_may_be_linked_twice(folder: Path) -> None:
    (folder / "unlabeled/up").symlink_to(folder)
    (folder / "unlabeled/again").symlink_to(folder / "test")
    walk = Walk(Root(folder, allow_outside=True))
    assert len(list(walk.images(""))) == 7 and walk.problems == []


def test_folders_that_are_no_parts(folder: Path) -> None:
    for name in ("raw/a.png", "text/a.png", "labels/a.png", "images.csv"):
        paint(folder / name) if name.endswith("png") else (folder / name).write_text("")
    source = open_source(folder)
    assert len(source) == 7 and source.skipped[:3] == tuple((f"{name}/", NO_PART) for name in ("labels", "raw", "text"))
    meant = {"unlabelled": "unlabeled", "validation": "val", "Test": "test", "dev": "val", "training": "labeled"}
    if (folder / "TEST").exists():  # the file system takes both for one
        del meant["Test"]
    for name in meant:
        (folder / name).mkdir()
    lines = problems(folder)
    assert [line.strip().split("?")[0] for line in lines[1:]] == [
        f"{name}/: is no part, did you mean {meant[name]}/" for name in sorted(meant)
    ]


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (lambda root: (root / "labeled/empty").mkdir(), "labeled/empty: holds no images"),
        (lambda root: paint(root / "labeled/loose.png"), "labeled/loose.png: lies in no class folder"),
        (
            lambda root: paint(root / "test/zebra/x.png"),
            "'zebra' is not a class of the training images: label some of them so (in folders: labeled/zebra/)",
        ),
        (lambda root: (root / "labeled").rename(root / "labelled"), "no folder labeled/ (found: labelled"),
        (lambda root: (root / "labeled/cat").rename(root / "cat"), "only the class 'dog' has labeled"),
    ],
)
def test_what_is_wrong_with_a_folder(folder: Path, spoil: Callable[[Path], object], expected: str) -> None:
    spoil(folder)
    assert any(expected in line for line in problems(folder))


def test_a_class_folder_may_have_any_name(tmp_path: Path) -> None:
    for name in ("nan", "None", "-2"):
        paint(tmp_path / "labeled" / name / "x.png")
    assert open_source(tmp_path).classes == ("-2", "None", "nan")


@pytest.mark.parametrize("max_memory", [0, 2**30])
def test_channels_that_no_file_can_have_are_the_fault_of_the_setting(folder: Path, max_memory: int) -> None:
    (line,) = problems(folder, channels=2, max_memory=max_memory)
    assert line.startswith("data.channels=2: ") and "1 or 3" in line and "--skip-unreadable" not in line
    np.save(folder / "unlabeled/many.npy", np.zeros((40, 40, 5), np.uint8))
    assert "unlabeled/many.npy: has 5 channels, not 3" in problems(folder, channels=3)[1]
    (line,) = problems((np.zeros((4, 8, 8, 5), np.uint8), [0, 1, 0, 1]), channels=3)
    assert line.startswith("data.channels=3: ") and "5" in line


def test_unicode_and_long_names(tmp_path: Path) -> None:
    for name in ("köter", "猫", "x" * 200):
        paint(tmp_path / "labeled" / name / f"{'n' * 240}.png")
    source = open_source(tmp_path)
    assert source.classes == tuple(sorted(("köter", "猫", "x" * 200)))
    assert source.ids[0].endswith(f"{'n' * 240}.png")
    names = Names(["a", "", "猫", "b\n"])
    assert list(names) == names[:] == ["a", "", "猫", "b\n"] and names[-2] == "猫" and len(names) == 4
    with pytest.raises(IndexError):
        names[4]


def test_arrays_and_npz(tmp_path: Path) -> None:
    pixels = np.random.RandomState(0).randint(0, 256, (6, 10, 10, 3), np.uint8)
    labels = np.array([5, -1, 9, 5, -1, 9])
    pair = open_source((pixels, labels))
    assert pair.classes == ("5", "9") and pair.labels.tolist() == [0, -1, 1, 0, -1, 1]
    assert torch.equal(pair.take(range(6)), torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy()))
    tensors = open_source((torch.from_numpy(pixels).permute(0, 3, 1, 2), torch.from_numpy(labels)[:, None]))
    assert tensors.fingerprint() == pair.fingerprint()
    np.savez(tmp_path / "one.npz", images=pixels[..., 0], labels=np.array(["b", "", "a", "b", "", "a"]))
    source = open_source(tmp_path / "one.npz")
    assert source.classes == ("a", "b") and source.labels.tolist() == [1, -1, 0, 1, -1, 0]
    assert source.images.shape == (6, 1, 10, 10)
    np.savez(
        tmp_path / "parts.npz",
        **{
            "x_test": pixels[:1],
            "y_test": [1],
            "x_train": pixels[1:4],
            "y_train": [0, 2, 1],
            "x_unlabeled": pixels[4:],
        },
        classes=["z", "y", "x"],
    )
    source = open_source(tmp_path / "parts.npz", image_size=5, channels=1)
    assert source.classes == ("z", "y", "x") and source.labels.tolist() == [0, 2, 1, -1, -1, 1]
    assert source.parts.tolist() == ["train"] * 5 + ["test"] and list(source.ids) == list("012345")
    half = Image.fromarray(pixels[1]).convert("L").resize((5, 5), Image.Resampling.BILINEAR)
    assert np.array_equal(source.take([0])[0, 0].numpy(), np.asarray(half))
    assert open_source((np.zeros((2, 100, 300), np.uint8), [0, 1])).images.shape == (2, 1, 110, 110)
    named = {"x": pixels[:3], "y": [1.0, np.nan, 0.0], "classes": ["none", "nan"]}
    assert open_source(named).classes == ("none", "nan") and open_source(named).labels.tolist() == [1, -1, 0]


PAIR = np.zeros((2, 4, 4), np.uint8)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ((np.zeros((2, 4, 4), np.int64), [0, 1]), "type int64"),
        ((np.full((2, 4, 4), 7.0), [0, 1]), "0..1"),
        ((np.zeros((2, 3, 32, 32), np.uint8), [0, 1]), r"The axes must be (N, H, W, C)"),
        ((np.zeros((2, 4), np.uint8), [0, 1]), "not images"),
        ((np.zeros((2, 4, 4), np.uint8), [0, 1, 1]), "for 2 images"),
        ((np.zeros((2, 4, 4), np.uint8), [0.5, 1]), "0.5 is not a class"),
        ((np.zeros((2, 4, 4), np.uint8), [0, 0]), "only the class '0' has"),
        ((np.zeros((2, 4, 4), np.uint8), [-1, -1]), "no class has"),
        ((np.zeros((2, 4, 4), np.uint8), np.array([1, "1"], object)), "text, the one at image 0 a number"),
        ((np.zeros((2, 4, 4), np.uint8), [0, 1], 3), "a pair"),
        ((np.zeros((2, 4, 4), np.uint8), [0, -2]), "image 1: -2 is not a class: only -1 means no label"),
        ({"x": PAIR, "y": [0, 9], "classes": ["a", "b"]}, "classes has 2 names and the labels go up to 9"),
        ({"x": PAIR, "y": ["a", "c"], "classes": ["a", "b"]}, "image 1: 'c' is not a class"),
        ({"x_train": PAIR, "y_train": [0, 1], "x_tset": PAIR}, "x_tset (did you mean x_test?)"),
        ({"x_train": PAIR, "y_train": [0, 1], "y_test": PAIR}, "y_test has no x_test beside it"),
        ({"x": PAIR, "y": [0, 1], "class": ["a"], "z": 1}, "class (did you mean classes?), z: the names read with x"),
        ({"x_train": np.zeros((2, 4, 4), np.uint8)}, "no y_train"),
        ({"z": 1}, "holds z"),
        (np.zeros((2, 4, 4), np.uint8), "give (images, labels)"),
        ("digit", "did you mean 'digits'"),
        ("nul\0", "no such file"),
    ],
)
def test_what_is_wrong_with_objects(data: object, expected: str) -> None:
    assert expected in "\n".join(problems(data))


def test_npz_holds_no_pickles(tmp_path: Path) -> None:
    np.savez(tmp_path / "bad.npz", x=np.array([object()]), y=[1], allow_pickle=True)
    (tmp_path / "text.npz").write_text("no")
    for name in ("bad.npz", "text.npz"):
        assert "not an .npz file of plain arrays" in problems(tmp_path / name)[0]


def test_digits_are_scikit_learns() -> None:
    from sklearn.datasets import load_digits

    digits, source = load_digits(), open_source("digits")
    assert source.images.shape == (1797, 1, 8, 8) and source.image_size == 8
    assert np.array_equal(np.rint(digits.images * 255 / 16), source.take(range(1797))[:, 0].numpy())  # pyright: ignore
    assert np.array_equal(source.labels, digits.target)  # pyright: ignore[reportAttributeAccessIssue]
    assert source.benchmark and not source.flip and (source.parts == "test").sum() == 360
    counts = np.bincount(source.labels[source.parts == "test"])
    assert counts.min() >= 34 and counts.max() <= 37


def test_benchmarks_from_npz_and_where_they_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = problems("cifar10", data_dir=tmp_path)[0]
    assert "cifar10.npz" in line and "cifar-10-batches-py" in line and "--download" in line
    monkeypatch.setenv("NPMATCH_DATA", str(tmp_path))
    assert str(tmp_path) in problems("svhn")[0]
    first = [6, 9, 9, 4, 1, 1, 2, 7, 8, 3, 0, 5]
    images = np.zeros((12, 32, 32, 3), np.uint8)
    np.savez(tmp_path / "cifar10.npz", x_train=images, y_train=first, x_test=images[:2], y_test=[0, 1])
    source = open_source("cifar10")
    assert source.classes[6] == "frog" and source.labels[:12].tolist() == first and source.benchmark
    assert source.mean == pytest.approx((0.4914, 0.4824, 0.4467), abs=1e-4) and source.canonical
    np.savez(tmp_path / "cifar10.npz", x_train=images, y_train=first[::-1], x_test=images[:2], y_test=[0, 1])
    assert not open_source("cifar10").canonical
    assert len(set(CIFAR100.split())) == 100 and CIFAR100.split() == sorted(CIFAR100.split())
    (tmp_path / "stl10_binary").mkdir()
    assert "cannot be read from" in problems("stl10")[0]


def test_torchvision_sets_keep_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for the downloads: the order is train, unlabeled, test, with the axes as torchvision gives them."""
    shades = {"train": 1, "unlabeled": 2, "test": 3}

    class Stl:
        def __init__(self, root: str, split: str, download: bool) -> None:
            assert root == str(tmp_path) and download
            self.data = np.full((10, 3, 96, 96), shades[split], np.uint8)
            self.data[:, 0] += 100
            self.labels = np.full(10, -1) if split == "unlabeled" else np.arange(10, dtype=np.uint8)

    monkeypatch.setattr("torchvision.datasets.STL10", Stl)
    source = open_source("stl10", data_dir=tmp_path, download=True)
    assert source.take([0, 10, 20])[:, :, 5, 5].tolist() == [[101, 1, 1], [102, 2, 2], [103, 3, 3]]
    assert source.labels.tolist() == [*range(10), *[-1] * 10, *range(10)] and source.image_size == 96
    assert source.parts.tolist() == ["train"] * 20 + ["test"] * 10
    assert set(BENCHMARKS) == {"cifar10", "cifar100", "stl10", "svhn", "fashion_mnist"}


def test_imagenet_is_a_folder(tmp_path: Path) -> None:
    assert "train/<wnid>" in problems("imagenet", data_dir=tmp_path)[0]
    for name in ("train/n02/a.JPEG", "train/n01/b.JPEG", "val/n02/c.JPEG"):
        paint(tmp_path / name)
    source: Source = open_source("imagenet", data_dir=tmp_path)
    assert source.parts.tolist() == ["train", "train", "test"] and source.classes == ("n01", "n02")
    (tmp_path / "test").mkdir()  # as ImageNet comes
    assert len(open_source("imagenet", data_dir=tmp_path)) == 3
    assert source.benchmark and source.images.shape == (3, 3, 256, 256) and source.mean == (0.485, 0.456, 0.406)
