"""What came of a training: the model to keep, what it is worth, when its predictions may be accepted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from npmatch import ranks
from npmatch.build import build_training
from npmatch.data.splits import Split, in_groups_of, members
from npmatch.engine import Training
from npmatch.errors import Diverged, UserError
from npmatch.evaluate import Predicted, measured, predict_part, unmeasured, write_evaluation
from npmatch.functional import metrics
from npmatch.plan import Plan
from npmatch.predictor import model_description
from npmatch.report.page import write_report
from npmatch.runs import RunFolder
from npmatch.session import Clock, Session, trained
from npmatch.types import Model

LAST = 20  # evaluations whose median is reported
FEW, REFERENCE = 50, 2000  # images by which the confidence of two models is compared: at least, about at most
FOLLOWED = ("error_median20", "error_best_on_test")  # numbers of the evaluations while training


def work(session: Session, training: Training) -> None:
    """Train, evaluate, and leave everything in the run folder."""
    health = trained(session, training)
    model, plan = training.teacher, session.plan
    held_out: dict[str, Tensor] = {}
    if len(plan.split.val):
        predicted = _predict(session, model, plan.split.val)
        held_out = _held_out(predicted.probabilities.max(1), predicted.label == plan.source.labels[plan.split.val])
    elif plan.settings.train.calibrate:
        held_out = _predicted_in_folds(session, model)

    part = next((part for part in ("test", "val") if len(getattr(plan.split, part))), None)
    found = None if part is None else _predict(session, model, getattr(plan.split, part))
    _write(session, model, held_out, part, found, health.messages)


@ranks.by_rank_0
def _write(
    session: Session,
    model: Model,
    held_out: Mapping[str, Tensor],
    part: str | None,
    predicted: Predicted | None,
    health: list[str],
) -> None:
    """The model, the numbers and the report, with what was predicted of a part of the images."""
    plan = session.plan
    if part is None or predicted is None:
        numbers = unmeasured("there are no test images: put labeled ones into test/<class>/")
    else:
        indices = getattr(plan.split, part)
        numbers = measured(predicted, plan.source.labels[indices])
        write_evaluation(session.folder.path / "evaluation", predicted, plan.source, indices)
    tensors, description = model_description(
        model, plan.settings, plan.source.classes, session.normal, plan.source.images.shape[-1], held_out
    )
    session.folder.save_model(tensors, description)
    session.folder.write_result(_result(session, numbers, part, [*session.warnings, *health]))
    write_report(session.folder.path)


def _predict(session: Session, model: Model, indices: np.ndarray) -> Predicted:
    predicted = predict_part(
        model,
        session.plan.source,
        indices,
        session.normal,
        average=session.plan.settings.train.predict_with,
        seen=lambda done, total: session.progress.work("evaluating", done, total),
    )
    if not np.isfinite(predicted.probabilities).all():  # the last steps may have done it, with no gradient after them
        raise Diverged("the predictions of the trained model are not finite; try a lower optimizer.lr")
    return predicted


def _held_out(confidence: np.ndarray, correct: np.ndarray) -> dict[str, Tensor]:
    """Of images whose labels had no part in training: how sure the model was, and whether it was right."""
    return {"confidence": torch.from_numpy(confidence.astype(np.float32)), "correct": torch.from_numpy(correct)}


def check_folds(plan: Plan) -> None:
    """Complain now of folds that the labels do not allow, not when the training is done."""
    if plan.settings.train.calibrate and not len(plan.split.val):
        _folds(plan)


def _folds(plan: Plan) -> np.ndarray:
    """(labels,) which fold each labeled image is in: every class in every fold, as far as its labels go round, and
    whole groups, since an image of a patient says too much of the others."""
    source, count = plan.source, plan.settings.train.calibrate
    if count < 2:
        raise UserError(f"--calibrate {count}: needs 2 folds")
    fold_of = np.full(len(source), -1)
    have = np.zeros((count, len(source.classes)))
    for group in members(source, plan.split.labeled):
        own = np.bincount(source.labels[group], minlength=len(source.classes))
        chosen = int(np.argmin(have @ own))  # of those with the fewest of its classes the first
        fold_of[group], have[chosen] = chosen, have[chosen] + own
    left = have.sum(0) - have  # labels of each class that a fold's training has
    if not have.sum(1).all() or (left[:, have.sum(0) > 0] == 0).any():
        what = "labels" if source.groups is None else "groups"
        raise UserError(f"--calibrate {count}: needs 2 {what} of each class, and no more folds than a class has {what}")
    return fold_of[plan.split.labeled]


def _predicted_in_folds(session: Session, model: Model) -> dict[str, Tensor]:
    """Predictions of every labeled image by a model that was trained without its label.

    Such an image stays in the unlabeled set, as it is there in the run itself, but images of its group do not: new
    images are of other groups. A fold is a run folder of its own, so that stopping in the middle loses nothing.
    """
    plan, count = session.plan, session.plan.settings.train.calibrate
    fold = _folds(plan)
    usual = _usual_confidence(session, model)
    confidence, correct = [], []
    nobody = plan.split.val[:0]
    for number in range(count):
        out, rest = plan.split.labeled[fold == number], plan.split.labeled[fold != number]
        session.progress.say(f"calibrating: fold {number + 1} of {count}, {len(out)} labels held out")
        unlabeled = plan.split.unlabeled[~in_groups_of(plan.source, out)[plan.split.unlabeled]]
        own = replace(plan, split=Split(labeled=rest, unlabeled=unlabeled, val=nobody, test=nobody))
        with RunFolder.create(session.folder.path / "folds" / str(number), resume=True) as folder:
            folder.write_config(own.config())
            training = build_training(own.settings, own.source, own.split, own.device)
            trained(replace(session, folder=folder, plan=own, clock=Clock(), tensorboard=False), training)
        predicted = _predict(session, training.teacher, out)
        own_usual = _usual_confidence(session, training.teacher)
        confidence.append(translated(predicted.probabilities.max(1), own_usual, usual))
        correct.append(predicted.label == plan.source.labels[out])
    return _held_out(np.concatenate(confidence), np.concatenate(correct))


def _usual_confidence(session: Session, model: Model) -> np.ndarray:
    """How sure a model is of some of the images that no model had a label of."""
    plan = session.plan
    places = np.setdiff1d(plan.split.unlabeled, plan.split.labeled)
    if len(places) < FEW:
        return np.empty(0, np.float32)
    return _predict(session, model, places[:: -(-len(places) // REFERENCE)]).probabilities.max(1)


def translated(confidence: np.ndarray, usual: np.ndarray, usual_there: np.ndarray) -> np.ndarray:
    """Confidence of one model as another would have it: what is at the same rank among the same images. A model with
    more labels is surer, so that a limit learned from the raw numbers of its folds would let too much pass."""
    if not len(usual):
        return confidence
    return np.interp(confidence, np.sort(usual), np.sort(usual_there))


def _result(session: Session, numbers: Mapping[str, Any], part: str | None, health: list[str]) -> dict[str, Any]:
    """result.json: the contract's keys, and words for what is absent."""
    plan, rows = session.plan, session.folder.read_metrics()
    settings, spent = plan.settings, session.clock.now()
    errors = [row["error"] for row in rows if row.get("error") is not None]
    refused = [row["refused_by_uncertainty"] for row in rows if row.get("refused_by_uncertainty") is not None]
    rate = settings.train.steps * settings.images_per_step / spent["train_seconds"] if spent["train_seconds"] else None
    images = 0 if part is None else len(getattr(plan.split, part))
    followed = {"error_median20": median(errors[-LAST:]), "error_best_on_test": min(errors)} if errors else {}
    reasons = dict(numbers["reasons"])
    if not errors:
        reasons |= dict.fromkeys(FOLLOWED, "there are no test images")
    if part is None:
        reasons["evaluated_on"] = "there are no test or val images"
    if not refused:
        reasons["refused_by_uncertainty"] = f"{settings.algorithm_name} does not choose by uncertainty"
    labels = plan.source.labels[plan.split.labeled]
    return {
        **{key: value for key, value in numbers.items() if key != "reasons"},
        **{name: followed.get(name) for name in FOLLOWED},
        **{f"{name}_ci95": _interval(followed.get(name), len(plan.split.test)) for name in FOLLOWED},
        "evaluated_on": None if part is None else {"part": part, "images": images},
        "steps": settings.train.steps,
        **spent,
        "images_per_second": rate,
        "algorithm": settings.algorithm_name,
        "head": settings.head.name,
        "net": settings.net.name,
        "dataset": plan.source.name,
        "labels": len(plan.split.labeled),
        "seed": settings.seed,
        "preset": settings.preset,
        "device": str(plan.device),
        "weak_pass": settings.train.weak_pass,
        "alignment": settings.to_dict()["algorithm"].get("alignment", "none"),
        "refused_by_uncertainty": float(np.mean(refused)) if refused else None,
        "classes": list(plan.source.classes),
        "labeled_counts": np.bincount(labels, minlength=len(plan.source.classes)).tolist(),
        "health": health,
        "reasons": reasons,
    }


def _interval(error: float | None, images: int) -> list[float] | None:
    """The 95 % interval of an error in percent that was counted on so many images. It knows of no choice among many."""
    return None if error is None else [100 * end for end in metrics.wilson(error * images / 100, images)]
