"""Where a step's time goes: each stage alone, made fast in the same way as the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from npmatch.bench.timing import Marks, summary
from npmatch.compiled import OPTIONS, VIEWS, Compiled
from npmatch.data.stream import Stream
from npmatch.engine import Speed, Training, autocast, update, update_ema
from npmatch.record import WARM_UP, Recorded
from npmatch.types import Views

REPEATS = 50


def stage_times(run: Training, stream: Stream, speed: Speed) -> dict[str, float]:
    """Median milliseconds of each stage. They need not add up to the step: there, neighbors are fused."""
    stages = Stages(run, stream, speed)
    backbone = stages.both_ways(stages.passed)
    forward = stages.one_way(stages.passed)
    found = {
        "gather": stages.one_way(stages.gathered, VIEWS),
        "weak": stages.one_way(lambda: stages.viewed("labeled", "weak"), VIEWS),
        "strong": stages.one_way(lambda: stages.viewed("strong"), VIEWS),
        "forward": forward,
        "backward": backbone - forward,
    }
    if run.model.weak_pass == "separate" and "weak" in run.algorithm.needs:
        found["forward without gradient"] = stages.one_way(stages.looked_at)
    found["head and loss, both ways"] = stages.both_ways(stages.answered)
    torch.autograd.backward(stages.answered())  # so that there are gradients to go by
    average = stages.timed(lambda: update_ema(run.teacher, run.model, run.ema_weight))
    found["optimizer"] = stages.timed(lambda: update(run)) - average
    return found | {"average": average}


class Stages:
    """The pieces of one step of a run, each a function that can be called again and again."""

    def __init__(self, run: Training, stream: Stream, speed: Speed) -> None:
        self.run, self.stream, self.speed = run, stream, speed
        self.brought = stream.bring(run.step)
        self.views = stream.views(run.now, *self.brought)
        with torch.no_grad(), self.halved():
            self.features = run.model.features(self.views, run.algorithm.needs)
        for feature in self.features.values():
            feature.requires_grad_()

    def halved(self) -> Any:
        return autocast(self.run.now.device, self.run.precision)

    def gathered(self) -> tuple[Tensor, ...]:
        labeled, place = self.stream.batches.places(self.run.now)
        return self.stream.batches.labeled.take(labeled), self.stream.batches.unlabeled.take(place)

    def viewed(self, *names: str) -> list[Tensor]:
        wanted = [name for name in names if name in self.run.algorithm.needs]
        images = self.gathered()
        return [self.stream.view(name, images[name != "labeled"], self.run.now) for name in wanted]

    def passed(self) -> Tensor:
        """The images that gradients flow through."""
        alone = {"weak"} if self.run.model.weak_pass == "separate" else set()
        with self.halved():
            images = torch.cat([self.views[name] for name in self.run.algorithm.needs if name not in alone])
            return self.run.model.backbone(images).float().square().mean()

    def looked_at(self) -> Tensor:
        with torch.no_grad(), self.halved():
            return self.run.model.backbone(self.views["weak"])

    def answered(self) -> Tensor:
        """All that an algorithm does with features."""
        with self.halved():
            model: Any = Given(self.run.model, self.features)
            return self.run.algorithm.step(model, self.run.teacher, self.views, self.run.state).loss

    def one_way(self, function: Callable[[], Any], options: dict[str, Any] = OPTIONS) -> float:
        return self.timed(Compiled(function, print, options) if self.speed.compile else function)

    def both_ways(self, loss: Callable[[], Tensor]) -> float:
        forward = Compiled(loss, print) if self.speed.compile else loss

        def both() -> None:
            self.run.optimizer.zero_grad(set_to_none=True)
            for feature in self.features.values():
                feature.grad = None
            torch.autograd.backward(forward())

        return self.timed(both)

    def timed(self, function: Callable[[], Any]) -> float:
        repeated = Recorded(function, print) if self.speed.record else function
        marks = Marks(self.run.now.device)
        for number in range(WARM_UP + 2 + REPEATS):
            if number >= WARM_UP + 1:
                marks.note()
            repeated()
        marks.note()
        return summary(marks.times())["ms_median"]


class Given:
    """A model whose features are there already."""

    def __init__(self, model: nn.Module, features: dict[str, Tensor]) -> None:
        self.head, self.extras, self.given = model.head, model.extras, features

    def features(self, views: Views, names: tuple[str, ...] = ()) -> dict[str, Tensor]:
        return self.given
