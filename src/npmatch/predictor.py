"""A finished run: predictions for new images, an evaluation, its report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import chain, islice
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from npmatch.build import build_model, choose_device
from npmatch.config import NeuralProcess, Settings, from_dict
from npmatch.data.decode import Unreadable
from npmatch.data.inputs import read_any
from npmatch.data.normal import Normal
from npmatch.data.source import attempt_blocks
from npmatch.data.sources import open_source
from npmatch.errors import UserError, refuse
from npmatch.evaluate import BATCH, measured, predict, predict_part
from npmatch.functional.metrics import Acceptance, accept_threshold
from npmatch.heads.memory_bank import MemoryBank
from npmatch.heads.neural_process import NeuralProcessHead
from npmatch.report.page import write_report
from npmatch.runs import RunFolder, read_model
from npmatch.types import Model

BLOCK = 8  # images a thread reads at a time


@dataclass(frozen=True)
class Predictions:
    """What a run says of N images."""

    ids: Sequence[str]  # path, or number
    labels: np.ndarray  # (N,) class names
    probabilities: np.ndarray  # (N, K), mean over the samples
    uncertainty: np.ndarray  # (N,) nats: entropy of the mean prediction
    disagreement: np.ndarray  # (N,) nats: the part of it that the samples disagree on
    samples: np.ndarray  # (T, N, K) float32, what each sample says alone

    @property
    def confidence(self) -> np.ndarray:
        return self.probabilities.max(1)

    def __len__(self) -> int:
        return len(self.labels)


def model_description(
    model: Model,
    settings: Settings,
    classes: Sequence[str],
    normal: Normal,
    kept_size: int,
    held_out: Mapping[str, Tensor],
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `model/` holds: weights, and all that is needed to use them."""
    tensors = {f"model.{name}": tensor for name, tensor in compact(model).state_dict().items()}
    tensors |= {f"held_out.{name}": tensor for name, tensor in held_out.items()}
    description = {
        "settings": settings.to_dict(),
        "classes": list(classes),
        "image_size": normal.image_size,
        "kept_size": kept_size,  # of which evaluation sees the center
        "mean": list(normal.mean),
        "std": list(normal.std),
    }
    return tensors, description


def compact(model: Model) -> Model:
    """A copy to predict with: without the modules that only training uses, and of a memory bank its mean alone."""
    copy = deepcopy(model)
    copy.extras.clear()
    for bank in copy.modules():
        if isinstance(bank, MemoryBank):
            bank.shrink()
    return copy


def to_predict(model: Model) -> Model:
    """A model whose weights will not change any more, made ready."""
    if isinstance(model.head, NeuralProcessHead):
        model.head.condense()
    return model.eval()


def in_batches(
    ids: Sequence[str], read: Callable[[int], Tensor]
) -> Iterator[tuple[Sequence[str], list[Tensor | Unreadable]]]:
    """Names and images, BATCH at a time. Threads read the next batch while this one is used, and no further."""
    images = chain.from_iterable(attempt_blocks(read, len(ids), BLOCK, ahead=BATCH))
    for start in range(0, len(ids), BATCH):
        names = ids[start : start + BATCH]
        yield names, list(islice(images, len(names)))


class Run:
    """A run folder, or a `model/` copied out of one. The weights are read when they are first needed."""

    def __init__(self, path: Path | str, *, device: str = "auto") -> None:
        self.path = Path(path)
        self.folder = RunFolder(self.path)
        self.device = choose_device(device)
        self._loaded: tuple[Model, dict[str, Any], dict[str, Tensor]] | None = None

    @property
    def result(self) -> dict[str, Any]:
        """result.json."""
        found = self.folder.read_result()
        if found is None and self._alone:
            raise UserError(
                f"{self.path} is a model/ alone, without a result; name labeled images: "
                f"npmatch evaluate {self.path} DATA"
            )
        if found is None:
            raise UserError(
                f"{self.path} has no result yet; npmatch fit --resume --out {self.path} takes it to its end"
            )
        return found

    @property
    def settings(self) -> Settings:
        return from_dict(self._description["settings"])

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(self._description["classes"])

    def predict(self, images: Any, *, skip_unreadable: bool = False) -> Predictions:
        """Predict a folder, a file, a PIL image or a list of files, PIL images and single arrays, an array (N, H, W) or
        (N, H, W, C) of pixels, or a tensor (N, H, W) or (N, C, H, W)."""
        parts = list(self.stream(images, skip_unreadable=skip_unreadable))
        if not parts:
            raise UserError("none of the images can be read")
        columns = ("labels", "probabilities", "uncertainty", "disagreement")
        whole = {name: np.concatenate([getattr(part, name) for part in parts]) for name in columns}
        samples = np.concatenate([part.samples for part in parts], 1)
        return Predictions([name for part in parts for name in part.ids], **whole, samples=samples)

    def reader(self, images: Any) -> tuple[Sequence[str], Callable[[int], Tensor]]:
        """Names of the images, and what reads one of them as the images of the training were kept."""
        return read_any(images, self.kept_size, self.settings.data.resize, len(self.normal.mean))

    def stream(
        self,
        images: Any,
        *,
        skip_unreadable: bool = False,
        skipped: list[tuple[str, str]] | None = None,
        seen: Callable[[int, int], None] = lambda done, total: None,
    ) -> Iterator[Predictions]:
        """The same, some images at a time: any number of them in constant memory.

        Files that cannot be read are all named in one error after the last batch; with `skip_unreadable` they are put
        into `skipped` instead.
        """
        model, normal = self.model, self.normal
        ids, read = self.reader(images)
        if not len(ids):
            raise UserError("there are no images to predict")
        problems: list[tuple[str, str]] = []
        done = 0
        for names, found in in_batches(ids, read):
            problems += [(name, one.reason) for name, one in zip(names, found) if isinstance(one, Unreadable)]
            good = [(name, one) for name, one in zip(names, found) if isinstance(one, Tensor)]
            if good:
                batch = torch.stack([one for _, one in good])
                average = self.settings.train.predict_with
                (said,) = predict(model, [batch], normal, average=average, keep_samples=True)
                assert said.samples is not None
                yield Predictions(
                    ids=[name for name, _ in good],
                    labels=np.asarray(self.classes)[said.label],
                    probabilities=said.probabilities,
                    uncertainty=said.uncertainty,
                    disagreement=said.disagreement,
                    samples=said.samples,
                )
            done += len(names)
            seen(done, len(ids))
        if skip_unreadable:
            (skipped if skipped is not None else []).extend(problems)
        else:
            what = (
                f"{len(problems)} of {len(ids)} images cannot be read; repair or remove them, or pass --skip-unreadable"
            )
            refuse(what, [f"{name}: {reason}" for name, reason in problems])

    def acceptance(self, accuracy: float) -> Acceptance:
        """From which confidence on predictions may be accepted, if `accuracy` of those accepted must be right."""
        if not isinstance(accuracy, Real) or not 0 < accuracy < 1:
            raise UserError(f"accepting at an accuracy of {accuracy!r}: give a share between 0 and 1, such as 0.95")
        confidence, correct = (
            self._tensors.get(f"held_out.{name}", torch.empty(0)) for name in ("confidence", "correct")
        )
        return accept_threshold(correct, confidence, accuracy)

    def evaluate(self, data: Any = None, **opening: Any) -> dict[str, Any]:
        """The numbers of result.json on other data: its test part, or else all of its labeled images."""
        if data is None:
            return self.result
        settings = self.settings
        source = open_source(
            data,
            image_size=self.normal.image_size,
            kept_size=self.kept_size,
            resize=settings.data.resize,
            channels=settings.data.channels,
            **opening,
        )
        strange = sorted(set(source.classes) - set(self.classes))
        if strange:
            raise UserError(f"{source.name} has classes this model does not know: {', '.join(strange)}")
        (indices,) = np.nonzero((source.parts == "test") & (source.labels >= 0))
        part = "test" if len(indices) else "labeled"
        if not len(indices):
            (indices,) = np.nonzero(source.labels >= 0)
        labels = np.array([self.classes.index(name) for name in source.classes])[source.labels[indices]]
        predicted = predict_part(self.model, source, indices, self.normal, average=settings.train.predict_with)
        on = {"part": part, "images": len(indices), "data": source.name}
        return measured(predicted, labels) | {"evaluated_on": on}

    def report(self) -> Path:
        """Write report.html anew."""
        return write_report(self.path)

    @property
    def _alone(self) -> bool:
        """Whether this is a `model/` without the rest of its run."""
        return (self.path / "model.json").is_file()

    @property
    def model(self) -> Model:
        return self._all()[0]

    @property
    def normal(self) -> Normal:
        d = self._description
        return Normal(d["image_size"], tuple(d["mean"]), tuple(d["std"]))

    @property
    def kept_size(self) -> int:
        """Side of the squares that images become, of which the network sees the center."""
        return self._description["kept_size"]

    @property
    def _description(self) -> dict[str, Any]:
        return self._all()[1]

    @property
    def _tensors(self) -> dict[str, Tensor]:
        return self._all()[2]

    def _all(self) -> tuple[Model, dict[str, Any], dict[str, Tensor]]:
        if self._loaded is None:
            if not self.path.is_dir():
                raise UserError(f"{self.path}: no such folder; give one that npmatch fit wrote")
            tensors, description = read_model(self.path) if self._alone else self.folder.load_model()
            settings = from_dict(description["settings"])
            if isinstance(settings.head, NeuralProcess):
                settings = replace(settings, head=replace(settings.head, bank_size=1))
            settings = replace(settings, net=replace(settings.net, pretrained=False))
            channels = settings.data.channels or len(description["mean"])
            with torch.random.fork_rng():
                model = build_model(settings, num_classes=len(description["classes"]), channels=channels)
            model.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
            self._loaded = to_predict(model.to(self.device)), description, tensors
        return self._loaded


def load(path: Path | str, *, device: str = "auto") -> Run:
    """A finished run, to predict with; complaints come now rather than at the first prediction."""
    run = Run(path, device=device)
    run.classes  # noqa: B018 reads and checks the weights
    return run
