"""Processes that have imported everything when they start: each is forked from one that did so once."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from pathlib import Path

FORKS = hasattr(os, "fork")
PRELOAD = ["npmatch.fitting", "sklearn.datasets", "sklearn.model_selection", "torch._dynamo", "jinja2", "rich.progress"]


def _command(words: tuple[str, ...], said: str, stage: int | None) -> None:
    import torch
    from benchmarks.kill import die_after

    from npmatch.cli import main

    torch.set_num_threads(1)
    with open(said, "w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    if stage is not None:
        die_after(stage)
    sys.argv = ["npmatch", *words]
    main()


class Forked:
    """`npmatch words…` in a process of its own; what it says is in the file `said`."""

    def __init__(self, words: tuple[str, ...], said: Path, stage: int | None = None) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOAD)
        self.said = said
        self.process = context.Process(target=_command, args=(words, str(said), stage))
        self.process.start()

    @property
    def pid(self) -> int:
        assert self.process.pid is not None
        return self.process.pid

    def kill(self) -> None:
        self.process.kill()

    def wait(self) -> int:
        """The exit code, negative for a signal."""
        self.process.join(120)
        assert self.process.exitcode is not None, "hangs"
        return self.process.exitcode

    def until(self, place: Path) -> None:
        """Wait for a file, or for the process to end without it."""
        while not place.exists() and self.process.is_alive():
            time.sleep(0.005)
        assert place.exists(), self.said.read_text()
