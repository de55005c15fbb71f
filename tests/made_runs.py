"""Run folders without a training: the predictions are a real classifier's on the digits, or made for many classes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

from npmatch.evaluate import Predicted, measured
from npmatch.functional import metrics
from npmatch.report.examples import choose_examples

HEALTH = "No pseudo-label of class 8 was kept after step 1,200: it may be lost."
CONFIG = """
seed = 0
[data]
name = "digits"
fingerprint = "sha256:5f2a9c"
[views]
size = 8
[net]
name = "tiny"
[head]
name = "neural_process"
num_samples = 10
[algorithm]
name = "npmatch"
min_confidence = 0.95
max_uncertainty = 0.4
alignment = "none"
[optimizer]
lr = 0.03
[train]
num_steps = 2000
[environment]
python = "3.12.1"
torch = "2.11.0"
npmatch = "0.1.0"
threads = 2
device = "cpu"
"""


def digits() -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Probabilities and labels of 360 test digits from a classifier trained on 40, and the images."""
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import train_test_split

    x, y = (np.asarray(part) for part in load_digits(return_X_y=True))
    split = train_test_split(x / 16, y, test_size=360, random_state=0, stratify=y)
    x_pool, x_test, y_pool, y_test = (np.asarray(part) for part in split)
    labeled = np.concatenate([np.flatnonzero(y_pool == k)[:4] for k in range(10)])
    model = LogisticRegression(max_iter=2000, C=30).fit(x_pool[labeled], y_pool[labeled])
    pixels = (x_test * 255).astype(np.uint8).reshape(-1, 8, 8, 1)
    return model.predict_proba(x_test).astype(np.float32), y_test.astype(np.int64), pixels


def many_classes(num_classes: int, num_images: int) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Softmax outputs of a made-up problem in which neighboring classes look alike; images in four channels."""
    rng = np.random.default_rng(1)
    labels = np.arange(num_images) % num_classes
    logits = rng.normal(0, 1, (num_images, num_classes))
    logits[np.arange(num_images), labels] += rng.uniform(2, 7, num_classes)[labels]
    logits[np.arange(num_images), (labels + 1) % num_classes] += 2
    odds = np.exp(logits - logits.max(1, keepdims=True))
    images = rng.integers(0, 256, (num_images, 20, 24, 4)).astype(np.uint8)
    return (odds / odds.sum(1, keepdims=True)).astype(np.float32), labels.astype(np.int64), images


def write_run(
    folder: Path,
    probabilities: NDArray[Any],
    labels: NDArray[Any],
    images: NDArray[Any],
    names: list[str],
    **result: Any,
) -> Path:
    """A run folder as `npmatch fit` leaves it."""
    num_images = len(labels)
    (folder / "evaluation").mkdir(parents=True)
    uncertainty = metrics.images(probabilities, labels).nats_N.astype(np.float32)
    save_file(
        {"probabilities": probabilities, "uncertainty": uncertainty, "labels": labels, "index": np.arange(num_images)},
        folder / "evaluation" / "predictions.safetensors",
    )
    ids = [f"test/{names[label]}/{i:04}.png" for i, label in enumerate(labels)]
    (folder / "evaluation" / "predictions.json").write_text(json.dumps({"ids": ids}))
    rows = choose_examples(probabilities, uncertainty, labels)
    save_file({"images": images[rows], "row": rows.astype(np.int64)}, folder / "evaluation" / "examples.safetensors")

    told = measured(Predicted(probabilities, uncertainty, 0 * uncertainty, probabilities.argmax(1)), labels)
    told |= {"evaluated_on": {"part": "test", "images": num_images}}
    return write_training(folder, names, {**told, **result})


def write_training(folder: Path, names: list[str], result: dict[str, Any]) -> Path:
    """Everything of a run but its evaluation/."""
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(CONFIG)
    parts = {"labeled": [*range(40)], "unlabeled": [*range(1437)], "val": [], "test": [*range(1437, 1797)]}
    (folder / "split.json").write_text(json.dumps(parts))
    rng = np.random.default_rng(0)
    lines: list[dict[str, Any]] = []
    errors: list[float] = []
    for step in range(10, 2001, 10):
        done, noise = step / 2000, rng.normal(0, 0.03, 4)
        lines.append(
            {
                "step": step,
                "loss": 2.3 * np.exp(-4 * done) + 0.5 + noise[0],
                "labeled": 2.3 * np.exp(-6 * done) + abs(noise[1]),
                "unlabeled": 0.4 + 0.2 * done + noise[2] if step > 100 else None,
                "divergence": 30 * np.exp(-3 * done) + noise[3],
                "kept": float(np.clip(0.9 * (1 - np.exp(-5 * done)) + noise[0], 0, 1)),
                "refused_by_uncertainty": 0.0,
                "images_per_second": 5200 + 900 * noise[1],
            }
        )
        if result["error"] is not None and step % 50 == 0:
            errors.append(result["error"] + 60 * (np.exp(-6 * done) - np.exp(-6)) + 30 * noise[2] * (step < 2000))
            lines.append({"step": step, "error": errors[-1]})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    facts = {
        "error_median20": float(np.median(errors[-20:])) if errors else None,
        "error_best_on_test": min(errors) if errors else None,
        "steps": 2000,
        "seconds": 92.4,
        "train_seconds": 81.0,
        "images_per_second": 5211.0,
        "resumed_from": [],
        "algorithm": "npmatch",
        "head": "neural_process",
        "net": "tiny",
        "dataset": "digits",
        "labels": 40,
        "seed": 0,
        "preset": "quick",
        "device": "cpu",
        "weak_pass": "separate",
        "alignment": "none",
        "classes": names,
        "labeled_counts": [4] * len(names),
        "health": [],
    }
    (folder / "result.json").write_text(json.dumps({**facts, **result}))
    return folder
