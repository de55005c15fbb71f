"""Predictions from Python and as a table: what goes in, what is measured, which files may be replaced."""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, PngImagePlugin
from safetensors.torch import load_file
from scipy.stats import binomtest

import npmatch
from npmatch.answers import write_answers
from npmatch.contact_sheet import save_contact_sheet
from npmatch.data.sources import open_source
from npmatch.errors import UserError
from npmatch.evaluate import Predicted, measured, predict, unmeasured
from npmatch.progress import Silent
from tests.pets import npmatch as command
from tests.pets import paint, pets

SETTINGS = {"data.image_size": 8, "train.batch_size": 4, "train.log_every": 2}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("predict")
    pets(home / "pets")
    for i, mode in enumerate(("RGB", "L", "P", "RGBA", "LA", "I;16", "1")):
        paint(home / f"new/{i}.png", "cat", i, size=(20 + i, 17), mode=mode)
    return home


@pytest.fixture(scope="module")
def run(home: Path) -> npmatch.Run:
    return npmatch.fit(str(home / "pets"), out=home / "R", steps=4, settings=SETTINGS)


@pytest.fixture(scope="module")
def gray(home: Path) -> npmatch.Run:
    x = np.random.default_rng(0).integers(0, 256, (24, 8, 8)).astype(np.uint8)
    data = {"x": x, "y": np.arange(24) % 3}
    settings = {**SETTINGS, "algorithm.name": "supervised"}
    return npmatch.fit(data, out=home / "gray", steps=2, settings=settings)


def same(a: npmatch.Predictions, b: npmatch.Predictions) -> bool:
    return bool((a.probabilities == b.probabilities).all() and (a.labels == b.labels).all())


# What goes in


def test_images_in_memory_give_what_their_files_give(home: Path, run: npmatch.Run) -> None:
    paths = sorted((home / "new").iterdir())
    of_files, pictures = run.predict(paths), [Image.open(path) for path in paths]
    before = [picture.size for picture in pictures]
    assert same(run.predict(pictures), of_files) and same(run.predict(tuple(pictures)), of_files)
    assert [picture.size for picture in pictures] == before
    assert same(run.predict(pictures[2]), run.predict(paths[2]))
    color, flat = np.asarray(pictures[0]), np.asarray(pictures[1])
    first = torch.from_numpy(color.copy()).permute(2, 0, 1)
    mixed = run.predict([str(paths[0]), pictures[1], color, flat, first, torch.from_numpy(flat.copy())])
    np.testing.assert_array_equal(mixed.probabilities, of_files.probabilities[[0, 1, 0, 1, 0, 1]])
    assert list(mixed.ids) == [str(paths[0]), "1", "2", "3", "4", "5"]


def test_new_images_are_seen_as_the_test_images_were(tmp_path: Path) -> None:
    """Square arrays above 64 pixels are kept as they are, files with a margin: a model goes on as it was trained."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (60, 12, 12, 3), dtype=np.uint8).repeat(8, 1).repeat(8, 2)  # 96 pixels
    labels = np.arange(60) % 3
    data = {"x_train": images[:30], "y_train": labels[:30], "x_test": images[30:], "y_test": labels[30:]}
    small = {"train.batch_size": 4, "data.image_size": 96}
    arrays = npmatch.fit(data, net="tiny", steps=2, settings=small, out=tmp_path / "arrays")
    for i, (pixels, label) in enumerate(zip(images, labels)):
        place = tmp_path / "files" / ("labeled" if i < 30 else "test") / str(label) / f"{i:02}.png"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(place)
    files = npmatch.fit(str(tmp_path / "files"), net="tiny", steps=2, settings=small, out=tmp_path / "from files")
    for run, new in ((arrays, images[30:]), (files, str(tmp_path / "files/test"))):
        stored = load_file(run.path / "evaluation/predictions.safetensors")["probabilities"].numpy()
        assert np.abs(run.predict(new).probabilities - stored).max() < 1e-6
        for elsewhere in (data, str(tmp_path / "files")):
            assert run.evaluate(elsewhere)["nll"] == pytest.approx(run.result["nll"], abs=1e-6)


def test_a_picture_that_was_taken_sideways_is_turned(home: Path, run: npmatch.Run, tmp_path: Path) -> None:
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 16, 3)).astype(np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6
    for kind in ("png", "tiff"):
        picture.save(tmp_path / f"a.{kind}", exif=exif)
        assert same(run.predict(Image.open(tmp_path / f"a.{kind}")), run.predict(tmp_path / f"a.{kind}"))
    assert not same(run.predict(picture), run.predict(tmp_path / "a.png"))


def test_tensors_have_their_channels_first_as_for_training(run: npmatch.Run, gray: npmatch.Run) -> None:
    x = np.random.default_rng(1).integers(0, 256, (5, 8, 8, 3)).astype(np.uint8)
    assert same(run.predict(torch.from_numpy(x).permute(0, 3, 1, 2)), run.predict(x))
    one = x[..., :1]
    expected = gray.predict(one)
    for images in (torch.from_numpy(one).permute(0, 3, 1, 2), torch.from_numpy(x[..., 0]), x[..., 0], [*x[..., 0]]):
        assert same(gray.predict(images), expected)
    for images in (torch.from_numpy(np.zeros((2, 8, 9, 3))), np.zeros((2, 3, 8, 9))):
        with pytest.raises(UserError, match=r"[89] channels, not 3; the axes are \(N, (C, H, W|H, W, C)\) in a"):
            run.predict(images)


@pytest.mark.parametrize(
    ("images", "kind"),
    [
        (None, "NoneType"),
        (3, "int"),
        ((i for i in range(3)), "generator"),
        ({"a.png": 1}, "dict"),
        (b"a.png", "bytes"),
        ([1, None], "list of NoneType, int"),
        ([[0, 1], [1, 0]], "list of list"),
    ],
)
def test_what_is_no_image_is_named(run: npmatch.Run, images: Any, kind: str) -> None:
    with pytest.raises(UserError, match=f"{kind}; give a folder, a file, a PIL image, a list of these") as said:
        run.predict(images)
    assert "\n" not in str(said.value)


def test_bad_images_of_a_list_are_all_named(run: npmatch.Run) -> None:
    bad = [np.zeros((2, 2, 2, 2), np.uint8), np.full((4, 4), 7.0), np.zeros((0, 4), np.uint8)]
    with pytest.raises(UserError, match=r"(?s)3 of 4.* 1: .*shape.* 2: .*0\.\.1.* 3: .*shape"):
        run.predict([np.zeros((4, 4), np.uint8), *bad])


# What comes out


def test_samples_are_what_the_mean_is_of(home: Path, run: npmatch.Run, gray: npmatch.Run) -> None:
    said = run.predict(home / "pets")
    assert said.samples.shape == (run.settings.head.num_samples, len(said), 3) and said.samples.dtype == np.float32
    np.testing.assert_allclose(said.samples.mean(0), said.probabilities, atol=1e-6)
    assert said.samples.std(0).max() > 0
    entropy = -(said.samples * np.log(said.samples)).sum(-1).mean(0)
    np.testing.assert_allclose(said.uncertainty - entropy, said.disagreement, atol=1e-5)
    many = np.random.default_rng(0).integers(0, 256, (300, 8, 8)).astype(np.uint8)  # two batches
    alone = gray.predict(many)
    assert alone.samples.shape == (1, 300, 3), "a linear head says one thing"
    np.testing.assert_allclose(alone.samples.mean(0), alone.probabilities, atol=1e-6)


def test_samples_are_kept_only_where_asked(run: npmatch.Run) -> None:
    batches = [torch.zeros(2, 3, 8, 8, dtype=torch.uint8)] * 2
    assert all(part.samples is None for part in predict(run.model, batches, run.normal))
    assert all(part.samples is not None for part in predict(run.model, batches, run.normal, keep_samples=True))


# What it is worth


def predicted(probabilities: np.ndarray, label: np.ndarray) -> Predicted:
    nothing = np.zeros(len(label), np.float32)
    return Predicted(probabilities.astype(np.float32), nothing, nothing, label)


@pytest.mark.parametrize("wrong", [0, 3, 40])
def test_counted_errors_have_the_interval_of_the_count(wrong: int) -> None:
    """Of eight classes; where an image is wrong, its own is the last."""
    labels = np.arange(40) % 8
    probs = np.full((40, 8), 0.02) + 0.01 * np.eye(8)[labels]
    probs[:wrong] -= 0.02 * np.eye(8)[labels[:wrong]]
    likeliest = (labels + (np.arange(40) < wrong)) % 8
    probs += 0.8 * np.eye(8)[likeliest]
    found = measured(predicted(probs / probs.sum(1, keepdims=True), likeliest), labels)
    low, high = binomtest(wrong, 40).proportion_ci(method="wilson")
    for name in ("error", "top5"):
        assert found[name] == pytest.approx(100 * wrong / 40), name
        assert found[f"{name}_ci95"] == pytest.approx([100 * low, 100 * high], abs=1e-4)
        assert found[f"{name}_ci95"][0] <= found[name] <= found[f"{name}_ci95"][1]


def test_the_labels_given_are_those_counted() -> None:
    """With logit averaging they need not be the likeliest; here 10 of 30, all of one class, are not."""
    labels, rng = np.arange(30) % 3, np.random.default_rng(0)
    probs = 0.1 + 0.7 * np.eye(3)[labels] * rng.random((30, 1))
    given = np.where(labels == 1, 2, labels)
    found = measured(predicted(probs / probs.sum(1, keepdims=True), given), labels)
    assert found["error"] == pytest.approx(100 / 3)
    low, high = binomtest(10, 30).proportion_ci(method="wilson")
    assert found["error_ci95"] == pytest.approx([100 * low, 100 * high], abs=1e-4)
    assert [k["accuracy"] for k in found["per_class"]] == [100, 0, 100]


def test_every_class_has_its_numbers(home: Path, run: npmatch.Run) -> None:
    stored = run.result["per_class"]
    said = run.predict(sorted((home / "pets/test").rglob("*.png")))
    truth = np.array([Path(name).parent.name for name in said.ids])
    for name, row in zip(run.classes, stored, strict=True):
        own = truth == name
        right = binomtest(int((said.labels == truth)[own].sum()), int(own.sum()))
        assert row["images"] == own.sum() == 3 and row["accuracy"] == pytest.approx(100 * right.statistic)
        ends = [100 * end for end in right.proportion_ci(method="wilson")]
        assert row["accuracy_ci95"] == pytest.approx(ends, abs=1e-4)
        share = 100 * said.uncertainty[own] / np.log(3)
        assert row["uncertainty"] == pytest.approx(share.mean(), abs=1e-3)
        low, high = row["uncertainty_ci95"]
        assert share.min() - 1e-3 <= low < row["uncertainty"] < high <= share.max() + 1e-3
    few = measured(predicted(np.full((1, 2), 0.5), np.array([1])), np.array([0]))["per_class"]
    assert few[0]["images"] == 1 and few[0]["uncertainty_ci95"] is None and few[0]["accuracy_ci95"][0] == 0
    nobody = {"images": 0, "accuracy": None, "accuracy_ci95": None, "uncertainty": None, "uncertainty_ci95": None}
    assert few[1] == nobody and unmeasured("no images")["per_class"] is None


@pytest.mark.parametrize("accuracy", [0, 1, 1.5, -1, float("nan"), "a", None, True])
def test_an_accuracy_that_is_no_share_is_refused(run: npmatch.Run, tmp_path: Path, accuracy: Any) -> None:
    with pytest.raises(UserError, match=r"such as 0\.95") as said:
        run.acceptance(accuracy)
    assert repr(accuracy) in str(said.value)
    if accuracy is not None:
        with pytest.raises(UserError, match=r"such as 0\.95"):
            write_answers(run, tmp_path / "none", tmp_path / "a.csv", accept_at=accuracy, progress=Silent())
    assert run.acceptance(np.float32(0.95)).missing == 45


def test_a_model_alone_has_no_result(home: Path, run: npmatch.Run, tmp_path: Path) -> None:
    alone = shutil.copytree(run.path / "model", tmp_path / "alone")
    done = command("evaluate", str(alone))
    assert done.code == 2 and f"npmatch evaluate {alone} DATA" in done.err and "--resume" not in done.err
    assert npmatch.load(alone).evaluate(str(home / "pets"))["error"] == run.result["error"]


# What may be replaced


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_table_replaces_only_a_table_of_answers(
    home: Path, run: npmatch.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    out = tmp_path / f"a.{kind}"
    for _ in range(2):
        write_answers(run, home / "new", out, progress=Silent())
    if kind == "csv":
        assert len(list(csv.reader(out.read_text(encoding="utf-8").splitlines()))) == 8
    strange = [b"path,label\nnew/0.png,cat\n", b"path,label,probability,uncertainty,accept,note\r\n", b"", b"\xff\x00"]
    if kind == "parquet":
        pandas = pytest.importorskip("pandas")
        pandas.DataFrame({"path": ["new/0.png"], "label": ["cat"]}).to_parquet(tmp_path / "mine.parquet")
        strange.append((tmp_path / "mine.parquet").read_bytes())
    monkeypatch.setattr(npmatch.Run, "stream", None)  # nothing may be predicted first
    for content in strange:
        out.write_bytes(content)
        with pytest.raises(UserError, match=rf"{out}.*pass another name"):
            write_answers(run, home / "new", out, progress=Silent())
        assert out.read_bytes() == content


def test_a_sheet_replaces_only_a_sheet(
    home: Path, run: npmatch.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, path = open_source(str(home / "pets"), image_size=8), tmp_path / "views.png"
    for _ in range(2):
        save_contact_sheet(path, source, run.settings)
    monkeypatch.setattr("npmatch.contact_sheet.contact_sheet", None)  # nothing may be drawn first
    other = PngImagePlugin.PngInfo()
    other.add_text("Software", "a camera")
    for info in (None, other):
        Image.new("RGB", (4, 4)).save(path, pnginfo=info)
        before = path.read_bytes()
        with pytest.raises(UserError, match=rf"--views {path}: exists.*another name"):
            save_contact_sheet(path, source, run.settings)
        assert path.read_bytes() == before
    path.write_text("mine")
    for taken, word in ((path, "another name"), (tmp_path / "views.jpg", "must end in .png"), (tmp_path, "in .png")):
        with pytest.raises(UserError, match=word):
            save_contact_sheet(taken, source, run.settings)


def test_what_a_person_catches_has_a_name_and_costs_no_torch() -> None:
    words = "import npmatch, sys; print(npmatch.UserError, npmatch.Diverged, npmatch.Stopped, 'torch' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True).stdout
    assert said.endswith("False\n") and said.count("npmatch.errors.") == 3
    assert {"UserError", "Diverged", "Stopped"} <= set(npmatch.__all__)
