"""Killed at any instant, inside a save too, and gone on with: the run ends in the same bytes."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path

import pytest
from benchmarks.kill import COMMAND, campaign, digests

from tests.forked import FORKS, Forked

pytestmark = pytest.mark.skipif(not FORKS, reason="kills processes it forked")


def test_a_killed_run_ends_in_the_same_bytes(tmp_path: Path) -> None:
    said: list[str] = []
    number = count()

    def start(words: tuple[str, ...], stage: int | None) -> Forked:
        return Forked(words, tmp_path / f"said-{next(number)}", stage)

    start(("--version",), None).wait()  # so that the first run has no imports to wait for either
    found = campaign(start, tmp_path, 6, said.append)
    last = (tmp_path / f"said-{next(number) - 1}").read_text(encoding="utf-8")
    assert found["differences"] == [] and found["failures"] == [], (said, last)
    assert found["kills"] == len(said) == 6 and 0 < found["inside"] < 6
    assert any("from step 0," not in line for line in said), "none was killed after it had been gone on with"

    # Of the instants that chance may miss: step 5 is logged, step 6 not yet saved, and step 5 comes again.
    run = tmp_path / "logged"
    assert start((*COMMAND, "--out", str(run)), 16).wait() == -9
    rows = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(rows[-1])["step"] == 5 and max(run.glob("checkpoint/step-*")).name == "step-00000004"
    assert start((*COMMAND, "--out", str(run), "--resume"), None).wait() == 0
    assert digests(run) == digests(tmp_path / "undisturbed")
