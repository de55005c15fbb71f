"""A problem that is learnt in a second on a CPU: three classes of 8x8 images that differ in brightness."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from npmatch import ranks
from npmatch.algorithms import ALGORITHMS
from npmatch.build import own_modules
from npmatch.data.normal import Normal
from npmatch.data.stream import Batches, Pool, Stream
from npmatch.engine import Pace, Training, start
from npmatch.functional import chance
from npmatch.heads.dropout import DropoutHead
from npmatch.heads.linear import LinearHead
from npmatch.heads.neural_process import NeuralProcessHead
from npmatch.types import Facts, Head, Model

CLASSES, FEATURES, POOL, LABELED, BATCH, RATIO, STEPS = 3, 16, 120, 12, 12, 3, 60
CPU = torch.device("cpu")
WORDS = str(Path(__file__).parent / "words.txt")  # a vector for the name of each class


def pool(count: int, seed: int) -> Pool:
    labels = torch.arange(count) % CLASSES
    noise = torch.randint(0, 60, (count, 1, 8, 8), generator=torch.Generator().manual_seed(seed))
    return Pool((labels[:, None, None, None] * 80 + noise).to(torch.uint8), torch.arange(count), labels)


def noisy(images: Tensor, key: Tensor, places: Tensor) -> Tensor:
    """A weak view: every image a little darker, by chance of its place."""
    return images - (chance.uniform(key, places, 1) * 8).to(torch.uint8)[..., None, None].clamp(max=8) // 2


def stream(names: tuple[str, ...], seed: int = 0, device: torch.device = CPU) -> Stream:
    batches = Batches(pool(LABELED, 1), pool(POOL, 2), BATCH, BATCH * RATIO, seed, ranks.rank(), ranks.size())
    return Stream(batches, dict.fromkeys(names, noisy), normal=Normal(8, (0.5,), (0.3,)), device=device)


def backbone() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, FEATURES), nn.BatchNorm1d(FEATURES), nn.LeakyReLU(0.1))


HEADS = {
    "linear": lambda: LinearHead(FEATURES, CLASSES),
    "dropout": lambda: DropoutHead(FEATURES, CLASSES, dropout=0.2, num_samples=4),
    "neural_process": lambda: NeuralProcessHead(FEATURES, CLASSES, latent_dim=8, bank_size=64, num_samples=3),
}
GENTLE = {  # thresholds that a toy passes
    "supervised": {},
    "mixmatch": {"mixing": 0.02, "unlabeled_weight": 10.0},
    "remixmatch": {"mixing": 0.02, "unlabeled_weight": 0.5, "rotation_weight": 0.1},
    "pseudo_label": {"min_confidence": 0.4, "ramp_share": 0.0},
    "mean_teacher": {"unlabeled_weight": 5.0, "ramp_share": 0.0},
    "uda": {"min_confidence": 0.6},
    "fixmatch": {"min_confidence": 0.6},
    "flexmatch": {"min_confidence": 0.6},
    "freematch": {"fairness_weight": 0.01},
    "softmatch": {"decay": 0.9},
    "adamatch": {"relative_confidence": 0.8},
    "semco": {"min_confidence": 0.6, "min_group_similarity": 0.4, "word_vectors": WORDS},
    "meta_pseudo_labels": {
        "min_confidence": 0.6,
        "label": "argmax",
        "ramp_share": 0.6,
        "wait_share": 0.0,
        "unlabeled_weight": 1.0,
        "label_smoothing": 0.03,
    },
    "ups": {"min_confidence": 0.6, "max_deviation": 0.3},
    "comatch": {"min_confidence": 0.6, "contrast_weight": 0.1},
    "simmatch": {"min_confidence": 0.6, "warmup_steps": 20},
    "npmatch": {"min_confidence": 0.6, "max_uncertainty": 1.0},
}


def facts(**changes: Any) -> Facts:
    known = {
        "num_classes": CLASSES,
        "classes": ("dark", "gray", "bright"),
        "feature_dim": FEATURES,
        "labeled_counts": (LABELED // CLASSES,) * CLASSES,
        "num_labeled": LABELED,
        "num_unlabeled": POOL,
        "batch_size": BATCH,
        "unlabeled_ratio": RATIO,
        "num_steps": STEPS,
        "device": CPU,
    }
    return Facts(**(known | changes))


def model(head: str, seed: int = 0, **options: str) -> Model:
    torch.manual_seed(seed)
    made: Head = HEADS[head]()
    return Model(backbone(), made, **options)


def training(
    algorithm: str, head: str, *, seed: int = 0, precision: str = "fp32", device: torch.device = CPU, **options: str
) -> Training:
    chosen = ALGORITHMS[algorithm](**GENTLE[algorithm])
    pace = Pace(num_steps=STEPS, lr=0.05, schedule="half_cosine", ema_decay=0.95, ema_warmup=True, clip_norm=3.0)
    placed = model(head, seed, **options)
    placed.extras.update(own_modules(chosen, facts(another=lambda: model(head, seed + 1))))
    placed.to(device)
    return start(placed, chosen, chosen.init(facts(device=device)), pace, seed=seed, precision=precision)
