"""The paper's experiments and two presets for people's own data, as functions of what is known about the data.

`paper` holds every constant behind NP-Match's tables (supplement, Table 1, and the published code where they differ).
`quick` and `standard` are fitted to short runs: no alignment to equal classes, a limit on uncertainty that means the
same for any number of classes, averages that warm up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from npmatch.algorithms import ALGORITHMS
from npmatch.algorithms.fixmatch import FixMatch
from npmatch.algorithms.flexmatch import FlexMatch
from npmatch.algorithms.mixmatch import MixMatch
from npmatch.algorithms.npmatch import NPMatch
from npmatch.algorithms.remixmatch import ReMixMatch
from npmatch.algorithms.simmatch import SimMatch
from npmatch.algorithms.ups import UPS
from npmatch.config import Data, Dropout, Linear, Net, NeuralProcess, Optimizer, Settings, Train, Views
from npmatch.errors import UserError
from npmatch.published import About, as_published

BUILTIN = {
    "digits": About(name="digits", image_size=8, channels=1, flip=False, labels=40),
    "cifar10": About(name="cifar10", image_size=32, channels=3, flip=True, labels=40),
    "cifar100": About(name="cifar100", image_size=32, channels=3, flip=True, labels=400),
    "svhn": About(name="svhn", image_size=32, channels=3, flip=False, labels=40),
    "fashion_mnist": About(name="fashion_mnist", image_size=28, channels=1, flip=True, labels=40),
    "stl10": About(name="stl10", image_size=96, channels=3, flip=True, labels=40),
    "imagenet": About(name="imagenet", image_size=224, channels=3, flip=True, labels=100_000),
}
TABLE1 = {"cifar10": (40, 250, 4000), "cifar100": (400, 2500, 10000), "stl10": (40, 250, 1000)}  # labels


def paper(about: About, algorithm: str, variant: Literal["table", "original"] = "table") -> Settings:
    """The settings behind NP-Match's tables, for any method here: 2^20 steps, B = 64, mu = 7. Or, as "original", those
    of the method's own paper."""
    nets = {"cifar100": "wrn_28_8", "stl10": "wrn_37_2", "imagenet": "resnet50"}
    np_match = algorithm == "npmatch"
    settings = Settings(
        preset="paper",
        variant=variant,
        data=Data(source=about.name),
        views=Views(flip=about.flip),
        net=Net(name=nets.get(about.name, "wrn_28_2")),
        head=own_head(algorithm),
        algorithm=ALGORITHMS[algorithm](),
        optimizer=Optimizer(
            weight_decay=1e-3 if about.name == "cifar100" else 5e-4,
            # Neither stands in the paper; the published NP-Match has both, its TorchSSL rivals have neither.
            schedule="cosine_63_128" if np_match else "cosine_7_16",
            clip_norm=3.0 if np_match else None,
        ),
    )
    settings = replace(settings, train=Train(eval_every=5000))
    return as_published(_imagenet(settings) if about.name == "imagenet" else settings, about)


def own_head(algorithm: str) -> Linear | Dropout | NeuralProcess:
    """The head a method is published with."""
    return {"npmatch": NeuralProcess, "ups": Dropout}.get(algorithm, Linear)()


def _imagenet(settings: Settings) -> Settings:
    """NP-Match's ImageNet settings, which its table compares with rows trained otherwise (docs/paper_and_code.md)."""
    algorithm = settings.algorithm
    if isinstance(algorithm, FixMatch | FlexMatch | NPMatch | UPS):
        algorithm = replace(algorithm, min_confidence=0.7)
    if isinstance(algorithm, NPMatch):
        algorithm = replace(algorithm, max_uncertainty=1.2)
    return replace(
        settings,
        algorithm=algorithm,
        views=replace(settings.views, crop="resized"),
        optimizer=replace(settings.optimizer, lr=0.05, weight_decay=1e-4),
        train=replace(settings.train, batch_size=256, unlabeled_ratio=1),
    )


def quick(about: About, algorithm: str) -> Settings:
    """800 steps, for a first look."""
    return _own_data(about, algorithm, preset="quick", steps=800)


def standard(about: About, algorithm: str) -> Settings:
    """20,000 steps, for a GPU."""
    return _own_data(about, algorithm, preset="standard", steps=20_000)


def _own_data(about: About, algorithm: str, *, preset: str, steps: int) -> Settings:
    small, minute = about.image_size <= 64, about.image_size <= 16
    method = ALGORITHMS[algorithm]()
    if isinstance(method, NPMatch):
        # The strictest limit that costs no accuracy on held-out labels: results/choose.
        method = replace(method, alignment="none", max_uncertainty=0.4, uncertainty_unit="share")
    if isinstance(method, SimMatch):
        method = replace(method, warmup_steps=steps // 20)
    if minute or (small and preset == "quick"):
        net = Net(name="tiny", batch_norm_momentum=0.05)
    elif small:
        net = Net(name="wrn_28_2", block="correct", batch_norm_momentum=0.01)
    else:
        net = Net(name="resnet18", batch_norm_momentum=0.05)
    return Settings(
        preset=preset,
        data=Data(source=about.name),
        views=Views(
            crop="shift" if small else "resized",
            padding=max(1, about.image_size // 8),
            flip=about.flip,
            num_ops=2 if minute else None,  # of 64 pixels little is left after more
            color=not minute,
            cutout=not minute,
        ),
        net=net,
        head=own_head(algorithm),
        algorithm=method,
        optimizer=Optimizer(schedule="half_cosine", clip_norm=3.0),
        train=Train(
            steps=steps,
            batch_size=32,
            unlabeled_ratio=1 if isinstance(method, MixMatch | ReMixMatch) else 7,  # theirs grow in passes with it
            ema_decay=0.99,
            ema_warmup=True,
            log_every=20,
        ),
    )


PRESETS = {"quick": quick, "standard": standard, "paper": paper}


def preset(name: str, about: About, algorithm: str, variant: str = "table") -> Settings:
    if name not in PRESETS:
        raise UserError(f"--preset {name}: there is no such preset; there are {', '.join(PRESETS)}")
    if algorithm not in ALGORITHMS:
        raise UserError(f"--algorithm {algorithm}: there is no such algorithm; there are {', '.join(ALGORITHMS)}")
    if variant == "original":
        if name != "paper":
            raise UserError(f"algorithm.variant=original: is for --preset paper, not for {name}")
        return paper(about, algorithm, "original")
    return PRESETS[name](about, algorithm)


def table_cells() -> list[str]:
    """The names `npmatch show` knows besides the presets': table1/<algorithm>/<dataset>-<labels>."""
    return [f"table1/{a}/{d}-{n}" for a in ALGORITHMS for d, counts in TABLE1.items() for n in counts]


def named(name: str) -> Settings:
    """The settings of a table's cell, or of a preset on digits."""
    if name in PRESETS:
        return PRESETS[name](BUILTIN["digits"], "npmatch")
    if name not in table_cells():
        raise UserError(f"{name}: no such preset; see npmatch list presets")
    _, algorithm, cell = name.split("/")
    dataset, labels = cell.rsplit("-", 1)
    settings = paper(BUILTIN[dataset], algorithm)
    return replace(settings, data=replace(settings.data, labels=int(labels)))
