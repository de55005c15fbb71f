"""Compares values of one setting on held-out labels. No test label has a part in it.

    python benchmarks/choose.py --key algorithm.max_uncertainty --values 0.05 0.1 0.2 0.4 1 --out results/choose/<what>
    python benchmarks/choose.py --key train.weak_pass --values joint separate --seeds 100 101 102 --out <where> \
        --data cifar10 --labels 10250 --set data.val_share=0.9756 --preset standard --steps 10000

Seeds from 100 on, which no reported result uses. Of the digits' 14 labels of each class 10 are put aside (val) and 4
train; of other data as many as its options say. The error is that on the images put aside. Leaves runs.jsonl, a line
for each run, and summary.json.
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

DIGITS = ("--labels-per-class", "14", "--set", "data.val_share=0.715")


def held_out_error(words: tuple[str, ...], key: str, value: str, seed: int) -> dict[str, Any]:
    """One run, and how often it was wrong on the images put aside."""
    with finished(*words, "--seed", str(seed), "--set", f"{key}={value}") as (run, environment):
        correct = run.folder.load_model()[0]["held_out.correct"]
        wrong = int((~correct.bool()).sum())
        seconds = run.result["train_seconds"]
    row = {"value": value, "seed": seed, "images": len(correct), "wrong": wrong, "train_seconds": seconds}
    return row | {"environment": environment}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--key", required=True)
    parser.add_argument("--values", nargs="+", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, of one thread each")
    parser.add_argument("--data", default="digits")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(100, 110)))
    options, more = parser.parse_known_args()  # the rest goes to npmatch fit
    words = ("fit", options.data, *(DIGITS if options.data == "digits" else ()), *more)
    options.out.mkdir(parents=True)
    pairs = [(value, seed) for seed in options.seeds for value in options.values]
    with ThreadPoolExecutor(options.jobs) as pool, open(options.out / "runs.jsonl", "w", buffering=1) as log:
        rows, environment = [], {}
        for row in pool.map(lambda pair: held_out_error(words, options.key, *pair), pairs):
            environment = row.pop("environment")
            print(json.dumps(row), file=log)
            rows.append(row)
    errors = {v: [100 * r["wrong"] / r["images"] for r in rows if r["value"] == v] for v in options.values}
    summary = {
        "command": f"python {' '.join(sys.argv)}",
        "run": f"npmatch {' '.join(words)}",
        "environment": environment,
        "held_out_error": {v: {"mean": fmean(e), "sd": pstdev(e), "seeds": e} for v, e in errors.items()},
    }
    (options.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")


if __name__ == "__main__":
    main()
