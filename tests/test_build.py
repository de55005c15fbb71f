"""What stands in the settings is what is built: model, optimizer, views, batches, what an algorithm is told."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from npmatch.build import build_head, build_model, build_stream, build_training, build_views, normalization
from npmatch.config import HEADS, Settings, from_dict, override
from npmatch.data.normal import Normal
from npmatch.data.source import Source
from npmatch.data.splits import Split
from npmatch.data.stream import VIEWS, View
from npmatch.engine import Training
from npmatch.functional.divergence import dual_skew_js
from npmatch.heads.memory_bank import MemoryBank
from npmatch.heads.neural_process import NeuralProcessHead
from npmatch.nets import Backbone
from npmatch.nets.tiny import Tiny
from npmatch.presets import BUILTIN, paper
from npmatch.types import Facts, Model, Step
from npmatch.types import Views as Batch

CPU = torch.device("cpu")
LABELS = np.array([0] * 5 + [2] * 2 + [0, -1, -1, 2, 0, -1, -1, -1, -1])  # nobody is of class 1 or 3
SPLIT = Split(
    labeled=np.array([5, 0, 6, 3, 1, 4, 2]), unlabeled=np.arange(4, 14), val=np.array([14]), test=np.array([15])
)
KEY, PLACES = torch.tensor(5), torch.arange(400)


def settings(**changes: Any) -> Settings:
    """A tiny network, and changes with __ for the dot."""
    return override(from_dict({"net": {"name": "tiny"}}), {key.replace("__", "."): v for key, v in changes.items()})


def source(**changes: Any) -> Source:
    """Sixteen gray 8x8 images in RGB, each as bright as its number, times ten."""
    images = 10 * torch.arange(16, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, 8, 8).contiguous()
    known = {"labels": LABELS, "classes": ("a", "b", "c", "d"), "parts": np.full(16, "train")}
    known |= {"name": "grays", "images": images, "image_size": 8, "ids": [str(i) for i in range(16)]}
    return Source(**(known | changes))


def training(chosen: Settings) -> Training:
    return build_training(chosen, source(), SPLIT, CPU)


class Known(Backbone):
    """Nothing but the length of its features."""

    def __init__(self, feature_dim: int) -> None:
        super().__init__()
        self.feature_dim = feature_dim


@pytest.mark.parametrize(
    ("data", "feature_dim", "latent_dim", "classes", "parameters"),
    [
        ("cifar10", 128, 32, 10, 57_738),
        ("cifar100", 512, 128, 100, 963_684),
        ("stl10", 256, 64, 10, 226_058),
        ("imagenet", 2048, 256, 1000, 13_446_120),
    ],
)
def test_the_papers_heads_are_as_large_as_the_published_ones(
    data: str, feature_dim: int, latent_dim: int, classes: int, parameters: int
) -> None:
    """Spec 3.1: M is d / 4, and d / 8 with a ResNet-50."""
    head = build_head(paper(BUILTIN[data], "npmatch"), Known(feature_dim), classes)
    assert isinstance(head, NeuralProcessHead)
    assert head.latent_bank.codes.shape[1] == head.context_bank.codes.shape[1] == latent_dim
    assert sum(parameter.numel() for parameter in head.parameters()) == parameters
    assert (head.latent_bank.size, head.context_bank.size, head.num_samples) == (2560, 2560, 10)


@pytest.mark.parametrize(
    ("setting", "value", "held", "default"),
    [
        ("num_samples", 3, lambda head: head.num_samples, 10),
        ("bank_size", 7, lambda head: (head.latent_bank.size, head.context_bank.size), (2560, 2560)),
        ("latent_dim", 5, lambda head: head.latent_mean[0].in_features, 24),  # a quarter of 96
        ("targets", "paper_union", lambda head: head.targets, "code"),
        ("decoder_width", "paper", lambda head: head.classifier.in_features, 96),
        ("match_strength", True, lambda head: head.match_strength, False),
        ("double_push", True, lambda head: head.double_push, False),
        ("leave_one_out", True, lambda head: head.leave_one_out, False),
    ],
)
def test_every_setting_of_the_neural_process_reaches_it(setting: str, value: Any, held: Any, default: Any) -> None:
    expected = {"bank_size": (7, 7), "decoder_width": 24}.get(setting, value)
    assert held(build_model(settings(), num_classes=4, channels=3).head) == default
    chosen = settings(**{f"head__{setting}": value})
    assert held(build_model(chosen, num_classes=4, channels=3).head) == expected


def test_the_divergence_is_the_one_asked_for() -> None:
    head = build_model(settings(head__divergence="dual_js"), num_classes=4, channels=3).head
    assert isinstance(head, NeuralProcessHead) and head.divergence is dual_skew_js


def test_dropout_is_in_the_blocks_of_our_networks_and_else_on_the_features() -> None:
    chosen = settings(head__name="dropout", head__dropout=0.45, head__num_samples=6)
    model = build_model(chosen, num_classes=4, channels=3)
    assert [part.p for part in model.backbone.modules() if isinstance(part, nn.Dropout)] == [0.45] * 3
    assert model.head.num_samples == 6
    for backbone, expected in ((Tiny(3, dropout=0.45), 0.0), (Known(8), 0.45)):
        head = build_head(chosen, backbone, 4)
        assert [part.p for part in head.modules() if isinstance(part, nn.Dropout)] == [expected]
    plain = build_model(settings(head__name="linear"), num_classes=4, channels=3)
    assert not any(isinstance(part, nn.Dropout) for part in plain.modules())


@pytest.mark.parametrize(("block", "dead"), [("torchssl", 4), ("correct", 0)])
def test_the_block_is_the_one_asked_for(block: str, dead: int) -> None:
    """Spec 1.5: two batch norms of TorchSSL's network, of weight and bias each, never get a gradient."""
    chosen = settings(net__name="wrn_28_2", net__block=block, net__batch_norm_momentum=0.07, head__name="linear")
    model = build_model(chosen, num_classes=4, channels=2)
    model(torch.rand(2, 2, 8, 8)).square().sum().backward()
    assert sum(parameter.grad is None for parameter in model.parameters()) == dead
    assert {part.momentum for part in model.modules() if isinstance(part, nn.BatchNorm2d)} == {0.07}


@pytest.mark.parametrize("head", HEADS)
def test_first_weights_depend_on_the_seed_alone(head: str) -> None:
    def first(seed: int, outside: int, **changes: Any) -> dict[str, Tensor]:
        torch.manual_seed(outside)
        return build_model(settings(head__name=head, seed=seed, **changes), num_classes=4, channels=3).state_dict()

    one, same, other = first(1, 1), first(1, 2, optimizer__lr=0.5), first(2, 1)
    assert all(torch.equal(one[name], same[name]) for name in one)
    for name, tensor in one.items():
        drawn = (name.endswith("weight") and tensor.ndim > 1) or name.endswith("bank.codes")
        assert torch.equal(tensor, other[name]) != drawn, name


@pytest.mark.parametrize("way", ["joint", "separate"])
def test_the_weak_view_has_a_pass_of_its_own_if_asked(way: str) -> None:
    run = training(settings(train__weak_pass=way))
    assert run.model.weak_pass == run.teacher.weak_pass == way
    views = Batch({name: torch.rand(3, 3, 8, 8) for name in ("labeled", "weak", "strong")}, *[torch.zeros(3)] * 4)
    assert run.model.train().features(views)["weak"].requires_grad == (way == "joint")


def test_the_optimizer_and_the_pace_are_those_of_the_settings() -> None:
    chosen = {"lr": 0.07, "momentum": 0.55, "nesterov": False, "weight_decay": 0.125, "schedule": "half_cosine"}
    chosen |= {"warmup_steps": 3, "clip_norm": 0.5}
    trained = {"steps": 77, "ema_decay": 0.875, "ema_warmup": True, "precision": "bf16"}
    changes = {f"optimizer__{k}": v for k, v in chosen.items()} | {f"train__{k}": v for k, v in trained.items()}
    run = training(settings(seed=9, **changes))
    decayed, free = run.optimizer.param_groups
    assert type(run.optimizer) is torch.optim.SGD
    for group in (decayed, free):
        assert float(group["lr"]) == pytest.approx(0.07)
        assert (group["momentum"], group["nesterov"]) == (0.55, False)
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.125, 0)
    assert all(parameter.ndim > 1 for parameter in decayed["params"])
    pace = run.pace
    assert (pace.num_steps, pace.lr, pace.schedule, pace.warmup_steps) == (77, 0.07, "half_cosine", 3)
    assert (pace.clip_norm, pace.ema_decay, pace.ema_warmup) == (0.5, 0.875, True)
    assert (run.seed, run.precision) == (9, "bf16")

    plain = training(settings())
    assert plain.optimizer.param_groups[0]["nesterov"] and plain.pace.clip_norm is None
    adam = training(settings(optimizer__name="adamw", optimizer__momentum=0.75, optimizer__weight_decay=0.25))
    assert type(adam.optimizer) is torch.optim.AdamW
    assert adam.optimizer.param_groups[0]["betas"] == (0.75, 0.999)
    assert [group["weight_decay"] for group in adam.optimizer.param_groups] == [0.25, 0]


class Curious:
    """An algorithm that keeps what it is told, asks for every view, and has a module of its own."""

    needs: ClassVar[tuple[str, ...]] = VIEWS

    def __init__(self) -> None:
        self.told: list[Facts] = []

    def init(self, facts: Facts) -> str:
        self.told.append(facts)
        return "a state"

    def extras(self, facts: Facts) -> dict[str, nn.Module]:
        self.told.append(facts)
        return {"own": nn.Linear(facts.feature_dim, 2)}

    def step(self, model: Model, teacher: Model, views: Batch, state: str) -> Step[str]:
        raise AssertionError("nothing trains here")


def test_an_algorithm_is_told_the_facts_of_its_run() -> None:
    curious = Curious()
    chosen = settings(train__batch_size=3, train__unlabeled_ratio=2, train__steps=11)
    run = training(replace(chosen, algorithm=curious))
    expected = Facts(
        num_classes=4,
        classes=("a", "b", "c", "d"),
        feature_dim=96,
        labeled_counts=(5, 0, 2, 0),
        num_labeled=7,
        num_unlabeled=10,
        batch_size=3,
        unlabeled_ratio=2,
        num_steps=11,
        device=CPU,
    )
    assert curious.told == [expected, expected]
    assert run.state == "a state" and run.algorithm is curious
    trained = {id(parameter) for group in run.optimizer.param_groups for parameter in group["params"]}
    assert trained == {id(parameter) for parameter in run.model.parameters()}
    assert {id(parameter) for parameter in run.model.extras["own"].parameters()} < trained
    assert any(isinstance(part, MemoryBank) for part in run.teacher.modules()) and "own" in run.teacher.extras


def views(**changes: Any) -> dict[str, View]:
    """The views of images of 12 pixels that nothing moves, where `changes` do not say otherwise."""
    still = {"views__padding": 0, "views__flip": False, "views__cutout": False, "views__num_ops": 0}
    return build_views(replace(settings(**(still | changes)), algorithm=Curious()), 12)


def ramp() -> Tensor:
    """400 images whose pixels are all different: their columns, and ten times their rows."""
    picture = 20 * torch.arange(12)[:, None] + torch.arange(12)
    return picture.to(torch.uint8).expand(400, 3, 12, 12).contiguous()


def kinds(view: View, images: Tensor) -> int:
    """How many different pictures a view makes of equal ones."""
    return len(view(images, KEY, PLACES).flatten(1).unique(dim=0))


WEAK, STRONG = ("labeled", "weak", "weak2"), ("strong", "strong2")


def test_strong_views_and_no_others_are_strong() -> None:
    built, images = views(views__cutout=True, views__num_ops=3), ramp()
    assert set(built) == {*WEAK, *STRONG, "simclr"}  # which tests/data/test_simclr.py is about
    for name in WEAK:
        assert torch.equal(built[name](images, KEY, PLACES), images), name
    for name in STRONG:
        changed = (built[name](images, KEY, PLACES) != images).flatten(1).any(1)
        assert changed.float().mean() > 0.95, name
    still = views()
    for name in (*WEAK, *STRONG):
        assert torch.equal(still[name](images, KEY, PLACES), images), name


@pytest.mark.parametrize("name", [*WEAK, *STRONG])
def test_every_view_is_shifted_and_mirrored_as_the_settings_say(name: str) -> None:
    """A shift by two pixels has 5 x 5 outcomes."""
    images = ramp()
    assert kinds(views(views__padding=2)[name], images) == 25
    assert kinds(views(views__padding=1)[name], images) == 9
    mirrored = views(views__flip=True)[name](images, KEY, PLACES)
    same, turned = ((mirrored == other).flatten(1).all(1) for other in (images, images.flip(3)))
    assert (same | turned).all() and abs(same.float().mean() - 0.5) < 0.1


@pytest.mark.parametrize("name", VIEWS)
def test_a_resized_crop_keeps_the_least_area(name: str) -> None:
    """At least 3/4 as wide as high, so a part of area .5 is .61 wide; one of .01 may be .09."""

    def narrowest(min_area: float) -> float:
        across = (20 * torch.arange(12)).to(torch.uint8).expand(400, 3, 12, 12).contiguous()
        seen = views(views__crop="resized", views__min_area=min_area, views__color=False)[name](
            across, KEY, PLACES
        ).float()
        return float((seen[:, 0, 0, -2] - seen[:, 0, 0, 1]).min()) / (20 * 9)

    assert narrowest(0.5) > 0.6 and narrowest(0.01) < 0.3


@pytest.mark.parametrize(
    ("recipe", "color"), [("ra_torchssl", (125, 123, 114)), ("ra_fixmatch", (127,) * 3), ("ra_max", (128,) * 3)]
)
def test_cutout_is_that_of_the_recipe_asked_for(recipe: str, color: tuple[int, ...]) -> None:
    """Spec 1.4. Without an operation the box is all there is."""
    images = torch.zeros(400, 3, 12, 12, dtype=torch.uint8)
    cut = views(views__cutout=True, views__strong=recipe)["strong"](images, KEY, PLACES)
    assert {tuple(pixel) for pixel in cut.permute(0, 2, 3, 1).reshape(-1, 3).tolist()} == {(0, 0, 0), color}
    assert torch.equal(views(views__strong=recipe)["strong"](images, KEY, PLACES), images)


def test_kinds_of_operations_are_left_out_as_the_settings_say() -> None:
    """Where nothing moves, rows stay even. Where no color changes, no gray comes but the black from outside."""
    halves = torch.full((400, 3, 12, 12), 60, dtype=torch.uint8)
    halves[..., 6:] = 200

    def view(**changes: Any) -> Tensor:
        return views(views__num_ops=2, **changes)["strong"](halves, KEY, PLACES)

    def uneven(images: Tensor) -> Tensor:
        return (images[..., 2:-2, :] != images[..., 2:3, :]).flatten(1).any(1)  # sharpening spares the border

    def strange(images: Tensor) -> Tensor:
        return ((images != 0) & (images != 60) & (images != 200)).flatten(1).any(1)

    assert uneven(view()).any() and strange(view()).any()
    assert not uneven(view(views__geometry=False)).any() and strange(view(views__geometry=False)).any()
    assert uneven(view(views__color=False)).any() and not strange(view(views__color=False)).any()
    assert torch.equal(view(views__color=False, views__geometry=False), halves)


def test_so_many_operations_as_the_settings_say() -> None:
    """Three of 14 operations leave an image as it is less often than one does."""
    images = ramp()

    def untouched(num_ops: int | None) -> float:
        view = views(views__num_ops=num_ops)["strong"]
        return float((view(images, KEY, PLACES) == images).flatten(1).all(1).float().mean())

    assert untouched(0) == 1 and untouched(1) > untouched(None) > untouched(6)
    assert untouched(None) == untouched(3)  # ra_torchssl's own


def test_batches_are_of_their_pools_with_their_labels() -> None:
    chosen = settings(train__batch_size=5, train__unlabeled_ratio=3, views__padding=0, views__flip=False)

    def batch(seed: int, algorithm: str = "npmatch") -> Batch:
        own = override(chosen, {"seed": seed, "algorithm.name": algorithm})
        return build_stream(own, source(), SPLIT, Normal(8, (0.1,) * 3, (0.5,) * 3), CPU)[4]

    def numbers(images: Tensor) -> np.ndarray:
        """Which images these are, their pixels taken back to 0..255 by hand."""
        found = (images * 0.5 + 0.1) * 255 / 10
        assert torch.allclose(found, found.round(), atol=1e-4) and (found == found[:, :1, :1, :1]).all()
        return found[:, 0, 0, 0].round().long().numpy()

    drawn = batch(0)
    labeled, weak = numbers(drawn["labeled"]), numbers(drawn["weak"])
    assert drawn["labeled"].shape == (5, 3, 8, 8) and drawn["strong"].shape == drawn["weak"].shape == (15, 3, 8, 8)
    assert (LABELS[labeled] == drawn.y.numpy()).all()
    assert (SPLIT.labeled[drawn.labeled_place] == labeled).all() and (SPLIT.unlabeled[drawn.place] == weak).all()
    many = np.concatenate([numbers(batch(seed)["weak"]) for seed in range(20)])
    assert set(many) == set(SPLIT.unlabeled)
    assert not torch.equal(batch(1).place, drawn.place) and torch.equal(batch(0).place, drawn.place)
    alone = batch(0, "supervised")
    assert set(alone.images) == {"labeled"} and len(alone.place) == 0


def test_pixels_are_normalized_by_the_benchmarks_constants_or_by_their_own() -> None:
    known = normalization(source(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6)), SPLIT)
    assert known == Normal(8, (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    own = normalization(source(), SPLIT)
    pixels = 10 * np.arange(4, 14).repeat(64) / 255  # the unlabeled images alone
    assert own.mean == pytest.approx((pixels.mean(),) * 3) and own.std == pytest.approx((pixels.std(ddof=1),) * 3)
    black = source(images=torch.zeros(16, 3, 8, 8, dtype=torch.uint8))
    assert normalization(black, SPLIT).std == (1e-3,) * 3
