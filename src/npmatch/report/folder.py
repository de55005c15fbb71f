"""A run folder as the report reads it: files in, plain values out. A file that is absent is None or empty."""

from __future__ import annotations

import json
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from npmatch.errors import UserError


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
    return RunFiles(
        folder=folder,
        config=_config(folder / "config.toml"),
        split=_json(folder / "split.json"),
        metrics=_metrics(folder / "metrics.jsonl"),
        result=_json(folder / "result.json"),
        predictions=_predictions(folder / "evaluation"),
        images=_images(folder / "evaluation" / "examples.safetensors"),
    )


def number(value: object) -> float | None:
    """A finite number as it is, anything else as None: logs hold null, NaN and text."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}): evaluate the run again with `npmatch evaluate`") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} holds no JSON object: evaluate the run again with `npmatch evaluate`")
    return content


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not TOML ({error}): put back the file that `npmatch fit` wrote") from error


def _metrics(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    lines = text.split("\n")
    # A run that is being written, or was cut off, ends in half a line. It is left out; a broken one elsewhere is not.
    whole = lines[:-1]
    found = []
    for place, line in enumerate(whole, start=1):
        if line.strip():
            try:
                found.append(json.loads(line))
            except ValueError as error:
                raise UserError(f"{path}, line {place} is not JSON ({error}): delete the line") from error
    return found


def _predictions(folder: Path) -> Predictions | None:
    path = folder / "predictions.safetensors"
    if not path.is_file():
        return None
    tensors = _tensors(path, ("probabilities", "uncertainty", "labels", "index"))
    if len(tensors["labels"]) == 0:
        return None
    ids = _json(folder / "predictions.json").get("ids") or [f"image {place}" for place in tensors["index"]]
    if len(ids) != len(tensors["labels"]):
        raise UserError(
            f"{folder}: predictions.json names {len(ids)} images, predictions.safetensors {len(tensors['labels'])}: "
            "evaluate the run again with `npmatch evaluate`"
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
        raise UserError(f"{path} is damaged ({error}): evaluate the run again with `npmatch evaluate`") from error
    missing = [name for name in names if name not in tensors]
    if missing:
        raise UserError(f"{path} lacks {', '.join(missing)}: evaluate the run again with `npmatch evaluate`")
    return tensors
