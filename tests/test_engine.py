"""The loop's own arithmetic: rates, averages, groups, and what it does with numbers that are not finite."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from npmatch.algorithms.supervised import Supervised, SupervisedState
from npmatch.engine import Pace, Training, parameter_groups, start, train, update, update_ema
from npmatch.errors import Diverged, UserError
from npmatch.guard import Guard
from npmatch.nets import build_network
from tests import toy


@pytest.mark.parametrize(("schedule", "end"), [("cosine_7_16", 0.19509), ("cosine_63_128", 0.02454), ("constant", 1.0)])
def test_learning_rate_at_the_end(schedule, end):
    """Spec 7.5."""
    pace = Pace(num_steps=2**20, lr=0.03, schedule=schedule)
    assert math.isclose(pace.lr_at(2**20) / 0.03, end, abs_tol=1e-5)
    assert pace.lr_at(0) == 0.03


def test_warmup_rises_to_the_rate():
    pace = Pace(num_steps=100, lr=1.0, schedule="half_cosine", warmup_steps=10)
    assert [pace.lr_at(s) for s in (0, 4, 9)] == pytest.approx([0.1, 0.5, 1.0])
    assert pace.lr_at(10) == 1.0 and pace.lr_at(100) == pytest.approx(0.0)


def test_the_optimizer_gets_the_rate_of_its_step():
    run = toy.training("supervised", "linear")
    for _ in train(run, toy.stream(run.algorithm.needs), until=7, log_every=100):
        assert run.optimizer.param_groups[0]["lr"].item() == pytest.approx(run.pace.lr_at(run.step - 1))


def test_ema_averages_parameters_and_copies_buffers():
    """Spec 7.3: after one step .999 of the old and .001 of the new, and the live model's statistics."""
    run = toy.training("npmatch", "neural_process")
    run.pace = Pace(num_steps=10, lr=0.1, ema_decay=0.999)
    start = [p.detach().clone() for p in run.teacher.parameters()]
    for _ in train(run, toy.stream(run.algorithm.needs), until=1, log_every=10):
        pass
    for old, now, averaged in zip(start, run.model.parameters(), run.teacher.parameters()):
        torch.testing.assert_close(averaged, 0.999 * old + 0.001 * now.detach(), rtol=1e-6, atol=1e-8)
    live, kept = dict(run.model.named_buffers()), dict(run.teacher.named_buffers())
    assert live.keys() == kept.keys() and all(torch.equal(live[name], kept[name]) for name in live)
    assert any("running_mean" in name for name in live) and any("latent_bank" in name for name in live)


def test_ema_warms_up():
    pace = Pace(num_steps=1000, lr=0.1, ema_decay=0.99, ema_warmup=True)
    assert [pace.ema_decay_at(s) for s in (0, 9, 10**6)] == pytest.approx([0.1, 10 / 19, 0.99])


@pytest.mark.parametrize("net", ["wrn_28_2", "tiny"])
def test_batch_norm_and_biases_do_not_decay(net):
    """Spec 7.4: as many tensors without decay as two a batch norm and one a bias."""
    model = nn.ModuleDict({"backbone": build_network(net, 3), "classifier": nn.Linear(128, 10)})
    decay, free = parameter_groups(model, 5e-4)
    norms = [m for m in model.modules() if isinstance(m, nn.BatchNorm2d)]
    biases = [m for m in model.modules() if isinstance(m, nn.Conv2d | nn.Linear) and m.bias is not None]
    assert len(free["params"]) == 2 * len(norms) + len(biases) and free["weight_decay"] == 0
    assert all(isinstance(p, nn.Parameter) and p.ndim > 1 for p in decay["params"]) and decay["weight_decay"] == 5e-4


def norms_of_parts(run: Training) -> list[float]:
    parts = (run.model.backbone, run.model.head)
    return [torch.stack([p.grad.norm() for p in part.parameters()]).norm().item() for part in parts]


def test_each_part_is_clipped_alone():
    """Spec 3.3.6: the norm of backbone and of head is 3 at most, each."""
    run = toy.training("supervised", "linear")
    run.pace = Pace(num_steps=10, lr=0.0, schedule="constant", clip_norm=0.01)
    for _ in train(run, toy.stream(run.algorithm.needs), until=1, log_every=10):
        pass
    assert norms_of_parts(run) == pytest.approx([0.01, 0.01], rel=1e-3)


def pushed(gradients: Sequence[float], *, precision: str = "fp32", pace: Pace, **options: Any) -> Training:
    """A linear toy after an update for each of these numbers, which is the gradient of every weight."""
    run = start(toy.model("linear"), Supervised(), SupervisedState(), pace, seed=0, precision=precision, **options)
    for gradient in gradients:
        for parameter in run.model.parameters():
            parameter.grad = gradient * run.guard.scale * torch.ones_like(parameter)
        update(run)
        run.step += 1
    return run


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("clip_norm", [None, 1e6])
def test_a_gradient_below_the_limit_is_left_as_it_is(clip_norm, precision):
    """And what fp16's loss scale made of it is undone."""
    run = pushed([0.3], precision=precision, pace=Pace(num_steps=10, lr=0.1, clip_norm=clip_norm))
    assert all(torch.equal(p.grad, torch.full_like(p, 0.3)) for p in run.model.parameters())


def test_the_gradient_is_clipped_without_fp16s_scale():
    run = pushed([0.3], precision="fp16", pace=Pace(num_steps=10, lr=0.1, clip_norm=0.01))
    assert norms_of_parts(run) == pytest.approx([0.01, 0.01], rel=1e-3)


def by_hand(weight: Tensor, gradients: Sequence[float], *, momentum: float, nesterov: bool, decay: float) -> Tensor:
    """Sutskever et al., 2013, as torch has it, at a rate of .1."""
    velocity = torch.zeros_like(weight)
    for gradient in gradients:
        slope = gradient + decay * weight
        velocity = momentum * velocity + slope
        weight = weight - 0.1 * (slope + momentum * velocity if nesterov else velocity)
    return weight


@pytest.mark.parametrize("nesterov", [True, False])
@pytest.mark.parametrize("momentum", [0.9, 0.5])
def test_momentum_and_decay_by_hand(momentum, nesterov):
    pace, gradients = Pace(num_steps=10, lr=0.1, schedule="constant"), [0.3, -0.7, 0.2]
    run = pushed(gradients, pace=pace, momentum=momentum, nesterov=nesterov, weight_decay=0.2)
    first, last = toy.model("linear").head.classifier, run.model.head.classifier
    for name, decay in (("weight", 0.2), ("bias", 0.0)):
        expected = by_hand(getattr(first, name), gradients, momentum=momentum, nesterov=nesterov, decay=decay)
        torch.testing.assert_close(getattr(last, name), expected)


def test_nesterov_is_the_default():
    """Of momentum .9, as in the published code."""
    pace, gradients = Pace(num_steps=10, lr=0.1, schedule="constant"), [0.3, -0.7]
    first, last = (model.head.classifier.bias for model in (toy.model("linear"), pushed(gradients, pace=pace).model))
    torch.testing.assert_close(last, by_hand(first, gradients, momentum=0.9, nesterov=True, decay=0.0))


def test_adamw_by_hand():
    """Loshchilov and Hutter, 2019, Algorithm 2, with the momentum as its first beta."""
    pace, gradients = Pace(num_steps=10, lr=0.1, schedule="constant"), [0.3, -0.7, 0.2]
    run = pushed(gradients, pace=pace, optimizer="adamw", momentum=0.6, weight_decay=0.2)
    first, last = toy.model("linear").head.classifier, run.model.head.classifier
    for name, decay in (("weight", 0.2), ("bias", 0.0)):
        expected, mean, square = getattr(first, name), 0.0, 0.0
        for t, gradient in enumerate(gradients, start=1):
            mean, square = 0.6 * mean + 0.4 * gradient, 0.999 * square + 0.001 * gradient**2
            move = mean / (1 - 0.6**t) / math.sqrt(square / (1 - 0.999**t))
            expected = expected - 0.1 * (move + decay * expected)
        torch.testing.assert_close(getattr(last, name), expected)


class OneBatch:
    """The toy's first batch at every step."""

    def __init__(self, run):
        self.first = toy.stream(run.algorithm.needs)[0]

    def bring(self, step):
        return ()

    def views(self, step):
        return self.first


def test_noise_is_a_function_of_seed_and_step():
    """From the same weights and views, another seed or step samples the latent variable differently."""
    losses = []
    for seed, step in ((0, 0), (1, 0), (0, 5), (0, 0)):
        run = toy.training("npmatch", "neural_process", seed=0)
        run.seed, run.step = seed, step
        losses += [means["loss"] for means in train(run, OneBatch(run), until=step + 1, log_every=1)]
    assert losses[0] == losses[3] and len(set(losses)) == 3


def poisoned(run, at):
    """The toy's batches, with a NaN pixel in that of one step."""

    class Batches:
        def bring(self, step):
            return ()

        def views(self, step):
            views = toy.stream(run.algorithm.needs).views(step)
            if step == at:
                views["labeled"][0, 0, 0, 0] = float("nan")
            return views

    return Batches()


def test_what_is_not_finite_stops_the_run_names_itself_and_moves_no_weight():
    run = toy.training("supervised", "linear")
    seen = []
    with pytest.raises(Diverged, match=r"step 7: the gradient of backbone\.1\.weight and 5 more is not finite"):
        for _ in train(run, poisoned(run, 7), until=20, log_every=10):
            seen.append([p.detach().clone() for p in run.model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(seen[6], seen[7]))  # step 7 changed nothing
    assert all(p.isfinite().all() for p in run.model.parameters())


def test_fp16_lowers_its_scale_and_goes_on():
    guard = Guard(3, "fp16")
    bad, good = torch.tensor([1.0, math.inf, 1.0]), torch.ones(3)
    assert guard.see(bad, torch.tensor(0)) == 1 and guard.scale == 2.0**15
    assert guard.see(good, torch.tensor(1)) == 0 and guard.scale == 2.0**15
    guard.check(["a", "b", "c"])
    for step in range(Guard.PATIENCE):
        guard.see(bad, torch.tensor(2 + step))
    with pytest.raises(Diverged, match="step 2: the gradient of b is not finite"):
        guard.check(["a", "b", "c"])


def test_a_checkpoint_of_another_model_is_refused():
    run, other = toy.training("npmatch", "linear"), toy.training("npmatch", "neural_process")
    with pytest.raises(UserError, match="of another model"):
        run.restore(other.parts(), 3)
    parts = run.parts() | {"model.head.classifier.bias": torch.zeros(7)}
    with pytest.raises(UserError, match=r"model\.head\.classifier\.bias does not fit"):
        run.restore(parts, 3)


def test_means_are_over_all_steps_since_the_last_line():
    run, again = toy.training("supervised", "linear"), toy.training("supervised", "linear")
    every = [m["loss"] for m in train(run, toy.stream(run.algorithm.needs), until=10, log_every=1) if m]
    some = [m["loss"] for m in train(again, toy.stream(run.algorithm.needs), until=10, log_every=5) if m]
    assert some == pytest.approx([sum(every[:5]) / 5, sum(every[5:]) / 5])


def test_the_separate_weak_pass_has_its_own_statistics_and_no_gradient():
    views = toy.stream(("labeled", "weak", "strong"))[0]
    features = {kind: toy.model("linear", weak_pass=kind).train().features(views) for kind in ("joint", "separate")}
    assert features["joint"]["weak"].requires_grad and not features["separate"]["weak"].requires_grad
    alone = toy.model("linear").train().backbone(views["weak"])
    torch.testing.assert_close(features["separate"]["weak"], alone)
    assert not torch.allclose(features["joint"]["weak"], alone)


def test_evaluation_between_steps_changes_nothing():
    run, again = toy.training("npmatch", "neural_process"), toy.training("npmatch", "neural_process")
    for _ in train(run, toy.stream(run.algorithm.needs), until=20, log_every=5):
        run.model.eval()
        torch.rand(3)
        run.teacher.sample(torch.rand(4, 1, 8, 8))
    for _ in train(again, toy.stream(run.algorithm.needs), until=20, log_every=5):
        pass
    assert all(torch.equal(a, b) for a, b in zip(run.parts().values(), again.parts().values()))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_first_step_that_does_not_count_leaves_nothing_behind(precision):
    """torch's fused step makes the momentum's memory at the first call, and does not write to it where it must not."""
    run, same = (toy.training("supervised", "linear", precision=precision) for _ in range(2))
    run.guard.scale.fill_(float("inf"))
    for _ in train(run, toy.stream(run.algorithm.needs), until=1, log_every=100):
        pass
    run.guard.scale.fill_(float(same.guard.scale))
    run.step, same.step = 1, 1
    for one in (run, same):
        for _ in train(one, toy.stream(one.algorithm.needs), until=3, log_every=100):
            pass
    for (name, ours), theirs in zip(run.model.named_parameters(), same.model.parameters()):
        torch.testing.assert_close(ours, theirs, msg=name)


def test_update_ema_by_hand():
    old, new = nn.BatchNorm1d(2), nn.BatchNorm1d(2)
    with torch.no_grad():
        new.weight.fill_(3.0)
        new.running_mean.fill_(5.0)
        update_ema(old, new, 0.25)
    torch.testing.assert_close(old.weight.detach(), torch.full((2,), 1.5))
    torch.testing.assert_close(old.running_mean, torch.full((2,), 5.0))


def test_resume_is_exact_where_weights_lie_channels_last():
    """Fused optimizers go by memory and not by index: momentum must lie as its weights do."""

    def training(seed):
        run = toy.training("supervised", "linear", seed=seed)
        torch.manual_seed(seed)
        net = build_network("tiny", 1)
        head = toy.LinearHead(net.feature_dim, toy.CLASSES)
        return start(toy.Model(net, head), run.algorithm, run.state, run.pace, seed=0)

    def go_on(run, until):
        for _ in train(run, toy.stream(run.algorithm.needs), until=until, log_every=5):
            pass

    run, again = training(0), training(1)
    go_on(run, 3)
    convolutions = [m for m in run.model.modules() if isinstance(m, nn.Conv2d)]
    assert not convolutions[-1].weight.is_contiguous()
    again.restore({name: tensor.clone().contiguous() for name, tensor in run.parts().items()}, 3)
    go_on(run, 6)
    go_on(again, 6)
    assert all(torch.equal(a, b) for a, b in zip(run.parts().values(), again.parts().values()))


def test_a_line_has_the_same_keys_in_the_same_order_after_a_resume():
    run, again = toy.training("npmatch", "neural_process"), toy.training("npmatch", "neural_process")
    for _ in train(run, toy.stream(run.algorithm.needs), until=3, log_every=5):
        pass
    again.restore(dict(sorted(run.parts().items())), 3)
    lines = [
        [list(m) for m in train(r, toy.stream(r.algorithm.needs), until=5, log_every=5) if m] for r in (run, again)
    ]
    assert lines[0] == lines[1] and lines[0]
