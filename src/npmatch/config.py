"""Settings as values: typed, frozen, checked together, written down in full beside every result.

What an algorithm can be told are the fields of its own class; the rest stands here. Precedence: a preset's values,
then those of --config, then those of --set.
"""

from __future__ import annotations

import difflib
import math
import tomllib
import types
import typing
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Literal

from npmatch.algorithms import ALGORITHMS
from npmatch.errors import UserError, refuse


@dataclass(frozen=True, kw_only=True)
class Data:
    """Which images, and which of them have labels."""

    source: str = "digits"  # a built-in name, a folder, a manifest or an .npz
    labels: int | None = None  # in all, split evenly over the classes; none: every label there is
    labels_per_class: int | None = None
    labels_file: str | None = None  # path,label for a flat folder
    group_column: str | None = None  # patient or site: never split
    val_share: float = 0.0  # of the labeled images, put aside
    include_labeled: bool = True  # the labeled images belong to the unlabeled set too
    image_size: int | None = None  # side in pixels; none: from the data
    resize: Literal["crop", "squash", "pad"] = "crop"
    channels: int | None = None
    in_memory_mib: int = 2048  # larger data is decoded by workers as it is needed
    workers: int = 2


@dataclass(frozen=True, kw_only=True)
class Views:
    """What weak and strong views may do to these images. Flips and color ruin some data: digits, text, X-rays."""

    crop: Literal["shift", "resized"] = "shift"  # reflect-padded shift, or a random resized crop of a photograph
    padding: int = 4  # pixels of a shift
    min_area: float = 0.2  # of a resized crop
    flip: bool = True
    strong: Literal["ra_torchssl", "ra_fixmatch", "ra_max"] = "ra_torchssl"
    num_ops: int | None = None  # none: the recipe's own
    color: bool = True
    geometry: bool = True
    cutout: bool = True


@dataclass(frozen=True, kw_only=True)
class Net:
    name: str = "wrn_28_2"  # one of ours, or any timm name
    block: Literal["torchssl", "correct"] = "torchssl"  # of wide residual networks
    pretrained: bool = False
    batch_norm_momentum: float | None = None  # torch's convention; none: the network's own


@dataclass(frozen=True, kw_only=True)
class Linear:
    """One deterministic prediction."""

    name: Literal["linear"] = "linear"


@dataclass(frozen=True, kw_only=True)
class Dropout:
    """Monte-Carlo dropout: a sample is a pass of the whole network."""

    name: Literal["dropout"] = "dropout"
    num_samples: int = 10  # T
    dropout: float = 0.3


@dataclass(frozen=True, kw_only=True)
class NeuralProcess:
    """A neural process: samples of a latent variable, from one pass of the network."""

    name: Literal["neural_process"] = "neural_process"
    num_samples: int = 10  # T
    bank_size: int = 2560  # Q
    latent_dim: int | None = None  # M; none: a quarter of the features, an eighth from 2,048 on
    divergence: Literal["js", "dual_js", "kl"] = "js"
    targets: Literal["code", "paper_union"] = "code"
    decoder_width: Literal["code", "paper"] = "code"
    match_strength: bool = False
    double_push: bool = False
    leave_one_out: bool = False


HEADS = {"linear": Linear, "dropout": Dropout, "neural_process": NeuralProcess}


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    name: Literal["sgd", "adamw"] = "sgd"
    lr: float = 0.03
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4  # not on batch norm and biases
    schedule: Literal["constant", "half_cosine", "cosine_7_16", "cosine_63_128"] = "cosine_7_16"
    warmup_steps: int = 0
    clip_norm: float | None = None  # of backbone, head and extras, each alone


@dataclass(frozen=True, kw_only=True)
class Train:
    steps: int = 2**20
    batch_size: int = 64  # B
    unlabeled_ratio: int = 7  # mu
    weak_pass: Literal["joint", "separate"] = "joint"
    ema_decay: float = 0.999
    ema_warmup: bool = False  # min(decay, (1 + t) / (10 + t)), so that a short run leaves its start behind
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"  # of the passes; auto: bf16 on a GPU that has it
    compile: bool = True  # on a GPU, where a run is long enough to pay for the minute it takes
    log_every: int = 50
    eval_every: int | None = None  # none: twenty times over the run
    predict_with: Literal["probability", "logit"] = "probability"  # what the T samples are averaged as
    calibrate: int = 0  # folds over the labels, to learn when predictions may be accepted where there is no val part
    deterministic: bool = False


@dataclass(frozen=True, kw_only=True)
class Settings:
    """One run, in full."""

    preset: str = "standard"
    seed: int = 0
    data: Data = field(default_factory=Data)
    views: Views = field(default_factory=Views)
    net: Net = field(default_factory=Net)
    head: Linear | Dropout | NeuralProcess = field(default_factory=NeuralProcess)
    algorithm: Any = None  # one of ALGORITHMS' classes
    variant: Literal["table", "original"] = "table"  # written algorithm.variant: whose settings preset paper takes
    optimizer: Optimizer = field(default_factory=Optimizer)
    train: Train = field(default_factory=Train)

    @property
    def algorithm_name(self) -> str:
        return next(name for name, cls in ALGORITHMS.items() if type(self.algorithm) is cls)

    @property
    def unlabeled_batch(self) -> int:
        """Unlabeled images of a step, 0 where the algorithm wants no view of one."""
        wanted = any(name != "labeled" for name in self.algorithm.needs)
        return self.train.batch_size * self.train.unlabeled_ratio if wanted else 0

    @property
    def images_per_step(self) -> int:
        """Images drawn, not the views made of them."""
        return self.train.batch_size + self.unlabeled_batch

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values, as config.toml has them; what is not set is "none", since TOML has no word for it."""
        method = {"name": self.algorithm_name, "variant": self.variant} | asdict(self.algorithm)
        table = asdict(self) | {"algorithm": method}
        return {key: _spelled_none(value) for key, value in table.items() if key != "variant"}


def _spelled_none(value: Any) -> Any:
    return {k: "none" if v is None else v for k, v in value.items()} if isinstance(value, dict) else value


# The smallest and the largest value of the settings that have one.
RANGES: Mapping[str, tuple[float, float]] = {
    "seed": (0, 2**32 - 1),
    "data.labels": (1, math.inf),
    "data.labels_per_class": (1, math.inf),
    "data.val_share": (0, 1),
    "data.image_size": (1, 4096),
    "data.channels": (1, 1024),
    "data.in_memory_mib": (0, math.inf),
    "data.workers": (0, math.inf),
    "views.padding": (0, math.inf),
    "views.min_area": (0, 1),
    "views.num_ops": (0, math.inf),
    "net.batch_norm_momentum": (0, 1),
    "head.num_samples": (1, math.inf),
    "head.dropout": (0, 1),
    "head.bank_size": (1, math.inf),
    "head.latent_dim": (1, math.inf),
    "algorithm.min_confidence": (0, 1),
    "algorithm.max_uncertainty": (0, math.inf),
    "algorithm.unlabeled_weight": (0, math.inf),
    "algorithm.ramp_share": (0, 1),
    "algorithm.fairness_weight": (0, math.inf),
    "algorithm.max_threshold": (0, 1),
    "algorithm.decay": (0, 1),
    "algorithm.narrowing": (0, math.inf),
    "algorithm.relative_confidence": (0, math.inf),
    "algorithm.contrast_weight": (0, math.inf),
    "algorithm.instance_weight": (0, math.inf),
    "algorithm.own_share": (0, 1),
    "algorithm.temperature": (1e-3, math.inf),
    "algorithm.min_similarity": (0, 1),
    "algorithm.embedding_dim": (1, math.inf),
    "algorithm.queue_batches": (1, math.inf),
    "algorithm.smoothing_from": (0, math.inf),
    "algorithm.alignment_batches": (1, math.inf),
    "algorithm.memory_momentum": (0, 1),
    "algorithm.warmup_steps": (0, math.inf),
    "algorithm.divergence_weight": (0, math.inf),
    "algorithm.max_deviation": (0, 1),
    "algorithm.negative_weight": (0, math.inf),
    "algorithm.max_negative_confidence": (0, 1),
    "algorithm.max_negative_deviation": (0, 1),
    "algorithm.negative_temperature": (1e-3, math.inf),
    "algorithm.min_group_similarity": (-1, 1),
    "algorithm.semantic_weight": (0, math.inf),
    "algorithm.group_radius": (1e-6, 2),
    "algorithm.hidden_dim": (1, math.inf),
    "algorithm.guess_temperature": (1e-3, math.inf),
    "algorithm.label_smoothing": (0, 1),
    "algorithm.wait_share": (0, 1),
    "algorithm.baseline_decay": (0, 1),
    "algorithm.mixing": (0, math.inf),
    "algorithm.strong_weight": (0, math.inf),
    "algorithm.rotation_weight": (0, math.inf),
    "optimizer.lr": (0, math.inf),
    "optimizer.momentum": (0, 1),
    "optimizer.weight_decay": (0, math.inf),
    "optimizer.warmup_steps": (0, math.inf),
    "optimizer.clip_norm": (0, math.inf),
    "train.steps": (1, math.inf),
    "train.batch_size": (1, 2**20),
    "train.unlabeled_ratio": (1, 1024),
    "train.ema_decay": (0, 1),
    "train.log_every": (1, math.inf),
    "train.eval_every": (1, math.inf),
    "train.calibrate": (0, math.inf),
}


def override(settings: Settings, changes: Mapping[str, Any]) -> Settings:
    """A copy with dotted settings changed, `{"algorithm.min_confidence": 0.9}`. All errors are named at once.

    Changing `head.name` or `algorithm.name` starts from that member's own defaults.
    """
    problems: list[str] = []
    for section, table in (("head", HEADS), ("algorithm", ALGORITHMS)):
        name = changes.get(f"{section}.name")
        if name is None:
            continue
        if not isinstance(name, str) or name not in table:
            problems.append(
                f"{section}.name: there is no {name!r}{_meant(str(name), table)}; there are {', '.join(table)}"
            )
        elif type(getattr(settings, section)) is not table[name]:
            settings = replace(settings, **{section: table[name]()})
    for path, value in changes.items():
        if path in ("head.name", "algorithm.name"):
            continue
        try:
            if path == "algorithm.variant":
                settings = replace(settings, variant=_checked(value, Literal["table", "original"], path))
            else:
                settings = _changed(settings, path, path, value)
        except ValueError as error:
            problems.append(str(error))
    if problems:
        raise UserError("\n".join(problems))
    return settings


def _changed(part: Any, path: str, whole: str, value: Any) -> Any:
    name, _, rest = path.partition(".")
    known = {f.name for f in fields(part)} - ({"name"} if type(part) in HEADS.values() else {"variant"})
    if name not in known:
        where = whole[: len(whole) - len(path)].rstrip(".")
        there = f"{where} has" if where else "there are"
        raise ValueError(f"{whole}: no such setting{_meant(name, known)}; {there} {', '.join(sorted(known))}")
    current = getattr(part, name)
    if rest:
        if not is_dataclass(current):
            raise ValueError(f"{whole}: {name} is a single value")
        return replace(part, **{name: _changed(current, rest, whole, value)})
    if is_dataclass(current):
        raise ValueError(f"{whole}: is a section; set one of {', '.join(f.name for f in fields(current))}")
    checked = _checked(value, typing.get_type_hints(type(part))[name], whole)
    if checked is not None and whole in RANGES:
        low, high = RANGES[whole]
        if not low <= checked <= high:
            wanted = f"at least {low:g}" if high == math.inf else f"in {low:g}..{high}"
            raise ValueError(f"{whole}: must be {wanted}, got {checked!r}")
    return replace(part, **{name: checked})


def _checked(value: Any, hint: Any, path: str) -> Any:
    """The value as the hint wants it; text is read as TOML would read it, so that --set and files agree."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (types.UnionType, typing.Union) else (hint,)
    if value is None or (value == "none" and type(None) in options):
        if type(None) in options:
            return None
        raise ValueError(f"{path}: cannot be none")
    for option in options:
        if typing.get_origin(option) is Literal:
            if value in typing.get_args(option):
                return value
        elif option is bool:
            if isinstance(value, bool):
                return value
        elif option is float:
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                return float(value)
        elif option in (int, str) and type(value) is option:
            return value
    wanted = " or ".join(_spelled(option) for option in options)
    raise ValueError(f"{path}: must be {wanted}, got {value!r}")


def _spelled(option: Any) -> str:
    if typing.get_origin(option) is Literal:
        return "one of " + ", ".join(repr(choice) for choice in typing.get_args(option))
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "none"}
    return names.get(option, str(option))


def _meant(name: str, known: typing.Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def parse_assignments(assignments: typing.Iterable[str]) -> dict[str, Any]:
    """`["train.steps=100"]` -> {"train.steps": 100}. A value is read as TOML; what is no TOML value is text."""
    changes: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise UserError(f"--set {assignment}: write it as key=value, for example train.steps=1000")
        try:
            changes[key.strip()] = tomllib.loads(f"value = {text.strip()}")["value"]
        except tomllib.TOMLDecodeError:
            changes[key.strip()] = {"True": True, "False": False}.get(text.strip(), text.strip())  # as Python has them
    return changes


def together(named: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """What was said by an option, if not None, and by a setting's name. One thing said twice, and differently, is an
    error."""
    named = {key: value for key, value in named.items() if value is not None}
    twice = [key for key in named if key in settings and settings[key] != named[key]]
    refuse("these are set twice; give one value", [f"{key}: {named[key]!r} and {settings[key]!r}" for key in twice])
    return {**named, **settings}


def read_file(path: Path) -> dict[str, Any]:
    """The dotted settings of a TOML file. A run's own config.toml is one: what it records besides is left out."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--config {path}: cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"--config {path}: is not TOML ({error})") from None
    return _settings_of(table)


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with dotted keys."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return found


def from_dict(table: Mapping[str, Any]) -> Settings:
    """Settings from a run's config.toml."""
    return override(Settings(algorithm=ALGORITHMS["npmatch"]()), _settings_of(table))


def _settings_of(table: Mapping[str, Any]) -> dict[str, Any]:
    """The dotted settings of a config.toml, without what it records besides them."""
    return {k: v for k, v in flat(table).items() if k != "data.fingerprint" and not k.startswith("environment.")}
