"""The paper's tables: which runs they take, that a sitting goes on where it was killed, and the numbers beside ours."""

from __future__ import annotations

import csv
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PIL import Image

from npmatch.algorithms import ALGORITHMS
from npmatch.reproduce import printed
from npmatch.reproduce.jobs import cost, described, jobs_of, step_seconds
from npmatch.reproduce.results import KINDS, found, markdown, rows, write
from npmatch.reproduce.tables import TABLES, Cell, Table
from tests.pets import npmatch as command

SLICE = ("--stand-in", "digits", "--preset", "quick", "--set", "train.steps=40", "--set", "train.eval_every=20")


def test_the_printed_numbers_are_the_papers():
    """Some of each table, read off it by eye; and all of a row by their sum."""
    assert printed.TABLE1["npmatch"]["cifar10", 40] == (4.91, 0.04)
    assert printed.TABLE1["ups"]["stl10", 250] == (9.77, 0.44)
    assert printed.DIVERGENCES["kl"]["cifar100", 2500] == (26.48, 0.23)
    assert printed.UCE["npmatch"]["stl10", 1000].value == 5.28 and len(printed.UCE["ups"]) == 6
    assert printed.IMAGENET["comatch"][1].value == 19.64
    assert sum(number.value for number in printed.TABLE1["flexmatch"].values()) == pytest.approx(145.61)
    assert len(printed.TABLE1) == 11 and {len(row) for row in printed.TABLE1.values()} == {9}


def test_a_dry_run_lists_every_run_and_what_is_left(tmp_path):
    done = command("reproduce", "table1", "--dry-run", "--json", "--out", str(tmp_path))
    runs = json.loads(done.out)["runs"]
    assert len(runs) == 11 * 9 * 3 and list(tmp_path.iterdir()) == []
    assert set(runs[0]) == {"cell", "method", "dataset", "labels", "seed", "preset", "status", "hours"}
    assert {row["status"] for row in runs if row["method"] in ALGORITHMS} == {"missing"}
    last = command("reproduce", "table1", "--dry-run", "--out", str(tmp_path)).out.splitlines()[-1]
    assert last.startswith("297 runs, 0 done; ") and "GPU hours" in last
    npmatch = [row for row in runs if row["method"] == "npmatch" and row["dataset"] == "cifar10"]
    assert npmatch[0]["hours"] == pytest.approx(11.2e-3 * 2**20 / 3600)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("table1", "--cells", "nomatch/cifar10-40"), "--cells nomatch/cifar10-40: fits none"),
        (("table1", "--seeds", "a"), "--seeds a: write them as 0,1,2"),
        (("table1", "--budget", "soon"), "--budget soon: write it as"),
    ],
)
def test_wrong_use_is_named(words, says, tmp_path):
    done = command("reproduce", *words, "--out", str(tmp_path))
    assert done.code == 2 and says in done.err


def test_tables_that_want_the_same_run_share_it(tmp_path):
    paths = {
        name: {job.path for job in jobs_of(TABLES[name]().cells, seeds=[0], out=tmp_path, changes={})}
        for name in ("table1", "uce", "ablations", "imagenet")
    }
    assert paths["uce"] < paths["table1"] and len(paths["uce"]) == 12
    assert len(paths["ablations"] & paths["table1"]) == 9  # NP-Match with its own divergence
    assert len(paths["imagenet"]) == 5  # top-1 and top-5 are of one run


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.02)


def test_a_slice_runs_is_killed_and_goes_on(tmp_path):
    words = (
        "reproduce",
        "uce",
        "--cells",
        "npmatch/cifar10-40",
        "--seeds",
        "0,1",
        "--out",
        str(tmp_path),
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    sitting = subprocess.Popen(
        [sys.executable, "-m", "npmatch", *words, *SLICE],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    first, second = tmp_path / "digits-npmatch-40-s0", tmp_path / "digits-npmatch-40-s1"
    wait_for(second / "checkpoint")
    sitting.send_signal(signal.SIGKILL)
    sitting.communicate()
    before = (first / "result.json").stat().st_mtime_ns
    assert not (second / "result.json").exists() and (tmp_path / "uce.csv").exists()

    done = command(*words, *SLICE, "--json")
    assert done.code == 0, done.err
    assert {run["status"] for run in json.loads(done.out)["runs"]} == {"done"}
    assert (first / "result.json").stat().st_mtime_ns == before  # done is done
    table = list(csv.DictReader((tmp_path / "uce.csv").read_text(encoding="utf-8").splitlines()))
    mine = next(row for row in table if (row["method"], row["dataset"], row["labels"]) == ("npmatch", "cifar10", "40"))
    ours = [json.loads((folder / "result.json").read_text())["uce"] for folder in (first, second)]
    assert float(mine["last"]) == pytest.approx(statistics.fmean(ours))
    assert float(mine["last_std"]) == pytest.approx(statistics.stdev(ours)) and mine["seeds"] == "2"
    assert float(mine["difference"]) == pytest.approx(statistics.fmean(ours) - 7.23)
    empty = next(row for row in table if row["method"] == "ups")
    assert empty["last"] == "" and empty["seeds"] == "0" and float(empty["printed"]) == 7.96
    ElementTree.fromstring((tmp_path / "classes.svg").read_text(encoding="utf-8"))
    with Image.open(tmp_path / "classes.png") as figure:
        assert figure.size[0] > 500
    assert "digits, which stands in for every data set" in (tmp_path / "uce.html").read_text(encoding="utf-8")


def finished(folder: Path, **numbers: float) -> None:
    """The result of a run that nobody ran."""
    folder.mkdir(parents=True)
    said = {"steps": 10, "train_seconds": 5.0, "weak_pass": "joint", "alignment": "batch", "head": "h", "net": "n"}
    (folder / "result.json").write_text(json.dumps(said | {"device": "cpu"} | numbers))


def test_ours_stands_beside_the_printed_by_the_kind_it_is_comparable_with(tmp_path):
    cells = [
        Cell("npmatch", "cifar10", labels, printed=printed.TABLE1["npmatch"]["cifar10", labels]) for labels in (40, 250)
    ]
    table = Table("A <table>", cells)
    jobs = jobs_of(cells, seeds=[0, 1, 2], out=tmp_path, changes={})
    for job, last, best in zip(jobs[:2], (6.0, 8.0), (5.0, 5.5)):
        finished(job.path, error=last, error_median20=last + 0.5, error_best_on_test=best)
    one, other = rows(found(table, jobs))
    assert (one["last"], one["last_std"], one["seeds"]) == (7.0, pytest.approx(2**0.5), 2)
    assert one["difference"] == pytest.approx(5.25 - 4.91)  # of the best, not of the last
    assert other["seeds"] == 0 and other["difference"] is None and other["printed"] == 4.96
    text = markdown(table, found(table, jobs), "note")
    assert "last: 7.00 ± 1.41 (n = 2)" in text and "printed: 4.91 ± 0.04" in text and len(KINDS) == 3
    for file in write(table, found(table, jobs), tmp_path, "t", "a note with a <tag>"):
        assert file.stat().st_size
    assert "&lt;tag&gt;" in (tmp_path / "t.html").read_text() and "A &lt;table&gt;" in (tmp_path / "t.html").read_text()

    planned = described(jobs, step_seconds(jobs))  # by the finished runs here, which took half a second a step
    assert [row["status"] for row in planned[:3]] == ["done", "done", "missing"]
    assert planned[2]["hours"] == pytest.approx(0.5 * 2**20 / 3600)
    assert cost(planned).startswith("6 runs, 2 done; what is left takes 582.5 GPU hours")
