"""Kills `npmatch fit` again and again, resumes it to its end, and compares every byte with an undisturbed run's.

    python benchmarks/kill.py --kills 100 --out results/kill/<hardware>-<date>

About half of the kills come from outside at a random time, half from inside between two stages of writing a checkpoint
or a model. Leaves log.txt, a line for each kill, and summary.json; exits with 1 if a run differs or does not resume.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

COMMAND = ("fit", "digits", "--steps", "40", "--set", "train.batch_size=8", "--set", "train.log_every=5")
STAGES = 180  # of writing, in a whole run of COMMAND: about so many


class Running(Protocol):
    def kill(self) -> None: ...
    def wait(self) -> int: ...


Start = Callable[[tuple[str, ...], int | None], Running]  # words after npmatch, stage to die after -> a process


def die_after(stages: int) -> None:
    """Make this process kill itself after that many stages of writing checkpoints and models."""
    from npmatch import checkpoint, runs

    left = iter(range(stages - 1, -1, -1))

    def dying(write: Callable[..., Iterator[str]]) -> Callable[..., Iterator[str]]:
        def stages_of(*what: Any) -> Iterator[str]:
            for stage in write(*what):
                if next(left) == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                yield stage

        return stages_of

    checkpoint.saving, runs.replacing = dying(checkpoint.saving), dying(runs.replacing)


def digests(run: Path) -> dict[str, str]:
    """SHA-256 of what must not depend on being killed."""
    last = max(run.glob("checkpoint/step-*")) / "state.safetensors"
    files = (run / "model/weights.safetensors", last, run / "metrics.jsonl", run / "split.json")
    return {file.relative_to(run).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def campaign(start: Start, folder: Path, kills: int, log: Callable[[str], None], seed: int = 0) -> dict[str, Any]:
    """Kill that many times -> what came of it; `differences` and `failures` are empty if all went well."""
    chance, before = random.Random(seed), time.perf_counter()
    if start((*COMMAND, "--out", str(folder / "undisturbed")), None).wait():
        raise RuntimeError("the undisturbed run failed")
    seconds, wanted = time.perf_counter() - before, digests(folder / "undisturbed")
    found: dict[str, Any] = {"kills": 0, "inside": 0, "runs": 0, "differences": [], "failures": []}
    while found["kills"] < kills and not found["failures"]:
        run, code = folder / f"killed-{found['runs']}", -signal.SIGKILL
        while code == -signal.SIGKILL:
            inside, delay = chance.random() < 0.5, chance.uniform(0.2, 1) * seconds
            stage = chance.randint(1, STAGES) if inside and found["kills"] < kills else None
            begins, process = _saved_step(run), start((*COMMAND, "--resume", "--out", str(run)), stage)
            if not inside and found["kills"] < kills:
                time.sleep(delay)
                process.kill()
            code = process.wait()
            if code == -signal.SIGKILL:
                found["kills"] += 1
                found["inside"] += inside
                where = f"after write {stage}" if inside else f"after {delay:.2f} s"
                log(f"{found['kills']} {run.name} {where}: went on from step {begins}, saved {_saved_step(run)}")
        found["runs"] += 1
        if code == 0:
            got = digests(run)
            found["differences"] += [f"{run.name}/{name}" for name in wanted if got.get(name) != wanted[name]]
        else:
            found["failures"].append(f"{run.name}: exit code {code}")
    return found


def _saved_step(run: Path) -> int:
    return max((int(place.name[5:]) for place in run.glob("checkpoint/step-*")), default=0)


def _process(words: tuple[str, ...], stage: int | None) -> Running:
    dying = f"import npmatch.cli as cli, kill; kill.die_after({stage}); cli.main()"
    program = ["-m", "npmatch"] if stage is None else ["-c", dying]
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen([sys.executable, *program, *words], env=os.environ | {"PYTHONPATH": paths})


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill npmatch fit, resume it, compare.")
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder, open(chosen.out / "log.txt", "w", buffering=1) as log:
        found = campaign(_process, Path(folder), chosen.kills, lambda line: print(line, file=log))
        config = (Path(folder) / "undisturbed/config.toml").read_text(encoding="utf-8")
    summary = {"command": " ".join(("npmatch", *COMMAND)), "machine": platform.platform(), **found, "config": config}
    (chosen.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    sys.exit(1 if found["differences"] or found["failures"] else 0)


if __name__ == "__main__":
    main()
