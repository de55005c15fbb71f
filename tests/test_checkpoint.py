"""Checkpoints: what is written comes back to the bit, and what was cut, altered or half written is never taken."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from npmatch.checkpoint import Checkpoint, clean, load_newest, save, saving
from npmatch.errors import UserError

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills processes it forked")


def state(step: int) -> dict[str, Tensor]:
    """Tensors of which each value tells the step."""
    return {"weight": torch.full((3, 50), float(step)), "count": torch.tensor(step), "mean": torch.full((4,), -step)}


def meta(step: int) -> dict[str, Any]:
    return {"step": step, "rate": 1e-05}


def is_whole(found: Checkpoint) -> bool:
    """Whether a checkpoint is what `save(folder, step, state(step), meta(step))` wrote."""
    wanted = state(found.step)
    same = all(torch.equal(found.tensors[name], wanted[name]) for name in wanted)
    return same and found.tensors.keys() == wanted.keys() and found.meta == meta(found.step)


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A folder with a checkpoint at step 1 and one at step 2."""
    folder = tmp_path / "checkpoint"
    for step in (1, 2):
        save(folder, step, state(step), meta(step))
    return folder


def test_every_kind_of_tensor_comes_back_to_the_bit(tmp_path: Path):
    special = torch.tensor([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-45, 65504.0])
    shared = torch.arange(12.0).reshape(3, 4)
    tensors = {
        **{str(dtype): special.to(dtype) for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)},
        "int64": torch.tensor([-(1 << 63), (1 << 63) - 1]),
        "uint8": torch.arange(256, dtype=torch.uint8),
        "bool": torch.tensor([True, False]),
        "no dimension": torch.tensor(1.0 / 3, dtype=torch.bfloat16),
        "no element": torch.zeros(0, 3),
        "shared": shared,
        "not contiguous": shared.t(),
        "part": shared[1],
        "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "a parameter": torch.nn.Parameter(torch.randn(2)),
        "naïve.ключ.🙂": torch.zeros(1),
    }
    about = {"epoch": 3, "rate": 1e-05, "names": ["ключ", 'a"b\n', "\udce9"], "none": None, "nested": {"a": [1, 2.5]}}
    save(tmp_path / "checkpoint", 1234, tensors, about)
    found = load_newest(tmp_path / "checkpoint")
    assert found is not None and (found.step, found.meta) == (1234, about)
    assert found.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        other = found.tensors[name]
        assert (other.dtype, other.shape) == (tensor.dtype, tensor.shape), name
        bits, other_bits = (x.detach().contiguous().reshape(-1).view(torch.uint8) for x in (tensor, other))
        assert torch.equal(bits, other_bits), name


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_tensors_on_a_gpu_come_back_on_the_cpu(tmp_path: Path):
    save(tmp_path / "checkpoint", 1, {"x": torch.arange(5, device="cuda")}, {})
    found = load_newest(tmp_path / "checkpoint")
    assert found is not None and torch.equal(found.tensors["x"], torch.arange(5))


def test_the_bytes_of_a_checkpoint_are_a_function_of_its_state(tmp_path: Path):
    for run in ("a", "b"):
        save(tmp_path / run, 7, state(7), meta(7))
    for name in ("state.safetensors", "state.json"):
        assert len({(tmp_path / run / "step-00000007" / name).read_bytes() for run in ("a", "b")}) == 1


def test_the_last_two_are_kept_and_the_mode_is_the_umasks(tmp_path: Path):
    folder = tmp_path / "checkpoint"
    assert load_newest(folder) is None
    before = os.umask(0o027)
    try:
        for step in (5, 10, 15, 20):
            save(folder, step, state(step), meta(step))
    finally:
        os.umask(before)
    assert sorted(os.listdir(folder)) == ["step-00000015", "step-00000020"]
    if os.name == "posix":
        assert (folder / "step-00000020").stat().st_mode & 0o777 == 0o750
        assert {file.stat().st_mode & 0o777 for file in folder.glob("*/*")} == {0o640}


def test_saving_after_a_fall_back_never_removes_the_last_good_one(two: Path):
    save(two, 3, state(3), meta(3))
    for step in (2, 3):
        (two / f"step-0000000{step}" / "state.json").unlink()
    shutil.copytree(two / "step-00000002", two / "step-00000009")
    save(two, 1, state(1), meta(1))
    found = load_newest(two)
    assert os.listdir(two) == ["step-00000001"] and found is not None and is_whole(found)


def test_the_same_step_can_be_saved_again(two: Path):
    save(two, 2, {"new": torch.ones(1)}, {})
    found = load_newest(two)
    assert found is not None and list(found.tensors) == ["new"]
    assert sorted(os.listdir(two)) == ["step-00000001", "step-00000002"]


def assert_refused(folder: Path, file: Path) -> None:
    """The newest checkpoint is refused by the file's name, and the one before it taken."""
    with pytest.warns(UserWarning) as said:
        found = load_newest(folder)
    assert found is not None and found.step == 1 and is_whole(found)
    assert len(said) == 1 and str(said[0].message).startswith(f"{file} ") and "\n" not in str(said[0].message)


@pytest.mark.parametrize("name", ["state.safetensors", "state.json"])
def test_a_file_cut_anywhere_is_refused(two: Path, name: str):
    file = two / "step-00000002" / name
    whole = file.read_bytes()
    assert len(whole) > 250
    for length in {*range(0, len(whole), 64), 1, 7, 8, 9, len(whole) - 1}:
        file.write_bytes(whole[:length])
        assert_refused(two, file)
    for tail in (b"\0", b"\n", b" "):
        file.write_bytes(whole + tail)
        assert_refused(two, file)


def test_every_flipped_bit_is_found(two: Path):
    chance = random.Random(0)
    for name, flips in (("state.safetensors", 200), ("state.json", 400)):  # by files: the JSON is the smaller one
        file = two / "step-00000002" / name
        whole = file.read_bytes()
        for place in chance.sample(range(len(whole) * 8), flips):
            altered = bytearray(whole)
            altered[place // 8] ^= 1 << place % 8
            file.write_bytes(altered)
            assert_refused(two, file)


def swap(name: str) -> Callable[[Path], object]:
    def exchange(folder: Path) -> None:
        shutil.copy(folder / "step-00000001" / name, folder / "step-00000002" / name)

    return exchange


def rewrite(text: str) -> Callable[[Path], object]:
    return lambda folder: (folder / "step-00000002" / "state.json").write_text(text)


def another_format(folder: Path) -> None:
    file = folder / "step-00000002" / "state.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"format": 2}, indent=1))


def same_in_other_words(folder: Path) -> None:
    file = folder / "step-00000002" / "state.json"
    file.write_text(file.read_text().replace("1e-05", "1E-05"))


def folder_for_file(folder: Path) -> None:
    (folder / "step-00000002" / "state.safetensors").unlink()
    (folder / "step-00000002" / "state.safetensors").mkdir()


@pytest.mark.parametrize(
    ("damage", "file", "why"),
    [
        (swap("state.safetensors"), "state.safetensors", "cut, altered or swapped"),
        (swap("state.json"), "state.safetensors", "cut, altered or swapped"),
        (lambda f: [swap(name)(f) for name in ("state.json", "state.safetensors")], "state.json", "of step 1"),
        (another_format, "state.json", "has format 2"),
        (rewrite(""), "state.json", "is cut"),
        (rewrite('"text"'), "state.json", "not a description"),
        (rewrite("[" * 100_000), "state.json", "not a description"),
        (rewrite('{"format": NaN}'), "state.json", "not a description"),
        (rewrite('{"format": 1}'), "state.json", "altered"),
        (same_in_other_words, "state.json", "altered"),
        (lambda f: (f / "step-00000002" / "state.json").unlink(), "state.json", "cannot be read: No such file"),
        (folder_for_file, "state.safetensors", "cannot be read"),
        (lambda f: torch.save({}, f / "step-00000002" / "state.safetensors"), "state.safetensors", "altered"),
    ],
)
def test_a_foreign_file_is_refused_by_name(two: Path, damage: Callable[[Path], object], file: str, why: str):
    damage(two)
    with pytest.warns(UserWarning, match=why) as said:
        found = load_newest(two)
    assert found is not None and is_whole(found) and found.step == 1
    assert str(said[0].message).startswith(str(two / "step-00000002" / file))


def test_when_none_is_good_all_are_named_and_nothing_starts_afresh(two: Path):
    (two / "step-00000001" / "state.json").write_text("{}")
    (two / "step-00000002" / "state.safetensors").write_bytes(b"")
    (two / "epoch-9.ckpt").write_bytes(b"\x80\x04.")
    with pytest.raises(UserError) as refusal:
        load_newest(two)
    assert all(str(two / name) in str(refusal.value) for name in ("step-00000001", "step-00000002", "epoch-9.ckpt"))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EIO])
def test_a_disk_that_refuses_leaves_the_last_good_one(two: Path, monkeypatch: pytest.MonkeyPatch, number: int):
    def refuse(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(UserError, match=r"cannot write .*checkpoint.*"):
        save(two, 3, state(3), meta(3))
    found = load_newest(two)
    assert found is not None and is_whole(found) and found.step == 2
    assert sorted(os.listdir(two)) == ["step-00000001", "step-00000002"]


def test_a_run_folder_that_was_deleted_is_not_made_anew(two: Path):
    shutil.rmtree(two.parent)
    with pytest.raises(UserError, match="No such file"):
        save(two, 3, state(3), meta(3))
    assert not two.parent.exists()


# One process that has torch loaded forks all those that die. Python's pytest itself is not forked: torch has threads.
CHILD = """
import json, os, random, resource, signal, sys, time
from pathlib import Path
import torch
from npmatch.checkpoint import load_newest, save, saving
from npmatch.errors import UserError

torch.set_num_threads(1)
root = Path(sys.argv[1])

def state(step, size=50):
    return {"weight": torch.full((3, size), float(step)), "count": torch.tensor(step), "mean": torch.full((4,), -step)}

def forked(work):
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    return child

def die_after(folder, step, stage):
    for done, _ in enumerate(saving(folder, step, state(step), {"step": step})):
        if done == stage:
            os.kill(os.getpid(), signal.SIGKILL)

deaths = {}
for name, history, step in [("first", [], 1), ("fourth", [1, 2, 3], 4), ("again", [1, 2], 2), ("only", [2], 2)]:
    for stage in range(100):
        folder = root / f"{name}-{stage}" / "checkpoint"
        folder.parent.mkdir()
        for earlier in history:
            save(folder, earlier, state(earlier), {"step": earlier})
        _, status = os.waitpid(forked(lambda: die_after(folder, step, stage)), 0)
        if status == 0:
            break
        deaths[folder.parent.name] = os.WTERMSIG(status)

def save_on(folder):
    for step in range(1, 1_000_000):
        save(folder, step, state(step, 20_000), {"step": step})

chance = random.Random(0)
for number in range(12):
    folder = root / f"any-{number}" / "checkpoint"
    folder.parent.mkdir()
    child = forked(lambda: save_on(folder))
    while not list(folder.glob("step-*")):
        time.sleep(0.001)
    time.sleep(chance.uniform(0, 0.05))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)

folder = root / "limit" / "checkpoint"
folder.parent.mkdir()
save(folder, 1, state(1), {"step": 1})
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
said = ""
try:
    save(folder, 2, state(2, 20_000), {"step": 2})
except UserError as error:
    said = str(error)
left = sorted(os.listdir(folder))
step_left = load_newest(folder).step
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
save(folder, 3, state(3), {"step": 3})
print(json.dumps({"deaths": deaths, "said": said, "left": left, "step_left": step_left}))
"""


@needs_fork
def test_killed_at_any_stage_or_out_of_space_the_old_state_or_the_new_one_is_whole(tmp_path: Path):
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert child.returncode == 0, child.stderr
    report = json.loads(child.stdout)

    stages = len(list(saving(tmp_path / "checkpoint", 1, state(1), {})))
    assert set(report["deaths"].values()) == {9}
    old_and_new = {"first": (None, 1), "fourth": (3, 4), "again": (2, 2), "only": (2, 2)}
    for name, (old, new) in old_and_new.items():
        died = [folder for folder in report["deaths"] if folder.startswith(name)]
        assert len(died) >= stages, "each stage was died after"
        steps = [reopened(tmp_path / folder / "checkpoint") for folder in died]
        assert set(steps) <= {old, new} and (steps[0], steps[-1]) == (old, new), name

    for number in range(12):
        assert reopened(tmp_path / f"any-{number}" / "checkpoint") is not None

    assert f"cannot write {tmp_path / 'limit' / 'checkpoint'}" in report["said"] and "make room" in report["said"]
    assert "(240," in report["said"] and "bytes needed" in report["said"]
    assert (report["left"], report["step_left"]) == (["step-00000001"], 1)
    assert reopened(tmp_path / "limit" / "checkpoint") == 3


def reopened(folder: Path) -> int | None:
    """The step a next start goes on from; it takes leftovers away and finds a whole state."""
    clean(folder)
    assert not folder.exists() or not [name for name in os.listdir(folder) if name.startswith(".")]
    found = load_newest(folder)
    if found is not None:
        step = found.step
        assert found.meta == {"step": step} and int(found.tensors["count"]) == step
        assert bool((found.tensors["weight"] == step).all()) and bool((found.tensors["mean"] == -step).all())
    return None if found is None else found.step
