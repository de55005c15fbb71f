"""A run of the command line for a benchmark: in a process of its own, of one thread, its folder gone afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from npmatch import Run, load


@contextmanager
def finished(*words: str) -> Iterator[tuple[Run, dict[str, Any]]]:
    """The run that `npmatch words… --out …` left, and the versions it ran with."""
    with tempfile.TemporaryDirectory() as place:
        command = [sys.executable, "-m", "npmatch", *words, "--out", f"{place}/run"]
        subprocess.run(command, capture_output=True, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
        run = load(f"{place}/run", device="cpu")
        yield run, tomllib.loads((run.path / "config.toml").read_text(encoding="utf-8"))["environment"]
