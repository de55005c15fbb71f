"""`npmatch bench step`: how long a complete training step takes, and where the time goes."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch

from npmatch.bench.conventional import Conventional
from npmatch.bench.stages import stage_times
from npmatch.bench.timing import Marks, summary
from npmatch.build import build_stream, build_training, normalization
from npmatch.data.normal import Normal
from npmatch.engine import Batches, Speed, train
from npmatch.errors import UserError
from npmatch.plan import Opening, Plan, environment, new_plan
from npmatch.progress import Progress

LOG_EVERY = 50  # as a run of preset paper logs, so that its look at the numbers is in the time
WARM_UP = 10  # steps before the clock counts, compiling and recording among them
MADE_UP = 10_000  # images, where none are given


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    plan: Plan
    speed: Speed
    conventional: bool = False


def bench_step(
    data: Any,
    changes: Mapping[str, Any],
    *,
    preset_name: str,
    algorithms: Iterable[str],
    nets: Iterable[str],
    weak_passes: Iterable[str],
    steps: int,
    compiled: bool,
    conventional: bool,
    workers: int,
    stages: bool,
    device: torch.device,
    progress: Progress,
) -> dict[str, Any]:
    """A row for each network, algorithm and weak pass, and with `conventional` one more of the first two."""
    on_gpu, rows = device.type == "cuda", []
    speed = Speed(compile=compiled and on_gpu, record=on_gpu)
    if data is None:
        data, changes = made_up(), {"data.labels": 40} | dict(changes)
    for net, algorithm in product(nets, algorithms):
        plans = [
            new_plan(
                data,
                {"net.name": net, "algorithm.name": algorithm, "train.weak_pass": weak_pass} | dict(changes),
                preset_name=preset_name,
                opening=Opening(),
                device=device,
                progress=progress,
            )
            for weak_pass in weak_passes
        ]
        rows += [measured(Case(plan, speed), steps, workers, stages, progress) for plan in plans]
        if conventional:
            rows.append(measured(conventional_case(plans[0]), steps, workers, False, progress))
    return {"rows": rows, "environment": environment(device)}


def made_up() -> tuple[np.ndarray, np.ndarray]:
    """Images of CIFAR's size: what is in them makes no step longer or shorter."""
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (MADE_UP, 32, 32, 3), dtype=np.uint8), np.arange(MADE_UP) % 10


def conventional_case(plan: Plan) -> Case:
    """The same plan as published loops run it: float32, kernel by kernel, one pass of all images."""
    train = replace(plan.settings.train, precision="fp32", weak_pass="joint")
    return Case(replace(plan, settings=replace(plan.settings, train=train)), Speed(), conventional=True)


def measured(case: Case, steps: int, workers: int, stages: bool, progress: Progress) -> dict[str, Any]:
    """Complete steps as a run takes them, logging included; only evaluation and checkpoints are left out."""
    settings, device = case.plan.settings, case.plan.device
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        torch.backends.cudnn.benchmark = True
    normal = normalization(case.plan.source, case.plan.split)
    run = build_training(settings, case.plan.source, case.plan.split, device)
    stream = build_stream(settings, case.plan.source, case.plan.split, normal, device)
    held = torch.cuda.memory_allocated(device) if on_gpu else 0  # data, weights and their like
    batches = conventional_batches(case.plan, normal, workers) if case.conventional else stream
    name = " ".join([settings.algorithm_name, settings.net.name, settings.train.weak_pass])
    marks, began = Marks(device), time.perf_counter()
    start_up = 0.0
    for _ in train(run, batches, until=WARM_UP + steps, log_every=LOG_EVERY, speed=case.speed, say=progress.say):
        if run.step == WARM_UP:
            if on_gpu:
                torch.cuda.synchronize()
            start_up = time.perf_counter() - began
        if run.step >= WARM_UP:
            marks.note()
        progress.work(name + " conventional" * case.conventional, run.step, WARM_UP + steps)
    ms = marks.times()
    mib = torch.cuda.max_memory_allocated(device) / 2**20 if on_gpu else None
    found = {
        "algorithm": settings.algorithm_name,
        "net": settings.net.name,
        "dataset": case.plan.source.name,
        "batch_size": settings.train.batch_size,
        "unlabeled_ratio": settings.train.unlabeled_ratio,
        "num_samples": run.model.head.num_samples,
        "weak_pass": settings.train.weak_pass,
        **summary(ms),
        "images_per_second": 1000 * settings.images_per_step / float(np.median(ms)),
        "peak_mib": mib,
        "conventional": case.conventional,
        "device": environment(device)["device_name"],
        "held_mib": held / 2**20 if on_gpu else None,
        "precision": run.precision,
        "compiled": case.speed.compile,
        "recorded": case.speed.record,
        "startup_seconds": start_up,
    }
    return found | {"stages": stage_times(run, stream, case.speed)} if stages else found


def conventional_batches(plan: Plan, normal: Normal, workers: int) -> Batches:
    """The plan's batches as published code makes them."""
    images = plan.source.images
    if not isinstance(images, torch.Tensor):
        raise UserError("--conventional: the images do not fit in memory; raise data.in_memory_mib or take fewer")
    return Conventional(
        images,
        plan.split.labeled,
        plan.split.unlabeled,
        plan.source.labels,
        batch_size=plan.settings.train.batch_size,
        unlabeled_batch=plan.settings.unlabeled_batch,
        normal=normal,
        device=plan.device,
        workers=workers,
        seed=plan.settings.seed,
        flip=plan.settings.views.flip,
    )


def lines(found: Mapping[str, Any]) -> Iterator[str]:
    """The table a person reads; each row says by how much it beats the conventional one of its network and method."""
    slow = {(row["net"], row["algorithm"]): row["ms_median"] for row in found["rows"] if row["conventional"]}
    for row in found["rows"]:
        kind = "conventional" if row["conventional"] else row["weak_pass"]
        memory = "" if row["peak_mib"] is None else f"  {row['peak_mib'] - row['held_mib']:6,.0f} MiB"
        usual = slow.get((row["net"], row["algorithm"]))
        times = "" if usual is None or row["conventional"] else f"  {usual / row['ms_median']:.1f} times faster"
        yield (
            f"{row['algorithm']:10} {row['net']:8} {kind:12} {row['precision']} {row['ms_median']:9.2f} ms "
            f"± {row['ms_iqr']:.2f}  {row['images_per_second']:9,.0f} images/s{memory}{times}"
        )
        for name, ms in (row.get("stages") or {}).items():
            yield f"    {name:26} {ms:8.3f} ms"
