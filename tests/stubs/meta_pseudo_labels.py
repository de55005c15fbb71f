"""Meta Pseudo Labels has two optimizers and looks ahead: its own Training and generator, the same caller."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from npmatch.engine import Batches, update_ema
from npmatch.functional.losses import cross_entropy
from npmatch.types import Model


@dataclass
class Training:
    teacher: Model
    student: Model
    average: Model
    optimizers: tuple[torch.optim.Optimizer, torch.optim.Optimizer]
    baseline: Tensor
    step: int = 0

    def parts(self) -> dict[str, Tensor]:
        models = {"teacher": self.teacher, "student": self.student, "average": self.average}
        found = {f"{part}.{k}": v for part, model in models.items() for k, v in model.state_dict().items()}
        return found | {"baseline": self.baseline}


def train(run: Training, batches: Batches, *, until: int, log_every: int) -> Iterator[dict[str, float] | None]:
    while run.step < until:
        views = batches.views(torch.tensor(run.step), *batches.bring(run.step))
        with torch.no_grad():
            label = torch.distributions.Categorical(logits=run.teacher(views["strong"])[0]).sample()
            before = cross_entropy(run.student(views["labeled"]), views.y).mean()
        loss = cross_entropy(run.student(views["strong"]), label).mean()
        torch.autograd.backward(loss)
        run.optimizers[0].step()
        after = cross_entropy(run.student(views["labeled"]), views.y).mean().detach()
        reward = before - after - run.baseline
        torch.autograd.backward(reward * cross_entropy(run.teacher(views["strong"]), label).mean())
        run.optimizers[1].step()
        update_ema(run.average, run.student, 0.005)
        run.step += 1
        yield None if run.step % log_every else {"reward": float(reward)}
