"""What is published of each method: the settings of its row in NP-Match's tables, and those of its own paper.

Both start from what `presets.paper` has for every method, and say only where a method differs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from npmatch.config import Settings
from npmatch.errors import UserError


@dataclass(frozen=True, kw_only=True)
class About:
    """What a preset may know of the data."""

    name: str
    image_size: int
    channels: int
    flip: bool  # a mirrored image is as natural
    labels: int = 40  # by default, in all


Change = Callable[[Settings, About], Settings]


def fixmatch_original(settings: Settings, about: About) -> Settings:
    """Sohn et al. 2020: two operations, each applied half the time, and a square of 16 pixels cut out."""
    net = replace(settings.net, block="correct")
    return replace(settings, views=replace(settings.views, strong="ra_fixmatch"), net=net)


def comatch(settings: Settings, about: About) -> Settings:
    """Its strong view is RandAugment at full strength. On ImageNet with 100,000 labels, USB's thresholds."""
    views, algorithm = replace(settings.views, strong="ra_max"), settings.algorithm
    if about.name == "stl10":
        algorithm = replace(algorithm, contrast_weight=5.0)
    if about.name == "imagenet":
        algorithm = replace(algorithm, min_confidence=0.7, min_similarity=0.2, embedding_dim=128, alignment_batches=128)
    return replace(settings, views=views, algorithm=algorithm)


def comatch_original(settings: Settings, about: About) -> Settings:
    """Li et al. 2021: 512 times 1,024 steps; labeled images are not among the unlabeled."""
    if about.name == "imagenet":
        raise UserError("algorithm.variant=original: comatch on ImageNet has a teacher and a queue that are not here")
    settings = comatch(settings, about)
    return replace(
        settings,
        data=replace(settings.data, include_labeled=False),
        net=replace(settings.net, block="correct"),
        train=replace(settings.train, steps=2**19),
    )


def simmatch(settings: Settings, about: About) -> Settings:
    """As FixMatch's; on ImageNet the threshold of USB and the longer queue."""
    if about.name != "imagenet":
        return settings
    return replace(settings, algorithm=replace(settings.algorithm, min_confidence=0.7, alignment_batches=256))


def simmatch_original(settings: Settings, about: About) -> Settings:
    """Zheng et al. 2022: labeled images are not among the unlabeled. On ImageNet a teacher guesses and fills memory."""
    settings = replace(simmatch(settings, about), data=replace(settings.data, include_labeled=False))
    if about.name != "imagenet":
        return settings
    steps = settings.train.steps
    return replace(
        settings,
        algorithm=replace(
            settings.algorithm,
            unlabeled_weight=10.0,
            instance_weight=5.0,
            memory_momentum=0.0,
            guesses_by="teacher",
            warmup_steps=steps // 400,  # one epoch of 400
        ),
        optimizer=replace(
            settings.optimizer, lr=0.03, weight_decay=1e-4, schedule="half_cosine", warmup_steps=5 * steps // 400
        ),
        train=replace(settings.train, batch_size=64, unlabeled_ratio=5),
    )


def semco(settings: Settings, about: About) -> Settings:
    """Nassar et al. 2021: mu = 3, RandAugment at full strength, 300 times 1,024 steps."""
    return replace(
        settings,
        views=replace(settings.views, strong="ra_max"),
        optimizer=replace(settings.optimizer, weight_decay=5e-4),
        train=replace(settings.train, unlabeled_ratio=3, steps=300 * 1024),
    )


def semco_original(settings: Settings, about: About) -> Settings:
    """Their network is TensorFlow's; labeled images are not among the unlabeled."""
    settings = semco(settings, about)
    net, data = replace(settings.net, block="correct"), replace(settings.data, include_labeled=False)
    return replace(settings, net=net, data=data)


def meta_pseudo_labels(settings: Settings, about: About) -> Settings:
    """Pham et al. 2021: their CIFAR-10 settings, or those for a tenth of ImageNet."""
    chosen, train, method = settings.optimizer, settings.train, settings.algorithm
    chosen = replace(chosen, lr=0.05, weight_decay=5e-4, schedule="half_cosine", warmup_steps=5000)
    train = replace(train, batch_size=128, unlabeled_ratio=7, steps=300_000, ema_decay=0.995)
    if about.name == "imagenet":
        chosen = replace(chosen, lr=0.4, weight_decay=1e-4, clip_norm=5.0)
        train = replace(train, batch_size=1024, unlabeled_ratio=15, steps=700_000)
        method = replace(method, label_smoothing=0.1, guess_temperature=0.5, unlabeled_weight=20.0, ramp_share=1 / 14)
    return replace(settings, optimizer=chosen, train=train, algorithm=method)


def meta_pseudo_labels_original(settings: Settings, about: About) -> Settings:
    """Their network is TensorFlow's, their strong view most like this one."""
    settings = meta_pseudo_labels(settings, about)
    net, views = replace(settings.net, block="correct"), replace(settings.views, strong="ra_max")
    return replace(settings, net=net, views=views)


def as_many_unlabeled(settings: Settings, about: About) -> Settings:
    """Methods that learn each batch of unlabeled images beside one of labeled ones: mu = 1."""
    return replace(settings, train=replace(settings.train, unlabeled_ratio=1))


def uda_original(settings: Settings, about: About) -> Settings:
    """Xie et al. 2020, with the nearest recipe of strong views that is here."""
    views, net = replace(settings.views, strong="ra_fixmatch"), replace(settings.net, block="correct")
    chosen, train = replace(settings.optimizer, schedule="half_cosine"), settings.train
    if about.name == "imagenet":  # as its authors say in an issue
        method = replace(settings.algorithm, min_confidence=0.5)
        train = replace(train, steps=40_000, batch_size=512, unlabeled_ratio=30)
        chosen = replace(chosen, lr=0.3)
        return replace(settings, algorithm=method, views=views, net=net, optimizer=chosen, train=train)
    net = replace(net, batch_norm_momentum=0.1)
    train = replace(train, steps=500_000, ema_decay=0.9999)
    return replace(settings, views=views, net=net, optimizer=replace(chosen, warmup_steps=20_000), train=train)


def adamatch_original(settings: Settings, about: About) -> Settings:
    """Berthelot et al. 2022, but for its interpolated logits and its second view of labeled images."""
    method = replace(settings.algorithm, relative_confidence=0.9, ramp_share=0.5, decay=0.0)
    views, net = replace(settings.views, strong="ra_fixmatch"), replace(settings.net, block="correct")
    return replace(settings, algorithm=method, views=views, net=net)


def mixmatch_original(settings: Settings, about: About) -> Settings:
    """Berthelot et al. 2019: Adam, a share of its own for each mixture, a short ramp; labeled images are not among the
    unlabeled. On CIFAR-100 and STL-10 its networks were others than here."""
    weight = {"cifar100": 150.0, "stl10": 50.0}.get(about.name, 75.0)  # lambda_u
    ramp_share = 1 / 64  # 16,384 steps of 2^20
    method = replace(settings.algorithm, mixing=0.75, mix_each=True, unlabeled_weight=weight, ramp_share=ramp_share)
    settings = replace(_by_adam(as_many_unlabeled(settings, about)), algorithm=method)
    if about.name == "cifar100":
        settings = replace(settings, optimizer=replace(settings.optimizer, weight_decay=0.04))
    return replace(settings, data=replace(settings.data, include_labeled=False))


def remixmatch_original(settings: Settings, about: About) -> Settings:
    """Berthelot et al. 2020, with RandAugment for CTAugment and two strong views for its eight."""
    method = replace(settings.algorithm, mix_each=True, align_over="recent", rotations="quarters", follow="last")
    views = replace(settings.views, strong="ra_fixmatch")
    return replace(_by_adam(as_many_unlabeled(settings, about)), algorithm=method, views=views)


def _by_adam(settings: Settings) -> Settings:
    """As both papers' code trains: weights decay by .02 of the learning rate at each step, beside Adam."""
    adam = replace(settings.optimizer, name="adamw", lr=0.002, weight_decay=0.02, schedule="constant")
    return replace(settings, optimizer=adam, net=replace(settings.net, block="correct"))


# Rows of the tables that are not trained as FixMatch's.
TABLE: dict[str, Change] = {
    "pseudo_label": as_many_unlabeled,
    "mean_teacher": as_many_unlabeled,
    "mixmatch": as_many_unlabeled,
    "remixmatch": as_many_unlabeled,
    "comatch": comatch,
    "simmatch": simmatch,
    "semco": semco,
    "meta_pseudo_labels": meta_pseudo_labels,
}

# --set algorithm.variant=original
ORIGINAL: dict[str, Change] = {
    "uda": uda_original,
    "adamatch": adamatch_original,
    "mixmatch": mixmatch_original,
    "remixmatch": remixmatch_original,
    "fixmatch": fixmatch_original,
    "comatch": comatch_original,
    "simmatch": simmatch_original,
    "semco": semco_original,
    "meta_pseudo_labels": meta_pseudo_labels_original,
}


def as_published(settings: Settings, about: About) -> Settings:
    """The settings of a method's row, or with variant "original" those of its own paper."""
    name = settings.algorithm_name
    if settings.variant == "table":
        return TABLE[name](settings, about) if name in TABLE else settings
    if name not in ORIGINAL:
        raise UserError(f"algorithm.variant=original: {name} has no settings but those of the tables")
    return ORIGINAL[name](settings, about)
