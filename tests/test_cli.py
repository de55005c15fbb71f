"""The contract of the command line: its verbs and options, what they print where, and the code they exit with."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import click
import pytest
import torch
from benchmarks.kill import COMMAND, digests

import npmatch as package
from npmatch import cli
from npmatch.bench.commands import bench
from npmatch.fitting import over_file
from tests.forked import FORKS, Forked
from tests.pets import COLORS, FAST, npmatch, paint, pets

SOURCE = Path(__file__).parents[1] / "src"
DATA = "--labels --image-size --resize --data-dir --download --skip-unreadable --allow-outside"
VERBS = {
    "check": f"data --views --preset --set {DATA} --json",
    "fit": "data --labels-per-class --algorithm --head --net --preset --steps --budget --seed --device --out "
    f"--resume --deterministic --no-compile --calibrate --tensorboard --set --config {DATA} --json",
    "predict": "run images --out --accept-at --skip-unreadable --device --json",
    "evaluate": f"run data --device {DATA} --json",
    "report": "runs --json",
    "show": "preset --json",
    "list": "what --json",
    "reproduce": "table --cells --seeds --dry-run --budget --out --stand-in --preset --set --device --data-dir "
    "--download --json",
    "bench": "",
    "bench step": "data --algorithm --net --weak-pass --preset --set --steps --conventional --workers --stages "
    "--no-compile --device --out --json",
    "bench uncertainty": "--net --samples --repeats --warmup --device --out --json",
    "bench predict": "run images --net --images --size --device --out --json",
}


def python(*words: str, **options: str) -> subprocess.CompletedProcess[str]:
    ours = "PYTHONPATH", "OMP_WAIT_POLICY"  # which importing cli above has set
    environment = {name: value for name, value in os.environ.items() if name not in ours} | options
    return subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=environment, timeout=60, check=False
    )


def test_verbs_and_options_are_frozen() -> None:
    """Other tools call these: they may be added to, and nothing may go."""
    found = {}
    of_bench = {f"bench {name}": verb for name, verb in bench.commands.items()}
    for name, verb in (cli.npmatch.commands | of_bench).items():
        found[name] = " ".join(parameter.opts[0] for parameter in verb.params)
        assert verb.help and all(option.help for option in verb.params if isinstance(option, click.Option)), name
    assert found == VERBS


def test_help_comes_at_once_and_without_torch() -> None:
    took = []
    for _ in range(15):  # the best of five on a quiet machine; a busy one has more tries
        before = time.perf_counter()
        done = python("-m", "npmatch", "--help", PYTHONPATH=str(SOURCE))
        took.append(time.perf_counter() - before)
        assert done.returncode == 0 and set(cli.npmatch.commands) <= set(
            re.findall(r"^  (\w+) ", done.stdout, re.MULTILINE)
        )
        if len(took) >= 5 and min(took) <= 0.4:
            break
    assert min(took) <= 0.4
    heavy = "torch", "numpy", "sklearn", "PIL", "rich"
    look = f"import sys, npmatch.cli; print([name for name in {heavy} if name in sys.modules])"
    assert python("-c", look, PYTHONPATH=str(SOURCE)).stdout == "[]\n"


@pytest.mark.parametrize("policy", ["passive", "active"])
def test_threads_do_not_spin_unless_told_to(policy: str) -> None:
    """Where other programs want the cores, threads that spin wait for each other most of the time."""
    look = "import sys; from npmatch import cli; assert 'torch' not in sys.modules; import os; print(os.environ[%r])"
    told = {} if policy == "passive" else {"OMP_WAIT_POLICY": policy}
    assert python("-c", look % "OMP_WAIT_POLICY", PYTHONPATH=str(SOURCE), **told).stdout == f"{policy}\n"


def test_no_connection_is_made_and_nothing_reports_back(tmp_path: Path) -> None:
    """Every address that a whole fit, with a network of timm's, looks up or connects to; by Python's own audit."""
    look = """
import sys
asked = []
sys.addaudithook(lambda event, args: asked.append((event, args)) if event in HOOKS else None)
from tests.pets import npmatch, pets
from pathlib import Path
words = "--steps", "1", "--net", "resnet10t", "--image-size", "32", "--set", "train.batch_size=2", "--tensorboard"
assert npmatch("fit", str(pets(Path("pets"))), "--out", "R", *words).code == 0
assert npmatch("predict", "R", "pets", "--out", "a.csv").code == 0
from huggingface_hub import constants
assert constants.HF_HUB_DISABLE_TELEMETRY
print(asked)
""".replace("HOOKS", repr(("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto")))
    paths = os.pathsep.join([str(SOURCE), str(SOURCE.parent)])
    done = subprocess.run(
        [sys.executable, "-c", look],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr


def test_it_runs_from_a_source_tree_that_is_not_installed() -> None:
    """-S leaves the site's packages out, npmatch's own entry among them; click is put back by hand."""
    paths = os.pathsep.join([str(SOURCE), str(Path(click.__file__).parents[1])])
    done = python("-S", "-m", "npmatch", "--version", PYTHONPATH=paths)
    assert (done.returncode, done.stdout) == (0, f"npmatch, version {package.__version__}\n"), done.stderr


def test_what_is_listed() -> None:
    rows = json.loads(npmatch("list", "algorithms", "--json").out)
    assert list(rows) == ["algorithms"] and all(set(row) == {"name", "summary", "paper"} for row in rows["algorithms"])
    assert {"supervised", "fixmatch", "flexmatch", "npmatch"} <= {row["name"] for row in rows["algorithms"]}
    for what, some in {
        "heads": {"linear", "dropout", "neural_process"},
        "networks": {"wrn_28_2", "wrn_28_8", "wrn_37_2", "resnet50", "tiny"},
        "datasets": {"digits", "cifar10", "cifar100", "stl10"},
        "presets": {"quick", "standard", "paper", "table1/npmatch/cifar10-40"},
    }.items():
        done = npmatch("list", what, "--json")
        rows = json.loads(done.out)
        assert done.err == "" and done.out.count("\n") == 1 and list(rows) == [what]
        assert some <= {row["name"] for row in rows[what]} and all(row["summary"] for row in rows[what])
        plain = npmatch("list", what).out
        assert len(plain.splitlines()) == len(rows[what]) and all(row["name"] in plain for row in rows[what])


@pytest.mark.parametrize(
    "preset", ["quick", "standard", "paper", "table1/npmatch/cifar10-40", "table1/fixmatch/stl10-250"]
)
def test_what_is_shown_is_every_setting_and_can_be_read_back(preset: str) -> None:
    shown = tomllib.loads(npmatch("show", preset).out)
    assert shown == json.loads(npmatch("show", preset, "--json").out)
    assert list(shown) == ["preset", "seed", "data", "views", "net", "head", "algorithm", "optimizer", "train"]
    assert shown["data"]["labels_file"] == "none" and "clip_norm" in shown["optimizer"], "what is not set is shown too"


def test_the_papers_cell_has_the_papers_constants() -> None:
    shown = json.loads(npmatch("show", "table1/npmatch/cifar10-40", "--json").out)
    assert (shown["data"]["labels"], shown["net"]["name"], shown["train"]["steps"]) == (40, "wrn_28_2", 2**20)
    assert (shown["algorithm"]["min_confidence"], shown["algorithm"]["max_uncertainty"]) == (0.95, 0.4)


def test_settings_go_preset_then_file_then_set(tmp_path: Path) -> None:
    """And a file that names its preset stands on it, so that a run's own config.toml says all of the run."""
    data, file = pets(tmp_path / "pets"), tmp_path / "my.toml"
    file.write_text(
        'preset = "paper"\n[train]\nsteps = 2\nlog_every = 2\n[optimizer]\nlr = 0.5\n[net]\nname = "tiny"\n'
    )
    words = (*FAST, "--algorithm", "fixmatch", "--config", str(file), "--set", "optimizer.lr=0.25")
    assert npmatch("fit", str(data), "--out", str(tmp_path / "R"), *words).code == 0
    config = tomllib.loads((tmp_path / "R/config.toml").read_text())
    assert (config["preset"], config["optimizer"]["lr"], config["optimizer"]["momentum"]) == ("paper", 0.25, 0.9)
    assert (config["optimizer"]["clip_norm"], config["train"]["ema_decay"]) == ("none", 0.999), "not those of quick"
    assert {"npmatch", "torch", "python", "threads", "device"} <= config["environment"].keys()
    again = npmatch("fit", "--config", str(tmp_path / "R/config.toml"), "--out", str(tmp_path / "S"))
    assert again.code == 0, again
    assert digests(tmp_path / "S") == digests(tmp_path / "R")


def test_a_runs_settings_with_another_algorithm(tmp_path: Path) -> None:
    """What the file sets of its algorithm and head stays behind, all else is the same: so two methods are compared."""
    data = str(pets(tmp_path / "pets"))
    npmatch("fit", data, "--out", str(tmp_path / "R"), "--steps", "2", "--set", "optimizer.lr=0.25", *FAST)
    first = tomllib.loads((tmp_path / "R/config.toml").read_text())
    again = ("fit", "--config", str(tmp_path / "R/config.toml"), "--algorithm", "supervised", "--out")
    assert npmatch(*again, str(tmp_path / "S")).code == 0
    second = tomllib.loads((tmp_path / "S/config.toml").read_text())
    assert (first["algorithm"]["name"], first["head"]["name"]) == ("npmatch", "neural_process")
    assert (second["algorithm"], second["head"]) == (
        {"name": "supervised", "variant": "table"},
        {"name": "linear"},
    )
    same = ("preset", "data", "views", "net", "optimizer", "train", "seed")
    assert [second[part] for part in same] == [first[part] for part in same]
    assert (tmp_path / "S/split.json").read_bytes() == (tmp_path / "R/split.json").read_bytes()


def test_a_file_that_names_no_algorithm_still_sets_it() -> None:
    file = {"algorithm.min_confidence": 0.5, "head.dropout": 0.1, "optimizer.lr": 1.0}
    given = {"algorithm.name": "fixmatch"}
    assert over_file(file, given) == file | given
    own = {"algorithm.name": "npmatch", "head.name": "dropout"} | file
    assert over_file(own, own) == own
    assert over_file(own, {"algorithm.name": "fixmatch", "head.name": "dropout"}) == {
        "algorithm.name": "fixmatch", "head.name": "dropout", "head.dropout": 0.1, "optimizer.lr": 1.0,
    }  # fmt: skip


def test_labels_are_a_number_or_a_file_for_every_verb_that_reads_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for i in range(24):
        paint(Path(f"flat/{i}.png"), list(COLORS)[i % 3], i)
    named = [f"{i}.png,{list(COLORS)[i % 3] if i < 12 else ''}" for i in range(24)]
    Path("few.csv").write_text("\n".join(["path,label", *named]))
    Path("all.csv").write_text("\n".join(["path,label", *(f"{i}.png,{list(COLORS)[i % 3]}" for i in range(24))]))
    words = ("flat", "--labels", "few.csv")
    counted = json.loads(npmatch("check", *words, "--views", "--json").out)
    assert (counted["counts"]["labeled"], counted["counts"]["unlabeled"]) == (12, 12) and Path("views.png").is_file()
    done = npmatch("fit", *words, "--out", "R", "--algorithm", "supervised", "--steps", "2", *FAST, "--json")
    assert (json.loads(done.out)["labels"], json.loads(done.out)["dataset"]) == (12, "flat")
    measured = json.loads(npmatch("evaluate", "R", "flat", "--labels", "all.csv", "--json").out)
    assert measured["evaluated_on"]["images"] == 24
    assert npmatch("evaluate", "R", "flat", "--labels", "12").code == 2


def test_out_by_default_and_resume_of_what_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("fit", str(pets(tmp_path / "my pets")), "--algorithm", "supervised", "--steps", "1", *FAST)
    for name in ("my_pets-supervised-12-s0", "my_pets-supervised-12-s0-2"):
        assert f"report: {Path('runs') / name / 'report.html'}" in npmatch(*words).out
    before = {file: file.read_bytes() for file in Path("runs").rglob("*") if file.is_file() and file.name != ".lock"}
    Path("my pets").rename("elsewhere")  # what is finished needs its images no more
    for more in ((), ("--budget", "1h")):
        done = npmatch("fit", *FAST, "--out", "runs/my_pets-supervised-12-s0", "--resume", "--json", *more)
        assert done.code == 0 and "is finished" in done.err and json.loads(done.out)["steps"] == 1
        assert ("was begun with 1 steps, which stand" in done.err) == bool(more)
    assert all(file.read_bytes() == content for file, content in before.items())


def test_json_is_all_there_is_on_stdout(tmp_path: Path) -> None:
    data, run = str(pets(tmp_path / "pets")), str(tmp_path / "R")
    for words in (
        ("fit", data, "--out", run, *FAST, "--budget", "0.5s"),
        ("evaluate", run, data),
        ("predict", run, data, "--out", str(tmp_path / "a.csv"), "--accept-at", "0.9"),
        ("check", data),
        ("report", run),
    ):
        done = npmatch(*words, "--json")
        assert done.code == 0 and isinstance(json.loads(done.out), dict) and done.out.count("\n") == 1, done
        if words[0] in ("fit", "predict"):
            assert "--budget: a step takes" in done.err or "accept is empty" in done.err


@pytest.mark.parametrize("steps", ["1", "30"])
def test_divergence_exits_with_4(tmp_path: Path, steps: str) -> None:
    """Whether a gradient shows it, or only the predictions after the last step."""
    words = ("--out", str(tmp_path / "R"), "--steps", steps, *FAST, "--set", "optimizer.lr=1e30")
    done = npmatch("fit", str(pets(tmp_path / "pets")), *words)
    last = done.err.splitlines()[-1]
    assert done.code == 4 and last.startswith("npmatch: training diverged") and "lower optimizer.lr" in last, done
    assert not (tmp_path / "R/result.json").exists()


def test_a_fault_of_ours_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fault(name: str) -> None:
        raise ZeroDivisionError(name)

    monkeypatch.setattr("npmatch.presets.named", fault)
    with pytest.raises(ZeroDivisionError):
        npmatch("show", "quick")


@pytest.mark.skipif(not FORKS, reason="sends signals to processes it forked")
def test_signals_stop_it_with_all_saved_and_one_process_has_the_run(tmp_path: Path) -> None:
    quiet = Forked((*COMMAND, "--out", str(tmp_path / "quiet")), tmp_path / "quiet.txt")
    assert quiet.wait() == 0, quiet.said.read_text()
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        run = tmp_path / str(code)
        first = Forked((*COMMAND, "--out", str(run)), tmp_path / f"{code}.txt")
        first.until(run / "metrics.jsonl")
        second = npmatch("fit", "--resume", "--out", str(run))
        assert second.code == 2 and f"is being written by pid {first.pid} on" in second.err
        os.kill(first.pid, number)
        assert first.wait() == code, first.said.read_text()
        said = first.said.read_text().splitlines()[-1]
        step = int(re.findall(r"stopped at step (\d+)", said)[0])
        assert (run / f"checkpoint/step-{step:08d}").is_dir() and not (run / "result.json").exists()
        words = shlex.split(said[said.index("npmatch fit ") : said.index(" goes on")])[1:]
        again = Forked(tuple(words), tmp_path / f"{code}-again.txt")
        assert again.wait() == 0 and f"going on from step {step} of 40" in again.said.read_text()
        assert digests(run) == digests(tmp_path / "quiet")
        assert json.loads((run / "result.json").read_text())["resumed_from"] == [step]


def test_the_device_is_the_best_there_is() -> None:
    best = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    assert npmatch("evaluate", "none", "--device", "auto").code == 2
    assert package.Run("none").device.type == best
