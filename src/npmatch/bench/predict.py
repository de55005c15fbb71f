"""`npmatch bench predict`: images per second from files to a table of predictions, as a user gets them."""

from __future__ import annotations

import math
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from npmatch.answers import write_answers
from npmatch.bench.pictures import jpegs, write_jpegs
from npmatch.build import build_model
from npmatch.config import override
from npmatch.data.decode import default_image_size, stored_size
from npmatch.data.normal import Normal
from npmatch.errors import UserError
from npmatch.evaluate import predict
from npmatch.plan import environment
from npmatch.predictor import Run, in_batches, load, model_description
from npmatch.presets import About, preset
from npmatch.progress import Progress
from npmatch.runs import RunFolder

NET, CLASSES = "wrn_28_2", 10  # of an untrained model
NUMBER = 2000  # images generated
LARGEST_KEPT_WHOLE = 64  # pixels: larger images are photographs, from which a square is cut
PHOTOGRAPH = (500, 375)  # ImageNet's usual size
MANY = 4  # times the images: memory that grows with them would show
SAMPLED_SECONDS = 0.01

Size = tuple[int, int]  # width, height


def measure(
    run: Path | None,
    images: Path | None,
    *,
    net: str | None,
    number: int | None,
    size: Size | None,
    device: str,
    progress: Progress,
) -> dict[str, Any]:
    """Rows of N and 4 N generated images, or one of the images given, and the machine."""
    if run is not None and net is not None:
        raise UserError(f"--net {net}: a RUN has its own network; leave one of the two out")
    if images is not None and (number is not None or size is not None):
        raise UserError("--images and --size are of generated images; leave them or IMAGES out")
    with tempfile.TemporaryDirectory(prefix="npmatch-bench-") as name:
        place = Path(name)
        if run is None:
            size = size or (32, 32)
            run = place / "untrained"
            write_untrained(run, net or NET, min(size))
        model = load(run, device=device)
        folders = [images] if images is not None else _folders(place, model, number or NUMBER, size)
        _warm_up(model, folders[0], progress)
        rows = [_row(model, folder, place / "answers.csv", progress) for folder in folders]
        return {"rows": rows, "environment": environment(model.device)}


def write_untrained(run: Path, net: str, side: int) -> None:
    """A run folder with all that predicts, as `npmatch fit` would leave it for color images of that short side. What
    its network has learnt, nothing, changes no time."""
    image_size = default_image_size([side])
    about = About(name="pictures", image_size=image_size, channels=3, flip=True)
    settings = override(preset("standard", about, "npmatch"), {"net.name": net, "data.channels": 3})
    model = build_model(settings, num_classes=CLASSES, channels=3)
    normal = Normal(image_size, (0.5,) * 3, (0.25,) * 3)
    classes = [f"class {k}" for k in range(CLASSES)]
    run.mkdir()
    RunFolder(run).save_model(*model_description(model, settings, classes, normal, stored_size(image_size), {}))


def _folders(place: Path, model: Run, number: int, size: Size | None) -> list[Path]:
    """N and 4 N generated files, of the size the model keeps, or photographs where it cuts its images from them."""
    if size is None:
        kept = model.kept_size
        size = (kept, kept) if kept <= LARGEST_KEPT_WHOLE else PHOTOGRAPH
    files = jpegs(*size)
    folders = [place / "few", place / "many"]
    for folder, count in zip(folders, (number, MANY * number)):
        write_jpegs(folder, files, count)
    return folders


def _warm_up(run: Run, folder: Path, progress: Progress) -> None:
    """Two batches, so that no row pays for what happens once: libraries loaded, kernels chosen, threads started."""
    progress.say(f"{run.settings.net.name} on {run.device}: two batches first, which do not count")
    for _ in islice(run.stream(folder, skip_unreadable=True), 2):
        pass


def _row(run: Run, images: Path, out: Path, progress: Progress) -> dict[str, Any]:
    began = time.perf_counter()
    with PeakMemory() as memory:
        count = write_answers(run, images, out, skip_unreadable=True, progress=progress)["images"]
    seconds = time.perf_counter() - began
    if not count:
        raise UserError(f"{images}: none of the images can be read; name a folder of others")
    progress.say(f"{count:,} images again, first without the network, then without the files")
    return {
        "net": run.settings.net.name,
        "images": count,
        "image_size": run.normal.image_size,
        "images_per_second": count / seconds,
        "decode_per_second": count / _seconds_of_decoding(run, images),
        "network_per_second": count / _seconds_of_predicting(run, images, count),
        "peak_mib": memory.growth,
        "device": environment(run.device)["device_name"],
    }


def _seconds_of_decoding(run: Run, images: Path) -> float:
    began = time.perf_counter()
    for _ in in_batches(*run.reader(images)):
        pass
    return time.perf_counter() - began


def _seconds_of_predicting(run: Run, images: Path, count: int) -> float:
    """Of that many images that are in memory already: the first batch, again and again."""
    read = (torch.stack(good) for _, found in in_batches(*run.reader(images)) if (good := _tensors(found)))
    batch = next(read)
    read.close()
    batches = (batch[: count - start] for start in range(0, count, len(batch)))
    began = time.perf_counter()
    for _ in predict(run.model, batches, run.normal, average=run.settings.train.predict_with, keep_samples=True):
        pass  # its numbers are on the host: nothing is left to wait for
    return time.perf_counter() - began


def _tensors(found: Sequence[object]) -> list[Tensor]:
    return [one for one in found if isinstance(one, Tensor)]


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The result for people."""
    device = found["environment"]["device_name"]
    yield f"{'images':>10}{'images/s':>12}{'files only':>12}{'network only':>14}{'memory rose by':>17}   on {device}"
    for row in found["rows"]:
        speeds = f"{row['images_per_second']:12,.0f}{row['decode_per_second']:12,.0f}{row['network_per_second']:14,.0f}"
        memory = "not known" if row["peak_mib"] is None else f"{row['peak_mib']:,.0f} MiB"
        yield f"{row['images']:10,}{speeds}{memory:>17}   {row['net']}, {row['image_size']}x{row['image_size']}"


class PeakMemory:
    """How far this process' resident memory rises while in here: `growth` in MiB, None where nothing tells it."""

    growth: float | None = None

    def __enter__(self) -> PeakMemory:
        self._before = self._peak = resident_mib()
        self._done = threading.Event()
        self._watch = threading.Thread(target=self._sample, daemon=True)
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._watch.join()
        growth = max(self._peak, resident_mib()) - self._before
        self.growth = None if math.isnan(growth) else growth

    def _sample(self) -> None:
        while not self._done.wait(SAMPLED_SECONDS):
            self._peak = max(self._peak, resident_mib())


def resident_mib() -> float:
    """Of this process, now; NaN where there is no /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return math.nan
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
