"""ReMixMatch's step against another way to its numbers, and its alignment."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from npmatch.algorithms.remixmatch import ReMixMatch
from npmatch.presets import BUILTIN, paper
from tests import toy
from tests.algorithms import by_hand
from tests.algorithms.by_hand import SHARE, B, classified, classified_in_passes, entropy, onehot, sharpened


def turned(images, turns):
    """By the place each pixel comes from: a quarter turn to the left."""
    found = images.clone()
    for number, count in enumerate(turns.tolist()):
        for _ in range(count):
            found[number] = found[number].transpose(1, 2).flip(1)
    return found


@pytest.mark.parametrize(
    ("settings", "step", "ramp"),
    [({}, 0, 0.0), ({"ramp_share": 0.5}, 6, 0.2), ({"follow": "last", "rotations": "quarters"}, 50, 1.0)],
)
def test_a_step_is_what_the_paper_says(settings, step, ramp, monkeypatch):
    """Loss, gradients and batch norm."""
    chosen = ReMixMatch(**settings)
    model, views, state = by_hand.made(chosen, step)
    before = {name: value.clone() for name, value in model.backbone.state_dict().items()}
    labels_have, predicted = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([[0.2, 0.3, 0.5]]).double()
    state = type(state)(labels_have, predicted, state.ramp_steps)
    with torch.no_grad():
        guess = classified(model, views["weak"]).exp()
    mean = 0.999 * predicted[0] + 0.001 * guess.mean(0)
    target = sharpened(guess * labels_have / mean)

    learn, given = model.head.learn, []
    monkeypatch.setattr(model.head, "learn", lambda *points: given.append(points) or learn(*points))
    found, order = by_hand.one_step(chosen, model, views, state, monkeypatch)
    torch.manual_seed(by_hand.SEED)
    torch.rand(len(order))
    turns = torch.randint(4, (by_hand.U,)) if chosen.rotations == "drawn" else torch.arange(4)

    images = torch.cat([views[name] for name in ("labeled", "strong", "strong2", "weak")])
    labels = torch.cat([onehot(views.y), target, target, target])
    images, labels = (SHARE * x + (1 - SHARE) * x[order] for x in (images, labels))
    log_probs, passes = classified_in_passes(model, images)
    assert [len(points.weight) for points in given[0]] == [B, 4 * by_hand.U]  # what a neural process is told
    torch.testing.assert_close(torch.cat([points.labels for points in given[0]]), torch.cat([labels, target]))
    rotation = classified(model, turned(views["strong"], turns), model.extras["rotation"])
    by_weight = {
        1.0: entropy(labels[:B], log_probs[:B]),
        1.5 * ramp: entropy(labels[B:], log_probs[B:]),
        0.5 * ramp: entropy(target, classified(model, views["strong"])),
        0.5 + 1e-15: entropy(torch.eye(4).double()[turns], rotation),
    }
    by_hand.same_gradients(model, found.loss, sum(weight * term for weight, term in by_weight.items()))
    by_hand.follows_one_pass(model, before, passes[-1 if chosen.follow == "last" else 0])
    torch.testing.assert_close(found.state.mean_probs[0], mean)
    assert torch.equal(found.state.class_share, labels_have)
    assert torch.equal(state.mean_probs, predicted)


GUESS = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3]])
MEAN, NO_LABELS = GUESS.mean(0), torch.zeros(2, 3)


def aligned(algorithm, class_share, mean_probs, y=NO_LABELS):
    state = algorithm.init(toy.facts())
    state = type(state)(class_share, mean_probs.expand(state.mean_probs.shape).clone(), state.ramp_steps)
    found, state = algorithm.aligned(GUESS, y, state)
    return found / found.sum(1, keepdim=True), state


@pytest.mark.parametrize("over", ["ema", "recent"])
def test_guesses_that_are_aligned_already_stay(over):
    found, _ = aligned(ReMixMatch(align_over=over), MEAN, MEAN)
    torch.testing.assert_close(found, GUESS)


@pytest.mark.parametrize("over", ["ema", "recent"])
def test_a_class_without_labels_is_not_guessed_and_a_class_never_predicted_gives_no_nan(over):
    found, _ = aligned(ReMixMatch(align_over=over), torch.tensor([0.5, 0.5, 0.0]), MEAN)
    assert found[:, 2].max() < 1e-5
    found, _ = aligned(ReMixMatch(align_over=over), torch.full((3,), 1 / 3), torch.tensor([0.5, 0.5, 0.0]))
    assert found.isfinite().all()


def test_the_mean_of_the_first_batch_is_the_first_mean():
    """Not zeros, and not a step from uniform."""
    chosen = ReMixMatch()
    state = chosen.init(toy.facts(labeled_counts=(6, 4, 2)))
    torch.testing.assert_close(state.class_share, torch.tensor([0.5, 1 / 3, 1 / 6]))
    _, state = chosen.aligned(GUESS, NO_LABELS, state)
    torch.testing.assert_close(state.mean_probs[0], MEAN)


def test_the_recent_mean_is_of_128_batches_before_this_one():
    chosen = ReMixMatch(align_over="recent")
    state = chosen.init(toy.facts(labeled_counts=(6, 4, 2)))
    assert (state.class_share == 1 / 3).all() and state.mean_probs.shape == (128, 3)
    found, state = chosen.aligned(GUESS, torch.eye(3)[[0, 0]], state)
    torch.testing.assert_close(found, GUESS)  # the first batch meets a uniform past
    torch.testing.assert_close(state.mean_probs.mean(0), (127 / 3 + MEAN) / 128)
    torch.testing.assert_close(state.class_share, torch.tensor([0.334, 0.333, 0.333]), atol=1e-4, rtol=0)
    for _ in range(127):
        _, state = chosen.aligned(GUESS, NO_LABELS, state)
    torch.testing.assert_close(state.mean_probs.mean(0), MEAN)


def test_rotations_are_drawn_for_each_image_or_by_quarters_of_the_batch():
    torch.manual_seed(0)
    assert ReMixMatch().turns(400, toy.CPU).bincount(minlength=4).float().sub(100).abs().max() < 40
    assert ReMixMatch(rotations="quarters").turns(8, toy.CPU).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_its_own_head_is_a_linear_layer_of_four():
    layer = ReMixMatch().extras(toy.facts())["rotation"]
    assert isinstance(layer, nn.Linear) and layer.weight.shape == (4, toy.FEATURES) and not layer.bias.any()


def test_settings_of_the_table_and_of_the_paper():
    table, original = (paper(BUILTIN["cifar10"], "remixmatch", variant) for variant in ("table", "original"))
    assert table.algorithm == ReMixMatch() and table.train.unlabeled_ratio == 1
    weights = table.algorithm.unlabeled_weight, table.algorithm.strong_weight, table.algorithm.rotation_weight
    assert weights == (1.5, 0.5, 0.5) and table.algorithm.ramp_share == 1 / 64
    chosen = original.algorithm
    assert (chosen.align_over, chosen.rotations, chosen.follow, chosen.mix_each) == ("recent", "quarters", "last", True)
    assert (original.optimizer.name, original.optimizer.lr, original.optimizer.weight_decay) == ("adamw", 0.002, 0.02)
