"""One run at work: its training taken to the last step, logged, evaluated and saved on the way."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from npmatch import ranks
from npmatch.build import build_stream, choose_speed
from npmatch.data.normal import Normal
from npmatch.data.stream import Stream
from npmatch.engine import Training, train
from npmatch.errors import Stopped, UserError
from npmatch.evaluate import predict_part, scores
from npmatch.health import Health
from npmatch.interrupts import Asked
from npmatch.plan import Plan
from npmatch.progress import Progress
from npmatch.runs import RunFolder

CHECKPOINT_SECONDS = 30.0
CHECKPOINT_SHARE = 0.05  # of the steps
EVALUATIONS = 20  # over a run, where the settings do not say how often


@dataclass
class Clock:
    """Time spent on a run, over all the processes that worked on it."""

    started: float = field(default_factory=time.time)
    before: dict[str, Any] = field(default_factory=lambda: {"seconds": 0.0, "train_seconds": 0.0, "resumed_from": []})
    training: float = 0.0

    def now(self) -> dict[str, Any]:
        return {
            "seconds": self.before["seconds"] + time.time() - self.started,
            "train_seconds": self.before["train_seconds"] + self.training,
            "resumed_from": self.before["resumed_from"],
        }

    def go_on(self, before: dict[str, Any], step: int) -> None:
        self.before = before | {"resumed_from": [*before["resumed_from"], step]}


@dataclass
class Session:
    """What all the parts of a run's work share."""

    home: Path  # the run that a person goes on with; the folder of a fold lies in it
    folder: RunFolder
    plan: Plan
    normal: Normal
    clock: Clock
    asked: Asked
    progress: Progress
    tensorboard: bool = False
    warnings: list[str] = field(default_factory=list)  # on the data; the report repeats them


def trained(session: Session, training: Training) -> Health:
    """Take a training to its last step, from the run's last checkpoint on if it has one."""
    settings, folder, clock = session.plan.settings, session.folder, session.clock
    stream = build_stream(settings, session.plan.source, session.plan.split, session.normal, session.plan.device)
    health = Health(len(session.plan.source.classes), settings.train.steps, "alignment" in vars(settings.algorithm))
    saved = folder.load_checkpoint()
    found = f"{session.plan.fingerprint} {saved and saved.step}"
    if ranks.agreed(found) != found:
        raise UserError(f"{folder.path}: rank {ranks.rank()} reads other files than rank 0; they must share them")
    if saved is not None:
        if saved.meta["data"] != session.plan.fingerprint:
            raise UserError(f"{folder.path}: the checkpoint of step {saved.step} is of a run on other data")
        training.restore(saved.tensors, saved.step)
        health.said = saved.meta["health"]
        clock.go_on(saved.meta["clock"], saved.step)
        session.progress.say(f"going on from step {saved.step:,} of {settings.train.steps:,}")
    folder.cut_metrics(training.step)

    session.asked.looking = True
    with memory_advice(training, session.plan, session.normal):
        _steps(session, training, stream, health)
    session.asked.looking = False
    return health


def _steps(session: Session, training: Training, stream: Stream, health: Health) -> None:
    """All the steps that are left."""
    settings, folder, clock = session.plan.settings, session.folder, session.clock
    log = Log(session, training, health)
    saved_step, saved_time, before = training.step, time.monotonic(), time.perf_counter()
    line_step, line_time = training.step, before
    for means in train(
        training,
        stream,
        until=settings.train.steps,
        log_every=settings.train.log_every,
        speed=choose_speed(settings, session.plan.device),
        say=session.progress.say,
    ):
        step = training.step
        shown = None if means is None else log.write(step, means)
        now = time.perf_counter()
        clock.training, before = clock.training + now - before, now
        if shown is not None:
            shown |= {"images/s": settings.images_per_step * (step - line_step) / (now - line_time)}
            line_step, line_time = step, now
        session.progress.work("training", step, settings.train.steps, shown)

        last = step == settings.train.steps
        late = time.monotonic() - saved_time >= CHECKPOINT_SECONDS
        signal = ranks.largest(session.asked.signal or 0)  # each rank hears it at a moment of its own
        far = step - saved_step >= CHECKPOINT_SHARE * settings.train.steps
        if late or far or last or signal:
            meta = {"clock": clock.now(), "health": health.said, "data": session.plan.fingerprint}
            folder.save_checkpoint(step, training.parts(), meta)
            saved_step, saved_time = step, time.monotonic()
        if signal and not last:
            ranks.agreed(None)  # it is saved
            goes_on = f"npmatch fit --resume --out {session.home} goes on"
            raise Stopped(f"stopped at step {step:,}; {goes_on}", 128 + signal)
    log.close()


@contextmanager
def memory_advice(training: Training, plan: Plan, normal: Normal) -> Iterator[None]:
    """Where memory runs out inside, find the batch size that fits and say so. The training is spoiled then."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        traceback.clear_frames(error.__traceback__)  # they hold the tensors of the step
    else:
        return
    size = plan.settings.train.batch_size
    refused = f"train.batch_size={size} does not fit in the memory of {plan.device}"
    if ranks.size() > 1:  # the others take part in no trial: this may be the only one whose memory is full
        raise UserError(f"{refused}; set a smaller one, with another --out")
    while (size := size // 2) and not _fits(training, plan, normal, size):
        pass
    if not size:
        raise UserError(f"{refused}, and not even 1 does: take a smaller --net or --image-size")
    raise UserError(f"{refused}; a batch size of {size} does: --set train.batch_size={size}, with another --out")


def out_of_memory(error: Exception) -> bool:
    """CUDA has an exception for it, the others words."""
    words = ("DefaultCPUAllocator", "MPS backend out of memory")
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(word in str(error) for word in words)


def _fits(training: Training, plan: Plan, normal: Normal, batch_size: int) -> bool:
    """Whether one step with this batch size finds the memory it needs."""
    settings = plan.settings
    smaller = replace(
        settings,
        train=replace(settings.train, batch_size=batch_size),
        data=replace(settings.data, workers=0),
    )
    if plan.device.type == "cuda":
        torch.cuda.empty_cache()
    try:
        stream = build_stream(smaller, plan.source, plan.split, normal, plan.device)
        next(train(training, stream, until=training.step + 1, log_every=training.step + 2))
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        return False
    return True


class Log:
    """Where a run's numbers go: metrics.jsonl, a person's screen, TensorBoard if wanted."""

    def __init__(self, session: Session, training: Training, health: Health) -> None:
        self.session, self.training, self.health = session, training, health
        train = session.plan.settings.train
        wanted = train.eval_every or -(-train.steps // EVALUATIONS)
        self.eval_every = -(-wanted // train.log_every) * train.log_every  # where a line is written anyway
        self.first = [p.detach().clone() for p in training.model.parameters()] if training.step == 0 else None
        self.writer = None
        if session.tensorboard and ranks.rank() == 0:
            self.writer = summary_writer()(str(session.folder.path / "tensorboard"), purge_step=training.step + 1)

    def write(self, step: int, means: dict[str, float]) -> dict[str, float]:
        """One line: the means, and where it is due the errors on the test images, which nothing is chosen by."""
        plan = self.session.plan
        line = {"step": step} | means
        due = step % self.eval_every == 0 or step == plan.settings.train.steps
        if due and len(plan.split.test):
            average = plan.settings.train.predict_with
            normal = self.session.normal
            predicted = predict_part(self.training.teacher, plan.source, plan.split.test, normal, average=average)
            line |= scores(predicted, plan.source.labels[plan.split.test])
        self.session.folder.log(line)
        if self.writer is not None:
            for name, value in line.items():
                if name != "step":
                    self.writer.add_scalar(name, value, step)
        moved = None if self.first is None else _distance(self.first, self.training.model)
        self.first = None
        for text in self.health.look(step, means, moved):
            self.session.progress.warn(text)
        return line

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


def _distance(first: list[Tensor], model: torch.nn.Module) -> float:
    return sum(float((now.detach() - then).norm()) for now, then in zip(model.parameters(), first))


def summary_writer() -> Any:
    """TensorBoard's class for writing, if it is installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("--tensorboard needs the package tensorboard: pip install 'npmatch[tensorboard]'") from None
    return SummaryWriter


@contextmanager
def determinism(wanted: bool) -> Iterator[None]:
    """Kernels that give the same bits each time; slower on a GPU, and nothing changes on a CPU."""
    was = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    if wanted:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(wanted)
    torch.backends.cudnn.benchmark = not wanted
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(was[0])
        torch.backends.cudnn.benchmark = was[1]
