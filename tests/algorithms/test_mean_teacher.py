from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from npmatch.algorithms.mean_teacher import MeanTeacher
from npmatch.heads.linear import LinearHead
from npmatch.types import Model
from tests.algorithms import fixed


@pytest.mark.parametrize(("step", "ramp"), [(0, 0.0), (10, 0.25), (40, 1.0), (99, 1.0)])
def test_the_loss_by_hand(step: int, ramp: float) -> None:
    """The student sees the second weak view, the teacher the first. The mean is over the classes too."""
    given = fixed.batch("labeled", "weak", "weak2", step=step)
    apart = given.probs("weak2") - given.probs("weak", of="teacher")
    found = given.step(MeanTeacher())
    by_hand = fixed.labeled_loss(given) + ramp * 50 * np.mean(apart**2)
    assert found.loss.item() == pytest.approx(by_hand)


def test_the_teacher_teaches_and_learns_nothing() -> None:
    given = fixed.batch("labeled", "weak", "weak2", step=50)
    for view in given.views.images.values():
        view.requires_grad_()
    given.step(MeanTeacher()).loss.backward()
    assert given.views["weak"].grad is None and given.views["weak2"].grad is not None
    assert all(p.grad is None for p in given.teacher.parameters())
    assert all(p.grad is not None for p in given.model.parameters())


@pytest.mark.parametrize("statistics", ["batch", "running"])
def test_batch_norm_of_three_passes(statistics: str) -> None:
    """Each view by its own batch's statistics, though the engine's teacher is in evaluation mode, which comes back.
    Only labeled images enter running statistics, the student's."""
    given = fixed.batch("labeled", "weak", "weak2", step=50)
    norms = [nn.BatchNorm1d(fixed.FEATURES).double() for _ in range(2)]
    heads = [given.model.head, given.teacher.head]
    for norm in norms:
        nn.init.normal_(norm.running_mean)
    assert isinstance(heads[0], LinearHead) and isinstance(heads[1], LinearHead)
    given.model, given.teacher = Model(norms[0], heads[0]), Model(norms[1], heads[1]).eval()
    teachers = {name: buffer.clone() for name, buffer in norms[1].named_buffers()}
    ours = F.batch_norm(given.views["weak2"], None, None, training=True)
    mean, var = norms[1].running_mean, norms[1].running_var
    theirs = F.batch_norm(given.views["weak"], mean, var, training=statistics == "batch", momentum=0.0)
    student, target = heads[0](ours)[0].softmax(-1), heads[1](theirs)[0].softmax(-1)

    alone = nn.BatchNorm1d(fixed.FEATURES).double()
    nn.init.zeros_(alone.running_mean)
    start = norms[0].running_mean.clone()
    labeled = F.cross_entropy(heads[0](alone(given.views["labeled"]))[0], given.views.y)
    found = given.step(MeanTeacher(statistics=statistics))
    torch.testing.assert_close(found.loss, labeled + 50 * F.mse_loss(student, target))
    torch.testing.assert_close(norms[0].running_mean - 0.9 * start, alone.running_mean)
    assert all(torch.equal(buffer, teachers[name]) for name, buffer in norms[1].named_buffers())
    assert not any(module.training for module in given.teacher.modules())
