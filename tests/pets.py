"""A folder of small photographs that a network tells apart in a few steps, and the command line from inside."""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from npmatch.cli import main

COLORS = {"cat": (230, 60, 60), "dog": (60, 220, 60), "fox": (70, 70, 230)}
FAST = ("--image-size", "8", "--set", "train.batch_size=4", "--set", "train.log_every=2")


class Done(NamedTuple):
    code: int
    out: str
    err: str


def npmatch(*words: str) -> Done:
    """What `npmatch words…` says, and its exit code. In this process, which has imported torch already."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["npmatch", *words]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            main()
    except SystemExit as end:
        return Done(end.code if isinstance(end.code, int) else 0, out.getvalue(), err.getvalue())
    finally:
        sys.argv = before
    raise AssertionError("main returned")


def paint(path: Path, kind: str, seed: int, *, size: tuple[int, int] = (14, 11), mode: str = "RGB") -> None:
    """A noisy picture in the color of its kind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.RandomState(seed).randint(-40, 40, (size[1], size[0], 3))
    picture = Image.fromarray(np.clip(noise + COLORS[kind], 0, 255).astype(np.uint8)).convert(mode)
    if mode == "I;16":
        picture = Image.fromarray(np.asarray(picture.convert("L")).astype(np.uint16) * 257)
    picture.save(path)


def pets(root: Path, *, labeled: int = 4, unlabeled: int = 5, val: int = 0, test: int = 3) -> Path:
    """labeled/, unlabeled/, val/ and test/, that many images of each class; sizes differ."""
    counts = {"labeled": labeled, "unlabeled": unlabeled, "val": val, "test": test}
    seed = 0
    for part, count in counts.items():
        for kind in COLORS:
            for i in range(count):
                seed += 1
                name = f"{kind}{i}.png" if part == "unlabeled" else f"{kind}/{i}.png"
                paint(root / part / name, kind, seed, size=(9 + seed % 7, 8 + seed % 5))
    return root
