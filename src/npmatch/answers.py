"""Predictions as a table other tools open: CSV or Parquet, a row for each image."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from npmatch.checkpoint import writing
from npmatch.errors import UserError
from npmatch.functional.metrics import Acceptance
from npmatch.predictor import Predictions, Run
from npmatch.progress import Progress

COLUMNS = ("path", "label", "probability", "uncertainty", "accept")


def write_answers(
    run: Run,
    images: Any,
    out: Path,
    *,
    accept_at: float | None = None,
    skip_unreadable: bool = False,
    progress: Progress,
) -> dict[str, Any]:
    """Predict `images` and write a table; the file has its name only when it is whole.

    `accept` is yes or no where `accept_at` can be claimed (docs: when may I accept?), and empty where it cannot.
    """
    writers = {".csv": _write_csv, ".parquet": _write_parquet}
    if out.suffix not in writers:
        raise UserError(f"--out {out}: its name must end in .csv or .parquet")
    if out.exists() and not _is_ours(out):
        raise UserError(f"--out {out}: exists and is not a table that npmatch wrote; pass another name")
    if not out.parent.is_dir():
        raise UserError(f"--out {out}: there is no folder {out.parent}")
    allowed = None if accept_at is None else run.acceptance(accept_at)
    skipped: list[tuple[str, str]] = []
    written = 0

    def rows() -> Iterator[list[dict[str, Any]]]:
        nonlocal written
        said = run.stream(
            images,
            skip_unreadable=skip_unreadable,
            skipped=skipped,
            seen=lambda done, total: progress.work("predicting", done, total),
        )
        for part in said:
            written += len(part)
            yield _rows(part, allowed)

    temporary = out.with_name(f".tmp-{out.name}")
    try:
        with writing(out):
            writers[out.suffix](temporary, rows())
            os.replace(temporary, out)
    finally:
        temporary.unlink(missing_ok=True)
    for name, reason in skipped:
        progress.warn(f"{name}: left out, {reason}")
    if allowed is not None:
        progress.say(_claim(allowed, accept_at))
    threshold = None if allowed is None else allowed.min_confidence
    return {"out": str(out), "images": written, "skipped": len(skipped), "accept_from": threshold}


def _is_ours(path: Path) -> bool:
    """Whether a file is a table of answers, which a newer one may replace; anything else may be a person's work."""
    if not path.is_file():
        return False
    if path.suffix == ".csv":
        with open(path, "rb") as file:
            return file.readline().rstrip(b"\r\n") == ",".join(COLUMNS).encode()
    _, parquet = _pyarrow()
    try:
        return tuple(parquet.read_schema(path).names) == COLUMNS
    except Exception:  # whatever a parser makes of other bytes
        return False


def _rows(part: Predictions, allowed: Acceptance | None) -> list[dict[str, Any]]:
    least = None if allowed is None else allowed.min_confidence
    return [
        {
            "path": name,
            "label": str(label),
            "probability": float(confidence),
            "uncertainty": float(uncertainty),
            "accept": None if least is None else bool(confidence >= least),
        }
        for name, label, confidence, uncertainty in zip(part.ids, part.labels, part.confidence, part.uncertainty)
    ]


def _claim(allowed: Acceptance, wanted: float | None) -> str:
    if allowed.min_confidence is None:
        return f"accept is empty: {allowed.reason} (held-out labels are those in val/, or all with --calibrate 5)"
    return (
        f"accept is yes from probability {allowed.min_confidence:.4f} on: {allowed.coverage:.0%} of held-out images, "
        f"of which at least {allowed.accuracy_bound:.1%} are right (90 % sure), where {wanted:.1%} was asked for"
    )


def _write_csv(path: Path, batches: Iterator[list[dict[str, Any]]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for batch in batches:
            for row in batch:
                accept = {None: "", True: "yes", False: "no"}[row["accept"]]
                numbers = f"{row['probability']:.6f}", f"{row['uncertainty']:.6f}"
                writer.writerow([harmless(row["path"]), harmless(row["label"]), *numbers, accept])


def harmless(text: str) -> str:
    """A cell that no spreadsheet takes for a formula: an apostrophe goes before the characters that would start one."""
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t", "\r")) else text


def _write_parquet(path: Path, batches: Iterator[list[dict[str, Any]]]) -> None:
    pyarrow, parquet = _pyarrow()
    kinds = (pyarrow.string(), pyarrow.string(), pyarrow.float64(), pyarrow.float64(), pyarrow.bool_())
    schema = pyarrow.schema(list(zip(COLUMNS, kinds)))
    with parquet.ParquetWriter(path, schema) as writer:
        for batch in batches:
            writer.write_table(pyarrow.Table.from_pylist(batch, schema))


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise UserError("a .parquet file needs the package pyarrow: pip install 'npmatch[parquet]'") from None
    return pyarrow, parquet
