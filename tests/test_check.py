"""`npmatch check`: what is found in a data set, against what was planted there, and the contact sheet."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from npmatch.build import build_views
from npmatch.check import Checked, check, unevenness
from npmatch.cli import main
from npmatch.config import override
from npmatch.contact_sheet import CAPTION, GAP, HEADING, MARGIN, choose, columns, contact_sheet, corners
from npmatch.data.check import examine
from npmatch.data.normal import Normal
from npmatch.data.source import Files, Source
from npmatch.data.sources import open_source
from npmatch.data.stream import Batches, Pool, Stream
from npmatch.plan import Opening
from npmatch.presets import BUILTIN, preset
from npmatch.progress import Silent


def source(images: Tensor, labels: Any, parts: Any, *, benchmark: bool = False) -> Source:
    labels = np.asarray(labels, np.int64)
    classes = tuple("abcdefgh"[: labels.max() + 1])
    ids = [f"image {i}" for i in range(len(labels))]
    return Source(
        name="planted", images=images, image_size=images.shape[2], labels=labels, classes=classes,
        parts=np.array(parts), ids=ids, benchmark=benchmark,
    )  # fmt: skip


def distinct(count: int, size: int = 8, channels: int = 3) -> Tensor:
    images = torch.randint(0, 256, (count, channels, size, size), generator=torch.Generator().manual_seed(0))
    return images.to(torch.uint8)


def painted(path: Path, seed: int, size: tuple[int, int] = (40, 30), mode: str = "RGB", **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.RandomState(seed).randint(0, 256, (size[1], size[0], 3), np.uint8)
    if mode == "I;16":
        Image.fromarray(pixels[..., 0].astype(np.uint16) * 256).save(path)
    else:
        Image.fromarray(pixels).convert(mode).save(path, **options)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "pets"
    for k, name in enumerate(("cat", "dog", "fox")):
        for i in range(3):
            painted(root / f"labeled/{name}/{i}.png", 10 * k + i)
    for i in range(4):
        painted(root / f"unlabeled/{i}.png", 100 + i)
    for i in range(2):
        painted(root / f"test/cat/{i}.png", 200 + i)
    return root


def look(data: object, changes: dict[str, Any] | None = None, **opening: Any) -> Checked:
    return check(data, changes or {}, preset_name="quick", opening=Opening(**opening), progress=Silent())


def command(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["npmatch", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("seed", range(6))
def test_copies_and_conflicts_are_those_of_a_pairwise_comparison(seed: int) -> None:
    """Images of so few pixels that most have a copy somewhere."""
    chance = np.random.RandomState(seed)
    count = 60
    images = torch.from_numpy(chance.randint(0, 2, (count, 1, 2, 3)).astype(np.uint8))
    parts = chance.choice(["train", "val", "test"], count, p=[0.6, 0.2, 0.2])
    labels = np.where((parts == "train") & (chance.rand(count) < 0.5), -1, chance.randint(0, 3, count))
    found = examine(source(images, labels, parts, benchmark=seed % 2 == 1))

    same = (images[:, None] == images).flatten(2).all(2).numpy()
    known = "pool" if seed % 2 else "labeled"
    where = np.array([part if part != "train" else known if y >= 0 else "unlabeled" for part, y in zip(parts, labels)])
    names = (known, "unlabeled", "val", "test")
    rows = {name: np.flatnonzero(where == name) for name in names}
    assert found.counts == {name: len(rows[name]) for name in names}
    for name in names:
        earlier = np.tril(same[np.ix_(rows[name], rows[name])], -1)
        assert found.within[name] == earlier.any(1).sum()
    assert [copies.parts for copies in found.between] == list(combinations(names, 2))
    for copies in found.between:
        block = same[np.ix_(rows[copies.parts[0]], rows[copies.parts[1]])]
        assert copies.images == (block.any(1).sum(), block.any(0).sum())
        for a, b in copies.examples:
            assert same[int(a[6:]), int(b[6:])] and (where[int(a[6:])], where[int(b[6:])]) == copies.parts
    differing = same & (labels[:, None] != labels) & (labels[:, None] >= 0) & (labels >= 0)
    assert found.conflicts.images == differing.any(1).sum()
    for a, of_a, b, of_b in found.conflicts.examples:
        assert differing[int(a[6:]), int(b[6:])] and {of_a, of_b} <= set("abc")
    flat = images.flatten(2)
    assert found.plain == tuple(f"image {i}" for i in range(count) if (flat[i] == flat[i, :, :1]).all())


def test_a_leak_as_in_stl10_is_told() -> None:
    """Most test images lie among the unlabeled ones, some of them twice."""
    images = distinct(130).permute(0, 2, 3, 1).numpy()
    images[40:58] = images[110:128]
    images[60:63] = images[110:113]
    labels = np.arange(20) % 2
    checked = look({
        "x_train": images[:20], "y_train": labels, "x_unlabeled": images[20:110],
        "x_test": images[110:], "y_test": labels,
    })  # fmt: skip
    leak = next(copies for copies in checked.findings.between if copies.parts == ("unlabeled", "test"))
    assert leak.images == (21, 18) and leak.examples[0] == ("40", "110")
    (told,) = checked.warnings
    assert told.startswith("test: 18 of 20 images (90.0%) stand in unlabeled too, pixel for pixel")
    assert checked.to_dict()["duplicates"]["within"] == {"labeled": 0, "unlabeled": 3, "val": 0, "test": 0}
    assert checked.to_dict()["duplicates"]["between"]["unlabeled+test"] == 18


def test_files_one_by_one_give_what_memory_gives_and_their_headers(tmp_path: Path) -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    painted(tmp_path / "labeled/a/upright.jpg", 0, (60, 40))
    painted(tmp_path / "labeled/a/turned.jpg", 1, (60, 40), exif=turned)
    painted(tmp_path / "labeled/a/photo.tif", 2, (50, 50), "CMYK")
    painted(tmp_path / "labeled/b/gray.png", 3, (31, 33), "L")
    painted(tmp_path / "labeled/b/deep.png", 4, (200, 20), "I;16")
    painted(tmp_path / "test/a/color.png", 5, (60, 40))
    painted(tmp_path / "unlabeled/same pixels.bmp", 5, (60, 40))
    np.save(tmp_path / "unlabeled/array.npy", np.zeros((25, 45, 3), np.uint8))
    files = open_source(tmp_path, max_memory=0)
    assert isinstance(files.images, Files)
    streamed, kept = examine(files), examine(open_source(tmp_path))
    assert replace(streamed, originals=None) == kept
    assert kept.originals is None and kept.within["unlabeled"] == 0 and kept.plain == ("unlabeled/array.npy",)
    assert [copies.images for copies in kept.between if copies.parts == ("unlabeled", "test")] == [(1, 1)]
    seen = streamed.originals
    assert seen is not None
    assert (seen.width, seen.height, seen.distinct) == ((31, 60, 200), (20, 40, 50), 5)
    assert seen.modes == {"RGB": 4, "CMYK": 1, "L": 1, "I;16": 1, "array uint8": 1}
    assert seen.formats == {"PNG": 3, "JPEG": 2, "TIFF": 1, "BMP": 1, "NPY": 1}
    assert seen.rotated == 1 and seen.beyond_square == pytest.approx(1 / 3)


def test_a_clean_folder_needs_no_warning(folder: Path) -> None:
    checked = look(folder)
    assert checked.refusals == () and checked.warnings == ()
    said = "\n".join(checked.advice)
    assert "views.flip=false" in said and "9 labels in 3 classes" in said and "45 held-out labels" in said
    assert checked.findings.counts == {"labeled": 9, "unlabeled": 4, "val": 0, "test": 2}
    assert checked.findings.class_counts["cat"] == {"labeled": 3, "val": 0, "test": 2}
    assert unevenness(checked.findings) == 1
    assert "views.flip" not in "\n".join(look(folder, {"views.flip": False}).advice)


def test_what_a_person_should_know_is_said(folder: Path) -> None:
    for i in range(3, 12):
        painted(folder / f"labeled/dog/{i}.png", 50 + i, (90, 30))
    for i in (1, 2):
        (folder / f"labeled/fox/{i}.png").unlink()
    painted(folder / "unlabeled/wide.png", 60, (90, 30))
    painted(folder / "labeled/cat/dog.png", 10)
    Image.new("RGB", (30, 30), "navy").save(folder / "unlabeled/blank.png")
    for image in (folder / "test/cat").iterdir():
        image.unlink()
    checked = look(folder)
    conflict, plain, few, uneven, unmeasured = checked.warnings
    assert "labeled/cat/dog.png is cat, labeled/dog/0.png is dog" in conflict
    assert "unlabeled/blank.png" in plain and "fox" in few
    assert "12.0 times as many of dog as of fox" in uneven and "will not be known" in unmeasured
    assert not any("--resize" in line for line in checked.advice)
    for i in range(20):
        painted(folder / f"unlabeled/wide{i}.png", 300 + i, (90, 30))
    assert "half of the images lose 67%" in "\n".join(look(folder).advice)
    assert not any("--resize" in line for line in look(folder, {"data.resize": "pad"}).advice)


def test_classes_without_labels_are_named() -> None:
    images = distinct(8).permute(0, 2, 3, 1).numpy()
    arrays = {"x_train": images[:5], "y_train": [0, 0, 1, 1, -1], "x_test": images[5:], "y_test": [0, 1, 2]}
    checked = look({**arrays, "classes": ["ant", "bee", "cow"]})
    assert len(checked.warnings) == 1 and "nothing can be learnt of cow" in checked.warnings[0]


def test_classes_that_differ_only_in_how_a_number_is_written(tmp_path: Path) -> None:
    for i, name in enumerate(("1", "1.0", "7", "007", "10", "v1", "1e1", "nan")):
        for k in range(2):
            painted(tmp_path / f"labeled/{name}/{k}.png", 2 * i + k)
    (told,) = (line for line in look(tmp_path).warnings if "written" in line)
    assert "1 and 1.0" in told and "007 and 7" in told and told.count(" and ") == 2


@pytest.mark.skipif(os.name == "nt", reason="such names are not allowed there")
def test_names_cannot_color_or_break_the_table(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["\x1b[31mred", "two\nlines", "x" * 200]
    for i, name in enumerate(names):
        painted(folder / "labeled" / name / "0.png", 400 + i)
    (folder / "unlabeled/\x1b[2Jempty.png").touch()
    (folder / "raw\x1b").mkdir()
    assert command(["check", str(folder)], monkeypatch) == 2
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err
    assert "\n?[31mred " in said.out and "\ntwo?lines " in said.out
    assert "…" in said.out and "x" * 41 not in said.out and "1 folder that is no part: raw?/" in said.out
    assert "unreadable   unlabeled/?[2Jempty.png: the file is empty" in said.out
    assert command(["check", str(folder), "--json", "--skip-unreadable"], monkeypatch) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(names) <= set(found["classes"]) and found["ignored_folders"] == ["raw\x1b/"]
    assert [bad["path"] for bad in found["unreadable"]] == ["unlabeled/\x1b[2Jempty.png"]


def test_groups_on_two_sides_are_refused(folder: Path) -> None:
    names = [*(f"labeled/{name}/{i}.png" for name in ("cat", "dog") for i in range(3)), "test/cat/0.png"]
    rows = [f"{name},{name.split('/')[1]},{name.split('/')[0].replace('labeled', 'train')},p1" for name in names]
    (folder / "all.csv").write_text("\n".join(["path,label,split,patient", *rows]))
    (refusal,) = look(folder / "all.csv", {"data.group_column": "patient"}).refusals
    assert "p1: in test, train" in refusal


def test_unreadable_files_are_all_listed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "unlabeled/empty.png").touch()
    (folder / "unlabeled/notes.txt").write_text("no image")
    cut = painted(folder / "labeled/cat/cut.png", 7)
    cut.write_bytes(cut.read_bytes()[:500])  # its header is whole, its pixels are not
    assert command(["check", str(folder)], monkeypatch) == 2
    said = capsys.readouterr()
    assert "unreadable   unlabeled/empty.png: the file is empty" in said.out and "cut.png" in said.out
    assert "2 files cannot be read" in said.err and "--skip-unreadable" in said.err
    assert command(["check", str(folder), "--skip-unreadable", "--json"], monkeypatch) == 0
    found = json.loads(capsys.readouterr().out)
    assert [bad["path"] for bad in found["unreadable"]] == ["unlabeled/empty.png", "labeled/cat/cut.png"]
    assert found["ignored"] == ["unlabeled/notes.txt"] and found["counts"]["labeled"] == 9
    # Of data too large for memory the pixels are read while training, which could not leave the file out any more.
    small = look(folder, {"data.in_memory_mib": 0}, skip_unreadable=True)
    assert len(small.refusals) == 1 and "1 file cannot be decoded (labeled/cat/cut.png)" in small.refusals[0]
    assert len(choose(small.source, 0, small.findings.broken)) == 8


def test_digits_from_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sheet = tmp_path / "sheet.png"
    assert command(["check", "digits", "--json", "--views", str(sheet)], monkeypatch) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["counts"] == {"labeled": None, "pool": 1437, "unlabeled": 0, "val": 0, "test": 360}
    assert sum(counts["test"] for counts in found["class_counts"].values()) == 360
    assert (found["image_size"], found["channels"], found["sizes"]) == (8, 1, None)
    assert found["warnings"] == [] and found["unreadable"] == []
    assert set(found["duplicates"]["between"]) >= {"pool+test", "unlabeled+test", "pool+val"}
    with Image.open(sheet) as picture:
        assert picture.format == "PNG"
    assert command(["check", "digits"], monkeypatch) == 0
    out = capsys.readouterr().out
    assert "all    1,437   360" in out and "--labels 40" in out
    assert command(["check", "digits", "--views", str(tmp_path / "no/such/sheet.png")], monkeypatch) == 2
    assert command(["check", "digits", "--set", "views.flop=true"], monkeypatch) == 2
    assert "flip" in capsys.readouterr().err


@pytest.mark.parametrize("algorithm", ["npmatch", "supervised"])
def test_the_sheet_shows_the_views_of_training(folder: Path, algorithm: str) -> None:
    checked = look(folder, {"algorithm.name": algorithm, "data.image_size": 24, "seed": 5, "views.num_ops": 2})
    opened, settings = checked.source, checked.settings
    places = choose(opened, 5)
    assert len(set(places.tolist())) == 8 and set(opened.labels[places]) == {0, 1, 2}
    shown = columns(opened, settings, places)
    weak = "weak" if algorithm == "npmatch" else "labeled"
    strong = [("strong", step) for step in range(6)] if algorithm == "npmatch" else []
    assert [(column.view, column.step) for column in shown] == [
        ("stored", 0), (weak, 0), (weak, 1), (weak, 2), *strong,
    ]  # fmt: skip
    for row, place in enumerate(places.tolist()):  # a run on this image alone: it stands in every row of its batches
        pool = Pool(opened.take([place]), torch.tensor([0]), torch.tensor([0]))
        batches = Batches(pool, pool, batch_size=8, unlabeled_batch=8, seed=5)
        views = build_views(settings, opened.image_size)
        stream = Stream(batches, views, normal=Normal(24, (0.0,) * 3, (1 / 255,) * 3), device=torch.device("cpu"))
        for column in shown[1:]:
            trained = stream[column.step][column.view][row]
            assert torch.equal(column.images[row].float(), trained.round())

    sheet = np.asarray(contact_sheet(opened, settings))
    lefts, tops, factor = corners(shown, len(places))
    assert factor == 4 and lefts[0] == MARGIN and tops[:2] == [HEADING, HEADING + 4 * 24 + CAPTION + GAP]
    assert sheet.shape == (tops[-1] + 96 + CAPTION + MARGIN, lefts[-1] + 96 + MARGIN, 3)
    for left, column in zip(lefts, shown):
        for top, image in zip(tops, column.images):
            enlarged = image.permute(1, 2, 0).numpy().repeat(4, 0).repeat(4, 1)
            assert (sheet[top : top + 96, left : left + 96] == enlarged).all()


def test_a_sheet_of_large_gray_images_and_many_classes() -> None:
    images = distinct(40, size=110, channels=1)
    large = replace(source(images, np.arange(40) % 20 % 8, ["train"] * 40), image_size=96)
    settings = override(preset("quick", replace(BUILTIN["stl10"], channels=1), "npmatch"), {})
    places = choose(large, 0)
    assert sorted(large.labels[places].tolist()) == list(range(8))  # one of each class
    assert choose(large, 1).tolist() != places.tolist()
    sheet = contact_sheet(large, settings)
    assert sheet.mode == "RGB" and sheet.width > 110 + 9 * 96
