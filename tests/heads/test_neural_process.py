"""The neural process against the specification's checklist (3.7) and the paper's Sec. 3.2."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from npmatch.functional.divergence import DIVERGENCES, Gaussian
from npmatch.functional.uncertainty import entropy, mean_probs
from npmatch.heads.memory_bank import MemoryBank
from npmatch.heads.neural_process import NeuralProcessHead, mean
from npmatch.types import Learnt, Points

F, K, M = 16, 3, 8


def points(count: int, seed: int = 0, weight: float = 1.0) -> Points:
    g = torch.Generator().manual_seed(seed)
    labels = torch.eye(K)[torch.arange(count) % K]
    return Points(torch.randn(count, F, generator=g), labels, torch.full((count,), weight))


def some_kept(seed: int = 1) -> Points:
    """Four unlabeled points, of which the second was refused."""
    return points(4, seed)._replace(weight=torch.tensor([1.0, 0.0, 1.0, 1.0]))


def joined(points: Points) -> Tensor:
    return torch.cat([points.features, points.labels], -1)


def leaky(x: Tensor) -> Tensor:
    return torch.where(x > 0, x, 0.1 * x)


def head(**options: Any) -> NeuralProcessHead:
    torch.manual_seed(0)
    return NeuralProcessHead(F, K, latent_dim=M, **{"bank_size": 64, "num_samples": 5} | options)


def learn(made: NeuralProcessHead, labeled: Points, unlabeled: Points, seed: int = 1) -> Learnt:
    torch.manual_seed(seed)
    return made.learn(labeled, unlabeled)


@pytest.mark.parametrize(
    ("feature_dim", "num_classes", "latent_dim", "count"),
    [(128, 10, 32, 57_738), (512, 100, 128, 963_684), (256, 10, 64, 226_058), (2048, 1000, 256, 13_446_120)],
)
def test_t1_parameter_counts(feature_dim, num_classes, latent_dim, count):
    made = NeuralProcessHead(feature_dim, num_classes, latent_dim=latent_dim)
    assert sum(p.numel() for p in made.parameters()) == count


def test_t2_the_order_of_the_context_does_not_matter():
    labeled, unlabeled, order = points(6), points(4, 1), torch.randperm(6)
    one = learn(head(), labeled, unlabeled)
    two = learn(head(), Points(*(t[order] for t in labeled)), unlabeled)
    torch.testing.assert_close(one.labeled[:, order], two.labeled, rtol=0, atol=1e-6)
    torch.testing.assert_close(one.unlabeled, two.unlabeled, rtol=0, atol=1e-6)
    torch.testing.assert_close(one.penalty, two.penalty, rtol=0, atol=1e-6)


def test_t3_the_banks_means_predict_as_the_whole_banks():
    made = head()
    for seed in range(9):
        learn(made, points(12, seed), points(12, seed + 50))
    torch.manual_seed(3)
    whole = made(points(7).features)
    for bank in (made.latent_bank, made.context_bank):
        bank.shrink()
    torch.manual_seed(3)
    torch.testing.assert_close(made(points(7).features), whole)
    made.condense()  # from here on the encoders and the banks are not read
    for part in (made.encode_latent, made.latent_mean, made.latent_scale, made.latent_bank, made.context_bank):
        for tensor in part.state_dict().values():
            tensor.fill_(7)
    torch.manual_seed(3)
    torch.testing.assert_close(made(points(7).features), whole)


@pytest.mark.parametrize(("double_push", "sizes"), [(False, (75, 65)), (True, (75, 129))])
def test_t4_bank_sizes(double_push, sizes):
    """B = 64, B_c = 10: the latent bank grows by both, the context bank by B (officially twice)."""
    made = head(bank_size=2560, double_push=double_push)
    kept = points(30, 1)._replace(weight=(torch.arange(30) < 10).float())
    learn(made, points(64), kept._replace(weight=torch.zeros(30)))
    assert (int(made.latent_bank.count), int(made.context_bank.count)) == (65, 65)
    made = head(bank_size=2560, double_push=double_push)
    learn(made, points(64), kept)
    assert (int(made.latent_bank.count), int(made.context_bank.count)) == sizes


def test_t5_the_standard_deviation_is_at_least_a_tenth():
    made = head()
    nn.init.constant_(made.latent_scale[2].bias, -50.0)
    torch.testing.assert_close(made.latent(torch.randn(M)).var_Z, torch.full((M,), 0.01))


def test_networks_and_latent_distribution_by_hand():
    """The published code: slopes of .1, a standard deviation of .1 + .9 softplus."""
    made, code, point = head(), torch.randn(M), torch.randn(F + K)
    first, _, second, _ = made.encode_latent
    torch.testing.assert_close(made.encode_latent(point), leaky(second(leaky(first(point)))))
    mean_first, _, mean_second = made.latent_mean
    scale_first, _, scale_second = made.latent_scale
    q = made.latent(code)
    torch.testing.assert_close(q.mean_Z, mean_second(leaky(mean_first(code))))
    sigma = 0.1 + 0.9 * scale_second(leaky(scale_first(code))).exp().log1p()
    torch.testing.assert_close(q.var_Z, sigma**2)


def test_first_weights_are_xavier_normal():
    layers = [m for m in NeuralProcessHead(512, 100, latent_dim=128).modules() if isinstance(m, nn.Linear)]
    assert len(layers) == 11
    for layer in layers:
        sigma = (2 / (layer.in_features + layer.out_features)) ** 0.5
        assert layer.weight.std().item() == pytest.approx(sigma, rel=0.05)
        assert (layer.weight.abs() > 2 * sigma).any(), "uniform numbers end at 1.73 standard deviations"
        assert not layer.bias.any()


@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("targets", ["code", "paper_union"])
def test_t7_nothing_kept_adds_nothing(divergence, targets):
    out = learn(head(divergence=divergence, targets=targets), points(6), points(4, 1, weight=0.0))
    assert out.penalty == 0 and out.unlabeled.isfinite().all()
    out.penalty.backward()


@pytest.mark.parametrize("targets", ["code", "paper_union"])
def test_t9_the_divergence_teaches_both_sides_and_neither_skew_nor_banks(targets, monkeypatch):
    made = head(targets=targets)
    given = []
    monkeypatch.setattr(made, "divergence", lambda p, q, skew: given.append((p, q, skew)) or torch.zeros(()))
    labeled, unlabeled = points(6), points(4, 1)
    learn(made, labeled, unlabeled)
    (p, q, skew), *_ = given
    assert all(part.requires_grad for part in (*p, *q))
    assert not skew.requires_grad and 0 < skew < 1
    assert not any(buffer.requires_grad for buffer in made.buffers())


def test_t10_the_split_first_layer_is_the_naive_one():
    made = head()
    features, z, code = torch.randn(7, F), torch.randn(5, 1, M), torch.randn(M)
    shape = (5, 7, -1)
    inputs = torch.cat([z.expand(shape), features.expand(shape), code.expand(shape)], -1)
    naive = made.classifier(made.decoder(inputs))
    torch.testing.assert_close(made.decode(features, z, made.offset(code)), naive, rtol=0, atol=1e-5)


def test_labeled_predictions_come_from_their_own_codes_and_unlabeled_ones_from_theirs():
    """The published code: targets of q(z | target) are the selected strong ones alone, r is the labeled context's."""
    made, labeled, unlabeled = head(), points(6), points(4, 1)
    out = learn(made, labeled, unlabeled)
    torch.manual_seed(1)
    r = made.encode_context(joined(labeled)).mean(0)
    z_l = made.latent(made.encode_latent(joined(labeled)).mean(0)).sample(5)[:, None]
    z_u = made.latent(made.encode_latent(joined(unlabeled)).mean(0)).sample(5)[:, None]
    torch.testing.assert_close(out.labeled, made.decode(labeled.features, z_l, made.offset(r)))
    torch.testing.assert_close(out.unlabeled, made.decode(unlabeled.features, z_u, made.offset(r)))


def test_the_union_of_the_paper_has_one_latent_variable_for_all_targets():
    made, labeled, unlabeled = head(targets="paper_union"), points(6), points(4, 1)
    out = learn(made, labeled, unlabeled)
    torch.manual_seed(1)
    z = made.latent(torch.cat([made.encode_latent(joined(labeled)), made.encode_latent(joined(unlabeled))]).mean(0))
    z = z.sample(5)[:, None]
    r = made.encode_context(joined(labeled)).mean(0)
    torch.testing.assert_close(out.labeled, made.decode(labeled.features, z, made.offset(r)))
    torch.testing.assert_close(out.unlabeled, made.decode(unlabeled.features, z, made.offset(r)))


def test_left_out_of_its_own_context_a_label_cannot_leak():
    """Without the option the label of a lone target reaches its own prediction (asked in the authors' issue 1)."""
    labeled = points(2)
    other = labeled._replace(labels=labeled.labels.flip(0))
    for leave_one_out in (False, True):
        made = head(leave_one_out=leave_one_out)
        alone = Points(*(t[:1] for t in labeled)), Points(*(t[:1] for t in other))
        same = [learn(made, one, points(3, 1, weight=0.0)).labeled for one in alone]
        assert torch.equal(*same) == leave_one_out


def test_the_skew_follows_the_uncertainties():
    """alpha_u = u_c / (u_c + u_t), from the training-mode predictions (paper, Sec. 3.2.3)."""
    made, labeled, unlabeled = head(), points(6), points(4, 1)
    out = learn(made, labeled, unlabeled)
    u_c, u_t = (entropy(mean_probs(logits)).mean() for logits in (out.labeled, out.unlabeled))
    torch.testing.assert_close(out.metrics["skew"], (u_c / (u_c + u_t)).detach())


@pytest.mark.parametrize("divergence", DIVERGENCES)
@pytest.mark.parametrize("targets", ["code", "paper_union"])
def test_the_penalty_is_of_context_and_kept_targets(targets, divergence):
    """Paper, Sec. 3.2.3: D(q(z | context), q(z | target)); the published code's targets are the kept strong ones."""
    made, labeled, unlabeled = head(targets=targets, divergence=divergence), points(6), some_kept()
    out = learn(made, labeled, unlabeled)
    kept = unlabeled.weight > 0
    context, target = made.encode_latent(joined(labeled)), made.encode_latent(joined(unlabeled))[kept]
    u_c, u_t = entropy(mean_probs(out.labeled)), entropy(mean_probs(out.unlabeled))[kept]
    if targets == "paper_union":
        target, u_t = torch.cat([context, target]), torch.cat([u_c, u_t])
    alpha = u_c.mean() / (u_c.mean() + u_t.mean())
    torch.testing.assert_close(out.metrics["skew"], alpha.detach())
    by_hand = DIVERGENCES[divergence](made.latent(context.mean(0)), made.latent(target.mean(0)), alpha.detach())
    torch.testing.assert_close(out.penalty, by_hand)


@pytest.mark.parametrize("divergence", DIVERGENCES)
def test_matched_strength_undoes_the_skew_and_leaves_the_kl_alone(divergence):
    plain, matched = (
        learn(head(divergence=divergence, match_strength=on), points(6), some_kept()) for on in (False, True)
    )
    alpha = plain.metrics["skew"]
    strength = 1 if divergence == "kl" else alpha * (1 - alpha)
    torch.testing.assert_close(matched.penalty * strength, plain.penalty)


def test_each_bank_gets_its_own_codes_labeled_ones_first():
    made, labeled, unlabeled = head(), points(6), some_kept()
    learn(made, labeled, unlabeled)
    kept = made.encode_latent(joined(unlabeled))[unlabeled.weight > 0]
    latent_codes = torch.cat([made.encode_latent(joined(labeled)), kept])
    torch.testing.assert_close(made.latent_bank.codes[1:10], latent_codes)
    torch.testing.assert_close(made.context_bank.codes[1:7], made.encode_context(joined(labeled)))
    assert (int(made.latent_bank.count), int(made.context_bank.count)) == (10, 7)


def test_a_point_of_weight_zero_changes_nothing():
    labeled, weight = points(6), torch.tensor([1.0, 1.0, 1.0, 0.0])
    unlabeled = points(4, 1)._replace(weight=weight)
    wrong = unlabeled.labels.clone()
    wrong[3] = torch.tensor([0.0, 9.0, 0.0])
    one, two = (learn(head(), labeled, unlabeled._replace(labels=l)) for l in (unlabeled.labels, wrong))  # noqa: E741
    torch.testing.assert_close(one[:3], two[:3])


def test_a_bank_forgets_the_oldest_and_refuses_without_a_trace():
    bank = MemoryBank(32, M)
    first = bank.codes[0].clone()
    assert first.abs().sum() > 0 and int(bank.count) == 1  # the paper's random start
    torch.testing.assert_close(bank.mean(), first)
    bank.push(torch.full((10, M), 7.0), (torch.arange(10) % 2).float())
    torch.testing.assert_close(bank.mean(), (first + 5 * 7.0) / 6)
    for value in range(5):
        bank.push(torch.full((16, M), float(value)), torch.ones(16))
    torch.testing.assert_close(bank.mean(), torch.full((M,), 3.5))  # the last 16 of value 4, 16 of value 3
    bank.push(torch.arange(100.0)[:, None].expand(100, M), torch.ones(100))
    torch.testing.assert_close(bank.mean(), torch.full((M,), torch.arange(68.0, 100).mean()))
    assert not bank.codes[bank.size].any()


def test_a_bank_is_the_naive_queue():
    """Spec 3.2, against a Python list that forgets from the front."""
    bank, g = MemoryBank(20, 2), torch.Generator().manual_seed(0)
    queue = [bank.codes[0].clone()]
    for _ in range(40):
        codes, keep = torch.randn(9, 2, generator=g), torch.rand(9, generator=g) < 0.5
        bank.push(codes, keep.float())
        queue = (queue + list(codes[keep]))[-20:]
        torch.testing.assert_close(bank.mean(), torch.stack(queue).mean(0))


def test_prediction_changes_no_buffer():
    made = head()
    before = {name: buffer.clone() for name, buffer in made.named_buffers()}
    made(points(5).features)
    assert all(torch.equal(buffer, before[name]) for name, buffer in made.named_buffers())


def test_prediction_samples_z_and_takes_the_mean_of_the_contexts():
    made, images = head(), points(7).features
    learn(made, points(6), some_kept())
    torch.manual_seed(3)
    logits = made(images)
    torch.manual_seed(3)
    q = made.latent(made.latent_bank.codes[:10].mean(0))
    z = q.mean_Z + q.var_Z.sqrt() * torch.randn(5, M)
    code = made.context_bank.codes[:7].mean(0)
    torch.testing.assert_close(logits, made.decode(images, z[:, None], made.offset(code)))
    assert len(made(images, 2)) == 2


def test_samples_spread_as_the_latent_distribution_says():
    made = head(num_samples=20_000)
    torch.manual_seed(0)
    z = made.latent(made.latent_bank.mean())
    drawn = z.sample(20_000)
    torch.testing.assert_close(drawn.mean(0), z.mean_Z, rtol=0, atol=0.03)
    torch.testing.assert_close(drawn.std(0), z.var_Z.sqrt(), rtol=0.03, atol=0)
    assert isinstance(z, Gaussian) and mean(torch.ones(3, 2), torch.zeros(3)).eq(0).all()
