"""The words every module shares.

Shape letters:  B labeled batch | U unlabeled batch | N any batch
                T samples per image | K classes | F features | Z latent
                C channels | H height | W width
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from npmatch import ranks

State = TypeVar("State")
WeakPass = Literal["joint", "separate"]


@dataclass(frozen=True)
class Views:
    """One training batch: what the data side hands to an algorithm. Of n ranks each has an nth of the images."""

    images: Mapping[str, Tensor]  # by name: labeled (B, C, H, W); weak, strong, ... (U, C, H, W); normalized floats
    y: Tensor  # (B,) class index, or (B, K) for multi-label data
    labeled_place: Tensor  # (B,) where each labeled image stands in the labeled pool
    place: Tensor  # (U,) where each unlabeled image stands in the unlabeled pool
    step: Tensor  # () which batch of the run this is, on the device, for ramps and schedules

    def __getitem__(self, name: str) -> Tensor:
        return self.images[name]


class Points(NamedTuple):
    """Images with labels, real or pseudo, as a head learns from them."""

    features: Tensor  # (N, F)
    labels: Tensor  # (N, K), one-hot or soft
    weight: Tensor  # (N,), 0.0 leaves a point out of every mean


class Learnt(NamedTuple):
    """What a head makes of one batch while it trains."""

    labeled: Tensor  # (T, B, K) logits
    unlabeled: Tensor  # (T, U, K) logits
    penalty: Tensor  # scalar, the head's own loss term
    metrics: dict[str, Tensor]  # detached scalars the head wants logged


@dataclass(frozen=True)
class Step(Generic[State]):
    """What an algorithm returns for one batch."""

    loss: Tensor  # scalar, the engine calls backward on it
    metrics: dict[str, Tensor]  # detached scalars, logged as they are
    state: State  # the algorithm's next state
    carried: Any = None  # tensors for the second half of the same step, where an algorithm has one


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What an algorithm may know of a run before its first step."""

    num_classes: int
    classes: tuple[str, ...]  # their names
    feature_dim: int
    labeled_counts: tuple[int, ...]  # labeled images of each class
    num_labeled: int
    num_unlabeled: int
    batch_size: int  # B
    unlabeled_ratio: int  # mu
    num_steps: int
    device: torch.device
    dtype: torch.dtype = torch.float32
    another: Callable[[], Model] | None = field(default=None, compare=False)  # the run's network, with other weights


class Head(nn.Module):
    """Turns features into T predictions. Abstract: a subclass adds both methods and is not subclassed."""

    repeats_backbone: ClassVar[bool] = False  # True where a sample needs a pass of the backbone (MC dropout)
    feature_dim: int  # F
    num_classes: int  # K
    num_samples: int  # T

    @abstractmethod
    def forward(self, features_NF: Tensor, num_samples: int | None = None) -> Tensor:
        """Logits (T, N, K) for images without labels. Changes nothing."""

    @abstractmethod
    def learn(self, labeled: Points, unlabeled: Points) -> Learnt:
        """Logits for a batch whose labels may be looked at. May update the head's buffers."""


class Model(nn.Module):
    """A backbone that makes features, a head that makes T logits per image, and what else an algorithm needs."""

    def __init__(
        self,
        backbone: nn.Module,
        head: Head,
        extras: Mapping[str, nn.Module] | None = None,
        *,
        weak_pass: WeakPass = "joint",
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.head: Head = head
        self.extras = nn.ModuleDict(dict(extras or {}))
        self.weak_pass: WeakPass = weak_pass

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.backbone(images))  # (T, N, K)

    def features(self, views: Views, names: tuple[str, ...] = ("labeled", "weak", "strong")) -> dict[str, Tensor]:
        """One pass over the named views, so that batch norm sees all of them (spec: one_cat).

        With weak_pass "separate" the weak view has a pass of its own, without gradient and with its own statistics.
        Each rank passes its own images (their dropout is its own too) and gets the features of all.
        """
        alone = {"weak"} if self.weak_pass == "separate" else set()
        together = [name for name in names if name not in alone]
        parts = [views[name] for name in together]
        with ranks.own_chance(parts[0].device):
            split = self.backbone(torch.cat(parts)).split([len(part) for part in parts])
            found = dict(zip(together, split))
            for name in names:
                if name in alone:
                    with torch.no_grad():
                        found[name] = self.backbone(views[name])
        return {name: ranks.gather(part) for name, part in found.items()}

    def passed(self) -> list[nn.Module]:
        """The networks that images pass through: each rank has the gradient that its own images give."""
        return [self.backbone, *(part.backbone for part in self.extras.values() if isinstance(part, Model))]

    def gathered(self) -> list[nn.Module]:
        """What works on the features of all ranks: each rank has the whole gradient."""
        extras = self.extras.values()
        return [self.head, *(part.head if isinstance(part, Model) else part for part in extras)]

    def alone(self, images: Tensor) -> Tensor:
        """Features of one view in a pass of its own, with gradient: batch norm sees no other view.

        Each rank passes its own images and gets the features of all.
        """
        with ranks.own_chance(images.device):
            own = self.backbone(images)
        return ranks.gather(own)

    def sample(self, images: Tensor, num_samples: int | None = None) -> Tensor:
        """Logits (T, N, K) for a prediction with uncertainty.

        A neural process needs one pass of the backbone; MC dropout T passes with only its dropout modules in
        training mode: batch norm keeps its running statistics.
        """
        if not self.head.repeats_backbone:
            return self.head(self.backbone(images), num_samples)
        with _dropout_on(self) if not self.training else nullcontext():
            return torch.cat([self(images) for _ in range(num_samples or self.head.num_samples)])

    def sample_all(self, images: Tensor, num_samples: int | None = None) -> Tensor:
        """`sample` for the images of all ranks: each passes its own, and the head sees the features of all.

        Other statistics of batch norm than the mode's are the caller's to choose (nets/batch_norm.py).
        """
        passes = num_samples or self.head.num_samples if self.head.repeats_backbone else 1
        with _dropout_on(self) if not self.training else nullcontext():
            return torch.cat([self.head(self.alone(images), num_samples) for _ in range(passes)])


class _dropout_on:
    """Dropout modules in training mode for a while, whatever mode the rest is in."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = [m for m in model.modules() if isinstance(m, nn.Dropout)]

    def __enter__(self) -> None:
        self.were = [m.training for m in self.modules]
        for m in self.modules:
            m.train()

    def __exit__(self, *_: object) -> None:
        for m, was in zip(self.modules, self.were):
            m.train(was)


class Algorithm(Protocol[State]):
    """A semi-supervised method: its fields are its settings, its two functions are all it does.

    What must survive a restart is in the returned state or in the model's buffers. Those buffers (batch-norm
    statistics, memory banks) are the only things `step` may change in place. The state is a frozen dataclass of
    tensors.
    """

    needs: ClassVar[tuple[str, ...]]  # the views it asks for, by name

    def init(self, facts: Facts) -> State:
        """The state before the first step."""
        ...

    def step(self, model: Model, teacher: Model, views: Views, state: State) -> Step[State]:
        """The loss of one batch and the next state. Calls no optimizer, writes no file.

        `teacher` is the model's moving average, for methods that ask it.
        """
        ...


@runtime_checkable
class HasExtras(Protocol):
    """An algorithm with modules of its own (projectors, a rotation head): trained, averaged and saved as the rest."""

    def extras(self, facts: Facts) -> dict[str, nn.Module]: ...


@runtime_checkable
class Answers(Protocol):
    """An algorithm whose step has a second half, after the first one's loss has moved the weights: a loss of its own,
    for the weights that the first did not touch (Meta Pseudo Labels)."""

    def answer(self, model: Model, teacher: Model, views: Views, state: Any, carried: Any) -> Step[Any]:
        """Given are the state after the first half, and what its Step carried."""
        ...


@runtime_checkable
class Refreshes(Protocol):
    """An algorithm that does something between steps, now and then (DARP's solver)."""

    @property
    def refresh_every(self) -> int: ...

    def refresh(self, state: Any) -> Any: ...
