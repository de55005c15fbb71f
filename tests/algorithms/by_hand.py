"""Another way to the numbers of MixMatch and ReMixMatch: float64, batch norm and passes written out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import npmatch.functional.mixing
from npmatch.build import own_modules
from npmatch.types import Model, Views
from tests import toy

B, U, SHARE, SEED = 4, 4, 0.7, 11


def made(algorithm: Any, step: int, head: str = "linear") -> tuple[Model, Views, Any]:
    """A model, a batch of mu = 1 and the first state, in float64, at some step of 60."""
    model = toy.model(head)
    model.extras.update(own_modules(algorithm, toy.facts()))
    model.double().train()
    shape = torch.Generator().manual_seed(1)
    images = {
        name: torch.randn(B if name == "labeled" else U, 1, 8, 8, generator=shape, dtype=torch.float64)
        for name in algorithm.needs
    }
    views = Views(images, torch.tensor([0, 2, 1, 1]), torch.arange(B), torch.arange(U), torch.tensor(step))
    return model, views, algorithm.init(toy.facts())


def one_step(algorithm: Any, model: Model, views: Views, state: Any, monkeypatch: Any) -> tuple[Any, Tensor]:
    """A step in which the share of MixUp is known -> the step, and the order in which it mixed."""
    monkeypatch.setattr(npmatch.functional.mixing, "larger_share", lambda *_: torch.full((1,), SHARE).double())
    torch.manual_seed(SEED)
    order = torch.rand(B + (len(algorithm.needs) - 1) * U).argsort()
    torch.manual_seed(SEED)
    return algorithm.step(model, model, views, state), order


def classified(model: Model, images: Tensor, layer: Any = None) -> Tensor:
    """Log-probabilities by the statistics of these images, with torch's own modules left aside."""
    first, norm = model.backbone[1], model.backbone[2]  # type: ignore[index]
    x = images.reshape(len(images), -1) @ first.weight.T + first.bias
    x = (x - x.mean(0)) / ((x - x.mean(0)) ** 2).mean(0).add(norm.eps).sqrt() * norm.weight + norm.bias
    x = torch.maximum(x, 0.1 * x)
    layer = layer or model.head.classifier
    logits = x @ layer.weight.T + layer.bias
    return logits - logits.exp().sum(1, keepdim=True).log()


def classified_in_passes(model: Model, images: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Log-probabilities of the parts of a batch, in passes that exchange rows -> those, and what each pass had."""
    rows = [list(range(i, i + B)) for i in range(0, len(images), B)]
    parts = len(rows)
    sizes = [B // parts + (number >= parts - B % parts) for number in range(parts)]
    start = sizes[0]
    for part in range(1, parts):
        here = slice(start, start + sizes[part])
        rows[0][here], rows[part][here] = rows[part][here], rows[0][here]
        start += sizes[part]
    found = {}
    for part in rows:
        found |= dict(zip(part, classified(model, images[part])))
    return torch.stack([found[row] for row in range(len(images))]), [images[part] for part in rows]


def sharpened(probs: Tensor, temperature: float = 0.5) -> Tensor:
    mass = torch.tensor([[p ** (1 / temperature) for p in row] for row in probs.tolist()], dtype=torch.float64)
    return torch.stack([row / row.sum() for row in mass])


def onehot(labels: Tensor) -> Tensor:
    return torch.eye(toy.CLASSES, dtype=torch.float64)[labels]


def entropy(target: Tensor, log_probs: Tensor) -> Tensor:
    """Cross-entropy, mean over the images."""
    return -(target * log_probs).sum() / len(target)


def same_gradients(model: Model, one: Tensor, other: Tensor) -> None:
    """Of every weight: a loss may be right and yet have a gradient through what should be constant."""
    torch.testing.assert_close(one, other)
    weights = list(model.parameters())
    for a, b in zip(*(torch.autograd.grad(loss, weights) for loss in (one, other))):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)  # the ramp is a float32


def follows_one_pass(model: Model, before: dict[str, Tensor], images: Tensor) -> None:
    """Batch norm's running statistics have moved by the images of one pass and no other."""
    first, norm = model.backbone[1], model.backbone[2]  # type: ignore[index]
    x = (images.reshape(len(images), -1) @ first.weight.T + first.bias).detach()
    moved = 0.9 * before["2.running_mean"] + 0.1 * x.mean(0), 0.9 * before["2.running_var"] + 0.1 * x.var(0)
    torch.testing.assert_close((norm.running_mean, norm.running_var), moved)
    assert norm.num_batches_tracked == before["2.num_batches_tracked"] + 1
