"""Images per second that training at ImageNet's size gets from JPEG files, beside what Pillow's decoder alone gives.

    python benchmarks/jpegs.py --out results/jpegs/<hardware>-<date>

Generated photographs of 500x375 pixels, kept as squares of 256 for training at 224. The stream's own reader runs with
0, 1 and 2 workers; start-up is not counted. `draft` would let the decoder leave out detail, and changes pixels where it
does: it is measured with the kept size, and not used like that. Prints a table and leaves summary.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from npmatch.bench.pictures import jpegs, write_jpegs
from npmatch.data.decode import decode, stored_size
from npmatch.data.source import Files
from npmatch.data.stream import Batches, Decoded, Pool
from npmatch.plan import environment

LABELED, UNLABELED = 8, 56  # images of a step
SIZE = stored_size(224)


def per_second(work: Callable[[], int], seconds: float) -> float:
    """`work` does something to some images and says to how many. The first call does not count."""
    work()
    count, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds:
        count += work()
    return count / passed


def each(paths: list[Path], one: Callable[[Path], object]) -> Callable[[], int]:
    def work() -> int:
        for path in paths:
            one(path)
        return len(paths)

    return work


def bare(path: Path, draft: int | None = None) -> None:
    with Image.open(path) as picture:
        if draft is not None:
            picture.draft(None, (draft, draft))
        picture.load()


def stream(paths: list[Path], workers: int) -> Callable[[], int]:
    """A step of the training stream."""
    files = Files(paths[0].parent, [path.name for path in paths], SIZE, "crop", 3)
    pool = Pool(files, torch.arange(len(paths)), torch.zeros(len(paths), dtype=torch.int64))
    decoded = Decoded(Batches(pool, pool, LABELED, UNLABELED, seed=0), workers)
    step = -1

    def work() -> int:
        nonlocal step
        step += 1
        return sum(len(part) for part in decoded[step])

    return work


def rows(paths: list[Path], seconds: float) -> list[dict[str, Any]]:
    ways: list[tuple[str, int, Callable[[], int]]] = [
        ("Pillow alone", 0, each(paths, bare)),
        (f"Pillow alone, draft {SIZE}", 0, each(paths, lambda path: bare(path, SIZE))),
        ("decoded and resized", 0, each(paths, lambda path: decode(path, SIZE))),
    ]
    ways += [(f"stream, {workers} workers", workers, stream(paths, workers)) for workers in (0, 1, 2)]
    found = []
    for name, workers, work in ways:
        speed = per_second(work, seconds)
        found.append({"way": name, "processes": max(1, workers), "images_per_second": speed})
        share = speed / max(1, workers) / found[0]["images_per_second"]
        print(f"{name:26}{speed:8.0f} images/s {speed / max(1, workers):8.0f} a process  {share:4.0%} of Pillow alone")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=20, help="of each way")
    options = parser.parse_args()
    options.out.mkdir(parents=True)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "jpegs"
        files = jpegs(500, 375)
        write_jpegs(folder, files, len(files))
        paths = sorted(folder.iterdir())
        summary = {
            "command": f"python {' '.join(sys.argv)}",
            "environment": environment(torch.device("cpu")),
            "bytes_per_file": sum(map(len, files)) / len(files),
            "kept_size": SIZE,
            "rows": rows(paths, options.seconds),
        }
    (options.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")


if __name__ == "__main__":
    main()
