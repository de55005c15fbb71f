"""The runs behind a table: what is done of them, what each costs, and doing them."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from npmatch.errors import UserError
from npmatch.fitting import fit
from npmatch.plan import Opening
from npmatch.presets import BUILTIN, paper
from npmatch.progress import Progress
from npmatch.reproduce.tables import Cell
from npmatch.runs import RunFolder


@dataclass(frozen=True)
class Job:
    """One run: a cell's method on its data, with a seed."""

    cell: Cell
    seed: int
    path: Path
    data: str
    preset: str
    changes: Mapping[str, Any]  # to the preset

    @property
    def steps(self) -> int:
        settings = paper(BUILTIN[self.cell.dataset], self.cell.method)
        return int(self.changes.get("train.steps", settings.train.steps))

    @property
    def status(self) -> str:
        """done, begun, missing, or not built."""
        if not self.cell.is_built:
            return "not built"
        folder = RunFolder(self.path)
        if folder.read_result() is not None:
            return "done"
        return "begun" if (self.path / "config.toml").is_file() else "missing"

    def steps_left(self) -> int:
        if self.status == "begun":
            return self.steps - RunFolder(self.path).saved_step()
        return self.steps if self.status == "missing" else 0

    def run(self, opening: Opening, device: str, progress: Progress) -> None:
        there, given = self.path.exists(), {"preset": self.preset, "settings": self.changes, "seed": self.seed}
        if self.status == "begun":  # its own settings stand
            given = {}
        fit(self.data, out=self.path, resume=there, opening=opening, device=device, progress=progress, **given)


def jobs_of(
    cells: Iterable[Cell],
    *,
    seeds: Sequence[int],
    out: Path,
    patterns: Sequence[str] = (),
    stand_in: str | None = None,
    preset: str = "paper",
    changes: Mapping[str, Any],
) -> list[Job]:
    """A run for each seed of each cell whose name fits; a run that two cells want stands once."""
    cells = list(cells)
    wrong = [p for p in patterns if not any(fnmatch(cell.name, p) for cell in cells)]
    if wrong:
        raise UserError(
            f"--cells {wrong[0]}: fits none of this table's, such as {cells[0].name}; * stands for anything"
        )
    found: dict[Path, Job] = {}
    for cell in cells:
        if patterns and not any(fnmatch(cell.name, pattern) for pattern in patterns):
            continue
        data = stand_in or cell.dataset
        own = {"algorithm.name": cell.method, "data.labels": cell.labels} | dict(cell.changes) | dict(changes)
        for seed in seeds:
            path = out / cell.folder(data, seed)
            found.setdefault(path, Job(cell, seed, path, data, preset, own))
    return list(found.values())


def step_seconds(jobs: Iterable[Job]) -> dict[tuple[str, str], float]:
    """Seconds a step takes, by method and data: as in the runs that are done, else as measured on one H200."""
    jobs, found = list(jobs), {}
    measured = json.loads((Path(__file__).parent / "speeds.json").read_text(encoding="utf-8"))
    for job in jobs:
        ms = measured["ms"].get(job.cell.method, {}).get(job.data)
        if ms is not None and job.preset == "paper":
            found[job.cell.method, job.data] = ms / 1000
    for job in jobs:
        result = RunFolder(job.path).read_result() if job.status == "done" else None
        if result and result["steps"]:
            found[job.cell.method, job.data] = result["train_seconds"] / result["steps"]
    return found


def described(jobs: Sequence[Job], known: Mapping[tuple[str, str], float]) -> list[dict[str, Any]]:
    """The runs as the contract names them; hours are null where nobody has measured a step."""
    rows = []
    for job in jobs:
        seconds = known.get((job.cell.method, job.data))
        hours = None if seconds is None else seconds * job.steps_left() / 3600
        rows.append(
            {
                "cell": job.cell.name,
                "method": job.cell.method,
                "dataset": job.data,
                "labels": job.cell.labels,
                "seed": job.seed,
                "preset": job.preset,
                "status": job.status,
                "hours": hours,
            }
        )
    return rows


def cost(rows: Sequence[Mapping[str, Any]]) -> str:
    """The dry run's last line."""
    left = [row for row in rows if row["status"] in ("missing", "begun")]
    known = [row["hours"] for row in left if row["hours"] is not None]
    count = f"{len(rows):,} runs, {sum(row['status'] == 'done' for row in rows):,} done"
    hours = f"{sum(known):,.1f} GPU hours (by finished runs here, else by steps measured on one H200)"
    if len(known) == len(left):
        return f"{count}; what is left takes {hours}"
    unknown = f"of the other {len(left) - len(known):,} nobody has measured a step"
    return f"{count}; {len(known):,} of those left take {hours}, {unknown}"


@contextmanager
def for_seconds(seconds: float | None) -> Iterator[None]:
    """While inside, the time there is: when it is over, the run under way is asked to save and stop, as by Ctrl-C."""
    timer = None if seconds is None else threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT))
    if timer is not None:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        if timer is not None:
            timer.cancel()
