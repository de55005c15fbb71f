"""Images per second from files: the rows, and that reading runs ahead of the network, but never far."""

from __future__ import annotations

import json
import mmap
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from npmatch.bench.pictures import jpegs, write_jpegs
from npmatch.bench.predict import PeakMemory, write_untrained
from npmatch.data.decode import Unreadable
from npmatch.errors import UserError
from npmatch.evaluate import BATCH
from npmatch.predictor import BLOCK, Run, in_batches, load
from tests.pets import npmatch

SPEEDS = ("images_per_second", "decode_per_second", "network_per_second")
ROW = {"net", "images", "image_size", *SPEEDS, "peak_mib", "device"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    place = tmp_path_factory.mktemp("bench") / "run"
    write_untrained(place, "tiny", 8)
    return load(place, device="cpu")


def test_generated_images_n_times_and_four_times_as_many(tmp_path: Path) -> None:
    words = ("bench", "predict", "--net", "tiny", "--images", "70", "--size", "40x36", "--device", "cpu")
    done = npmatch(*words, "--out", str(tmp_path), "--json")
    found = json.loads(done.out)
    assert (done.code, done.out.count("\n")) == (0, 1) and found == json.loads((tmp_path / "predict.json").read_text())
    assert [row["images"] for row in found["rows"]] == [70, 280] and {"torch", "threads"} <= found["environment"].keys()
    for row in found["rows"]:
        assert set(row) == ROW and (row["net"], row["image_size"]) == ("tiny", 32)
        assert all(row[name] > 0 for name in SPEEDS) and row["peak_mib"] >= 0


def test_a_persons_run_and_images(tmp_path: Path, run: Run) -> None:
    write_jpegs(tmp_path / "mine", jpegs(20, 30, 2), 5)
    (tmp_path / "mine/5.jpg").write_bytes(b"broken")
    done = npmatch("bench", "predict", str(run.path), str(tmp_path / "mine"), "--device", "cpu")
    assert done.code == 0 and "5.jpg: left out" in done.err and "5  " in done.out and "tiny, 32x32" in done.out
    for words, says in (
        (("none",), "none: no such folder"),
        (("--size", "9"), "as in 500x375"),
        ((str(run.path), "--net", "tiny"), "--net tiny: a RUN has its own"),
        ((str(run.path), str(tmp_path / "mine"), "--images", "3"), "leave them or IMAGES out"),
    ):
        refused = npmatch("bench", "predict", *words, "--device", "cpu")
        assert refused.code == 2 and says in refused.err


def test_generated_files_are_photographs_by_weight_and_cost_no_room(tmp_path: Path) -> None:
    files = jpegs(500, 375, 3)
    assert len(set(files)) == 3 and all(0.3 < len(file) / (500 * 375) < 1 for file in files)
    write_jpegs(tmp_path / "many", files, 10)
    paths = sorted((tmp_path / "many").iterdir())
    assert len(paths) == 10 and len({path.stat().st_ino for path in paths}) == 3
    with Image.open(paths[-1]) as picture:
        assert picture.size == (500, 375)


def settled(count: Callable[[], int]) -> int:
    """The count when it has stopped to rise."""
    before = -1
    while (now := count()) > before:
        before = now
        time.sleep(0.2)
    return now


def test_reading_goes_on_while_a_batch_is_used_and_stops_one_batch_ahead() -> None:
    started: list[int] = []

    def read(i: int) -> Tensor:
        started.append(i)
        return torch.tensor(i)

    batches = in_batches([str(i) for i in range(10 * BATCH + 3)], read)
    first = next(batches)
    assert settled(lambda: len(started)) == 2 * BATCH
    rest = list(batches)
    names = [name for names, _ in [first, *rest] for name in names]
    values = [int(one) for _, found in [first, *rest] for one in found if isinstance(one, Tensor)]
    assert names == [str(i) for i in range(10 * BATCH + 3)] and values == list(range(10 * BATCH + 3))
    assert [len(names) for names, _ in rest] == [BATCH] * 9 + [3]


def test_who_stops_early_stops_the_reading() -> None:
    threads, started = threading.active_count(), []
    batches = in_batches([str(i) for i in range(100 * BATCH)], lambda i: started.append(i) or torch.zeros(1))
    next(batches)
    batches.close()
    assert len(started) <= 2 * BATCH and threading.active_count() == threads


def test_of_many_images_few_are_held(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many there are: between two batches those of both, and what is read ahead of them."""
    held, most, lock = 0, 0, threading.Lock()

    def count(change: int) -> None:
        nonlocal held, most
        with lock:
            held += change
            most = max(most, held)

    def read(i: int) -> Tensor:
        if i == 7:
            raise Unreadable("seven", "broken")
        image = torch.full((3, 32, 32), i % 256, dtype=torch.uint8)
        count(1)
        weakref.finalize(image, count, -1)
        return image

    total = 12 * BATCH
    monkeypatch.setattr(run, "reader", lambda images: ([str(i) for i in range(total)], read))
    ids: list[str] = []
    skipped: list[tuple[str, str]] = []
    for part in run.stream("folder", skip_unreadable=True, skipped=skipped):
        ids += part.ids
        time.sleep(0.02)  # slower than reading
    assert ids == [str(i) for i in range(total) if i != 7] and skipped == [("7", "broken")]
    assert BATCH < most <= 3 * BATCH + BLOCK and held == 0
    with pytest.raises(UserError, match=r"1 of 3072 images cannot be read(?s:.*) 7: broken"):
        list(run.stream("folder"))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs Linux' account of memory")
def test_peak_memory_sees_what_came_and_went() -> None:
    with PeakMemory() as memory:
        pixels = np.frombuffer(mmap.mmap(-1, 64 * 2**20), np.uint8)  # pages that nobody had before
        pixels[:] = 1
        time.sleep(0.5)  # the watch is a thread, which has to have its turn
        del pixels
    assert memory.growth is not None and 60 < memory.growth < 90
