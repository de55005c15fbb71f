"""The neural-process classifier (paper, Sec. 3.2.1 and 3.2.2), with the published code's choices as defaults."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.functional.divergence import DIVERGENCES, Gaussian, skew
from npmatch.functional.precision import at_least_float32
from npmatch.functional.uncertainty import entropy, mean_probs
from npmatch.heads.linear import classifier
from npmatch.heads.memory_bank import MemoryBank
from npmatch.types import Head, Learnt, Points


class NeuralProcessHead(Head):
    """Amortized inference of a latent z from labeled points; T samples of z give T predictions per image."""

    def __init__(
        self,
        feature_dim: int,
        num_classes: int,
        *,
        latent_dim: int,  # M
        bank_size: int = 2560,  # Q
        num_samples: int = 10,  # T
        divergence: Literal["js", "dual_js", "kl"] = "js",
        targets: Literal["code", "paper_union"] = "code",
        decoder_width: Literal["code", "paper"] = "code",
        match_strength: bool = False,
        double_push: bool = False,
        leave_one_out: bool = False,
    ) -> None:
        super().__init__()
        self.feature_dim, self.num_classes, self.num_samples = feature_dim, num_classes, num_samples
        self.divergence = DIVERGENCES[divergence]
        self.match_strength = match_strength and divergence != "kl"  # whose strength is what the others are matched to
        self.targets, self.double_push, self.leave_one_out = targets, double_push, leave_one_out
        width = feature_dim if decoder_width == "code" else latent_dim  # the paper says M units, the code has d
        self.encode_latent = mlp(feature_dim + num_classes, latent_dim, latent_dim, final=True)
        self.encode_context = mlp(feature_dim + num_classes, latent_dim, latent_dim, final=True)
        self.latent_mean = mlp(latent_dim, latent_dim, latent_dim, final=False)
        self.latent_scale = mlp(latent_dim, latent_dim, latent_dim, final=False)
        self.decoder = mlp(latent_dim + feature_dim + latent_dim, width, width, final=True)
        self.classifier = classifier(width, num_classes)
        self.latent_bank = MemoryBank(bank_size, latent_dim)
        self.context_bank = MemoryBank(bank_size, latent_dim)
        self.condensed: tuple[Gaussian, Tensor] | None = None

    def forward(self, features_NF: Tensor, num_samples: int | None = None) -> Tensor:
        """Inference mode: the two banks stand in for the labeled points."""
        q, offset = self.condensed or self.recalled()
        return self.decode(features_NF, q.sample(num_samples or self.num_samples)[:, None], offset)

    def recalled(self) -> tuple[Gaussian, Tensor]:
        """What the banks say of any image: q(z), and the context's part of the decoder's first layer."""
        return self.latent(self.latent_bank.mean()), self.offset(self.context_bank.mean())

    @torch.no_grad()
    def condense(self) -> None:
        """Keep that, for predictions by weights that change no more: half of an image's work in the head is in it."""
        self.condensed = self.recalled()

    def learn(self, labeled: Points, unlabeled: Points) -> Learnt:
        """Training mode: labeled points are the context; labeled and kept unlabeled points are the targets."""
        context = self.encode_context(joined(labeled))
        codes_l, codes_u = self.encode_latent(joined(labeled)), self.encode_latent(joined(unlabeled))
        q_context = self.latent(mean(codes_l, labeled.weight))
        if self.targets == "paper_union":  # one q(z | all targets) and one set of samples for all of them
            q_target = self.latent(mean(torch.cat([codes_l, codes_u]), torch.cat([labeled.weight, unlabeled.weight])))
            z_l = z_u = q_target.sample(self.num_samples)[:, None]
        else:  # the published code scores labeled and unlabeled targets from their own codes, each group alone
            q_target = self.latent(mean(codes_u, unlabeled.weight))
            z_l = self.target_samples(q_context, codes_l, labeled.weight)
            z_u = self.target_samples(q_target, codes_u, unlabeled.weight)
        code = mean(context, labeled.weight)
        own_code = others_mean(context, labeled.weight) if self.leave_one_out else code
        logits_l = self.decode(labeled.features, z_l, self.offset(own_code))
        logits_u = self.decode(unlabeled.features, z_u, self.offset(code))

        penalty, alpha = self.penalty(q_context, q_target, logits_l, logits_u, labeled.weight, unlabeled.weight)
        some = (unlabeled.weight > 0).any()
        self.context_bank.push(context.detach(), labeled.weight)
        self.latent_bank.push(codes_l.detach(), labeled.weight)
        self.latent_bank.push(codes_u.detach(), unlabeled.weight)
        if self.double_push:
            self.context_bank.push(context.detach(), labeled.weight * some)
        return Learnt(logits_l, logits_u, penalty * some, {"skew": alpha, "skew_strength": alpha * (1 - alpha)})

    def penalty(
        self,
        q_context: Gaussian,
        q_target: Gaussian,
        logits_l: Tensor,
        logits_u: Tensor,
        weight_l: Tensor,
        weight_u: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The divergence, skewed toward whichever side is surer of its predictions, and that skew (alpha_u)."""
        with torch.no_grad():
            u_l, u_u = entropy(mean_probs(logits_l)), entropy(mean_probs(logits_u))
            union = self.targets == "paper_union"
            u_target = torch.cat([u_l, u_u]) if union else u_u
            weight_target = torch.cat([weight_l, weight_u]) if union else weight_u
            alpha = skew(mean(u_l[:, None], weight_l), mean(u_target[:, None], weight_target))[0]
        with torch.autocast(alpha.device.type, enabled=False):
            value = self.divergence(q_context, q_target, alpha)
        if self.match_strength:  # JS at skew alpha is about alpha (1 - alpha) times the KL: undo it, to compare forms
            value = value / (alpha * (1 - alpha)).clamp_min(1e-3)
        return value, alpha

    def target_samples(self, q: Gaussian, codes_NZ: Tensor, weight_N: Tensor) -> Tensor:
        """Samples of z for a group of targets: (T, 1, Z) shared by all, or (T, N, Z), each without its own label."""
        if not self.leave_one_out:
            return q.sample(self.num_samples)[:, None]
        return self.latent(others_mean(codes_NZ, weight_N)).sample(self.num_samples)

    def latent(self, code: Tensor) -> Gaussian:
        """q(z): a standard deviation of at least .1 from the second network (float32: it enters a divergence)."""
        scale = 0.1 + 0.9 * F.softplus(at_least_float32(self.latent_scale(code)))
        return Gaussian(at_least_float32(self.latent_mean(code)), scale**2)

    def decode(self, features_NF: Tensor, z: Tensor, offset: Tensor) -> Tensor:
        """Logits (T, N, K). The decoder's input is [z, x, r]; its first layer is applied to each part alone and the
        results are added, so that features are not repeated T times (exactly the same sum)."""
        w_z, w_x, _ = self.first_weights()
        hidden = F.linear(z, w_z) + torch.addmm(offset, features_NF, w_x.T)
        return self.classifier(self.decoder[1:](hidden))  # pyright: ignore[reportCallIssue] a slice of a Sequential is one

    def offset(self, code: Tensor) -> Tensor:
        """What the context adds to that first layer, its bias included."""
        return F.linear(code, self.first_weights()[2], self.first.bias)

    def first_weights(self) -> tuple[Tensor, ...]:
        """For z, x and r."""
        latent_dim = self.latent_bank.codes.shape[1]
        return self.first.weight.split([latent_dim, self.feature_dim, latent_dim], dim=1)

    @property
    def first(self) -> nn.Linear:
        first = self.decoder[0]
        assert isinstance(first, nn.Linear)
        return first


def mlp(fan_in: int, hidden: int, fan_out: int, *, final: bool) -> nn.Sequential:
    """Linear, LeakyReLU(.1), Linear, and LeakyReLU(.1) after it if `final`; Xavier-normal weights, zero biases."""
    layers = [classifier(fan_in, hidden), nn.LeakyReLU(0.1), classifier(hidden, fan_out)]
    return nn.Sequential(*layers, *([nn.LeakyReLU(0.1)] if final else []))


def joined(points: Points) -> Tensor:
    return torch.cat([points.features, points.labels.to(points.features.dtype)], -1)


def mean(codes_NZ: Tensor, weight_N: Tensor) -> Tensor:
    """The order-invariant mean that makes a neural process exchangeable -> (Z,); zeros where nothing has weight."""
    return (at_least_float32(codes_NZ) * weight_N[:, None]).sum(0) / weight_N.sum().clamp_min(1e-6)


def others_mean(codes_NZ: Tensor, weight_N: Tensor) -> Tensor:
    """For each point the mean of the others -> (N, Z)."""
    weighted = at_least_float32(codes_NZ) * weight_N[:, None]
    return (weighted.sum(0) - weighted) / (weight_N.sum() - weight_N).clamp_min(1e-6)[:, None]
