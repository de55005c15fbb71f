"""Settings to objects: the only file that knows both."""

from __future__ import annotations

from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from npmatch import ranks
from npmatch.config import Dropout, Linear, Settings
from npmatch.data import augment, simclr
from npmatch.data.normal import Normal
from npmatch.data.source import Source
from npmatch.data.splits import Split
from npmatch.data.stream import Batches, Pool, Stream, View
from npmatch.engine import Pace, Speed, Training, start
from npmatch.errors import UserError
from npmatch.functional import chance
from npmatch.guard import Precision
from npmatch.heads.dropout import DropoutHead
from npmatch.heads.linear import LinearHead
from npmatch.heads.neural_process import NeuralProcessHead
from npmatch.nets import Backbone, build_network, join_batch_norm, set_batch_norm_momentum
from npmatch.types import Facts, HasExtras, Head, Model

INIT, ANOTHER = 100, 101  # purposes of chance: the first weights, those of a second network
# From where on the minute that compiling takes pays: work that takes a large GPU two minutes without it.
COMPILE_PIXELS, COMPILE_SECONDS = 4e9, 300.0


def choose_device(name: str) -> torch.device:
    """auto, cpu, cuda, cuda:1 or mps, if it is there."""
    if ranks.size() > 1:
        name = own_device(name)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    there = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    if (device.index or 0) >= there.get(device.type, 0):
        found = ", ".join(kind for kind, number in there.items() if number)
        raise UserError(f"--device {name}: is not on this machine, which has {found}; --device auto takes the best")
    return device


def own_device(name: str) -> str:
    """What one of several ranks computes on: the GPU of its number, or the processor."""
    number, found = ranks.local_rank(), torch.cuda.device_count()
    if name == "cpu" or (name == "auto" and not found):
        return "cpu"
    if name not in ("auto", "cuda"):
        raise UserError(f"--device {name}: each rank takes the GPU of its own number; leave it out, or pass cpu")
    if number >= found:
        raise UserError(f"--nproc_per_node: each rank needs a GPU of its own, there are {found}; or pass --device cpu")
    torch.cuda.set_device(number)  # for what does not say where it computes
    return f"cuda:{number}"


def build_head(settings: Settings, backbone: Backbone, num_classes: int) -> Head:
    chosen, feature_dim = settings.head, backbone.feature_dim
    if isinstance(chosen, Linear):
        return LinearHead(feature_dim, num_classes)
    if isinstance(chosen, Dropout):
        inside = any(isinstance(m, nn.Dropout) for m in backbone.modules())
        dropout = 0.0 if inside else chosen.dropout
        return DropoutHead(feature_dim, num_classes, dropout=dropout, num_samples=chosen.num_samples)
    if chosen.leave_one_out and chosen.targets == "paper_union":
        raise UserError("head.leave_one_out: with head.targets=paper_union all share one z, which every label is in")
    return NeuralProcessHead(
        feature_dim,
        num_classes,
        latent_dim=chosen.latent_dim or feature_dim // (8 if feature_dim >= 2048 else 4),
        bank_size=chosen.bank_size,
        num_samples=chosen.num_samples,
        divergence=chosen.divergence,
        targets=chosen.targets,
        decoder_width=chosen.decoder_width,
        match_strength=chosen.match_strength,
        double_push=chosen.double_push,
        leave_one_out=chosen.leave_one_out,
    )


def build_model(settings: Settings, *, num_classes: int, channels: int, purpose: int = INIT) -> Model:
    """The network and its head, with first weights that depend on the seed alone."""
    torch.manual_seed(chance.number(settings.seed, 0, purpose))
    net = settings.net
    dropout = settings.head.dropout if isinstance(settings.head, Dropout) else 0.0
    backbone = build_network(net.name, channels, block=net.block, dropout=dropout, pretrained=net.pretrained)
    if net.batch_norm_momentum is not None:
        set_batch_norm_momentum(backbone, net.batch_norm_momentum)
    head = build_head(settings, backbone, num_classes)
    return Model(backbone, head, weak_pass=settings.train.weak_pass)


def build_views(settings: Settings, image_size: int) -> dict[str, View]:
    """The views the algorithm asks for, as functions of (images, key, places)."""
    chosen = settings.views
    crop = partial(
        augment.crop_and_flip,
        kind=chosen.crop,
        size=image_size,
        padding=chosen.padding,
        min_area=chosen.min_area,
        flip=chosen.flip,
    )
    strong = partial(
        augment.strong,
        recipe=augment.recipe(
            chosen.strong,
            num_ops=chosen.num_ops,
            color=chosen.color,
            geometry=chosen.geometry,
            cutout=chosen.cutout,
        ),
        crop=crop,
    )
    contrasted = partial(simclr.simclr, size=image_size, min_area=chosen.min_area, flip=chosen.flip, color=chosen.color)
    kinds: dict[str, View] = {"strong": strong, "strong2": strong, "simclr": contrasted}
    return {name: kinds.get(name, crop) for name in settings.algorithm.needs}


def normalization(source: Source, split: Split) -> Normal:
    """A benchmark's usual constants, else the mean and standard deviation of about 2,000 training images."""
    if source.mean is not None and source.std is not None:
        return Normal(source.image_size, source.mean, source.std)
    every = max(1, len(split.unlabeled) // 2000)
    pixels = source.take(split.unlabeled[::every]).double().transpose(0, 1).flatten(1) / 255
    std = pixels.std(1).clamp_min(1e-3)  # of a channel that is the same everywhere nothing can be learnt
    return Normal(source.image_size, tuple(pixels.mean(1).tolist()), tuple(std.tolist()))


def build_stream(settings: Settings, source: Source, split: Split, normal: Normal, device: torch.device) -> Stream:
    """The batches of a run: a function of its seed and the step."""
    labels = torch.from_numpy(source.labels)
    labeled, unlabeled = (
        Pool(source.images, index, labels[index]) for index in (_tensor(split.labeled), _tensor(split.unlabeled))
    )
    batches = Batches(
        labeled,
        unlabeled,
        batch_size=settings.train.batch_size,
        unlabeled_batch=settings.unlabeled_batch,
        seed=settings.seed,
        rank=ranks.rank(),
        ranks=ranks.size(),
    )
    views = build_views(settings, source.image_size)
    return Stream(batches, views, normal=normal, device=device, workers=settings.data.workers)


def _tensor(indices: np.ndarray) -> Tensor:
    return torch.from_numpy(indices.astype(np.int64))


def own_modules(algorithm: object, facts: Facts) -> dict[str, nn.Module]:
    """An algorithm's extras, where it has any."""
    return algorithm.extras(facts) if isinstance(algorithm, HasExtras) else {}


def build_training(settings: Settings, source: Source, split: Split, device: torch.device) -> Training:
    """A run before its first step."""
    if settings.train.batch_size % ranks.size():
        some = f"train.batch_size={settings.train.batch_size}"
        raise UserError(f"{some}: cannot be dealt to {ranks.size()} ranks evenly; take a multiple of {ranks.size()}")
    build = partial(build_model, settings, num_classes=len(source.classes), channels=source.images.shape[1])
    model = build()
    counts = np.bincount(source.labels[split.labeled], minlength=len(source.classes))
    facts = Facts(
        num_classes=len(source.classes),
        classes=tuple(source.classes),
        feature_dim=model.head.feature_dim,
        labeled_counts=tuple(int(count) for count in counts),
        num_labeled=len(split.labeled),
        num_unlabeled=len(split.unlabeled),
        batch_size=settings.train.batch_size,
        unlabeled_ratio=settings.train.unlabeled_ratio,
        num_steps=settings.train.steps,
        device=device,
        another=partial(build, purpose=ANOTHER),
    )
    model.extras.update(own_modules(settings.algorithm, facts))
    model.to(device)
    if device.type == "cuda":
        model.to(memory_format=torch.channels_last)  # what its matrix units read
    if ranks.size() > 1:
        for network in model.passed():
            join_batch_norm(network)
    chosen = settings.optimizer
    pace = Pace(
        num_steps=settings.train.steps,
        lr=chosen.lr,
        schedule=chosen.schedule,
        warmup_steps=chosen.warmup_steps,
        clip_norm=chosen.clip_norm,
        ema_decay=settings.train.ema_decay,
        ema_warmup=settings.train.ema_warmup,
    )
    return start(
        model,
        settings.algorithm,
        settings.algorithm.init(facts),
        pace,
        optimizer=chosen.name,
        momentum=chosen.momentum,
        nesterov=chosen.nesterov,
        weight_decay=chosen.weight_decay,
        seed=settings.seed,
        precision=choose_precision(settings.train.precision, device),
    )


def choose_precision(wanted: str, device: torch.device) -> Precision:
    """The precision of the passes; weights, statistics and losses are float32 always."""
    if wanted == "auto":
        half = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return "bf16" if half else "fp32"
    return cast(Precision, wanted)


def choose_speed(settings: Settings, device: torch.device, budget: float | None = None) -> Speed:
    """How the steps of a run are made fast, which may have only so many seconds. Compiled kernels may be others in the
    next process, which would not go on to the same bits."""
    on_gpu, train = device.type == "cuda" and ranks.size() == 1, settings.train  # ranks meet within a step
    pixels = train.steps * settings.images_per_step * (settings.data.image_size or 1) ** 2
    pays = pixels >= COMPILE_PIXELS if budget is None else budget >= COMPILE_SECONDS
    return Speed(compile=on_gpu and train.compile and pays and not train.deterministic, record=on_gpu)
