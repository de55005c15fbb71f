"""Predictions of a trained model, and what they are worth against true labels."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from npmatch import ranks
from npmatch.checkpoint import write_file, writing
from npmatch.data import augment
from npmatch.data.normal import Normal
from npmatch.data.source import Source
from npmatch.functional import metrics
from npmatch.functional.uncertainty import entropy, mutual_information, probabilities
from npmatch.report.examples import choose_examples
from npmatch.types import Model

PREDICTION_SEED = 2022  # of latent samples and dropout masks: predicting twice gives the same numbers
BATCH = 256
NUMBERS = ("error", "top5", "ece", "uce", "aurc", "nll", "brier", "uce_nats")
COUNTED = ("error", "top5")  # shares of the images

Average = Literal["probability", "logit"]


@dataclass(frozen=True)
class Predicted:
    """What the model says of N images."""

    probabilities: np.ndarray  # (N, K) float32, mean over the samples
    uncertainty: np.ndarray  # (N,) float32, entropy of the mean, in nats
    disagreement: np.ndarray  # (N,) float32, the part of it that the samples disagree on, in nats
    label: np.ndarray  # (N,) int64
    samples: np.ndarray | None = None  # (T, N, K) float32, where they were asked for


@torch.no_grad()
def predict(
    model: Model,
    images: Iterable[Tensor],
    normal: Normal,
    *,
    average: Average = "probability",
    keep_samples: bool = False,
) -> Iterator[Predicted]:
    """Predict stored uint8 images, of which the network sees the center, batch after batch.

    Every batch is given the same random numbers: a neural process then has one set of latent samples for all images,
    and its predictions do not depend on how they are batched.
    """
    device = next(model.parameters()).device
    for batch in images:
        was_training = model.training
        model.eval()
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(PREDICTION_SEED)
            logits_TNK = model.sample(normal(augment.center_crop(batch.to(device), normal.image_size)))
        model.train(was_training)
        probs_TNK = probabilities(logits_TNK)
        mean = probs_TNK.mean(0)
        label = (logits_TNK.mean(0) if average == "logit" else mean).argmax(-1)
        columns = (mean, entropy(mean), mutual_information(probs_TNK), label, *((probs_TNK,) if keep_samples else ()))
        yield Predicted(*(t.cpu().numpy() for t in columns))


def predict_part(
    model: Model,
    source: Source,
    indices: np.ndarray,
    normal: Normal,
    *,
    average: Average = "probability",
    seen: Callable[[int, int], None] = lambda done, total: None,
) -> Predicted:
    """Predict some images of a source. Batches are dealt to the ranks whole, so that no number depends on it."""
    starts = range(0, len(indices), BATCH)[ranks.rank() :: ranks.size()]

    def batches() -> Iterator[Tensor]:
        for start in starts:
            yield source.take(indices[start : start + BATCH])
            seen(min(start + BATCH * ranks.size(), len(indices)), len(indices))

    count = len(indices)
    columns = {
        "probabilities": np.zeros((count, model.head.num_classes), np.float32),
        "uncertainty": np.zeros(count, np.float32),
        "disagreement": np.zeros(count, np.float32),
        "label": np.zeros(count, np.int64),
    }
    for start, part in zip(starts, predict(model, batches(), normal, average=average)):
        for name, column in columns.items():
            column[start : start + BATCH] = getattr(part, name)
    for column in columns.values():
        ranks.total(torch.from_numpy(column).view(torch.uint8))  # bytes: each is 0 but on one rank
    return Predicted(**columns)


def scores(predicted: Predicted, labels_N: np.ndarray) -> dict[str, float]:
    """The few numbers that are followed while training. The error is that of the labels given, which with `logit`
    averaging need not be the likeliest ones."""
    found = metrics.summary(predicted.probabilities, labels_N)
    error = 100 * float((predicted.label != labels_N).mean())
    return {"error": error} | {name: float(found[name] or 0.0) for name in ("nll", "ece", "uce", "aurc")}


def measured(predicted: Predicted, labels_N: np.ndarray) -> dict[str, Any]:
    """All the contract's numbers with 95 % intervals; what cannot be measured is null, and `reasons` says why.

    Errors are counts and have Wilson's interval: resampling images that are all right would give one without width.
    """
    found = metrics.summary(predicted.probabilities, labels_N)
    found["error"] = 100 * float((predicted.label != labels_N).mean())
    intervals = metrics.bootstrap(predicted.probabilities, labels_N)
    result: dict[str, Any] = {}
    for name in NUMBERS:
        value, interval = found[name], intervals[name]
        if name in COUNTED and value is not None:
            low, high = metrics.wilson(len(labels_N) * value / 100, len(labels_N))
            interval = 100 * low, 100 * high
        result |= {name: value, f"{name}_ci95": None if interval is None else list(interval)}
    result["per_class"] = _per_class(predicted, labels_N)
    result["reasons"] = {} if found["top5"] is not None else {"top5": "says nothing with five classes or fewer"}
    return result


def _per_class(predicted: Predicted, labels_N: np.ndarray) -> list[dict[str, Any]]:
    """Every class in order, in percent, uncertainty of log K; null where there are too few images."""
    found = metrics.per_class(predicted.probabilities, labels_N, predicted.label)
    most = np.log(predicted.probabilities.shape[1])
    return [
        {
            "images": int(count),
            "accuracy": _percent(accuracy),
            "accuracy_ci95": _percent(accuracy_ends),
            "uncertainty": _percent(uncertainty / most),
            "uncertainty_ci95": _percent(uncertainty_ends / most),
        }
        for count, accuracy, uncertainty, accuracy_ends, uncertainty_ends in zip(*found)
    ]


def _percent(shares: Any) -> Any:
    """A share, or some, in percent; None for NaN, which JSON does not have."""
    return None if np.isnan(shares).any() else (100 * np.asarray(shares)).tolist()


def unmeasured(reason: str) -> dict[str, Any]:
    """The same numbers where there are no images to measure on."""
    empty: dict[str, Any] = {key: None for name in NUMBERS for key in (name, f"{name}_ci95")}
    return empty | {"per_class": None, "reasons": dict.fromkeys(NUMBERS, reason)}


def write_evaluation(folder: Path, predicted: Predicted, source: Source, indices: np.ndarray) -> None:
    """What a report needs of an evaluation: every prediction, and the images worth looking at."""
    labels = source.labels[indices]
    rows = choose_examples(predicted.probabilities, predicted.uncertainty, labels)
    tensors = {
        "probabilities": torch.from_numpy(predicted.probabilities),
        "uncertainty": torch.from_numpy(predicted.uncertainty),
        "labels": torch.from_numpy(labels),
        "index": torch.from_numpy(indices),
    }
    images = source.take(indices[rows]).permute(0, 2, 3, 1).contiguous()
    examples = {"images": images, "row": torch.from_numpy(np.asarray(rows, np.int64))}
    with writing(folder):
        folder.mkdir(exist_ok=True)
    write_file(folder / "predictions.safetensors", safetensors.torch.save(tensors))
    write_file(folder / "predictions.json", json.dumps({"ids": [source.ids[int(i)] for i in indices]}).encode())
    write_file(folder / "examples.safetensors", safetensors.torch.save(examples))
