"""Compares values of one setting on held-out labels of the digits. No test label has a part in it.

    python benchmarks/choose.py --key algorithm.max_uncertainty --values 0.05 0.1 0.2 0.4 1 --out results/choose/<what>

Seeds 100 to 109, which no reported result uses. Of 14 labels of each class 10 are put aside (val) and 4 train. The
error is that on the 100 images put aside. Leaves runs.jsonl, a line for each run, and summary.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from one_run import finished

SEEDS = range(100, 110)
WORDS = ("fit", "digits", "--labels-per-class", "14", "--set", "data.val_share=0.715")


def held_out_error(key: str, value: str, seed: int, more: tuple[str, ...]) -> dict[str, Any]:
    """One run, and how often it was wrong on the images put aside."""
    with finished(*WORDS, *more, "--seed", str(seed), "--set", f"{key}={value}") as (run, environment):
        correct = run.folder.load_model()[0]["held_out.correct"]
    wrong = int((~correct.bool()).sum())
    return {"value": value, "seed": seed, "images": len(correct), "wrong": wrong, "environment": environment}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--key", required=True)
    parser.add_argument("--values", nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, of one thread each")
    options, more = parser.parse_known_args()  # the rest goes to npmatch fit
    options.out.mkdir(parents=True)
    pairs = [(value, seed) for seed in SEEDS for value in options.values]
    with ThreadPoolExecutor(options.jobs) as pool, open(options.out / "runs.jsonl", "w", buffering=1) as log:
        rows, environment = [], {}
        for row in pool.map(lambda pair: held_out_error(options.key, *pair, tuple(more)), pairs):
            environment = row.pop("environment")
            print(json.dumps(row), file=log)
            rows.append(row)
    errors = {v: [100 * r["wrong"] / r["images"] for r in rows if r["value"] == v] for v in options.values}
    summary = {
        "command": f"python {' '.join(sys.argv)}",
        "run": f"npmatch {' '.join([*WORDS, *more])}",
        "environment": environment,
        "held_out_error": {v: {"mean": fmean(e), "sd": pstdev(e), "seeds": e} for v, e in errors.items()},
    }
    (options.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")


if __name__ == "__main__":
    main()
