"""The health monitor speaks of real trouble, once, and of nothing else."""

import torch

from npmatch.engine import train
from npmatch.functional.pseudo import kept_metrics, pseudo_labels
from npmatch.health import Health
from tests import toy

FINE = {"labeled": 0.5, "kept": 0.6, "largest_class": 0.4, "confidence": 0.9}


def test_a_run_that_goes_well_is_left_in_peace():
    health = Health(num_classes=3, num_steps=100)
    run = toy.training("npmatch", "neural_process")
    for means in train(run, toy.stream(run.algorithm.needs), until=toy.STEPS, log_every=10):
        if means is not None:
            assert health.look(run.step, means, moved=1.0) == []
    assert health.messages == []


def test_each_trouble_is_said_once_with_what_to_try():
    health = Health(num_classes=3, num_steps=100)
    assert health.look(10, FINE | {"kept": 0.0}) == []  # at the start nothing passes, and that is as it should be
    (text,) = health.look(40, FINE | {"kept": 0.0})
    assert "no pseudo-label passed" in text and "algorithm.min_confidence" in text and "0.90" in text
    assert health.look(50, FINE | {"kept": 0.0}) == []
    (text,) = health.look(60, FINE | {"largest_class": 0.97})
    assert "97%" in text and "collapsing" in text and "alignment" not in text  # which this method has not
    (text,) = health.look(70, FINE, moved=0.0)
    assert "weights have not moved" in text
    (text,) = health.look(80, FINE | {"labeled": 1e5})
    assert "optimizer.lr" in text
    assert [message.split(":")[0] for message in health.messages] == ["step 40", "step 60", "step 70", "step 80"]


def test_a_rate_of_zero_is_noticed_in_a_real_run():
    run = toy.training("supervised", "linear")
    run.pace = type(run.pace)(num_steps=10, lr=0.0, schedule="constant")
    before = [p.detach().clone() for p in run.model.parameters()]
    means = next(m for m in train(run, toy.stream(run.algorithm.needs), until=5, log_every=5) if m)
    moved = sum(float((p.detach() - b).norm()) for p, b in zip(run.model.parameters(), before))
    assert "have not moved" in Health(3, 10).look(5, means, moved)[0]


def test_the_largest_class_is_that_of_the_kept_guesses():
    pseudo = pseudo_labels(torch.eye(3)[[0, 0, 0, 1, 2]][None] * 9)
    keep = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0])
    assert kept_metrics(pseudo, keep)["largest_class"] == 1 / 3
    assert kept_metrics(pseudo, torch.zeros(5))["largest_class"] == 0
