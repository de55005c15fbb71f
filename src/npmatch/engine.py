"""The training loop, and nothing else that trains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from npmatch import ranks
from npmatch.compiled import VIEWS, Compiled
from npmatch.errors import UserError
from npmatch.functional import chance
from npmatch.guard import Guard, Precision
from npmatch.record import Recorded
from npmatch.types import Algorithm, Answers, Model, Refreshes, Views

MODEL = 0  # purpose of chance: latent samples and dropout; the data's purposes are in data/stream.py
Schedule = Literal["constant", "half_cosine", "cosine_7_16", "cosine_63_128"]


class Batches(Protocol):
    """Where a step's images come from, in two halves: what the host must bring, and what the device makes of it."""

    def bring(self, step: int, /) -> tuple[Tensor, ...]:
        """What is not on the device yet: nothing, or the images that workers decoded. Always of the same shapes."""
        ...

    def views(self, step: Tensor, /, *brought: Tensor) -> Views:
        """The batch of a step, () int64. Work of the device alone, so that it can be compiled and recorded."""
        ...


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast to learn: the learning rate over the run, and the moving average of the weights."""

    num_steps: int
    lr: float
    schedule: Schedule = "cosine_7_16"
    warmup_steps: int = 0
    clip_norm: float | None = None  # of backbone, head and extras, each alone
    ema_decay: float = 0.999
    ema_warmup: bool = False  # so that a short run's average leaves the first weights behind

    def lr_at(self, step: int) -> float:
        """FixMatch's arc of 7/16 ends at .195 of the start, NP-Match's of 63/128 at .0245."""
        if step < self.warmup_steps:
            return self.lr * (step + 1) / self.warmup_steps
        done = (step - self.warmup_steps) / max(1, self.num_steps - self.warmup_steps)
        match self.schedule:
            case "constant":
                return self.lr
            case "half_cosine":
                return self.lr * (1 + math.cos(math.pi * done)) / 2
            case "cosine_7_16":
                return self.lr * math.cos(math.pi * done * 7 / 16)
            case "cosine_63_128":
                return self.lr * math.cos(math.pi * done * 63 / 128)

    def ema_decay_at(self, step: int) -> float:
        return min(self.ema_decay, (1 + step) / (10 + step)) if self.ema_warmup else self.ema_decay


@dataclass(frozen=True)
class Speed:
    """What makes a step faster and leaves its numbers the same but for rounding."""

    compile: bool = False  # fuse what can be fused: takes a minute first
    record: bool = False  # replay the step as one CUDA graph


@dataclass
class Training:
    """Everything a run is at one moment. A checkpoint is `parts()` and `step`, nothing more."""

    model: Model
    teacher: Model  # the moving average of the weights: what is evaluated and kept
    optimizer: torch.optim.Optimizer
    algorithm: Algorithm[Any]
    state: Any  # written in place: where it lies does not change
    pace: Pace
    seed: int
    guard: Guard
    precision: Precision = "fp32"
    step: int = 0
    sums: dict[str, Tensor] = field(default_factory=dict)  # of the metrics since they were last yielded
    now: Tensor = field(init=False)  # () int64, the step, where the device can read it
    ema_weight: Tensor = field(init=False)  # () the share of the new weights in their moving average

    def __post_init__(self) -> None:
        self.now = torch.zeros_like(self.guard.first)
        self.ema_weight = torch.zeros_like(self.guard.scale)

    def parts(self) -> dict[str, Tensor]:
        """Every tensor that must survive a restart, by name."""
        found = {f"guard.{name}": tensor for name, tensor in self.guard.state_dict().items()}
        for part in ("model", "teacher"):
            found |= {f"{part}.{name}": tensor for name, tensor in getattr(self, part).state_dict().items()}
        for name, parameter in self.model.named_parameters():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    found[f"optimizer.{name}/{key}"] = value
        found |= {f"state.{f.name}": getattr(self.state, f.name) for f in fields(self.state)}
        return found | {f"sums.{name}": tensor for name, tensor in self.sums.items()}

    def restore(self, parts: dict[str, Tensor], step: int) -> None:
        """Become what `parts` says, in place. Every name and shape must fit: a checkpoint of another run is refused."""
        fixed = {k: v for k, v in self.parts().items() if not k.startswith(("optimizer.", "sums."))}
        given = {k: v for k, v in parts.items() if not k.startswith(("optimizer.", "sums."))}
        wrong = sorted(fixed.keys() ^ given.keys())
        wrong += [name for name in fixed.keys() & given.keys() if fixed[name].shape != given[name].shape]
        if wrong:
            raise UserError(f"the checkpoint is of another model: {wrong[0]} does not fit ({len(wrong)} such tensors)")
        with torch.no_grad():
            for name, tensor in fixed.items():
                tensor.copy_(given[name])
            for name, parameter in self.model.named_parameters():
                prefix = f"optimizer.{name}/"
                saved = {k.removeprefix(prefix): v for k, v in parts.items() if k.startswith(prefix)}
                self.optimizer.state[parameter] = {k: _beside(parameter, v) for k, v in saved.items()}
        device = self.guard.first.device
        self.sums = {k.removeprefix("sums."): v.to(device) for k, v in parts.items() if k.startswith("sums.")}
        self.step = step


def _beside(parameter: Tensor, saved: Tensor) -> Tensor:
    """A piece of optimizer state as it lies in memory beside its weights: fused steps go by memory, not by index."""
    if saved.shape != parameter.shape:
        return saved.clone().to(parameter.device)
    return torch.empty_like(parameter, requires_grad=False).copy_(saved)


def start(
    model: Model,
    algorithm: Algorithm[Any],
    state: Any,
    pace: Pace,
    *,
    optimizer: Literal["sgd", "adamw"] = "sgd",
    momentum: float = 0.9,
    nesterov: bool = True,
    weight_decay: float = 5e-4,
    seed: int,
    precision: Precision = "fp32",
) -> Training:
    """A run before its first step. The model is on its device already."""
    device = next(model.parameters()).device
    lr = torch.tensor(pace.lr, device=device)  # a tensor, so that a captured step sees it change
    groups = parameter_groups(model, weight_decay)
    if optimizer == "sgd":
        chosen: torch.optim.Optimizer = torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov, fused=True)
        for parameter in model.parameters():  # else a first step that must not count would leave it unwritten
            chosen.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter, requires_grad=False)
    else:
        chosen = torch.optim.AdamW(groups, lr=lr, betas=(momentum, 0.999), fused=True, capturable=device.type == "cuda")
    teacher = deepcopy(model).requires_grad_(False).eval()
    guard = Guard(sum(1 for _ in model.parameters()), precision).to(device)
    return Training(model, teacher, chosen, algorithm, state, pace, seed, guard, precision)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Weights decay; biases and what normalizes (one number per channel) do not."""
    decay = [p for p in model.parameters() if p.ndim > 1]
    free = [p for p in model.parameters() if p.ndim <= 1]
    return [{"params": decay, "weight_decay": weight_decay}, {"params": free, "weight_decay": 0.0}]


def train(
    run: Training,
    batches: Batches,
    *,
    until: int,
    log_every: int,
    speed: Speed = Speed(),
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[dict[str, float] | None]:
    """Run to step `until`, yielding after each step: means over `log_every` steps where they are due, else nothing.

    The caller logs, evaluates, saves, or stops between steps; none of it changes the run.
    """
    names = [name for name, _ in run.model.named_parameters()]
    advance = whole_step(run, batches, speed, say)
    while run.step < until:
        run.model.train()  # whatever the caller did with it
        brought = batches.bring(run.step)
        set_clock(run)
        advance(*brought)
        if isinstance(run.algorithm, Refreshes) and (run.step + 1) % run.algorithm.refresh_every == 0:
            keep_state(run, run.algorithm.refresh(run.state))
        run.step += 1
        if run.step % log_every and run.step != run.pace.num_steps:
            yield None
            continue
        run.guard.check(names)
        steps = (run.step - 1) % log_every + 1
        means = dict(zip(run.sums, (torch.stack(list(run.sums.values())) / steps).tolist()))
        torch._foreach_zero_(list(run.sums.values()))
        yield means


def set_clock(run: Training) -> None:
    """Where a step stands in its run, written to where the device reads it, and the seed of its chance.

    Chance depends on the step, not on history, and not on what the batch took: a DataLoader draws a seed.
    """
    run.now.fill_(run.step)
    run.optimizer.param_groups[0]["lr"].fill_(run.pace.lr_at(run.step))
    run.ema_weight.fill_(1 - run.pace.ema_decay_at(run.step))
    torch.manual_seed(chance.number(run.seed, run.step, MODEL))


def whole_step(run: Training, batches: Batches, speed: Speed, say: Callable[[str], None]) -> Callable[..., None]:
    """All that a step does on the device, from the images brought to the averaged weights, as one function.

    It waits for nothing: no number goes to the host, no shape depends on data.
    """

    def losses(views: Views, state: Any) -> tuple[Tensor, dict[str, Tensor], Any, Any]:
        with autocast(run.now.device, run.precision):
            step = run.algorithm.step(run.model, run.teacher, views, state)
        return step.loss, step.metrics, step.state, step.carried

    def answers(views: Views, state: Any, carried: Any) -> tuple[Tensor, dict[str, Tensor], Any, Any]:
        assert isinstance(run.algorithm, Answers)
        with autocast(run.now.device, run.precision):
            step = run.algorithm.answer(run.model, run.teacher, views, state, carried)
        return step.loss, step.metrics, step.state, ()

    look, halves = batches.views, [losses, answers] if isinstance(run.algorithm, Answers) else [losses]
    if speed.compile:
        look, halves = Compiled(look, say, VIEWS), [Compiled(think, say) for think in halves]

    def advance(*brought: Tensor) -> None:
        views, carried, named = look(run.now, *brought), (), {"loss": torch.zeros_like(run.guard.scale)}
        for think in halves:
            loss, metrics, state, *carried = think(views, run.state, *carried)
            run.optimizer.zero_grad(set_to_none=True)
            (loss * run.guard.scale).backward()
            ranks.sum_gradients(run.model.passed(), run.model.gathered())
            update(run, last=think is halves[-1])
            keep_state(run, state)
            named |= {"loss": named["loss"] + loss.detach()} | metrics
        sums = {
            name: run.sums[name] if name in run.sums else torch.zeros_like(run.now, dtype=torch.float32)
            for name in named
        }
        torch._foreach_add_(list(sums.values()), [value.float() for value in named.values()])
        run.sums = sums

    return Recorded(advance, say) if speed.record else advance


@torch.no_grad()
def keep_state(run: Training, state: Any) -> None:
    """The algorithm's next state, in the place of the last."""
    for f in fields(state):
        getattr(run.state, f.name).copy_(getattr(state, f.name))


@torch.no_grad()
def update(run: Training, *, last: bool = True) -> None:
    """One step of the optimizer, and the last of a step of the moving average. Where a gradient is not finite the
    weights stay."""
    norms = []
    for part in (run.model.backbone, run.model.head, run.model.extras):
        grads = [p.grad for p in part.parameters() if p.grad is not None]
        if not grads:
            norms += [torch.zeros_like(run.guard.scale) for _ in part.parameters()]
            continue
        if run.guard.scaled:
            torch._foreach_mul_(grads, 1 / run.guard.scale)  # before clipping, which is of the true gradient
        found = torch._foreach_norm(grads)
        if run.pace.clip_norm is not None:  # each part alone, as the published code clips
            torch._foreach_mul_(grads, (run.pace.clip_norm / (torch.stack(found).norm() + 1e-6)).clamp(max=1.0))
        rest = iter(found)
        norms += [torch.zeros_like(run.guard.scale) if p.grad is None else next(rest) for p in part.parameters()]
    run.optimizer.found_inf = run.guard.see(torch.stack(norms), run.now)  # pyright: ignore[reportAttributeAccessIssue] fused steps read it
    run.optimizer.step()
    if last:
        update_ema(run.teacher, run.model, run.ema_weight)


@torch.no_grad()
def update_ema(teacher: nn.Module, model: nn.Module, weight: Tensor | float) -> None:
    """Parameters move toward the live ones by `weight`; buffers (batch-norm statistics, memory banks) are theirs."""
    averages: list[Tensor] = list(teacher.parameters())
    ahead = torch._foreach_sub(list(model.parameters()), averages)
    torch._foreach_mul_(ahead, weight)
    torch._foreach_add_(averages, ahead)
    kept, live = list(teacher.buffers()), list(model.buffers())
    for whole in (True, False):  # of one kind they are copied at once
        same = [i for i, buffer in enumerate(live) if buffer.is_floating_point() != whole]
        if same:
            torch._foreach_copy_([kept[i] for i in same], [live[i] for i in same])


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16 if precision == "bf16" else torch.float16)
