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

from npmatch import ranks
from npmatch.build import build_stream, build_training, choose_device, choose_speed, normalization
from npmatch.config import read_file, together
from npmatch.data.normal import Normal
from npmatch.engine import Training, train
from npmatch.errors import RankLost, UserError
from npmatch.evaluate import BATCH, predict_part
from npmatch.interrupts import listening
from npmatch.outcome import check_folds, work
from npmatch.plan import Opening, Plan, agreed_settings, leaks, new_plan, stored_plan
from npmatch.predictor import Run
from npmatch.progress import Progress, Silent
from npmatch.report.page import write_report
from npmatch.report.words import duration
from npmatch.runs import RunFolder, default_path
from npmatch.session import EVALUATIONS, Clock, Session, determinism, memory_advice, out_of_memory, summary_writer

TRIAL_STEPS, TRIAL_SECONDS = 60, 5.0  # at most, and about
FEW_STEPS = 200  # a quarter of preset quick
TRAINING_SHARE = 0.9  # of a budget, evaluations on the way included; the rest is for what comes before and after


@ranks.joined()
def fit(
    data: Any = None,
    *,
    labels: int | str | None = None,
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
    accepted where there is no val part. A run that was stopped goes on with `resume`. Under torchrun all processes
    work on the one run.
    """
    progress = progress if progress and ranks.rank() == 0 else Silent()
    clock = Clock(started or time.time())
    named = {
        "data.labels": None if isinstance(labels, str) else labels,
        "data.labels_file": labels if isinstance(labels, str) else None,
        "data.labels_per_class": labels_per_class,
        "algorithm.name": algorithm,
        "head.name": head,
        "net.name": net,
        "train.steps": steps,
        "train.calibrate": calibrate,
        "seed": seed,
    }
    changes = together(named, settings or {})
    if config:
        changes = over_file(read_config(Path(config), preset), changes)
    home, seconds = checked_home(out, resume=resume), checked_budget(budget, steps)
    if tensorboard:
        summary_writer()
    opening, place = opening or Opening(), choose_device(device)
    if opening.download and ranks.size() > 1:
        raise UserError("--download: fetch it in one process first, with npmatch check DATA --download")
    with listening() as asked, ExitStack() as stack:
        if home is not None and ranks.agreed(resume and (home / "config.toml").is_file()):
            folder = stack.enter_context(RunFolder.create(home, resume=True))
            agreed = agreed_settings(folder, changes, preset_name=preset)
            if seconds is not None:
                progress.warn(f"--budget {budget}: {home} was begun with {agreed.train.steps:,} steps, which stand")
            if folder.read_result() is not None:  # its data need not be there any more
                progress.say(f"{folder.path} is finished")
                if ranks.rank() == 0 and not (folder.path / "report.html").exists():
                    write_report(folder.path)
                return Run(folder.path, device=device)
            plan = stored_plan(folder, agreed, data, opening=opening, device=place, progress=progress)
        else:
            if home is not None and ranks.rank() == 0:
                RunFolder.refuse_taken(home, resume=resume)  # now, not after minutes of reading images
            plan = new_plan(data, changes, preset_name=preset, opening=opening, device=place, progress=progress)
            check_folds(plan)
            check_size(plan)
            if resume:
                progress.warn(f"{home}: there is no run to go on with, so one is begun")
            if seconds is not None:
                plan = within(plan, seconds, progress)
            home = home or Path(ranks.agreed(str(free_place(plan))))
            folder = stack.enter_context(RunFolder.create(home, resume=resume))
            folder.write_config(plan.config())
            folder.write_split(vars(plan.split))
        normal = normalization(plan.source, plan.split)
        run_to_its_end(Session(folder.path, folder, plan, normal, clock, asked, progress, tensorboard, leaks(plan)))
    return Run(folder.path, device=device)


def run_to_its_end(session: Session) -> None:
    """Say what is to be said of the data, then train, evaluate and report."""
    plan = session.plan
    for text in session.warnings:
        session.progress.warn(text)
    training = build_training(plan.settings, plan.source, plan.split, plan.device)
    try:
        with determinism(plan.settings.train.deterministic):
            work(session, training)
    except RankLost as error:
        goes_on = f"npmatch fit --resume --out {session.home} goes on from step {session.folder.saved_step():,}"
        raise RankLost(f"{error}; {goes_on}") from error


def checked_home(out: Path | str | None, *, resume: bool) -> Path | None:
    """The run's folder, if a person named one."""
    home = None if out is None else Path(out)
    if home == Path() and not resume:  # --out "" is the same
        raise UserError("--out names no folder of its own; give the run a name")
    if resume and home is None:
        raise UserError("--resume: say which run goes on, with --out RUN")
    return home


def checked_budget(budget: str | None, steps: int | None) -> float | None:
    """The time there is, in seconds, if it is time that says how long to train."""
    if budget is None:
        return None
    if steps is not None:
        raise UserError("--budget and --steps both say how long to train; give one of them")
    return parse_budget(budget)


def check_size(plan: Plan) -> None:
    """Complain before a folder is made where an image is too small for the network, or for its views."""
    chosen, size = plan.settings, plan.source.image_size
    name = f"--image-size {size}"
    if chosen.views.crop == "shift" and chosen.views.padding >= size:
        raise UserError(f"{name}: cannot be shifted by views.padding={chosen.views.padding}; make that smaller")
    teacher = build_training(chosen, plan.source, plan.split, plan.device).teacher  # which may refuse the settings
    image = torch.zeros(1, plan.source.images.shape[1], size, size, device=plan.device)
    try:
        with torch.no_grad():
            teacher(image)
    except (RuntimeError, ValueError, AssertionError) as error:  # timm asserts
        if out_of_memory(error):
            raise UserError(f"{name}: one image alone does not fit in the memory of {plan.device}") from None
        raise UserError(f"{name}: does not go through the network {chosen.net.name} ({error}); take another") from error


def read_config(config: Path, preset: str | None) -> dict[str, Any]:
    """The settings of --config, which may name a preset of its own."""
    file = read_file(config)
    if preset not in (None, file.get("preset", preset)):
        raise UserError(f"--preset {preset}: --config {config} is of the preset {file['preset']}; give one of them")
    return file


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


def free_place(plan: Plan) -> Path:
    """Where a new run goes that nobody named a folder for."""
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
    speed = choose_speed(plan.settings, plan.device, seconds)
    took: list[float] = []
    before = time.perf_counter()
    with memory_advice(trial, plan, normal):
        until = min(plan.settings.train.steps, TRIAL_STEPS)
        for _ in train(trial, stream, until=until, log_every=1, speed=speed):  # logging waits
            now = time.perf_counter()
            took.append(now - before)
            before = now
            if ranks.agreed(len(took) >= 8 and sum(took) > TRIAL_SECONDS):
                break
    each = median(took[3:] or took)  # the first steps choose kernels
    start_up = max(0.0, sum(took) - each * len(took)) if speed.compile else 0.0  # now, and for the run again
    looks = (EVALUATIONS + 1) * evaluation_seconds(trial, plan, normal)
    if plan.device.type == "cuda":
        torch.cuda.empty_cache()
    folds = 0 if len(plan.split.val) else plan.settings.train.calibrate  # each of them trains as long as the run
    left = max(TRAINING_SHARE * seconds - 2 * start_up - looks, seconds / 2)
    steps = ranks.agreed(max(1, int(left / each / (1 + folds))))
    more = f", and as many for each of {folds} folds," if folds else ""
    whole = duration(steps * each * (1 + folds) + looks)
    progress.say(f"--budget: a step takes {1000 * each:.1f} ms, so {steps:,} steps{more} in about {whole}")
    if steps < FEW_STEPS:
        progress.warn(
            f"{steps:,} steps are too few to learn much: give more time, or shorten a step with a smaller "
            "--image-size, --net tiny or a GPU"
        )
    return replace(plan, settings=replace(plan.settings, train=replace(plan.settings.train, steps=steps)))


def evaluation_seconds(trial: Training, plan: Plan, normal: Normal) -> float:
    """How long one look at all test images takes, by a look at some."""
    some = plan.split.test[:BATCH]
    if not len(some):
        return 0.0
    before = time.perf_counter()
    predict_part(trial.teacher, plan.source, some, normal)
    return (time.perf_counter() - before) * len(plan.split.test) / len(some)
