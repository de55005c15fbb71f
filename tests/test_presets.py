"""The constants behind the paper's tables, by the specification's numbers, and the values a setting may have."""

from __future__ import annotations

import math
from typing import Any

import pytest

from npmatch.algorithms import ALGORITHMS
from npmatch.algorithms.npmatch import NPMatch
from npmatch.config import HEADS, RANGES, Linear, NeuralProcess, Settings, from_dict, override
from npmatch.data.builtin import BENCHMARKS, IMAGENET_MEAN, IMAGENET_STD
from npmatch.errors import UserError
from npmatch.presets import BUILTIN, named, paper, table_cells

DATA = ("cifar10", "cifar100", "stl10", "imagenet")
NETS = {"cifar10": "wrn_28_2", "cifar100": "wrn_28_8", "stl10": "wrn_37_2", "imagenet": "resnet50"}
DECAY = {"cifar10": 5e-4, "cifar100": 1e-3, "stl10": 5e-4, "imagenet": 1e-4}


def shared(settings: Settings) -> dict[str, Any]:
    """What every method of the tables has in common, as the settings have it."""
    chosen, train = settings.optimizer, settings.train
    return {
        "data": settings.data.source,
        "net": (settings.net.name, settings.net.block, settings.net.pretrained, settings.net.batch_norm_momentum),
        "sgd": (chosen.name, chosen.momentum, chosen.nesterov, chosen.warmup_steps),
        "wd": chosen.weight_decay,
        "lr": chosen.lr,
        "B": train.batch_size,
        "mu": train.unlabeled_ratio,
        "K": train.steps,
        "EMA": (train.ema_decay, train.ema_warmup),
        "precision": train.precision,
        "one pass": train.weak_pass,
        "both pools": settings.data.include_labeled,
        "crop": settings.views.crop,
        "views": (settings.views.padding, settings.views.min_area, settings.views.flip),
        "strong": (settings.views.strong, settings.views.num_ops),
        "all kinds": (settings.views.color, settings.views.geometry, settings.views.cutout),
    }


def of_the_specification(data: str) -> dict[str, Any]:
    """Spec 1.1, 1.3, 1.6, 1.7, 2 and 3.4."""
    large = data == "imagenet"
    return {
        "data": data,
        "net": (NETS[data], "torchssl", False, None),
        "sgd": ("sgd", 0.9, True, 0),
        "wd": DECAY[data],
        "lr": 0.05 if large else 0.03,
        "B": 256 if large else 64,
        "mu": 1 if large else 7,
        "K": 1_048_576,
        "EMA": (0.999, False),
        "precision": "auto",
        "one pass": "joint",
        "both pools": True,
        "crop": "resized" if large else "shift",
        "views": (4, 0.2, True),
        "strong": ("ra_torchssl", None),
        "all kinds": (True, True, True),
    }


@pytest.mark.parametrize(
    ("data", "min_confidence", "max_uncertainty"),
    [("cifar10", 0.95, 0.4), ("cifar100", 0.95, 0.4), ("stl10", 0.95, 0.4), ("imagenet", 0.7, 1.2)],
)
def test_np_match_has_the_settings_of_the_table(data: str, min_confidence: float, max_uncertainty: float) -> None:
    """Spec 3.4; clip and arc of 1.6, and the code's choices of 3.6."""
    settings = paper(BUILTIN[data], "npmatch")
    assert shared(settings) == of_the_specification(data)
    assert (settings.optimizer.clip_norm, settings.optimizer.schedule) == (3.0, "cosine_63_128")
    assert settings.train.predict_with == "probability"
    assert settings.algorithm == NPMatch(
        min_confidence=min_confidence,
        max_uncertainty=max_uncertainty,
        uncertainty_unit="nats",
        unlabeled_weight=1.0,
        divergence_weight=0.01,
        alignment="batch",
        threshold_warmup=True,
    )
    assert settings.head == NeuralProcess(
        num_samples=10,
        bank_size=2560,
        latent_dim=None,
        divergence="js",
        targets="code",
        decoder_width="code",
        match_strength=False,
        double_push=False,
        leave_one_out=False,
    )


@pytest.mark.parametrize("algorithm", ["fixmatch", "flexmatch"])
@pytest.mark.parametrize("data", DATA)
def test_its_rivals_have_torchssls_settings_and_np_matchs_on_imagenet(data: str, algorithm: str) -> None:
    """Spec 1.6 and 2: an arc of 7/16, nothing clipped, a threshold of .95 and of .7 in NP-Match's ImageNet protocol."""
    settings = paper(BUILTIN[data], algorithm)
    assert shared(settings) == of_the_specification(data)
    assert (settings.optimizer.clip_norm, settings.optimizer.schedule) == (None, "cosine_7_16")
    assert settings.algorithm_name == algorithm and settings.head == Linear()
    assert settings.algorithm.min_confidence == (0.7 if data == "imagenet" else 0.95)
    assert settings.algorithm.unlabeled_weight == 1.0
    assert algorithm == "fixmatch" or settings.algorithm.threshold_warmup


@pytest.mark.parametrize(
    ("algorithm", "ratio", "own"),
    [
        ("pseudo_label", 1, {"min_confidence": 0.95, "unlabeled_weight": 1.0, "ramp_share": 0.4}),
        ("mean_teacher", 1, {"unlabeled_weight": 50.0, "ramp_share": 0.4, "statistics": "batch"}),
        ("uda", 7, {"min_confidence": 0.8, "temperature": 0.4, "unlabeled_weight": 1.0, "annealing": "none"}),
        ("freematch", 7, {"unlabeled_weight": 1.0, "fairness_weight": 0.001, "decay": 0.999, "max_threshold": 1.0}),
        ("softmatch", 7, {"unlabeled_weight": 1.0, "decay": 0.999, "narrowing": 2.0, "align_to": "uniform"}),
        ("adamatch", 7, {"relative_confidence": 0.95, "ramp_share": 0.0, "align_to": "labeled", "decay": 0.999}),
    ],
)
@pytest.mark.parametrize("data", ["cifar10", "cifar100", "stl10"])
def test_rows_of_torchssl_and_usb(data: str, algorithm: str, ratio: int, own: dict[str, Any]) -> None:
    """The settings of TorchSSL's config_generator.py, and for the last three, of USB's classic_cv."""
    settings = paper(BUILTIN[data], algorithm)
    assert shared(settings) == of_the_specification(data) | {"mu": ratio}
    assert vars(settings.algorithm).items() >= own.items()


@pytest.mark.parametrize("data", DATA)
def test_the_supervised_rows_have_the_same_training(data: str) -> None:
    settings = paper(BUILTIN[data], "supervised")
    assert shared(settings) == of_the_specification(data)
    assert (settings.optimizer.clip_norm, settings.optimizer.schedule) == (None, "cosine_7_16")
    assert settings.head == Linear() and settings.unlabeled_batch == 0


def test_house_numbers_and_digits_are_not_mirrored() -> None:
    assert [name for name in BUILTIN if not paper(BUILTIN[name], "npmatch").views.flip] == ["digits", "svhn"]
    assert {name: known.flip for name, known in BENCHMARKS.items()} == {
        name: name != "svhn" for name in ("cifar10", "cifar100", "stl10", "svhn", "fashion_mnist")
    }


def test_a_cell_of_the_table_is_the_paper_with_that_many_labels() -> None:
    """NP-Match's Table 1: nine columns for each method."""
    cells = {(cell.split("/")[1], cell.split("/")[2]) for cell in table_cells()}
    columns = {"cifar10-40", "cifar10-250", "cifar10-4000", "cifar100-400", "cifar100-2500", "cifar100-10000"}
    columns |= {"stl10-40", "stl10-250", "stl10-1000"}
    assert cells == {(a, c) for a in ALGORITHMS for c in columns}
    cell = named("table1/flexmatch/cifar100-2500")
    assert shared(cell) == of_the_specification("cifar100")
    assert (cell.data.labels, cell.algorithm_name, cell.preset) == (2500, "flexmatch", "paper")


@pytest.mark.parametrize(
    ("data", "mean", "std"),
    [
        ("cifar10", (125.3, 123.0, 113.9), (63.0, 62.1, 66.7)),
        ("cifar100", (129.3, 124.1, 112.4), (68.2, 65.4, 70.4)),
        ("stl10", (112.4, 109.1, 98.6), (68.4, 66.6, 68.5)),
    ],
)
def test_pixels_are_normalized_as_in_the_table(
    data: str, mean: tuple[float, float, float], std: tuple[float, float, float]
) -> None:
    """Spec 1.2."""
    assert (BENCHMARKS[data].mean, BENCHMARKS[data].std) == (mean, std)


def test_imagenet_is_normalized_as_everywhere() -> None:
    """Spec 1.2, of pixels in 0..1."""
    assert IMAGENET_MEAN == (0.485, 0.456, 0.406) and IMAGENET_STD == (0.229, 0.224, 0.225)


INF = math.inf
LIMITS: dict[str, tuple[float, float]] = {  # whole numbers where the setting is one
    "seed": (0, 4_294_967_295),
    "data.labels": (1, INF),
    "data.labels_per_class": (1, INF),
    "data.val_share": (0.0, 1.0),
    "data.image_size": (1, 4096),
    "data.channels": (1, 1024),
    "data.in_memory_mib": (0, INF),
    "data.workers": (0, INF),
    "views.padding": (0, INF),
    "views.min_area": (0.0, 1.0),
    "views.num_ops": (0, INF),
    "net.batch_norm_momentum": (0.0, 1.0),
    "head.num_samples": (1, INF),
    "head.dropout": (0.0, 1.0),
    "head.bank_size": (1, INF),
    "head.latent_dim": (1, INF),
    "algorithm.min_confidence": (0.0, 1.0),
    "algorithm.max_uncertainty": (0.0, INF),
    "algorithm.unlabeled_weight": (0.0, INF),
    "algorithm.ramp_share": (0.0, 1.0),
    "algorithm.fairness_weight": (0.0, INF),
    "algorithm.max_threshold": (0.0, 1.0),
    "algorithm.decay": (0.0, 1.0),
    "algorithm.narrowing": (0.0, INF),
    "algorithm.relative_confidence": (0.0, INF),
    "algorithm.contrast_weight": (0.0, INF),
    "algorithm.instance_weight": (0.0, INF),
    "algorithm.own_share": (0.0, 1.0),
    "algorithm.temperature": (0.001, INF),
    "algorithm.min_similarity": (0.0, 1.0),
    "algorithm.embedding_dim": (1, INF),
    "algorithm.queue_batches": (1, INF),
    "algorithm.smoothing_from": (0, INF),
    "algorithm.alignment_batches": (1, INF),
    "algorithm.memory_momentum": (0.0, 1.0),
    "algorithm.warmup_steps": (0, INF),
    "algorithm.divergence_weight": (0.0, INF),
    "algorithm.mixing": (0.0, INF),
    "algorithm.strong_weight": (0.0, INF),
    "algorithm.rotation_weight": (0.0, INF),
    "algorithm.max_deviation": (0.0, 1.0),
    "algorithm.negative_weight": (0.0, INF),
    "algorithm.max_negative_confidence": (0.0, 1.0),
    "algorithm.max_negative_deviation": (0.0, 1.0),
    "algorithm.negative_temperature": (0.001, INF),
    "algorithm.min_group_similarity": (-1.0, 1.0),
    "algorithm.semantic_weight": (0.0, INF),
    "algorithm.group_radius": (1e-06, 2.0),
    "algorithm.hidden_dim": (1, INF),
    "algorithm.guess_temperature": (0.001, INF),
    "algorithm.label_smoothing": (0.0, 1.0),
    "algorithm.wait_share": (0.0, 1.0),
    "algorithm.baseline_decay": (0.0, 1.0),
    "optimizer.lr": (0.0, INF),
    "optimizer.momentum": (0.0, 1.0),
    "optimizer.weight_decay": (0.0, INF),
    "optimizer.warmup_steps": (0, INF),
    "optimizer.clip_norm": (0.0, INF),
    "train.steps": (1, INF),
    "train.batch_size": (1, 1_048_576),
    "train.unlabeled_ratio": (1, 1024),
    "train.ema_decay": (0.0, 1.0),
    "train.log_every": (1, INF),
    "train.eval_every": (1, INF),
    "train.calibrate": (0, INF),
}


def outside(bound: float, toward: float) -> float:
    """The nearest number beyond a bound."""
    return math.nextafter(bound, toward) if isinstance(bound, float) else bound + (1 if toward > 0 else -1)


@pytest.mark.parametrize("key", sorted(LIMITS.keys() | RANGES.keys()))
def test_a_setting_takes_its_bounds_and_nothing_beyond(key: str) -> None:
    low, high = LIMITS[key]
    section, _, name = key.rpartition(".")
    head = next(head for head, fields in HEADS.items() if section != "head" or hasattr(fields, name))
    method = next(one for one, cls in ALGORITHMS.items() if section != "algorithm" or name in vars(cls()))
    settings = from_dict({"head": {"name": head}, "algorithm": {"name": method}})
    large = (10**15 if isinstance(low, int) else 1e300) if high == INF else high
    for value in (low, large):
        held = override(settings, {key: value})
        assert getattr(getattr(held, section) if section else held, name) == value
    refused = [outside(low, -INF), *([outside(high, INF)] if high < INF else [INF, math.nan])]
    for value in refused:
        with pytest.raises(UserError) as error:
            override(settings, {key: value})
        assert str(error.value).startswith(f"{key}: must be "), value
