"""A folder of real files from training to a table of answers: what each part leaves, and that they agree."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import npmatch
from npmatch import outcome, predictor
from npmatch.build import build_training
from npmatch.data.sources import open_source
from npmatch.engine import Training
from npmatch.functional.metrics import clopper_pearson_lower
from npmatch.health import Health
from npmatch.nets.tiny import Tiny
from npmatch.plan import Opening, agreed_settings, stored_plan
from npmatch.progress import Silent
from npmatch.runs import RunFolder
from npmatch.session import Session
from tests.pets import COLORS, FAST, Done, paint, pets
from tests.pets import npmatch as command

NUMBERS = ("error", "top5", "ece", "uce", "aurc", "nll", "brier", "uce_nats")
ABOUT = {
    "error_median20", "error_best_on_test", "evaluated_on", "steps", "seconds", "train_seconds", "images_per_second",
    "resumed_from", "algorithm", "head", "net", "dataset", "labels", "seed", "preset", "device", "weak_pass",
    "alignment", "error_median20_ci95", "error_best_on_test_ci95",
}  # fmt: skip
STEPS = 40


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pets/ of all kinds of files, new/ to predict, and where the runs go."""
    home = tmp_path_factory.mktemp("fit")
    pets(home / "pets", unlabeled=8, val=16, test=4)
    for i, (name, mode) in enumerate(
        {"a.png": "P", "b.tiff": "CMYK", "c.png": "RGBA", "d.png": "I;16", "e.webp": "RGB"}.items()
    ):
        paint(home / "pets/unlabeled" / name, "dog", 500 + i, size=(40 - i, 9 + i), mode=mode)
    for i, name in enumerate(("=cmd.png", "-1.png", "@sum.jpg", "+2.png", 'ünï, "1".png', "z/plain.png")):
        paint(home / "new" / name, list(COLORS)[i % 3], 600 + i)
    return home


@pytest.fixture(scope="module")
def said(home: Path) -> Done:
    words = ("--steps", str(STEPS), *FAST, "--tensorboard", "--json")
    return command("fit", str(home / "pets"), "--out", str(home / "R"), *words)


@pytest.fixture
def run(home: Path, said: Done) -> npmatch.Run:
    assert said.code == 0, said
    return npmatch.load(home / "R")


@pytest.fixture(scope="module")
def unheld(home: Path) -> npmatch.Run:
    """A run on the same labels with neither val/ nor test/, calibrated on three folds of its labels."""
    bare = pets(home / "bare", test=0)
    settings = {"data.image_size": 8, "train.batch_size": 4, "train.log_every": 2}
    return npmatch.fit(str(bare), out=home / "bare run", steps=12, calibrate=3, settings=settings)


def test_the_run_folder_is_the_contracts(home: Path, said: Done, run: npmatch.Run) -> None:
    files = {".lock", "config.toml", "split.json", "metrics.jsonl", "result.json", "checkpoint", "evaluation", "model"}
    assert set(os.listdir(home / "R")) == files | {"report.html", "tensorboard"}
    assert json.loads(said.out) == {"run": str(home / "R")} | run.result and said.out.count("\n") == 1
    result = run.result
    assert ABOUT | {key for name in NUMBERS for key in (name, f"{name}_ci95")} <= result.keys()
    for name in NUMBERS:
        if result[name] is None:
            assert name in result["reasons"] and result[f"{name}_ci95"] is None
        else:
            low, high = result[f"{name}_ci95"]
            assert 0 <= low <= high
    assert result["top5"] is None, "three classes"
    assert (result["evaluated_on"], result["labels"]) == ({"part": "test", "images": 12}, 12)
    assert 0 < result["train_seconds"] < result["seconds"] and result["resumed_from"] == []
    drawn = STEPS * (4 + 7 * 4)  # labeled and unlabeled images of a step
    assert result["images_per_second"] == pytest.approx(drawn / result["train_seconds"])
    for name in ("error_median20", "error_best_on_test"):
        low, high = result[f"{name}_ci95"]
        assert low <= result[name] <= high
    assert sorted(os.listdir(home / "R/model")) == ["model.json", "weights.safetensors"]
    assert os.listdir(home / "R/tensorboard")[0].startswith("events.out.tfevents")
    assert "</html>" in (home / "R/report.html").read_text(encoding="utf-8")


def test_metrics_begin_with_the_step_and_name_none_twice(home: Path, run: npmatch.Run) -> None:
    rows = [json.loads(line) for line in (home / "R/metrics.jsonl").read_text().splitlines()]
    assert all(next(iter(row)) == "step" for row in rows)
    assert [row["step"] for row in rows] == list(range(2, STEPS + 1, 2))
    errors = [row["error"] for row in rows if "error" in row]
    assert len(errors) == 20 and errors[-1] == run.result["error"] and min(errors) == run.result["error_best_on_test"]


def test_the_split_counts_in_the_sources_order(home: Path, run: npmatch.Run) -> None:
    source = open_source(str(home / "pets"), image_size=8)
    split = json.loads((home / "R/split.json").read_text())
    for part in ("val", "test"):
        assert split[part] == np.flatnonzero(source.parts == part).tolist()
    assert split["unlabeled"] == np.flatnonzero(source.parts == "train").tolist()
    assert [source.ids[i].split("/")[:2] for i in split["labeled"]] == [
        ["labeled", kind] for kind in COLORS for _ in range(4)
    ]


def test_the_weights_moved_and_the_average_follows(home: Path, run: npmatch.Run) -> None:
    folder = RunFolder(home / "R")
    settings = agreed_settings(folder, {}, preset_name=None)
    plan = stored_plan(folder, settings, None, opening=Opening(), device=torch.device("cpu"), progress=Silent())
    first = build_training(plan.settings, plan.source, plan.split, plan.device).parts()
    last = load_file(max((home / "R/checkpoint").iterdir()) / "state.safetensors")
    weights = [name.removeprefix("optimizer.").split("/")[0] for name in last if name.startswith("optimizer.")]
    assert len(weights) > 10
    for name in weights:
        assert not torch.equal(first[f"model.{name}"], last[f"model.{name}"]), name
        assert not torch.equal(last[f"teacher.{name}"], last[f"model.{name}"]), name


def test_a_table_of_answers(home: Path, run: npmatch.Run, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    for name in ("a.csv", "a.parquet"):
        done = command("predict", str(run.path), str(home / "new"), "--out", str(tmp_path / name), "--json")
        assert done.code == 0 and json.loads(done.out)["images"] == 6
    said = run.predict(home / "new")
    with open(tmp_path / "a.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    table = parquet.read_table(tmp_path / "a.parquet").to_pylist()
    assert list(rows[0]) == list(table[0]) == ["path", "label", "probability", "uncertainty", "accept"]
    assert [row["path"] for row in rows] == [
        "'+2.png",
        "'-1.png",
        "'=cmd.png",
        "'@sum.jpg",
        "z/plain.png",
        'ünï, "1".png',
    ]
    assert [row["path"] for row in table] == list(said.ids) == [row["path"].removeprefix("'") for row in rows]
    assert [row["label"] for row in rows] == [row["label"] for row in table] == said.labels.tolist()
    assert [row["probability"] for row in table] == said.confidence.tolist()
    np.testing.assert_allclose([float(row["uncertainty"]) for row in rows], said.uncertainty, atol=1e-6)
    assert {row["accept"] for row in rows} == {""} and {row["accept"] for row in table} == {None}
    assert sorted(os.listdir(tmp_path)) == ["a.csv", "a.parquet"]


def test_answers_depend_on_neither_batch_nor_order(
    home: Path, run: npmatch.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = sorted((home / "pets").rglob("*.png"))
    whole, backwards = run.predict(paths), run.predict(paths[::-1])
    monkeypatch.setattr(predictor, "BATCH", 7)
    sevens = run.predict([str(path) for path in paths])
    for other, order in ((backwards, slice(None, None, -1)), (sevens, slice(None))):
        assert (other.labels[order] == whole.labels).all()
        np.testing.assert_allclose(other.probabilities[order], whole.probabilities, atol=1e-5)
        np.testing.assert_allclose(other.uncertainty[order], whole.uncertainty, atol=1e-5)


def test_the_model_folder_alone_predicts_the_same(home: Path, run: npmatch.Run, tmp_path: Path) -> None:
    shutil.copytree(run.path / "model", tmp_path / "alone")
    here, there = run.predict(home / "new"), npmatch.load(tmp_path / "alone").predict(home / "new")
    assert (here.labels == there.labels).all() and (here.probabilities == there.probabilities).all()


def test_evaluation_agrees_with_the_result(home: Path, run: npmatch.Run) -> None:
    done = command("evaluate", str(run.path), str(home / "pets"), "--json")
    found = json.loads(done.out)
    assert found == run.evaluate(str(home / "pets"))
    assert found["evaluated_on"]["part"] == "test" and found["evaluated_on"]["images"] == 12
    for name in NUMBERS:
        assert found[name] == pytest.approx(run.result[name], abs=1e-4), name
    assert json.loads(command("evaluate", str(run.path), "--json").out) == run.result


def test_accept_is_filled_where_it_can_be_claimed(home: Path, run: npmatch.Run, tmp_path: Path) -> None:
    """48 held-out images, all of them easy: enough for 95 %, where 45 without an error are needed; not for 99 %."""
    out = tmp_path / "a.csv"
    done = command("predict", str(run.path), str(home / "new"), "--out", str(out), "--accept-at", "0.95", "--json")
    threshold = json.loads(done.out)["accept_from"]
    rows = list(csv.DictReader(out.read_text(encoding="utf-8").splitlines()))
    assert [row["accept"] for row in rows] == [
        "yes" if c >= threshold else "no" for c in run.predict(home / "new").confidence
    ]
    held_out = run.predict(sorted((home / "pets/val").rglob("*.png")))
    right = held_out.labels == [path.split("/")[-2] for path in held_out.ids]
    taken = held_out.confidence >= threshold - 1e-6
    bound = clopper_pearson_lower(int(right[taken].sum()), int(taken.sum()))
    assert bound >= 0.95 and f"at least {bound:.1%} are right" in done.err
    done = command("predict", str(run.path), str(home / "new"), "--out", str(out), "--accept-at", "0.99", "--json")
    assert json.loads(done.out)["accept_from"] is None and "accept is empty" in done.err and "182 missing" in done.err
    assert {row["accept"] for row in csv.DictReader(out.read_text(encoding="utf-8").splitlines())} == {""}


def test_folds_hold_each_label_out_once(unheld: npmatch.Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert unheld.result["error"] is None and "test/<class>/" in unheld.result["reasons"]["error"]
    allowed = unheld.acceptance(0.95)
    assert (allowed.min_confidence, allowed.missing) == (None, 45 - 12)

    trained_on: list[set[int]] = []
    trained = outcome.trained

    def watched(session: Session, training: Training) -> Health:
        trained_on.append(set(session.plan.split.labeled.tolist()))
        return trained(session, training)

    monkeypatch.setattr(outcome, "trained", watched)
    resumed(unheld, tmp_path / "run")
    every, *folds = trained_on
    assert len(every) == 12 and [len(fold) for fold in folds] == [6, 9, 9]  # four labels of a class go 2, 1, 1
    assert sorted(place for fold in folds for place in every - fold) == sorted(every)


@pytest.mark.parametrize("folds", [0, 3])
def test_a_budget_is_for_everything_that_trains(home: Path, tmp_path: Path, folds: int) -> None:
    """By hand: a step takes e seconds, and 1 + folds trainings share nine tenths of the time."""
    words = ("--budget", "3s", *FAST, *(("--calibrate", str(folds)) if folds else ()))
    pets(tmp_path / "bare", test=0)
    done = command("fit", str(tmp_path / "bare"), "--out", str(tmp_path / "R"), *words)
    said = re.search(r"a step takes ([\d.]+) ms, so ([\d,]+) steps(.*) in about ([\d.]+) s$", done.err, re.MULTILINE)
    assert done.code == 0 and said, done
    each, steps, whole = float(said[1]) / 1000, int(said[2].replace(",", "")), float(said[4])
    assert whole - 0.05 <= 0.9 * 3 and abs(steps * each * (1 + folds) - whole) <= 0.05 + 0.05e-3 * steps * (1 + folds)
    assert ("steps are too few to learn much" in done.err) == (steps < 200)
    assert whole + 0.05 + each * (1 + folds) > 0.9 * 3 and (f"each of {folds} folds" in said[3]) == (folds > 0)
    assert json.loads((tmp_path / "R/result.json").read_text())["steps"] == steps
    found = [RunFolder(tmp_path / f"R/folds/{i}").load_checkpoint() for i in range(folds)]
    assert [saved and saved.step for saved in found] == [steps] * folds


def test_the_confidence_of_a_fold_is_told_as_the_runs_own() -> None:
    """A run that is surer than its fold by any rising function: the images at the same ranks are accepted."""
    rng = np.random.default_rng(0)
    usual, own = rng.beta(8, 0.7, 2000), rng.beta(8, 0.7, 50)
    there = outcome.translated(own**2, usual**2, usual)
    assert np.abs(there - own).max() < 0.01 and np.array_equal(np.argsort(there), np.argsort(own))
    assert np.array_equal(outcome.translated(own, usual[:0], usual[:0]), own)  # too few images to compare by


def test_folds_hold_whole_groups_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A patient with an image in a fold has none in that fold's training, with a label or without."""
    pets(tmp_path / "pets", unlabeled=0, test=0, labeled=6)
    rows = [
        {"path": f"labeled/{kind}/{i}.png", "label": kind if i < 4 else None, "group": f"p{(i + shift) % 4}"}
        for shift, kind in enumerate(COLORS)
        for i in range(6)
    ]
    frame = pytest.importorskip("pandas").DataFrame(rows)
    seen: list[tuple[set[int], set[int]]] = []
    trained = outcome.trained

    def watched(session: Session, training: Training) -> Health:
        seen.append((set(session.plan.split.labeled.tolist()), set(session.plan.split.unlabeled.tolist())))
        return trained(session, training)

    monkeypatch.setattr(outcome, "trained", watched)
    settings = {"data.image_size": 8, "train.batch_size": 4}
    opening = Opening(data_dir=tmp_path / "pets")
    npmatch.fit(frame, out=tmp_path / "R", steps=1, calibrate=2, settings=settings, opening=opening)
    (every, _), *folds = seen
    groups = np.array([row["group"] for row in rows])
    assert len(folds) == 2 and every == {i for i, row in enumerate(rows) if row["label"]}
    for labeled, unlabeled in folds:
        held_out = set(groups[sorted(every - labeled)])
        assert held_out and not held_out & set(groups[sorted(labeled | unlabeled)])
    assert not (every - folds[0][0]) & (every - folds[1][0])


def test_images_that_stand_in_testing_and_in_training_are_told(tmp_path: Path) -> None:
    pets(tmp_path / "pets")
    shutil.copy(tmp_path / "pets/labeled/cat/0.png", tmp_path / "pets/test/cat/0.png")
    for i in (1, 2):
        shutil.copy(tmp_path / f"pets/unlabeled/dog{i}.png", tmp_path / f"pets/test/dog/{i}.png")
    done = command("fit", str(tmp_path / "pets"), "--out", str(tmp_path / "R"), "--steps", "1", *FAST)
    told = json.loads((tmp_path / "R/result.json").read_text())["health"]
    for sentence in (
        "1 of 9 test images are training images too, with their",
        "2 of 9 test images are training images",
    ):
        assert sentence in done.err and any(sentence in text for text in told)
        assert sentence in (tmp_path / "R/report.html").read_text()


def resumed(run: npmatch.Run, copy: Path) -> npmatch.Run:
    """A copy of a run that was stopped before its evaluation, gone on with."""
    shutil.copytree(run.path, copy, ignore=shutil.ignore_patterns("result.json", "model", "folds"))
    return npmatch.fit(out=copy, resume=True)


def test_a_stopped_run_still_calibrates_when_it_goes_on(unheld: npmatch.Run, tmp_path: Path) -> None:
    again = resumed(unheld, tmp_path / "run")
    weights = "model/weights.safetensors"
    assert (again.path / weights).read_bytes() == (unheld.path / weights).read_bytes()
    assert again.acceptance(0.95) == unheld.acceptance(0.95)


def test_decoded_by_workers_or_in_memory_the_weights_are_the_same(home: Path, run: npmatch.Run, tmp_path: Path) -> None:
    """And config.toml alone is enough to train the same again."""
    streamed = npmatch.fit(
        config=home / "R/config.toml", settings={"data.in_memory_mib": 0, "data.workers": 1}, out=tmp_path / "streamed"
    )
    assert streamed.settings.data.in_memory_mib == 0
    assert (streamed.path / "model/weights.safetensors").read_bytes() == (
        home / "R/model/weights.safetensors"
    ).read_bytes()
    assert (streamed.path / "metrics.jsonl").read_bytes() == (home / "R/metrics.jsonl").read_bytes()


def test_groups_stay_whole(home: Path, tmp_path: Path) -> None:
    rows = [f"{kind}/{i}.png,{kind},site {i % 6}" for kind in COLORS for i in range(12)]
    for i, row in enumerate(rows):
        paint(tmp_path / row.split(",")[0], row.split(",")[1], i)
    (tmp_path / "all.csv").write_text("\n".join(["path,label,site", *rows]))
    settings = {"data.group_column": "site", "data.val_share": 0.3, "data.image_size": 8, "train.batch_size": 4}
    done = npmatch.fit(tmp_path / "all.csv", out=tmp_path / "run", steps=2, settings=settings)
    split = json.loads((done.path / "split.json").read_text())
    sites = {part: {rows[i][-1] for i in split[part]} for part in ("labeled", "unlabeled", "val")}
    assert sites["val"] and sites["labeled"] == sites["unlabeled"] and not sites["val"] & sites["labeled"]


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_precision_is_that_of_training_and_not_of_prediction(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, dtype: torch.dtype
) -> None:
    seen: set[tuple[bool, torch.dtype]] = set()
    forward = Tiny.forward

    def watched(self: Tiny, images: torch.Tensor) -> torch.Tensor:
        features = forward(self, images)
        seen.add((self.training, features.dtype))
        return features

    monkeypatch.setattr(Tiny, "forward", watched)
    settings = {"data.image_size": 8, "train.batch_size": 4, "train.precision": precision, "algorithm.name": "fixmatch"}
    npmatch.fit(str(home / "pets"), out=tmp_path / "run", steps=2, settings=settings)
    assert seen == {(True, dtype), (False, torch.float32)}
