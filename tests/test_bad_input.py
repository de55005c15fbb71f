"""What a person gets wrong: one clear line that names the thing and the cure, exit code 2, and nothing touched."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from npmatch import Opening, fit, load
from npmatch.algorithms import ALGORITHMS
from npmatch.algorithms.supervised import Supervised
from npmatch.config import HEADS, RANGES, flat, from_dict
from npmatch.errors import UserError
from tests.harm import (
    bomb,
    changed_image,
    config_without,
    cut_model,
    damaged,
    empty_class,
    gone,
    long_split,
    no_model,
    nothing,
    one_class,
    other_network,
    other_pets,
    outside,
    strange_class,
    text,
    unreadable,
)
from tests.pets import COLORS, FAST, npmatch, pets


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pets/, a finished run R on them and the same run short of its end, U."""
    here = tmp_path_factory.mktemp("bad_input")
    pets(here / "pets")
    was = Path.cwd()
    os.chdir(here)  # so that R holds a path that is still right in a copy
    try:
        assert npmatch("fit", "pets", "--out", "R", "--steps", "6", *FAST).code == 0
    finally:
        os.chdir(was)
    shutil.copytree(here / "R", here / "U", ignore=shutil.ignore_patterns("result.json", "model", "report.html"))
    return here


@pytest.fixture
def here(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes | None]:
    """All that is in a folder. The lock of a run tells who last looked at it and is not part of it."""
    places = (place for place in folder.rglob("*") if place.name != ".lock")
    return {str(place.relative_to(folder)): place.read_bytes() if place.is_file() else None for place in places}


MIXED = "path,label\nlabeled/cat/0.png,cat\nlabeled/dog/0.png,dog\nlabeled/fox/0.png,fox\ngone.png,cat\n,cat\n"
CASES: dict[str, tuple[Callable[[Path], None], str, tuple[str, ...]]] = {
    # settings
    "unknown key": (nothing, "fit pets --out Q --set train.stps=3", ("train.stps", "did you mean 'steps'?")),
    "unknown section": (nothing, "fit pets --out Q --set trian.steps=3", ("trian.steps", "did you mean 'train'?")),
    "no equals sign": (nothing, "fit pets --out Q --set train.steps", ("--set train.steps", "key=value")),
    "text for a number": (nothing, "fit pets --out Q --set train.steps=many", ("train.steps", "whole number", "many")),
    "a part for a whole": (nothing, "fit pets --out Q --set train.steps=1.5", ("train.steps", "whole number", "1.5")),
    "nan": (nothing, "fit pets --out Q --set optimizer.lr=nan", ("optimizer.lr", "a number")),
    "text for yes or no": (nothing, "fit pets --out Q --set views.flip=maybe", ("views.flip", "true or false")),
    "none for a number": (nothing, "fit pets --out Q --set train.steps=none", ("train.steps", "whole number")),
    "a section": (nothing, "fit pets --out Q --set train=3", ("train: is a section", "batch_size")),
    "too deep": (nothing, "fit pets --out Q --set train.steps.most=3", ("train.steps.most", "single value")),
    "not a choice": (nothing, "fit pets --out Q --set train.precision=fp8", ("train.precision", "'bf16'")),
    "list for a name": (
        nothing, "fit pets --out Q --set algorithm.name=[1] --set head.name=[2]",
        ("algorithm.name", "head.name"),
    ),
    "several at once": (
        nothing,
        "fit pets --out Q --algorithm npmach --head liner --steps 0 --seed -1 --set views.flop=1 --set optimizer.lr=-1",
        ("'npmach' (did you mean 'npmatch'?)", "did you mean 'linear'?", "train.steps: must be at least 1, got 0",
         "seed: must be in 0..4294967295", "did you mean 'flip'?", "optimizer.lr: must be at least 0"),
    ),
    "range": (
        nothing, "fit pets --out Q --set algorithm.min_confidence=7",
        ("algorithm.min_confidence", "in 0..1", "7"),
    ),
    "huge seed": (nothing, f"fit pets --out Q --seed {10**30}", ("seed: must be in",)),
    "algorithm": (
        nothing, "fit pets --out Q --algorithm fixmach",
        ("'fixmach' (did you mean 'fixmatch'?)", "supervised"),
    ),
    "head": (nothing, "fit pets --out Q --head drop", ("head.name", "neural_process")),
    "preset": (nothing, "fit pets --out Q --preset quik", ("--preset quik", "quick, standard, paper")),
    "preset as a setting": (nothing, "fit pets --out Q --set preset=quik", ("quik", "quick, standard, paper")),
    "net": (nothing, "fit pets --out Q --net wrn_28_3", ("net.name", "'wrn_28_3'")),
    "no pretrained weights": (
        nothing, "fit pets --out Q --set net.pretrained=true",
        ("net.pretrained", "tiny", "timm"),
    ),
    "left out of a union": (
        nothing, "fit pets --out Q --set head.leave_one_out=true --set head.targets=paper_union",
        ("head.leave_one_out", "paper_union"),
    ),
    "dropout": (nothing, "fit pets --out Q --head dropout --set head.dropout=2", ("head.dropout", "in 0..1", "2")),
    # options
    "word for steps": (nothing, "fit pets --out Q --steps many", ("--steps", "'many'", "npmatch fit --help")),
    "option": (nothing, "fit pets --out Q --stpes 3", ("--stpes", "--steps")),
    "verb": (nothing, "fti pets", ("'fti'",)),
    "no verb's argument": (nothing, "predict R", ("IMAGES",)),
    "list of what": (nothing, "list models", ("'models'", "networks")),
    "show what": (nothing, "show table9/npmatch/cifar10-40", ("table9/npmatch/cifar10-40", "npmatch list presets")),
    "device": (nothing, "fit pets --out Q --device tpu", ("--device tpu", "cpu", "--device auto")),
    "device to predict": (nothing, "predict R pets --out a.csv --device cuda:99", ("--device cuda:99",)),
    "steps and a budget": (nothing, "fit pets --out Q --steps 3 --budget 1m", ("--budget and --steps", "one of them")),
    "twice": (
        nothing, "fit pets --out Q --labels 6 --set data.labels=3",
        ("set twice", "data.labels: 6 and 3"),
    ),
    "two presets": (
        nothing, "fit pets --out Q --config R/config.toml --preset paper",
        ("--preset paper", "R/config.toml is of the preset quick"),
    ),
    "too small for the network": (
        nothing, "fit pets --out Q --image-size 2",
        ("--image-size 2: does not go through the network tiny",),
    ),
    "too small for the views": (
        nothing, "fit pets --out Q --image-size 8 --set views.padding=8",
        ("--image-size 8", "views.padding=8"),
    ),
    "size without end": (nothing, "fit pets --out Q --image-size 100000", ("data.image_size: must be in 1..4096",)),
    "batch without end": (nothing, "fit pets --out Q --set train.batch_size=100000000", ("train.batch_size: must be",)),
    "out of nothing": (nothing, "fit pets --out ''", ("--out names no folder",)),
    "data of nothing": (nothing, "fit '' --out Q", ("what is there to learn from",)),
    "budget": (nothing, "fit pets --out Q --budget soon", ("--budget soon", "10m")),
    "budget of nothing": (nothing, "fit pets --out Q --budget 0m", ("--budget 0m", "90s")),
    "resize": (nothing, "fit pets --out Q --resize stretch", ("--resize", "'squash'")),
    "image size": (nothing, "fit pets --out Q --image-size 0", ("data.image_size", "in 1..4096")),
    "config missing": (nothing, "fit pets --out Q --config my.toml", ("--config my.toml", "cannot be read")),
    "config a folder": (nothing, "fit pets --out Q --config pets", ("--config pets", "cannot be read")),
    "config not TOML": (
        text("my.toml", "steps: 3"), "fit pets --out Q --config my.toml",
        ("my.toml: is not TOML", "line 1"),
    ),
    "config with wrong keys": (
        text("my.toml", "[train]\nstep = 3\nbatch_size = 'x'\n[heads]\nname = 'linear'"),
        "fit pets --out Q --config my.toml",
        ("train.step:", "train.batch_size", "heads.name"),
    ),
    "one fold": (nothing, "fit pets --out Q --calibrate 1", ("--calibrate 1", "2 folds")),
    "more folds than labels": (nothing, "fit pets --out Q --calibrate 9", ("--calibrate 9", "labels")),
    # where it goes
    "run there": (nothing, "fit pets --out R", ("R exists", "--resume", "another --out")),
    "folder of other things": (nothing, "fit pets --out pets --resume", ("pets is not the folder of a run", "--out")),
    "a file there": (nothing, "fit pets --out pets/test/cat/0.png", ("pets/test/cat/0.png is a file", "--out")),
    "below a file": (nothing, "fit pets --out pets/test/cat/0.png/R", ("pets/test/cat/0.png/R", "--out")),
    "resume what": (nothing, "fit pets --resume", ("--resume", "--out RUN")),
    "resume nothing": (nothing, "fit --resume --out none", ("what is there to learn from",)),
    "resume with another setting": (
        nothing,
        "fit pets --out U --resume --steps 7 --seed 3 --preset paper",
        ("train.steps is 6 in U and 7 here", "seed is 0 in U and 3 here", "'quick' in U and 'paper' here", "--out"),
    ),
    "resume on other data": (nothing, "fit digits --out U --resume", ("U was begun on other images", "digits")),
    "resume on changed data": (changed_image, "fit --out U --resume", ("U was begun on other images", "pets")),
    "resume without the data": (gone("pets"), "fit --out U --resume", ("pets", "no such file or folder")),
    "resume without the split it had": (long_split, "fit --out U --resume", ("split.json is damaged",)),
    "all checkpoints damaged": (damaged(5, 6), "fit --out U --resume", ("step-00000005", "step-00000006", "--out")),
    "checkpoint of another model": (other_network, "fit --out U --resume", ("checkpoint is of another model", "head.")),
    "resume a foreign config": (config_without("fingerprint"), "fit --out U --resume", ("config.toml", "--out")),
    "config of a run damaged": (
        text("U/config.toml", "preset ="), "fit --out U --resume",
        ("U/config.toml is damaged",),
    ),
    # data
    "no data": (nothing, "fit --out Q", ("what is there to learn from",)),
    "data not there": (nothing, "fit petz --out Q", ("'petz'", "no such file or folder")),
    "name misspelt": (nothing, "fit digit --out Q", ("did you mean 'digits'?",)),
    "benchmark not there": (nothing, "fit cifar10 --out Q", ("cifar10", "--download", "--data-dir")),
    "empty folder": (lambda here: (here / "empty").mkdir(), "fit empty --out Q", ("empty", "labeled/<class>/")),
    "no labeled": (gone("pets/labeled"), "fit pets --out Q", ("no folder labeled/", "test, unlabeled")),
    "class without images": (empty_class, "fit pets --out Q", ("labeled/wolf", "holds no images")),
    "one class": (one_class, "fit pets --out Q", ("only the class 'cat'", "two classes")),
    "class only in test": (strange_class, "fit pets --out Q", ("test/wolf/0.png", "'wolf' is not a class")),
    "unreadable files": (
        unreadable,
        "fit pets --out Q --image-size 8",
        ("3 of ", "cat/empty.png: the file is empty", "unlabeled/text.png", "test/dog/0.png", "--skip-unreadable"),
    ),
    "too many pixels": (bomb, "fit pets --out Q", ("bomb.png", "9000 x 9000", "64 million")),
    "labels do not divide": (nothing, "fit pets --out Q --labels 7", ("labels=7", "3 classes", "6 or 9")),
    "more labels in all": (nothing, "fit pets --out Q --labels 15", ("labels=15", "12 labeled training images")),
    "more labels than there are": (
        nothing, "fit pets --out Q --labels-per-class 5",
        ("5 labels of each class", "cat: 4"),
    ),
    "labels and labels per class": (nothing, "fit pets --out Q --labels 6 --labels-per-class 2", ("labels_per_class",)),
    "labels in words": (nothing, "fit pets --out Q --labels all", ("--labels all", "neither a number nor a file")),
    "labels file missing": (nothing, "fit pets --out Q --labels my.csv", ("--labels my.csv", "neither a number")),
    "columns": (text("pets/t.csv", "file,class\na.png,cat\n"), "fit pets/t.csv --out Q", ("'path'", "'file', 'class'")),
    "rows": (text("pets/t.csv", MIXED), "fit pets/t.csv --out Q", ("line 5", "gone.png", "line 6", "no path")),
    "fields": (text("pets/t.csv", "path,label\na.png\nb.png,cat,3\n"), "fit pets/t.csv --out Q", ("line 2", "line 3")),
    "path outside": (outside, "fit table/pets.csv --out Q", ("../secret.png", "/etc/passwd", "--allow-outside")),
    "not text": (lambda h: (h / "t.csv").write_bytes(b"path,label\n\xff"), "fit t.csv --out Q", ("line 2", "UTF-8")),
    "an image for data": (nothing, "fit pets/test/cat/0.png --out Q", ("0.png", "not a folder")),
    "npz damaged": (text("t.npz", "no array"), "fit t.npz --out Q", ("t.npz",)),
    # a finished run
    "no run": (nothing, "predict none pets --out a.csv", ("none: no such folder", "npmatch fit")),
    "no model": (no_model, "predict R pets --out a.csv", ("R has no model", "--resume")),
    "unfinished": (nothing, "evaluate U", ("U has no", "--resume")),
    "model damaged": (cut_model, "predict R pets --out a.csv", ("weights.safetensors", "copy the folder again")),
    "table of another kind": (nothing, "predict R pets --out a.xlsx", (".csv or .parquet", "a.xlsx")),
    "table in no folder": (nothing, "predict R pets --out none/a.csv", ("none/a.csv", "no folder none")),
    "accept at": (nothing, "predict R pets --out a.csv --accept-at 1.5", ("--accept-at", "1.5")),
    "accept at a word": (nothing, "predict R pets --out a.csv --accept-at most", ("--accept-at", "'most'")),
    "images not there": (nothing, "predict R petz --out a.csv", ("petz", "no such file or folder")),
    "images of none": (text("docs/a.md", "text"), "predict R docs --out a.csv", ("docs", "holds no images")),
    "image not one": (text("a.png", "text"), "predict R a.png --out a.csv", ("1 of 1", "a.png", "--skip-unreadable")),
    "other classes": (other_pets, "evaluate R others", ("others", "wolf", "classes this model does not know")),
    "size of a trained model": (nothing, "evaluate R pets --image-size 9", ("--image-size", "leave them out")),
    "nothing to report": (nothing, "report pets", ("pets is not a run folder", "npmatch fit")),
    "metrics damaged": (text("R/metrics.jsonl", '{"step": 1}\n{\n{}\n'), "report R", ("metrics.jsonl", "line 2")),
    "result damaged": (text("R/result.json", "[]"), "evaluate R", ("result.json",)),
}  # fmt: skip

LISTS = {  # all others are one line
    "list for a name", "several at once", "config with wrong keys", "all checkpoints damaged", "class without images",
    "one class", "class only in test", "unreadable files", "too many pixels", "more labels than there are", "rows",
    "fields", "path outside", "image not one", "twice",
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_refused_in_words_and_nothing_touched(name: str, here: Path) -> None:
    make, command, words = CASES[name]
    make(here)
    before = contents(here)
    done = npmatch(*shlex.split(command))
    assert done.code == 2, done
    assert done.out == "" and done.err.startswith("npmatch") and "Traceback" not in done.err
    assert done.err.count("\n") == 1 or name in LISTS
    for word in words:
        assert word in done.err
    assert contents(here) == before


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="nothing is closed to this user")
def test_a_place_that_cannot_be_written(here: Path) -> None:
    (here / "closed").mkdir(mode=0o500)
    for command in ("fit pets --out closed/Q", "predict R pets --out closed/a.csv"):
        done = npmatch(*command.split())
        assert done.code == 2 and "closed" in done.err and "writ" in done.err and done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("package", "command", "word"),
    [
        ("pyarrow", "fit t.parquet --out Q", "npmatch[parquet]"),
        ("pyarrow", "predict R pets --out a.parquet", "npmatch[parquet]"),
        ("torch.utils.tensorboard", "fit pets --out Q --tensorboard", "npmatch[tensorboard]"),
    ],
)
def test_an_extra_that_is_not_installed(
    here: Path, monkeypatch: pytest.MonkeyPatch, package: str, command: str, word: str
) -> None:
    text("t.parquet", "")(here)
    monkeypatch.setitem(sys.modules, package, None)
    before = contents(here)
    done = npmatch(*command.split())
    assert done.code == 2 and f"pip install '{word}'" in done.err and contents(here) == before


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_taken(here: Path) -> None:
    damaged(6)(here)
    with pytest.warns(UserWarning, match=r"step-00000006.*going back to step 5"):
        done = npmatch("fit", "--out", "U", "--resume")
    assert done.code == 0 and "going on from step 5 of 6" in done.err
    assert (here / "U/model/weights.safetensors").read_bytes() == (here / "R/model/weights.safetensors").read_bytes()


def test_a_refusal_lets_go_of_the_run(here: Path) -> None:
    with pytest.raises(UserError, match="seed"):
        fit(out="U", resume=True, seed=7)
    assert fit(out="U", resume=True).result["steps"] == 6


def test_labels_of_two_kinds(here: Path) -> None:
    pandas = pytest.importorskip("pandas")
    paths = [f"{kind}/{i}.png" for kind in COLORS for i in range(2)]
    frame = pandas.DataFrame({"path": paths, "label": ["1", "1", 1, 1, 2, 2]})
    with pytest.raises(UserError, match=r"row 2: this label is a number, the one at row 0 text"):
        fit(frame, out="Q", opening=Opening(data_dir=here / "pets/labeled"))
    assert not (here / "Q").exists()


@pytest.mark.parametrize(
    ("images", "word"),
    [
        ([], "no images"),
        (np.zeros((0, 8, 8, 3), np.uint8), "no images"),
        (np.zeros((8, 8), np.uint8), r"shape \(8, 8\)"),
        (np.zeros((2, 8, 8, 5), np.uint8), "5 channels"),
        (np.zeros((2, 8, 8, 3), np.int64), "int64"),
        (np.full((2, 8, 8, 3), 7.0), "0..1"),
        (["none.png", "R"], r"(?s)2 of 2.*none.png: no such file.*R: not a regular file"),
    ],
)
def test_images_that_cannot_be_predicted(here: Path, images: object, word: str) -> None:
    run = load("R")
    with pytest.raises(UserError, match=word):
        run.predict(images)
    if not isinstance(images, np.ndarray) and images:
        with pytest.raises(UserError, match="none of the images"):
            run.predict(images, skip_unreadable=True)


@pytest.mark.parametrize("budget", [(), ("--budget", "1m")])
def test_out_of_memory_names_the_batch_size_that_fits(
    here: Path, monkeypatch: pytest.MonkeyPatch, budget: tuple[str, ...]
) -> None:
    step = Supervised.step

    def hungry(self: Supervised, model, teacher, views, state):
        torch.empty(max(0, len(views.y) - 5) * 2**50, dtype=torch.uint8)  # up to 5 images cost nothing
        return step(self, model, teacher, views, state)

    monkeypatch.setattr(Supervised, "step", hungry)
    words = ("--algorithm", "supervised", *FAST)
    done = npmatch("fit", "pets", "--out", "Q", *words, *(budget or ("--steps", "3")), "--set", "train.batch_size=16")
    assert done.code == 2 and "train.batch_size=16 does not fit in the memory of cpu" in done.err, done
    assert "a batch size of 4 does: --set train.batch_size=4" in done.err
    assert done.err.count("\n") == 1 and (here / "Q").exists() == (not budget)
    assert npmatch("fit", "pets", "--out", "Q2", *words, "--steps", "3", "--set", "train.batch_size=4").code == 0


def test_every_range_is_of_a_setting() -> None:
    known: set[str] = set()
    for section, members in (("head", HEADS), ("algorithm", ALGORITHMS)):
        for name in members:
            known |= set(flat(from_dict({section: {"name": name}}).to_dict()))
    assert set(RANGES) <= known
