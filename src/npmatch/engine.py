"""The training loop, and nothing else that trains."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from npmatch.errors import Diverged, UserError
from npmatch.functional import chance
from npmatch.types import Algorithm, Model, Refreshes, Views

MODEL = 0  # purpose of chance: latent samples and dropout; the data's purposes are in data/stream.py
Schedule = Literal["constant", "half_cosine", "cosine_7_16", "cosine_63_128"]
Precision = Literal["fp32", "bf16", "fp16"]


class Batches(Protocol):
    def __getitem__(self, step: int, /) -> Views: ...


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


class Guard(nn.Module):
    """What was not finite, and fp16's loss scale: kept on the device, so that no step waits for the host."""

    first: Tensor
    tensors: Tensor
    scale: Tensor
    streak: Tensor

    GROWTH = 2000  # finite steps after which the scale is doubled
    PATIENCE = 50  # steps in a row that were not finite, which a falling scale should have cured

    def __init__(self, num_tensors: int, precision: Precision) -> None:
        super().__init__()
        self.scaled = precision == "fp16"
        self.register_buffer("first", torch.full((), -1, dtype=torch.int64))  # step of the first bad gradient
        self.register_buffer("tensors", torch.zeros(num_tensors, dtype=torch.bool))  # which gradients it was
        self.register_buffer("scale", torch.full((), 2.0**16 if self.scaled else 1.0))
        self.register_buffer("streak", torch.zeros((), dtype=torch.int64))  # steps since the last change of fortune

    def see(self, norms_P: Tensor, step: int) -> Tensor:
        """Note the gradients' norms -> () float, 1.0 where this step must not count."""
        wrong = ~norms_P.isfinite()
        bad = wrong.any()
        new = bad & (self.first < 0)
        self.tensors.copy_(torch.where(new, wrong, self.tensors))
        self.first.copy_(torch.where(new, step, self.first))
        if self.scaled:
            self.streak.copy_(torch.where(bad, self.streak.clamp(max=0) - 1, self.streak.clamp(min=0) + 1))
            grow = (self.streak > 0) & (self.streak % self.GROWTH == 0)
            self.scale.mul_(torch.where(bad, 0.5, torch.where(grow, 2.0, 1.0)))
            forget = ~bad & (self.streak > 0)  # an overflow that a lower scale cured is no divergence
            self.first.copy_(torch.where(forget, -1, self.first))
        return bad.float()

    def check(self, names: list[str]) -> None:
        """Raise `Diverged` if a number was not finite (fp16: if it stayed so). The only look from the host."""
        if int(self.first) < 0 or (self.scaled and int(self.streak) > -self.PATIENCE):
            return
        found = [name for name, wrong in zip(names, self.tensors.tolist()) if wrong]
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise Diverged(
            f"step {int(self.first)}: the gradient of {found[0]}{more} is not finite; "
            "try a lower optimizer.lr or optimizer.clip_norm, and train.precision=fp32 if it is another"
        )


@dataclass
class Training:
    """Everything a run is at one moment. A checkpoint is `parts()` and `step`, nothing more."""

    model: Model
    teacher: Model  # the moving average of the weights: what is evaluated and kept
    optimizer: torch.optim.Optimizer
    algorithm: Algorithm[Any]
    state: Any
    pace: Pace
    seed: int
    guard: Guard
    precision: Precision = "fp32"
    step: int = 0
    sums: dict[str, Tensor] = field(default_factory=dict)  # of the metrics since they were last yielded

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
    else:
        chosen = torch.optim.AdamW(groups, lr=lr, betas=(momentum, 0.999), fused=True)
    teacher = deepcopy(model).requires_grad_(False).eval()
    guard = Guard(sum(1 for _ in model.parameters()), precision).to(device)
    return Training(model, teacher, chosen, algorithm, state, pace, seed, guard, precision)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Weights decay; biases and what normalizes (one number per channel) do not."""
    decay = [p for p in model.parameters() if p.ndim > 1]
    free = [p for p in model.parameters() if p.ndim <= 1]
    return [{"params": decay, "weight_decay": weight_decay}, {"params": free, "weight_decay": 0.0}]


def train(run: Training, batches: Batches, *, until: int, log_every: int) -> Iterator[dict[str, float] | None]:
    """Run to step `until`, yielding after each step: means over `log_every` steps where they are due, else nothing.

    The caller logs, evaluates, saves, or stops between steps; none of it changes the run.
    """
    names = [name for name, _ in run.model.named_parameters()]
    while run.step < until:
        run.model.train()  # whatever the caller did with it
        views = batches[run.step]
        # Chance depends on the step, not on history, and not on what the batch took: a DataLoader draws a seed.
        torch.manual_seed(chance.number(run.seed, run.step, MODEL))
        with autocast(run.guard.first.device, run.precision):
            step = run.algorithm.step(run.model, run.teacher, views, run.state)
        run.optimizer.zero_grad(set_to_none=True)
        (step.loss * run.guard.scale).backward()
        update(run)
        run.state = step.state
        if isinstance(run.algorithm, Refreshes) and (run.step + 1) % run.algorithm.refresh_every == 0:
            run.state = run.algorithm.refresh(run.state)
        metrics = {"loss": step.loss.detach()} | step.metrics
        run.sums = {name: value.float() + run.sums.get(name, 0.0) for name, value in metrics.items()}
        run.step += 1
        if run.step % log_every and run.step != run.pace.num_steps:
            yield None
            continue
        run.guard.check(names)
        steps = (run.step - 1) % log_every + 1
        means = dict(zip(run.sums, (torch.stack(list(run.sums.values())) / steps).tolist()))
        run.sums = {}
        yield means


@torch.no_grad()
def update(run: Training) -> None:
    """One step of the optimizer and of the moving average. Where a gradient is not finite the weights stay."""
    lr = run.optimizer.param_groups[0]["lr"]
    lr.fill_(run.pace.lr_at(run.step))
    parts = [run.model.backbone, run.model.head, run.model.extras]
    grads = [[p.grad for p in part.parameters() if p.grad is not None] for part in parts]
    norms = []
    for part in grads:
        if not part:
            continue
        if run.guard.scaled:
            torch._foreach_mul_(part, 1 / run.guard.scale)  # before clipping, which is of the true gradient
        part_norms = torch.stack(torch._foreach_norm(part))
        norms.append(part_norms)
        if run.pace.clip_norm is not None:  # each part alone, as the published code clips
            torch._foreach_mul_(part, (run.pace.clip_norm / (part_norms.norm() + 1e-6)).clamp(max=1.0))
    found = torch.zeros_like(run.guard.tensors, dtype=torch.float32)
    has_grad = [i for i, p in enumerate(run.model.parameters()) if p.grad is not None]
    found[has_grad] = torch.cat(norms)
    run.optimizer.found_inf = run.guard.see(found, run.step)  # pyright: ignore[reportAttributeAccessIssue] fused steps read it
    run.optimizer.step()
    update_ema(run.teacher, run.model, decay=run.pace.ema_decay_at(run.step))


@torch.no_grad()
def update_ema(teacher: nn.Module, model: nn.Module, *, decay: float) -> None:
    """Parameters are averaged; buffers (batch-norm statistics, memory banks) are those of the live model."""
    torch._foreach_lerp_(list(teacher.parameters()), list(model.parameters()), 1 - decay)
    torch._foreach_copy_(list(teacher.buffers()), list(model.buffers()))


def autocast(device: torch.device, precision: Precision) -> AbstractContextManager[Any]:
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, dtype=torch.bfloat16 if precision == "bf16" else torch.float16)
