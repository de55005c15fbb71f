"""The run folder: one writer, nothing drawn twice, no step logged twice, every file whole."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from npmatch import toml
from npmatch.errors import UserError
from npmatch.runs import RunFolder, default_path, differences, read_model

words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
scalars = st.booleans() | st.integers() | st.floats(allow_nan=False) | words
tables = st.recursive(
    st.dictionaries(words, scalars | st.lists(scalars | st.lists(scalars, max_size=2), max_size=3), max_size=4),
    lambda inner: st.dictionaries(words, inner | scalars, max_size=4),
    max_leaves=12,
)


@given(tables)
@settings(max_examples=300, deadline=None)
def test_toml_is_read_back_as_it_was(table: dict[str, Any]):
    text = toml.dumps(table)
    found = tomllib.loads(text)
    assert found == table
    assert json.dumps(found, sort_keys=True) == json.dumps(table, sort_keys=True), "True is not 1, 0.0 not -0.0"


def test_toml_of_what_settings_are_made_of():
    special = {"rate": 1e-05, "big": 1e22, "inf": math.inf, "none": None, "on": True, "pair": (1, 2.0)}
    text = toml.dumps({"seed": 1, "train": special, "odd key.\x7f": {"": 'a"\\\n\r\t\x00\x7f\x85 é🙂'}, "empty": {}})
    assert text.splitlines()[:3] == ["seed = 1", "", "[train]"]
    assert tomllib.loads(text) == {
        "seed": 1,
        "train": {"rate": 1e-05, "big": 1e22, "inf": math.inf, "on": True, "pair": [1, 2.0]},
        "odd key.\x7f": {"": 'a"\\\n\r\t\x00\x7f\x85 é🙂'},
        "empty": {},
    }
    assert math.isnan(tomllib.loads(toml.dumps({"x": math.nan}))["x"])
    for unknown in ({"x": [None]}, {"x": object()}):
        with pytest.raises(TypeError, match="TOML has no form"):
            toml.dumps(unknown)
    with pytest.raises(UserError, match="not Unicode"):
        toml.dumps({"data": "caf\udce9"})


def test_default_path_is_free_and_one_folder_deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert default_path("digits", "npmatch", 40, 1) == Path("runs/digits-npmatch-40-s1")
    for _ in range(2):
        default_path("digits", "npmatch", 40, 1).mkdir(parents=True)
    assert default_path("digits", "npmatch", 40, 1) == Path("runs/digits-npmatch-40-s1-3")
    assert default_path("../my images/", "uda", "lists/few: 4.csv", 0) == Path("runs/my_images-uda-few_4.csv-s0")


def test_a_folder_that_exists_is_only_entered_with_resume(tmp_path: Path):
    path = tmp_path / "deep" / "run"
    with RunFolder.create(path, resume=False) as run:
        run.write_config({"seed": 1})
    with pytest.raises(UserError, match=r"--resume.*--out"):
        RunFolder.create(path, resume=False)
    for leftover in (path / ".tmp-result.json", path / "checkpoint" / ".tmp-step-00000001" / "state.json"):
        leftover.parent.mkdir(parents=True, exist_ok=True)
        leftover.write_text("half")
    with RunFolder.create(path, resume=True) as run:
        assert run.read_config() == {"seed": 1}
        assert not list(path.rglob(".tmp-*"))
        assert run.load_checkpoint() is None and run.read_result() is None and run.read_split() is None
    (tmp_path / "empty").mkdir()
    RunFolder.create(tmp_path / "empty", resume=False).close()
    RunFolder.create(tmp_path / "new", resume=True).close()


def test_what_is_no_run_folder_is_refused(tmp_path: Path):
    (tmp_path / "photo.jpg").write_bytes(b"")
    for path, why in [
        (tmp_path, "is not the folder of a run"),
        (tmp_path / "photo.jpg", "is a file"),
        (tmp_path / "photo.jpg" / "run", "cannot write"),
    ]:
        with pytest.raises(UserError, match=why):
            RunFolder.create(path, resume=True)
    assert os.listdir(tmp_path) == ["photo.jpg"]
    for read in (RunFolder(tmp_path).read_config, RunFolder(tmp_path).load_model):
        with pytest.raises(UserError, match=r"is not the folder of a run|has no model yet"):
            read()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="permissions do not bind root")
def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="cannot write"):
        RunFolder.create(tmp_path / "run", resume=False)


HOLD = """
import os, sys, time
from pathlib import Path
from npmatch.runs import RunFolder

run = RunFolder.create(Path(sys.argv[1]), resume=True)
worker = os.fork() if hasattr(os, "fork") else None
if worker != 0:
    print(worker, flush=True)
time.sleep(60)
"""


def test_two_processes_cannot_write_one_run(tmp_path: Path):
    run = RunFolder.create(tmp_path / "run", resume=False)
    with pytest.raises(UserError, match=rf"written by pid {os.getpid()} on \S+ since"):
        RunFolder.create(run.path, resume=True)
    run.close()
    run.close()

    command = [sys.executable, "-c", HOLD, str(run.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        worker = holder.stdout.readline().strip()
        try:
            with pytest.raises(UserError, match=rf"{run.path.name} is being written by pid {holder.pid} on \S+ since"):
                RunFolder.create(run.path, resume=True)
            holder.kill()
            holder.wait()
            # No stale lock, though a worker that the killed process forked is still there.
            RunFolder.create(run.path, resume=True).close()
        finally:
            holder.kill()
            if worker.isdigit():
                os.kill(int(worker), signal.SIGTERM)


def test_differences_name_the_setting():
    stored = {"seed": 1, "algorithm": {"name": "npmatch", "min_confidence": 0.95}, "versions": {"torch": "2"}}
    assert (
        differences(stored, {"seed": 1, "algorithm": {"name": "npmatch", "min_confidence": 0.95, "warm": None}}) == []
    )
    assert differences({"net": {"widths": [1, 2]}}, {"net": {"widths": (1, 2)}, "views": {}}) == []
    assert differences(stored, {"seed": 2, "algorithm": {"name": "npmatch", "min_confidence": 0.9, "new": True}}) == [
        ("seed", 1, 2),
        ("algorithm.min_confidence", 0.95, 0.9),
        ("algorithm.new", None, True),
    ]
    assert differences(stored, {"algorithm": {"name": "npmatch", "min_confidence": None}}) == [
        ("algorithm.min_confidence", 0.95, None)
    ]


def test_the_split_is_drawn_once(tmp_path: Path):
    run = RunFolder(tmp_path)
    split = {"labeled": [3, 1], "unlabeled": list(torch.arange(3)), "val": [], "test": range(4, 6)}
    run.write_split(split)
    assert run.read_split() == {"labeled": [3, 1], "unlabeled": [0, 1, 2], "val": [], "test": [4, 5]}
    with pytest.raises(RuntimeError, match="drawn once"):
        run.write_split(split)
    for damage in ("", "[]", '{"labeled": []}', '{"labeled": [1.5], "unlabeled": [], "val": [], "test": []}'):
        (tmp_path / "split.json").write_text(damage)
        with pytest.raises(UserError, match=r"split\.json is damaged"):
            run.read_split()


def test_metrics_are_cut_to_the_checkpoint(tmp_path: Path):
    run = RunFolder(tmp_path)
    assert run.read_metrics() == []
    run.cut_metrics(0)
    for step in (10, 20, 30):
        run.log({"loss": math.nan, "per_class": [1.0, math.inf], "step": step})
    file = tmp_path / "metrics.jsonl"
    lines = file.read_text().splitlines()
    assert lines[0] == '{"step": 10, "loss": null, "per_class": [1.0, null]}'
    whole = file.read_bytes()
    for tail in (b'{"step": 40, "lo', b'{"step": 40}', b"\0\0\0\n"):
        file.write_bytes(whole + tail)
        assert [row["step"] for row in run.read_metrics()] == [10, 20, 30]
        run.cut_metrics(20)
        assert file.read_text().splitlines() == lines[:2]
    run.log({"step": 30})
    assert [row["step"] for row in run.read_metrics()] == [10, 20, 30]
    assert os.listdir(tmp_path) == ["metrics.jsonl"]
    file.write_text(f"{lines[0]}\n[1]\n{lines[1]}\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl line 2 is damaged"):
        run.cut_metrics(20)
    assert len(file.read_text().splitlines()) == 3, "nothing is thrown away that nobody understood"


def test_the_result_is_valid_json(tmp_path: Path):
    run = RunFolder(tmp_path)
    run.write_result({"error": 4.5, "ece": math.nan, "error_ci95": (4.0, math.inf), "why": {"ece": "no labels"}})
    assert run.read_result() == {"error": 4.5, "ece": None, "error_ci95": [4.0, None], "why": {"ece": "no labels"}}
    json.loads((tmp_path / "result.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    (tmp_path / "result.json").write_text('{"error": 4.')
    with pytest.raises(UserError, match=r"result\.json is damaged"):
        run.read_result()
    (tmp_path / "config.toml").write_text("seed = \n")
    with pytest.raises(UserError, match=r"config\.toml is damaged"):
        run.read_config()


def test_the_model_comes_back_or_is_refused_by_name(tmp_path: Path):
    run = RunFolder(tmp_path)
    for number in (1.0, 2.0):  # the second one stands in the place of the first
        run.save_model({"weight": torch.full((3,), number)}, {"classes": ["cat", "dög"], "mean": [0.5]})
    tensors, description = run.load_model()
    assert torch.equal(tensors["weight"], torch.full((3,), 2.0))
    assert description == {"classes": ["cat", "dög"], "mean": [0.5]}
    assert sorted(os.listdir(tmp_path)) == ["model"]
    assert sorted(os.listdir(tmp_path / "model")) == ["model.json", "weights.safetensors"]

    moved = (tmp_path / "model").rename(tmp_path / "elsewhere")
    assert read_model(moved)[1] == description
    run.save_checkpoint(1, tensors, {})
    state = tmp_path / "checkpoint" / "step-00000001"
    for name, damage in [
        ("model.json", (moved / "model.json").read_bytes().replace(b"cat", b"cow")),
        ("model.json", (state / "state.json").read_bytes()),
        ("weights.safetensors", (moved / "weights.safetensors").read_bytes()[:-1] + b"\1"),
    ]:
        whole = (moved / name).read_bytes()
        (moved / name).write_bytes(damage)
        with pytest.raises(UserError, match=name):
            read_model(moved)
        (moved / name).write_bytes(whole)


def test_a_checkpoint_of_a_run_comes_back(tmp_path: Path):
    with RunFolder.create(tmp_path / "run", resume=False) as run:
        run.save_checkpoint(7, {"x": torch.arange(3)}, {"lr": 0.03})
        found = run.load_checkpoint()
    assert found is not None and (found.step, found.meta) == (7, {"lr": 0.03})
