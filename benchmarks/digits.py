"""The digits with 4 labels a class: methods of ours and scikit-learn's LabelSpreading on the same labels.

    python benchmarks/digits.py --out results/digits/<hardware>-<date>
    python benchmarks/digits.py --out results/methods/<hardware>-<date> --methods all --jobs 2 --preset standard

Runs `npmatch fit digits` for seeds 0 to 4 with each method and writes down every result. LabelSpreading sees the same
pool with the same labels and predicts the same test images. With several jobs each run has one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import tomllib
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from npmatch.algorithms import ALGORITHMS
from npmatch.data.sources import open_source

METHODS = ("npmatch", "supervised")
KEPT = ("config.toml", "split.json", "metrics.jsonl", "result.json")


def fit(method: str, seed: int, preset: str, out: Path, environment: dict[str, str]) -> float:
    """The error of one run from the command line; its files but the weights are kept, and it is not run twice."""
    if (out / "result.json").exists():
        return json.loads((out / "result.json").read_text())["error"]
    with tempfile.TemporaryDirectory() as place:
        run = Path(place) / "run"
        words = ["fit", "digits", "--algorithm", method, "--seed", str(seed), "--preset", preset, "--out", str(run)]
        command = [sys.executable, "-m", "npmatch", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        out.mkdir(parents=True)
        for name in KEPT:
            shutil.copy(run / name, out / name)
        (out / "log.txt").write_text(f"$ npmatch {' '.join(words[:-1])} RUN\n{done.stderr.replace(place, '.')}")
        return json.loads((run / "result.json").read_text())["error"]


def spread(split: dict[str, list[int]]) -> float:
    """LabelSpreading's test error in percent."""
    from sklearn.semi_supervised import LabelSpreading

    digits = open_source("digits")
    pixels = digits.take(range(len(digits))).flatten(1).double().numpy() * 16 / 255  # as scikit-learn has them
    known = np.isin(split["unlabeled"], split["labeled"])
    labels = np.where(known, digits.labels[split["unlabeled"]], -1)
    model = LabelSpreading(kernel="knn", n_neighbors=7, alpha=0.2, max_iter=1000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows without a labeled neighbor divide by zero and count as wrong
        model.fit(pixels[split["unlabeled"]], labels)
        return 100 * float((model.predict(pixels[split["test"]]) != digits.labels[split["test"]]).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--methods", nargs="+", default=METHODS, help="or all: but semco, which needs word vectors")
    parser.add_argument("--preset", default="quick")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    methods = [name for name in ALGORITHMS if name != "semco"] if options.methods == ["all"] else options.methods
    environment = dict(os.environ) | ({"OMP_NUM_THREADS": "1"} if options.jobs > 1 else {})
    errors: dict[str, list[float]] = {method: [] for method in (*methods, "label_spreading")}
    with ThreadPoolExecutor(options.jobs) as pool:
        places = {(m, s): options.out / f"{m}-s{s}" for s in options.seeds for m in methods}
        runs = {(m, s): pool.submit(fit, m, s, options.preset, at, environment) for (m, s), at in places.items()}
        for seed in options.seeds:
            for method in methods:
                errors[method].append(runs[method, seed].result())
            split = json.loads((places[methods[0], seed] / "split.json").read_text())
            errors["label_spreading"].append(spread(split))
            print(f"seed {seed}: " + ", ".join(f"{name} {e[-1]:.2f} %" for name, e in errors.items()), flush=True)
    config = tomllib.loads((places[methods[0], options.seeds[0]] / "config.toml").read_text())
    summary = {
        "command": f"python {' '.join(sys.argv)}",
        "environment": config["environment"],
        "seeds": options.seeds,
        "test_error": errors,
        "mean": {name: statistics.fmean(found) for name, found in errors.items()},
        "worst": {name: max(found) for name, found in errors.items()},
    }
    (options.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")


if __name__ == "__main__":
    main()
