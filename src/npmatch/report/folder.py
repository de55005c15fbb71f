"""A run folder as the report reads it: files in, plain values out. A file that is absent is None or empty."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from npmatch.errors import UserError
from npmatch.runs import RunFolder


@dataclass(frozen=True)
class Predictions:
    """What the model said of each test image."""

    probabilities: NDArray[np.float32]  # (N, K)
    uncertainty: NDArray[np.float32]  # (N,) nats
    labels: NDArray[np.int64]  # (N,)
    ids: list[str]  # N names


@dataclass(frozen=True)
class RunFiles:
    """Everything a report is made of."""

    folder: Path
    config: dict[str, Any]
    split: dict[str, list[int]]
    metrics: list[dict[str, Any]]
    result: dict[str, Any]  # empty until the run has finished
    predictions: Predictions | None
    images: dict[int, NDArray[np.uint8]]  # row of predictions -> (H, W, C)


def read_run(folder: Path) -> RunFiles:
    """The files of a run. A folder without any of them is refused, one without an evaluation is not."""
    if not (folder / "result.json").is_file() and not (folder / "metrics.jsonl").is_file():
        raise UserError(
            f"{folder} is not a run folder (no result.json, no metrics.jsonl): give one that `npmatch fit` wrote"
        )
    run = RunFolder(folder)
    try:
        result = run.read_result() or {}
    except UserError as error:
        raise UserError(f"{error}; {again(folder)}") from error
    return RunFiles(
        folder=folder,
        config=run.read_config() if (folder / "config.toml").is_file() else {},
        split=run.read_split() or {},
        metrics=run.read_metrics(),
        result=result,
        predictions=_predictions(folder / "evaluation"),
        images=_images(folder / "evaluation" / "examples.safetensors"),
    )


def again(folder: Path) -> str:
    """The cure for a damaged evaluation: what is finished is not done again while it has a result."""
    return f"delete {folder / 'result.json'}, and npmatch fit --resume --out {folder} evaluates again"


def number(value: object) -> float | None:
    """A finite number as it is, anything else as None: logs hold null, NaN and text."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _ids(path: Path) -> list[Any] | None:
    if not path.is_file():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8")).get("ids")
    except (ValueError, AttributeError) as error:  # AttributeError: no object
        raise UserError(f"{path} is damaged ({error}): {again(path.parent.parent)}") from error


def _predictions(folder: Path) -> Predictions | None:
    path = folder / "predictions.safetensors"
    if not path.is_file():
        return None
    tensors = _tensors(path, ("probabilities", "uncertainty", "labels", "index"))
    if len(tensors["labels"]) == 0:
        return None
    ids = _ids(folder / "predictions.json") or [f"image {place}" for place in tensors["index"]]
    if len(ids) != len(tensors["labels"]):
        raise UserError(
            f"{folder}: predictions.json names {len(ids)} images, predictions.safetensors {len(tensors['labels'])}: "
            + again(folder.parent)
        )
    return Predictions(tensors["probabilities"], tensors["uncertainty"], tensors["labels"], [str(i) for i in ids])


def _images(path: Path) -> dict[int, NDArray[np.uint8]]:
    if not path.is_file():
        return {}
    tensors = _tensors(path, ("images", "row"))
    return {int(row): image for row, image in zip(tensors["row"], tensors["images"])}


def _tensors(path: Path, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise UserError(f"{path} is damaged ({error}): {again(path.parent.parent)}") from error
    missing = [name for name in names if name not in tensors]
    if missing:
        raise UserError(f"{path} lacks {', '.join(missing)}: {again(path.parent.parent)}")
    return tensors
