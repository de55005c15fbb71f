"""Whether the accuracy that `--accept-at` claims is there: claims learned in folds over the labels, met by test images.

    python benchmarks/accept.py --out results/accept/<hardware>-<date>

For each seed `npmatch fit digits --labels-per-class 14 --calibrate 5`, then for each accuracy asked for the limit that
the folds allow, and how many of the test images at or above it are right. Leaves runs.jsonl and summary.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from one_run import finished

from npmatch.data.sources import open_source

WORDS = ("fit", "digits", "--labels-per-class", "14", "--calibrate", "5")


def claims(seed: int, asked: list[float]) -> list[dict[str, Any]]:
    """What one run claims at each accuracy, and what is so."""
    digits = open_source("digits")
    with finished(*WORDS, "--seed", str(seed)) as (run, environment):
        (test,) = np.nonzero(digits.parts == "test")
        said = run.predict(digits.take(test))
        right = said.labels == np.asarray(digits.classes)[digits.labels[test]]
        rows = []
        for accuracy in asked:
            allowed = run.acceptance(accuracy)
            accepted = said.confidence >= (np.inf if allowed.min_confidence is None else allowed.min_confidence)
            row = {"seed": seed, "asked": accuracy, "from": allowed.min_confidence, "reason": allowed.reason}
            row |= {"test": len(test), "right": int(right.sum()), "accepted": int(accepted.sum())}
            rows.append(row | {"accepted_right": int(right[accepted].sum())})
    return [row | {"environment": environment} for row in rows]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument("--accuracies", type=float, nargs="+", default=[0.9, 0.95, 0.98])
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, of one thread each")
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    rows: list[dict[str, Any]] = []
    environment: dict[str, Any] = {}
    with ThreadPoolExecutor(options.jobs) as pool, open(options.out / "runs.jsonl", "w", buffering=1) as log:
        for found in pool.map(lambda seed: claims(seed, options.accuracies), options.seeds):
            for row in found:
                environment = row.pop("environment")
                print(json.dumps(row), file=log)
                rows.append(row)
    summary: dict[str, Any] = {"command": f"python {' '.join(sys.argv)}", "run": f"npmatch {' '.join(WORDS)}"}
    summary |= {"environment": environment, "claims": {}}
    for accuracy in options.accuracies:
        made = [row for row in rows if row["asked"] == accuracy and row["from"] is not None]
        kept = [row for row in made if row["accepted_right"] >= accuracy * row["accepted"]]
        shares = [row["accepted"] / row["test"] for row in made]
        summary["claims"][accuracy] = {
            "runs": len(options.seeds), "claims": len(made), "true_on_test": len(kept),
            "accepted_share": sum(shares) / max(1, len(shares)),
            "accepted_accuracy": sum(r["accepted_right"] for r in made) / max(1, sum(r["accepted"] for r in made)),
        }  # fmt: skip
    (options.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")


if __name__ == "__main__":
    main()
