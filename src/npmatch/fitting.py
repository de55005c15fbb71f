"""`fit`: from a data source to a finished run folder."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from npmatch.build import build_stream, build_training, choose_device, normalization
from npmatch.config import read_file
from npmatch.data.normal import Normal
from npmatch.engine import Training, train
from npmatch.errors import UserError
from npmatch.evaluate import BATCH, predict_part
from npmatch.interrupts import listening
from npmatch.outcome import check_folds, work
from npmatch.plan import Opening, Plan, new_plan, stored_plan
from npmatch.predictor import Run
from npmatch.progress import Progress, Silent
from npmatch.report.page import write_report
from npmatch.report.words import duration
from npmatch.runs import RunFolder, default_path
from npmatch.session import EVALUATIONS, Clock, Session, determinism, memory_advice, summary_writer

TRIAL_STEPS, TRIAL_SECONDS = 60, 5.0  # at most, and about
TRAINING_SHARE = 0.9  # of a budget, evaluations on the way included; the rest is for what comes before and after


def fit(
    data: Any = None,
    *,
    labels: int | None = None,
    labels_per_class: int | None = None,
    algorithm: str | None = None,
    head: str | None = None,
    net: str | None = None,
    preset: str | None = None,
    steps: int | None = None,
    budget: str | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    config: Path | str | None = None,
    calibrate: int | None = None,
    device: str = "auto",
    out: Path | str | None = None,
    resume: bool = False,
    opening: Opening | None = None,
    tensorboard: bool = False,
    progress: Progress | None = None,
    started: float | None = None,
) -> Run:
    """Train on `data` and leave a run folder: weights, metrics, result, report.

    `settings` are dotted, `{"optimizer.lr": 0.01, "data.image_size": 96}`, and go over those of the file `config`,
    which go over the preset's. `calibrate` is a number of folds over the labels, to learn when predictions may be
    accepted where there is no val part. A run that was stopped goes on with `resume`.
    """
    progress = progress or Silent()
    clock = Clock(started or time.time())
    named = {
        "data.labels": labels,
        "data.labels_per_class": labels_per_class,
        "algorithm.name": algorithm,
        "head.name": head,
        "net.name": net,
        "train.steps": steps,
        "train.calibrate": calibrate,
        "seed": seed,
    }
    given = {key: value for key, value in named.items() if value is not None} | dict(settings or {})
    changes = over_file(read_file(Path(config)), given) if config else given
    opening, place = opening or Opening(), choose_device(device)
    seconds = None if budget is None else parse_budget(budget)
    if tensorboard:
        summary_writer()
    if resume and out is None:
        raise UserError("--resume: say which run goes on, with --out RUN")
    with listening() as asked, ExitStack() as stack:
        folder = None
        if out is not None and resume and (Path(out) / "config.toml").is_file():
            folder = stack.enter_context(RunFolder.create(Path(out), resume=True))
            plan = stored_plan(
                folder, data, changes, preset_name=preset, opening=opening, device=place, progress=progress
            )
        else:
            if out is not None:
                RunFolder.refuse_taken(Path(out), resume=resume)  # now, not after minutes of reading images
            plan = new_plan(data, changes, preset_name=preset, opening=opening, device=place, progress=progress)
            if seconds is not None:
                plan = within(plan, seconds, progress)
        check_folds(plan)
        training = build_training(plan.settings, plan.source, plan.split, plan.device)  # it may refuse the settings
        if folder is None:
            folder = stack.enter_context(RunFolder.create(_path(plan, out), resume=resume))
            folder.write_config(plan.config())
            folder.write_split(vars(plan.split))
        if folder.read_result() is None:
            normal = normalization(plan.source, plan.split)
            session = Session(folder.path, folder, plan, normal, clock, asked, progress, tensorboard)
            with determinism(plan.settings.train.deterministic):
                work(session, training)
        else:
            progress.say(f"{folder.path} is finished")
            if not (folder.path / "report.html").exists():
                write_report(folder.path)
    return Run(folder.path, device=device)


def over_file(file: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A file's settings with those given over them. What the file sets of another algorithm or head would be unknown to
    the one asked for and stays behind; an algorithm asked for comes with its own head, as it does without a file."""

    def changes(part: str) -> bool:
        name = f"{part}.name"
        return name in file and given.get(name, file[name]) != file[name]

    left = {part for part in ("algorithm", "head") if changes(part)}
    if "algorithm" in left and "head.name" not in given:
        left.add("head")
    return {key: value for key, value in file.items() if key.partition(".")[0] not in left} | dict(given)


def _path(plan: Plan, out: Path | str | None) -> Path:
    """Where a new run goes."""
    if out is not None:
        return Path(out)
    settings = plan.settings
    return default_path(settings.data.source, settings.algorithm_name, len(plan.split.labeled), settings.seed)


def parse_budget(text: str) -> float:
    """A time such as 90s, 10m or 1.5h, in seconds."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    try:
        seconds = float(text[:-1]) * units[text[-1:]]
    except (ValueError, KeyError):
        seconds = 0.0
    if not 0 < seconds < math.inf:
        raise UserError(f"--budget {text}: write it as 90s, 10m or 1.5h")
    return seconds


def within(plan: Plan, seconds: float, progress: Progress) -> Plan:
    """The plan with as many steps as fit in the time, by a trial whose training is thrown away."""
    normal = normalization(plan.source, plan.split)
    trial = build_training(plan.settings, plan.source, plan.split, plan.device)
    stream = build_stream(plan.settings, plan.source, plan.split, normal, plan.device)
    took: list[float] = []
    before = time.perf_counter()
    with memory_advice(trial, plan, normal):
        for _ in train(trial, stream, until=min(plan.settings.train.steps, TRIAL_STEPS), log_every=1):  # logging waits
            now = time.perf_counter()
            took.append(now - before)
            before = now
            if len(took) >= 8 and sum(took) > TRIAL_SECONDS:
                break
    each = median(took[3:] or took)  # the first steps choose kernels
    looks = (EVALUATIONS + 1) * evaluation_seconds(trial, plan, normal)
    if plan.device.type == "cuda":
        torch.cuda.empty_cache()
    folds = 0 if len(plan.split.val) else plan.settings.train.calibrate  # each of them trains as long as the run
    left = max(TRAINING_SHARE * seconds - looks, seconds / 2)
    steps = max(1, int(left / each / (1 + folds)))
    more = f", and as many for each of {folds} folds," if folds else ""
    whole = duration(steps * each * (1 + folds) + looks)
    progress.say(f"--budget: a step takes {1000 * each:.1f} ms, so {steps:,} steps{more} in about {whole}")
    return replace(plan, settings=replace(plan.settings, train=replace(plan.settings.train, steps=steps)))


def evaluation_seconds(trial: Training, plan: Plan, normal: Normal) -> float:
    """How long one look at all test images takes, by a look at some."""
    some = plan.split.test[:BATCH]
    if not len(some):
        return 0.0
    before = time.perf_counter()
    predict_part(trial.teacher, plan.source, some, normal)
    return (time.perf_counter() - before) * len(plan.split.test) / len(some)
