"""What every algorithm must do, with every head. A new one is added to ALGORITHMS and to toy.GENTLE, nowhere else."""

import itertools
from copy import deepcopy
from dataclasses import replace

import pytest
import torch

from npmatch.algorithms import ALGORITHMS
from npmatch.engine import autocast, train
from npmatch.types import Answers, Views
from tests import toy

PAIRS = list(itertools.product(ALGORITHMS, toy.HEADS))

STRICT = {  # settings that nothing passes, where it is not min_confidence
    "freematch": {"max_threshold": 1e3},
    "softmatch": {},
    "adamatch": {"relative_confidence": 1e3},
}
SELECTING = [  # that guess from the weak view and learn some of it on the strong one
    (name, head)
    for name, head in PAIRS
    if "strong" in ALGORITHMS[name].needs and (name in STRICT or "min_confidence" in vars(ALGORITHMS[name]()))
]


def run_to(run, until, log_every=10):
    batches = toy.stream(run.algorithm.needs)
    return [means for means in train(run, batches, until=until, log_every=log_every) if means]


def same(one, two):
    """Same tensors in every part, and nothing missing."""
    a, b = one.parts(), two.parts()
    return one.step == two.step and a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def one_step(run, views):
    torch.manual_seed(0)
    return run.algorithm.step(run.model, run.teacher, views, run.state)


@pytest.mark.parametrize(("algorithm", "head"), PAIRS)
def test_learns(algorithm, head):
    run = toy.training(algorithm, head)
    means = run_to(run, toy.STEPS)
    assert means[-1]["labeled"] < 0.5 * means[0]["labeled"]
    views = toy.stream(("labeled",), seed=9)[0]
    with torch.no_grad():
        guess = run.teacher.sample(views["labeled"]).softmax(-1).mean(0).argmax(-1)
    assert (guess == views.y).float().mean() > 0.9


@pytest.mark.parametrize(("algorithm", "head"), PAIRS)
def test_resume_is_exact(algorithm, head):
    run = toy.training(algorithm, head)
    run_to(run, 33)  # not where a line is logged: half-made means must survive too
    parts = {name: tensor.clone() for name, tensor in run.parts().items()}

    again = toy.training(algorithm, head, seed=5)
    again.seed = run.seed
    assert not same(run, again), "the toy must exercise what this test is about"
    again.restore(parts, 33)
    assert same(run, again)  # at once: more steps could overwrite what was lost
    assert run_to(run, 50) == run_to(again, 50)
    assert same(run, again)


@pytest.mark.parametrize(("algorithm", "head"), PAIRS)
def test_a_step_leaves_its_state_alone_and_reports_detached_scalars(algorithm, head):
    run = toy.training(algorithm, head)
    run_to(run, 40)
    kept = {name: value.clone() for name, value in vars(run.state).items()}
    step = one_step(run, toy.stream(run.algorithm.needs)[40])
    assert all(torch.equal(value, kept[name]) for name, value in vars(run.state).items())
    assert step.loss.ndim == 0 and step.loss.requires_grad
    assert all(v.ndim == 0 and not v.requires_grad for v in step.metrics.values())
    assert all(not v.requires_grad for v in vars(step.state).values())


@pytest.mark.parametrize(("algorithm", "head"), SELECTING)
def test_no_gradient_reaches_the_weak_view(algorithm, head):
    """Spec 7.6: every unsupervised target is detached."""
    run = toy.training(algorithm, head)
    run_to(run, 40)
    views = toy.stream(run.algorithm.needs)[40]
    views["weak"].requires_grad_()
    run.model.eval()  # batch norm would carry a gradient between images
    step = one_step(run, views)
    assert step.metrics["kept"] > 0, "the toy must exercise what this test is about"
    step.loss.backward()
    assert views["weak"].grad is None or not views["weak"].grad.any()


@pytest.mark.parametrize(("algorithm", "head"), SELECTING)
def test_weak_and_strong_are_not_swapped(algorithm, head):
    """Spec 7.7: the guesses come from the weak view alone, what is learnt from them from the strong one."""
    run = toy.training(algorithm, head)
    run_to(run, 40)
    views = toy.stream(run.algorithm.needs)[40]
    live = run.model.eval()  # so that no view is seen through the batch statistics of the others

    def step_with(**images):
        run.model = deepcopy(live)  # a step writes into the banks
        return one_step(run, Views(**vars(views) | {"images": dict(views.images) | images}))

    def guesses(step):
        return [step.metrics[name].item() for name in ("kept", "confidence", "uncertainty")]

    step, other_weak, other_strong = step_with(), step_with(weak=-views["weak"]), step_with(strong=-views["strong"])
    assert step.metrics["kept"] > 0, "the toy must exercise what this test is about"
    assert guesses(other_strong) == guesses(step) and other_strong.loss != step.loss
    assert guesses(other_weak) != guesses(step)


@pytest.mark.parametrize(("algorithm", "head"), [pair for pair in SELECTING if pair[1] != "dropout"])
def test_the_order_of_unlabeled_images_does_not_matter(algorithm, head):
    """Spec 7.9. (Dropout's masks belong to places in the batch.)"""
    run = toy.training(algorithm, head)
    run_to(run, 40)
    views = toy.stream(run.algorithm.needs)[40]
    order = torch.randperm(len(views.place))
    images = {name: v if name == "labeled" else v[order] for name, v in views.images.items()}
    shuffled = Views(**vars(views) | {"images": images, "place": views.place[order]})
    again = replace(run, model=deepcopy(run.model))  # a step writes into the banks
    torch.testing.assert_close(one_step(again, shuffled).loss, one_step(run, views).loss)


@pytest.mark.parametrize(("algorithm", "head"), SELECTING)
def test_nothing_kept_gives_a_finite_loss_and_no_unsupervised_gradient(algorithm, head):
    """Spec 3.7 T7 and 2.1: with B_c = 0 the loss is the labeled one."""
    run = toy.training(algorithm, head)
    run_to(run, 40)
    silent = {
        name: 0.0 for name in ("contrast_weight", "instance_weight", "semantic_weight") if name in vars(run.algorithm)
    }
    strict = type(run.algorithm)(**vars(run.algorithm) | STRICT.get(algorithm, {"min_confidence": 1.1}) | silent)
    far = {"last_label": 0, "confidence": 1e3}  # nothing is as confident as it was
    before = {name: torch.full_like(value, far[name]) for name, value in vars(run.state).items() if name in far}
    run.algorithm, run.state = strict, type(run.state)(**vars(run.state) | before)
    views = toy.stream(run.algorithm.needs)[40]
    views["strong"].requires_grad_()
    run.model.eval()
    torch.manual_seed(0)
    step = strict.step(run.model, run.teacher, views, run.state)
    # Class 0 has passed everywhere: its threshold is the full one, those of the others are 0.
    if step.metrics["kept"] == 0 and not isinstance(strict, Answers):  # of these the other half learns labels
        assert step.loss == step.metrics["labeled"]
        step.loss.backward()
        assert not views["strong"].grad.any()
    assert step.loss.isfinite()


@pytest.mark.parametrize(("algorithm", "head"), PAIRS)
def test_a_single_example_is_learnt_by_heart(algorithm, head):
    """Spec 7.8: the labeled loss goes to 0."""
    run = toy.training(algorithm, head)
    run.pace = type(run.pace)(num_steps=200, lr=0.05, schedule="constant", ema_warmup=True)
    one = toy.pool(1, 3)
    batches = toy.Batches(one, toy.pool(toy.POOL, 2), 4, 12, 0)
    views = dict.fromkeys(run.algorithm.needs, toy.noisy)
    single = toy.Stream(batches, views, normal=toy.Normal(8, (0.5,), (0.3,)), device=toy.CPU)
    means = [m for m in train(run, single, until=200, log_every=50) if m]
    assert means[-1]["labeled"] < 0.05


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_keeps_weights_and_losses_in_float32(precision):
    run = toy.training("npmatch", "neural_process", precision=precision)
    means = run_to(run, toy.STEPS)
    assert all(p.dtype == torch.float32 for p in run.model.parameters())
    assert means[-1]["labeled"] < means[0]["labeled"]
    with autocast(toy.CPU, precision):
        assert run.model.backbone(toy.stream(("labeled",))[0]["labeled"]).dtype != torch.float32


def test_methods_that_differ_have_different_first_losses():
    losses = {}
    for algorithm in ALGORITHMS:
        run = toy.training(algorithm, "linear")
        losses[algorithm] = one_step(run, toy.stream(run.algorithm.needs)[0]).loss.item()
    assert len(set(losses.values())) == len(losses)
