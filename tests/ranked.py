"""What each rank does in tests/test_ranks.py, where one process does the same and the numbers are compared.

python -m torch.distributed.run --nproc_per_node 2 -m tests.ranked FOLDER
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import npmatch
from npmatch import ranks
from npmatch.algorithms import ALGORITHMS
from npmatch.build import own_modules
from npmatch.data.source import Source
from npmatch.data.stream import Stream
from npmatch.engine import Pace, start, train
from npmatch.evaluate import predict_part
from npmatch.nets import build_network, frozen_batch_norm, join_batch_norm, set_batch_norm_momentum
from npmatch.progress import Silent
from npmatch.types import Model, Views
from tests import toy

CASES = {  # algorithm, head, weak pass, batch-norm momentum
    "npmatch": ("npmatch", "neural_process", "joint", 0.1),
    "npmatch, separate": ("npmatch", "neural_process", "separate", 0.03),
    "flexmatch": ("flexmatch", "linear", "separate", 0.5),
    "fixmatch": ("fixmatch", "dropout", "joint", 0.1),
    "mean_teacher": ("mean_teacher", "linear", "joint", 0.1),
    "softmatch": ("softmatch", "neural_process", "separate", 0.1),
    "semco": ("semco", "linear", "joint", 0.1),
    "meta_pseudo_labels": ("meta_pseudo_labels", "linear", "joint", 0.1),
    "ups": ("ups", "dropout", "joint", 0.1),
    "mixmatch": ("mixmatch", "linear", "joint", 0.1),
    "remixmatch": ("remixmatch", "neural_process", "joint", 0.1),
    **{
        name: (name, "linear", "joint", 0.1)
        for name in ("supervised", "pseudo_label", "uda", "freematch", "adamatch", "comatch", "simmatch")
    },
}
STEPS = 15
HEADS = {
    "linear": lambda features: toy.LinearHead(features, toy.CLASSES),
    "dropout": lambda features: toy.DropoutHead(features, toy.CLASSES, dropout=0.2),
    "neural_process": lambda features: toy.NeuralProcessHead(
        features, toy.CLASSES, latent_dim=8, bank_size=64, num_samples=3
    ),
}


class Doubles:
    """A stream of float64 images, so that rounding hides nothing."""

    def __init__(self, stream: Stream) -> None:
        self.bring, self.stream = stream.bring, stream

    def views(self, step: Tensor, *brought: Tensor) -> Views:
        views = self.stream.views(step, *brought)
        return replace(views, images={name: image.double() for name, image in views.images.items()})


def trained(algorithm: str, head: str, weak_pass: str, momentum: float, dropout: float = 0.0) -> dict[str, Tensor]:
    """Every part of a training after some steps, and the loss of each."""

    def network() -> Model:
        backbone = build_network("tiny", 1, dropout=dropout)
        set_batch_norm_momentum(backbone, momentum)
        return Model(backbone, HEADS[head](backbone.feature_dim), weak_pass=weak_pass)

    torch.manual_seed(0)
    model = network()
    chosen = ALGORITHMS[algorithm](**toy.GENTLE[algorithm])
    model.extras.update(own_modules(chosen, toy.facts(feature_dim=model.head.feature_dim, another=network)))
    model.double()
    for part in model.passed() if ranks.size() > 1 else ():
        join_batch_norm(part)
    pace = Pace(num_steps=2 * STEPS, lr=0.05, ema_decay=0.95, clip_norm=3.0)
    run = start(model, chosen, chosen.init(toy.facts()), pace, seed=0)
    batches = Doubles(toy.stream(chosen.needs))
    losses = [means["loss"] for means in train(run, batches, until=STEPS, log_every=1) if means]
    return {"loss": torch.tensor(losses, dtype=torch.float64)} | run.parts()


def normalized(kind: str) -> dict[str, Tensor]:
    """What two passes of batch norm give, and what goes back through the second. Channels differ by far."""
    torch.manual_seed(1)
    norm = nn.BatchNorm1d(3) if kind == "flat" else nn.BatchNorm2d(3, momentum=None if kind == "cumulative" else 0.2)
    nn.init.normal_(norm.weight)
    module = nn.Sequential(norm).double()
    if ranks.size() > 1:
        join_batch_norm(module)
    shape = (1, 3) if kind == "flat" else (1, 3, 1, 1)
    x = torch.randn(12, 3) if kind == "flat" else torch.randn(12, 3, 4, 5)
    x = x.double() * torch.tensor([1.0, 0.01, 30.0]).view(shape) + torch.tensor([0.0, 30.0, -3.0]).view(shape)
    given, slope = (own(whole).clone() for whole in (x, torch.randn(x.shape).double()))
    given.requires_grad_()
    module(given**2)
    if kind == "frozen":
        with frozen_batch_norm(module):
            out = module(given)
    else:
        out = module(given)
    (out * slope).sum().backward()
    assert given.grad is not None
    found = {"out": ranks.gather(out).detach(), "input": ranks.gather(given.grad)}
    found |= {f"grad of {name}": ranks.total(p.grad) for name, p in module.named_parameters() if p.grad is not None}
    return found | module.state_dict()


def own(x: Tensor) -> Tensor:
    return x.chunk(ranks.size())[ranks.rank()]


def predicted(count: int) -> dict[str, Tensor]:
    pool = toy.pool(count, 3)
    assert isinstance(pool.images, Tensor)
    parts, ids = np.full(count, "test"), [str(i) for i in range(count)]
    labels = pool.labels.numpy()
    source = Source(
        name="toy", images=pool.images, image_size=8, labels=labels, classes=tuple("abc"), parts=parts, ids=ids
    )
    said = predict_part(toy.model("neural_process"), source, np.arange(count), toy.stream(()).normal)
    return {name: torch.from_numpy(value) for name, value in vars(said).items() if value is not None}


def everything() -> dict[str, dict[str, Tensor]]:
    """What must not depend on the number of ranks: what begins with = to the bit, the rest within rounding."""
    views = toy.stream(("labeled", "weak"))[3]
    images = {name: ranks.gather(image) for name, image in views.images.items()}
    found = {"=views": images | {"y": views.y, "place": views.place}}
    found |= {f"=predicted {count}": predicted(count) for count in (600, 100)}  # of which rank 1 has a batch, and none
    found |= {f"batch norm, {kind}": normalized(kind) for kind in ("wide", "flat", "frozen", "cumulative")}
    return found | {name: trained(*case) for name, case in CASES.items()}


def flat(found: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{name}: {part}": value.clone() for name, parts in found.items() for part, value in parts.items()}


def dropped_out() -> dict[str, Tensor]:
    """Ranks drop out what is theirs, and stay alike in all the rest."""
    torch.manual_seed(7)
    masks = []
    for _ in range(2):
        with ranks.own_chance(toy.CPU):
            masks += ranks.gather(torch.dropout(torch.ones(8, 5), 0.5, True)).chunk(ranks.size())
    assert len({str(mask.tolist()) for mask in masks}) == 2 * ranks.size()
    drawn = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(drawn, torch.rand(3))
    return trained("npmatch", "neural_process", "joint", 0.1, dropout=0.3)


def stopped_and_resumed(folder: Path) -> None:
    """One run left alone, with as many steps as fit in a time, and one that rank 1 alone is asked to stop."""
    options = {"device": "cpu", "settings": {"train.batch_size": 8, "train.log_every": 4}}
    steps = npmatch.fit("digits", out=folder / "whole", budget="2s", **options).result["steps"]
    work = Silent.work

    def asks(self: Silent, what: str, done: int, total: int, numbers: object = None) -> None:
        if ranks.rank() == 1 and (what, done) == ("training", 7):
            os.kill(os.getpid(), signal.SIGTERM)

    Silent.work = asks  # type: ignore[method-assign]
    try:
        npmatch.fit("digits", out=folder / "stopped", steps=steps, **options)
        raise AssertionError("went on")
    except npmatch.Stopped as stopped:
        assert str(stopped).startswith("stopped at step 7;") and stopped.code == 143
    finally:
        Silent.work = work
    assert max((folder / "stopped/checkpoint").iterdir()).name == "step-00000007"
    npmatch.fit(out=folder / "stopped", resume=True, device="cpu")


def main(folder: Path) -> None:
    with ranks.joined():
        found = flat(everything() | {"dropout": dropped_out()})
        save_file({name: value.contiguous() for name, value in found.items()}, folder / f"{ranks.rank()}.safetensors")
    with ranks.joined():  # again
        stopped_and_resumed(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
