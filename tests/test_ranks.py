"""Two processes at one run, started by torchrun: the numbers of one process, and what happens when one of them ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from benchmarks.kill import digests
from safetensors.torch import load_file

from npmatch import Opening, UserError, cli, fit, ranks
from npmatch.algorithms import ALGORITHMS
from npmatch.nets import build_network, join_batch_norm
from tests.pets import FAST, pets
from tests.pets import npmatch as command
from tests.ranked import CASES, everything, flat

pytestmark = pytest.mark.skipif(not torch.distributed.is_available() or os.name == "nt", reason="needs gloo")

ROOT = Path(__file__).parents[1]
LONG = (
    "fit",
    "digits",
    "--device",
    "cpu",
    "--steps",
    "80",
    "--set",
    "train.batch_size=8",
    "--set",
    "train.log_every=5",
)


class Ranks:
    """`python -m words…` on two ranks."""

    def __init__(self, *words: str) -> None:
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
        self.process = subprocess.Popen(
            [*torchrun, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )

    def until(self, place: Path) -> None:
        """Wait for a file, or for the processes to end without it."""
        while not place.exists() and self.process.poll() is None:
            time.sleep(0.02)

    def stop(self) -> None:
        """If the test failed before the end."""
        self.process.kill()
        self.process.communicate()

    def end(self) -> tuple[int, str, list[str]]:
        """The exit code, what was printed, and what npmatch said otherwise."""
        try:
            out, err = self.process.communicate(timeout=200)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            out, err = self.process.communicate()
            raise AssertionError(f"hangs: {err}") from None
        said = [line for line in err.splitlines() if line.startswith("npmatch:")]
        self.err = err
        return self.process.returncode, out, said


@pytest.fixture
def start() -> Iterator[Callable[..., Ranks]]:
    started: list[Ranks] = []

    def begin(*words: str) -> Ranks:
        started.append(Ranks(*words))
        return started[-1]

    yield begin
    for job in started:
        job.stop()


def pid_of_rank_0(run: Path) -> int:
    return int((run / ".lock").read_text().split()[1])


def test_two_ranks_come_to_the_numbers_of_one(start: Callable[..., Ranks], tmp_path: Path) -> None:
    """In float64: losses, weights, averages, banks, tables, batch norm. Ranks are alike in all of it to the bit."""
    job = start("tests.ranked", str(tmp_path))
    alone = flat(everything())
    code, _, _ = job.end()
    assert code == 0, job.err
    one, other = (load_file(tmp_path / f"{rank}.safetensors") for rank in (0, 1))
    assert one.keys() == other.keys() and alone.keys() == {name for name in one if not name.startswith("dropout:")}
    for name, value in one.items():
        assert torch.equal(value, other[name]), name
    for name, value in alone.items():
        if name.startswith("="):
            assert torch.equal(one[name], value), name
        else:
            torch.testing.assert_close(one[name], value, rtol=1e-9, atol=1e-10, msg=lambda text, name=name: name + text)
    assert digests(tmp_path / "stopped") == digests(tmp_path / "whole")


def test_fit_leaves_one_run_with_the_numbers_of_one_process(start: Callable[..., Ranks], tmp_path: Path) -> None:
    words = (
        "fit",
        "digits",
        "--device",
        "cpu",
        "--steps",
        "20",
        "--set",
        "train.batch_size=16",
        "--set",
        "train.log_every=2",
    )
    words += ("--set", "optimizer.lr=0.003", "--json")  # slow: in float32 each step multiplies a difference
    job = start("npmatch", *words, "--out", str(tmp_path / "two"))
    assert command(*words, "--out", str(tmp_path / "one")).code == 0
    code, out, _ = job.end()
    assert code == 0, job.err
    assert json.loads(out) == {"run": str(tmp_path / "two")} | json.loads((tmp_path / "two/result.json").read_text())
    one, two = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    )
    assert [row["step"] for row in two] == [row["step"] for row in one] == list(range(2, 21, 2))
    for row, same in zip(one, two):
        assert same == pytest.approx(row, rel=1e-3, abs=1e-3)
    one, two = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("one", "two"))
    for name in ("error", "nll", "ece", "error_median20"):
        assert two[name] == pytest.approx(one[name], rel=1e-3), name
    assert {p.name for p in (tmp_path / "two").iterdir()} == {p.name for p in (tmp_path / "one").iterdir()}


def test_a_killed_rank_ends_the_others_and_one_process_goes_on(start: Callable[..., Ranks], tmp_path: Path) -> None:
    """It is rank 0, which writes: the other one speaks then."""
    run = tmp_path / "run"
    job = start("npmatch", *LONG, "--out", str(run))
    job.until(run / "checkpoint/step-00000008")
    os.kill(pid_of_rank_0(run), signal.SIGKILL)
    code, _, said = job.end()
    saved = int(max((run / "checkpoint").iterdir()).name.removeprefix("step-"))
    assert code and len(said) == 1, job.err
    assert said[0].startswith("npmatch: another rank has ended")
    assert said[0].endswith(f"npmatch fit --resume --out {run} goes on from step {saved}")
    done = command("fit", "--resume", "--out", str(run), "--device", "cpu")
    assert done.code == 0 and f"going on from step {saved} of 80" in done.err and "ranks 2 → 1" in done.err
    assert json.loads((run / "result.json").read_text())["resumed_from"] == [saved]


def test_what_one_rank_refuses_all_do_at_once_and_in_one_line(start: Callable[..., Ranks], tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").touch()
    job = start("npmatch", *LONG, "--out", str(tmp_path / "mine"))
    code, out, said = job.end()
    assert (code, out) == (1, "") and "exitcode  : 2" in job.err and "exitcode  : 1" not in job.err
    assert said == [f"npmatch: {tmp_path / 'mine'} exists; pass --resume to go on with it, or another --out"]
    assert os.listdir(tmp_path / "mine") == ["notes.txt"]


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        (lambda: fit("digits", device="cpu", settings={"train.batch_size": 7}), "train.batch_size=7: .* multiple of 2"),
        (lambda: fit("digits", device="cuda:0"), "--device cuda:0: each rank takes the GPU of its own number"),
        (lambda: fit("cifar10", device="cpu", opening=Opening(download=True)), "--download: .* in one process first"),
        (lambda: join_batch_norm(build_network("efficientnet_b0", 3)), "batch norm of its own kind .BatchNormAct2d."),
    ],
)
def test_what_ranks_cannot_do_is_refused_by_name(
    refused: Callable[[], object], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks, "_size", 2)
    with pytest.raises(UserError, match=says):
        refused()


def test_the_verbs_for_one_process_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "alone", lambda: False)
    monkeypatch.setattr(cli, "together", nullcontext)
    done = command("predict", "runs/mine", "new/", "--out", "answers.csv")
    assert (done.code, done.err) == (2, "npmatch: npmatch predict is for one process; start it without torchrun\n")


def test_sigterm_to_torchrun_saves_and_stops(start: Callable[..., Ranks], tmp_path: Path) -> None:
    """It goes to the workers that decode files too, which are needed for the step under way."""
    run = tmp_path / "run"
    words = ("--steps", "10000", "--device", "cpu", *FAST, "--set", "data.in_memory_mib=0", "--set", "data.workers=1")
    job = start("npmatch", "fit", str(pets(tmp_path / "pets")), *words, "--out", str(run))
    job.until(run / "metrics.jsonl")
    job.process.terminate()
    code, _, said = job.end()
    saved = max((run / "checkpoint").iterdir()).name.removeprefix("step-")
    assert code and said == [f"npmatch: stopped at step {int(saved)}; npmatch fit --resume --out {run} goes on"], (
        job.err
    )


def test_every_method_is_among_those_compared() -> None:
    assert {algorithm for algorithm, *_ in CASES.values()} == set(ALGORITHMS)
