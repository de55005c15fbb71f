"""MixMatch's step against another way to its numbers."""

from __future__ import annotations

import pytest
import torch

from npmatch.algorithms.mixmatch import MixMatch
from npmatch.presets import BUILTIN, paper
from tests import toy
from tests.algorithms import by_hand
from tests.algorithms.by_hand import SHARE, B, U, classified, classified_in_passes, entropy, onehot, sharpened


@pytest.mark.parametrize(("step", "ramp"), [(0, 0.0), (6, 0.25), (24, 1.0), (50, 1.0)])
def test_a_step_is_what_the_paper_says(step, ramp, monkeypatch):
    """Loss, gradients and batch norm. Of 60 steps the first 24 are the ramp."""
    chosen = MixMatch(unlabeled_weight=30.0)
    model, views, state = by_hand.made(chosen, step)
    before = {name: value.clone() for name, value in model.backbone.state_dict().items()}
    with torch.no_grad():
        guess = sum(classified(model, views[name]).exp() for name in ("weak", "weak2")) / 2
    target = sharpened(guess)

    found, order = by_hand.one_step(chosen, model, views, state, monkeypatch)

    images = torch.cat([views["labeled"], views["weak"], views["weak2"]])
    labels = torch.cat([onehot(views.y), target, target])
    images, labels = (SHARE * x + (1 - SHARE) * x[order] for x in (images, labels))
    log_probs, passes = classified_in_passes(model, images)
    labeled = entropy(labels[:B], log_probs[:B])
    unlabeled = ((labels[B:] - log_probs[B:].exp()) ** 2).sum() / (2 * U * toy.CLASSES)
    assert found.metrics["ramp"].item() == pytest.approx(ramp)
    torch.testing.assert_close(found.metrics["unlabeled"], unlabeled.detach())
    by_hand.same_gradients(model, found.loss, labeled + 30 * ramp * unlabeled)
    by_hand.follows_one_pass(model, before, passes[0])


def test_each_image_may_have_its_own_share(monkeypatch):
    """What is asked of MixUp: as many shares as images, or one."""
    for each, shares in ((False, 1), (True, B + 2 * U)):
        asked = []
        chosen = MixMatch(mix_each=each, mixing=0.3)
        monkeypatch.setattr(
            "npmatch.functional.mixing.larger_share",
            lambda alpha, count, device, asked=asked: asked.append((alpha, count)) or torch.ones(count).double(),
        )
        model, views, state = by_hand.made(chosen, 3)
        chosen.step(model, model, views, state)
        assert asked == [(0.3, shares)]


def test_a_neural_process_learns_the_mixtures():
    """Banks take in as many codes as there are labeled images, and all images."""
    chosen = MixMatch()
    model, views, state = by_hand.made(chosen, 3, head="neural_process")
    chosen.step(model, model, views, state).loss.backward()
    head = model.head
    assert head.context_bank.count == 1 + B and head.latent_bank.count == 1 + B + 2 * U
    assert all(p.grad is not None and p.grad.any() for name, p in head.named_parameters() if "scale" not in name)


def test_settings_of_the_table_and_of_the_paper():
    table, original = (paper(BUILTIN["cifar10"], "mixmatch", variant) for variant in ("table", "original"))
    assert table.algorithm == MixMatch(mixing=0.5, unlabeled_weight=100.0, ramp_share=0.4)
    assert table.train.unlabeled_ratio == original.train.unlabeled_ratio == 1
    assert original.algorithm == MixMatch(mixing=0.75, mix_each=True, unlabeled_weight=75.0, ramp_share=1 / 64)
    adam = original.optimizer
    assert (adam.name, adam.lr, adam.weight_decay, adam.schedule) == ("adamw", 0.002, 0.02, "constant")
    assert not original.data.include_labeled
    assert paper(BUILTIN["cifar100"], "mixmatch", "original").algorithm.unlabeled_weight == 150
