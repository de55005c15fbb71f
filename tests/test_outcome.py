"""What is kept of a training and what is said of it: whose weights, which evaluations, labels by which mean."""

from __future__ import annotations

import csv
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.stats import binomtest
from torch import Tensor, nn

import npmatch
from npmatch.data.normal import Normal
from npmatch.evaluate import Average, predict
from npmatch.functional.metrics import Acceptance
from npmatch.heads.linear import LinearHead
from npmatch.types import Model
from tests.pets import COLORS, paint, pets
from tests.pets import npmatch as command

STEPS = 25
TINY = {"data.image_size": 8, "train.batch_size": 4}
# An average far behind the weights.
APART = {"train.ema_decay": 0.95, "train.ema_warmup": False, "optimizer.lr": 0.01, "optimizer.schedule": "constant"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> npmatch.Run:
    home = tmp_path_factory.mktemp("outcome")
    data = pets(home / "pets", unlabeled=3, test=4)
    settings = TINY | APART | {"train.log_every": 5, "head.bank_size": 20, "head.num_samples": 3}
    return npmatch.fit(str(data), out=home / "R", steps=STEPS, settings=settings)


def rows(run: npmatch.Run) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]


def last_state(run: npmatch.Run) -> dict[str, Tensor]:
    return load_file(max((run.path / "checkpoint").iterdir()) / "state.safetensors")


def test_the_moving_average_is_kept_and_not_the_live_weights(run: npmatch.Run) -> None:
    state, kept = last_state(run), load_file(run.path / "model/weights.safetensors")
    weights = [name for name in kept if f"optimizer.{name.removeprefix('model.')}/momentum_buffer" in state]
    assert len(weights) > 20
    for name in weights:
        assert torch.equal(kept[name], state[name.replace("model.", "teacher.", 1)]), name
        assert not torch.equal(kept[name], state[name]), name
    statistics = [name for name in kept if "running_" in name]
    assert statistics and all(torch.equal(kept[name], state[name]) for name in statistics)
    for bank in ("latent_bank", "context_bank"):
        codes = state[f"teacher.head.{bank}.codes"][:20]
        torch.testing.assert_close(kept[f"model.head.{bank}.codes"][0], codes.mean(0))


def test_the_moving_average_is_evaluated_and_not_the_live_weights(run: npmatch.Run) -> None:
    """The last line of a run is of the model that is kept; the live one would say something else."""
    again, last = run.evaluate(str(run.path.parent / "pets")), rows(run)[-1]
    assert last["step"] == STEPS
    for name in ("error", "nll", "ece"):
        assert last[name] == pytest.approx(run.result[name], rel=1e-5) == again[name], name
    live = npmatch.load(run.path)
    weights = {name.removeprefix("model."): t for name, t in last_state(run).items() if name.startswith("model.")}
    own = {name: t for name, t in weights.items() if not name.startswith("head.") or "bank" not in name}
    live.model.load_state_dict(own, strict=False)
    assert abs(live.evaluate(str(run.path.parent / "pets"))["nll"] - last["nll"]) > 0.01


def test_the_error_is_the_last_the_median_of_20_and_the_best_of_all(run: npmatch.Run, tmp_path: Path) -> None:
    """25 evaluations by hand. The best is among the first five, which the median leaves out."""
    errors = [25.0, 30.0, 95.0, 96.0, 97.0, *np.random.default_rng(0).permutation(np.arange(40.0, 80.0, 2.0))]
    assert len(errors) == 25
    shutil.copytree(run.path, tmp_path / "R", ignore=shutil.ignore_patterns("result.json", "model", "evaluation"))
    lines = [{"step": i + 1, "error": error, "refused_by_uncertainty": i / 24} for i, error in enumerate(errors)]
    lines.insert(3, {"step": 4, "loss": 1.0})  # most lines have no evaluation
    (tmp_path / "R/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = npmatch.fit(out=tmp_path / "R", resume=True).result
    assert result["error"] == run.result["error"] and result["nll"] == run.result["nll"]
    assert result["error_median20"] == 59  # between 58 and 60
    assert result["error_best_on_test"] == 25 != result["error"]
    assert result["refused_by_uncertainty"] == pytest.approx(0.5)
    ends = binomtest(3, 12).proportion_ci(method="wilson")
    assert result["error_best_on_test_ci95"] == pytest.approx([100 * ends.low, 100 * ends.high], abs=1e-3)
    assert (result["evaluated_on"], result["steps"]) == ({"part": "test", "images": 12}, STEPS)
    assert result["labeled_counts"] == [4, 4, 4] and result["labels"] == 12


class Torn(LinearHead):
    """Three samples for every image. One is sure of the first class, two lean to the second; none sees the third.

    The first class has the higher mean logit, the second the higher mean probability.
    """

    LOGITS = ((10.0, 0.0, -30.0), (0.0, 2.0, -30.0), (0.0, 2.0, -30.0))

    def forward(self, features_NF: Tensor, num_samples: int | None = None) -> Tensor:
        return torch.tensor(self.LOGITS)[:, None].expand(-1, len(features_NF), -1)


def two_class_entropy(share: float) -> float:
    return -share * math.log(share) - (1 - share) * math.log(1 - share)


@pytest.mark.parametrize(("average", "label"), [("probability", 1), ("logit", 0)])
def test_uncertainty_is_the_entropy_of_the_mean_and_the_label_that_of_the_mean_asked_for(
    average: Average, label: int
) -> None:
    model = Model(nn.Flatten(), Torn(192, 3))
    images = torch.zeros(5, 3, 8, 8, dtype=torch.uint8)
    (said,) = predict(model, [images], Normal(8, (0.5,) * 3, (0.5,) * 3), average=average, keep_samples=True)
    sure, torn = 1 / (1 + math.exp(-10)), 1 / (1 + math.exp(2))
    mean = (sure + 2 * torn) / 3
    within = (two_class_entropy(sure) + 2 * two_class_entropy(torn)) / 3
    assert said.probabilities == pytest.approx(np.tile([mean, 1 - mean, 0], (5, 1)), abs=1e-6)
    assert said.uncertainty == pytest.approx(np.full(5, two_class_entropy(mean)), abs=1e-6)
    assert said.disagreement == pytest.approx(np.full(5, two_class_entropy(mean) - within), abs=1e-6)
    assert said.label.tolist() == [label] * 5 and two_class_entropy(mean) > within + 0.3
    assert said.samples is not None
    assert said.samples[:, 0, 0] == pytest.approx([sure, torn, torn], abs=1e-6)


@pytest.fixture
def torn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is trained predicts as `Torn`: with probabilities dog, with logits cat."""
    head = Torn(1, 3)
    monkeypatch.setattr(Model, "sample", lambda self, images, num_samples=None: head(images.flatten(1)))


@pytest.mark.parametrize(("average", "label", "wrong_of_seven"), [("probability", "dog", 6), ("logit", "cat", 4)])
def test_every_part_takes_the_mean_that_was_asked_for(
    tmp_path: Path, torn: None, average: str, label: str, wrong_of_seven: int
) -> None:
    """The test images are three cats, a dog and three foxes."""
    data = pets(tmp_path / "pets", unlabeled=1, test=3)
    for i in (1, 2):
        (data / f"test/dog/{i}.png").unlink()
    run = npmatch.fit(str(data), out=tmp_path / "R", steps=2, settings=TINY | {"train.predict_with": average})
    error = pytest.approx(100 * wrong_of_seven / 7)
    assert run.result["error"] == error and rows(run)[-1]["error"] == error
    assert run.result["error_median20"] == run.result["error_best_on_test"] == error
    assert run.evaluate(str(data))["error"] == error
    assert set(run.predict(data / "unlabeled").labels) == {label}


def test_data_without_some_classes_are_judged_by_the_models_own_numbers(
    run: npmatch.Run, torn: None, tmp_path: Path
) -> None:
    """Three dogs and a fox, and a model that says dog: the first class here is the model's second."""
    for i, kind in enumerate(("dog", "dog", "fox", "dog")):
        paint(tmp_path / f"test/{kind}/{i}.png", kind, i)
        paint(tmp_path / f"labeled/{kind}/{i}.png", kind, i)
    found = run.evaluate(str(tmp_path))
    assert found["error"] == 25 and found["evaluated_on"]["images"] == 4
    assert [one["images"] for one in found["per_class"]] == [0, 3, 1]
    assert [one["accuracy"] for one in found["per_class"]] == [None, 100, 0]


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_an_answer_exactly_at_the_threshold_is_accepted(
    run: npmatch.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    for i, kind in enumerate([*COLORS, *COLORS]):
        paint(tmp_path / f"new/{i}.png", kind, 700 + i)
    graded = torch.eye(3)[0]  # the brighter an image, the surer
    monkeypatch.setattr(Model, "sample", lambda self, images: images.mean((1, 2, 3))[None, :, None] * graded)
    confidence = run.predict(tmp_path / "new").confidence
    least = float(np.sort(confidence)[3])
    assert (confidence == least).sum() == 1
    allowed = Acceptance(least, 3, 0.5, 0.9, 1, 0, "")
    monkeypatch.setattr(npmatch.Run, "acceptance", lambda self, accuracy: allowed)
    out = tmp_path / f"a{ending}"
    done = command("predict", str(run.path), str(tmp_path / "new"), "--out", str(out), "--accept-at", "0.9")
    assert done.code == 0, done
    if ending == ".csv":
        said = [row["accept"] == "yes" for row in csv.DictReader(out.read_text().splitlines())]
    else:
        said = [row["accept"] for row in parquet.read_table(out).to_pylist()]
    assert said == [c >= least for c in confidence] and sum(said) == 3
