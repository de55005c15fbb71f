"""ReMixMatch (Berthelot et al., 2020, Algorithm 1): MixMatch with aligned guesses, strong views and a rotation task."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch import ranks
from npmatch.functional.corrections import align_ema, sharpen
from npmatch.functional.losses import cross_entropy, soft_cross_entropy
from npmatch.functional.mixing import mixup, quarter_turns
from npmatch.functional.pseudo import target_points
from npmatch.functional.queues import pushed
from npmatch.functional.ramps import linear_ramp
from npmatch.functional.uncertainty import mean_probs
from npmatch.heads.linear import classifier
from npmatch.nets import features_in_passes, frozen_batch_norm
from npmatch.types import Facts, Model, Step, Views

RECENT = 128  # batches whose mean predictions the paper's code remembers


@dataclass(frozen=True)
class ReMixMatchState:
    class_share: Tensor  # (K,) of the labels: what guesses are aligned with
    mean_probs: Tensor  # (1, K) running mean prediction, zeros before the first; or (128, K), one row per batch
    ramp_steps: Tensor  # () steps in which the unlabeled weights grow from 0 to their full size


@dataclass(frozen=True, kw_only=True)
class ReMixMatch:
    """Align and sharpen the guess on a weak view, learn it on strong views and mixtures; and tell rotations apart."""

    paper: ClassVar[str] = "Berthelot et al., ICLR 2020"
    needs: ClassVar[tuple[str, ...]] = ("labeled", "strong", "strong2", "weak")

    temperature: float = 0.5  # T
    mixing: float = 0.75  # alpha of Beta(alpha, alpha), where the shares of a mixture come from
    mix_each: bool = False  # a share for each image; TorchSSL draws one per batch
    unlabeled_weight: float = 1.5  # lambda_u, of the mixtures
    strong_weight: float = 0.5  # lambda_u1, of a strong view that is not mixed
    rotation_weight: float = 0.5  # lambda_r
    ramp_share: float = 1 / 64  # of the run, over which the first two weights grow linearly
    align_over: Literal["ema", "recent"] = "ema"  # recent: the paper's code, the last 128 batches without this one
    rotations: Literal["drawn", "quarters"] = "drawn"  # quarters: the paper's code, a quarter of the batch per angle
    follow: Literal["first", "last"] = "first"  # the pass that moves batch norm's statistics; the paper's code: last

    def init(self, facts: Facts) -> ReMixMatchState:
        uniform = torch.full((facts.num_classes,), 1 / facts.num_classes, device=facts.device)
        ramp_steps = torch.full((), self.ramp_share * facts.num_steps, device=facts.device)
        if self.align_over == "recent":
            return ReMixMatchState(uniform, uniform.repeat(RECENT, 1), ramp_steps)
        counts = torch.tensor(facts.labeled_counts, dtype=uniform.dtype, device=facts.device)
        return ReMixMatchState(counts / counts.sum(), torch.zeros_like(uniform)[None], ramp_steps)

    def extras(self, facts: Facts) -> dict[str, nn.Module]:
        return {"rotation": classifier(facts.feature_dim, 4)}

    def step(self, model: Model, teacher: Model, views: Views, state: ReMixMatchState) -> Step[ReMixMatchState]:
        # 1. A guess from the weak view, aligned with the labels' classes, and only then sharpened (Sec. 3.1).
        with torch.no_grad(), frozen_batch_norm(model.backbone):
            guess = mean_probs(model.head(model.alone(views["weak"])))
        y = F.one_hot(views.y, guess.shape[1]).to(guess.dtype)
        aligned, state = self.aligned(guess, y, state)
        target = sharpen(aligned, self.temperature)

        # 2. MixUp of the labeled images, both strong views and the weak one. The guess is the label of all three.
        batch_size = len(y)
        images = torch.cat([ranks.gather(views[name]) for name in self.needs])
        images, labels = mixup(images, torch.cat([y, target, target, target]), self.mixing, each=self.mix_each)
        mixed = features_in_passes(model, images, batch_size, follow=0 if self.follow == "first" else -1)

        # 3. A strong view as it is (Sec. 3.2), and the same view turned (Sec. 3.3).
        turns = self.turns(len(views.place), views.place.device)
        with frozen_batch_norm(model.backbone):
            strong = model.alone(views["strong"])
            turned = model.alone(quarter_turns(views["strong"], ranks.share(turns)))
        rotation = cross_entropy(model.extras["rotation"](turned)[None], turns).mean()

        # 4. The loss (Sec. 3.3): cross-entropy throughout, also where MixMatch has a squared error.
        parts = [batch_size, 3 * len(target), len(target)]
        mixed_l, mixed_u = mixed.split(parts[:2])
        labels_l, labels_u = labels.split(parts[:2])
        features, learnt = torch.cat([mixed_u, strong]), torch.cat([labels_u, target])
        out = model.head.learn(
            target_points(mixed_l, labels_l, torch.ones_like(y[:, 0])),
            target_points(features, learnt, torch.ones_like(learnt[:, 0])),
        )
        labeled = soft_cross_entropy(out.labeled, labels_l).mean()
        logits_u, logits_strong = out.unlabeled.split(parts[1:], 1)
        unlabeled = soft_cross_entropy(logits_u, labels_u).mean()
        unmixed = soft_cross_entropy(logits_strong, target).mean()
        ramp = linear_ramp(views.step, state.ramp_steps)
        loss = labeled + ramp * (self.unlabeled_weight * unlabeled + self.strong_weight * unmixed)
        loss = loss + self.rotation_weight * rotation

        metrics = {"labeled": labeled, "unlabeled": unlabeled, "strong": unmixed, "rotation": rotation, "ramp": ramp}
        metrics = {name: value.detach() for name, value in metrics.items()}
        return Step(loss, metrics | {"confidence": guess.amax(-1).mean()}, state)

    def aligned(self, guess: Tensor, y: Tensor, state: ReMixMatchState) -> tuple[Tensor, ReMixMatchState]:
        """Guesses that are together as often of each class as labels are, and the state with this batch in it.

        Sharpening makes each sum to 1 again.
        """
        if self.align_over == "ema":
            found, mean = align_ema(guess, state.mean_probs[0], state.class_share)
            return found, replace(state, mean_probs=mean[None])
        found = guess * (1e-6 + state.class_share) / (1e-6 + state.mean_probs.mean(0))
        recent = pushed(state.mean_probs, guess.mean(0, keepdim=True))
        return found, replace(state, mean_probs=recent, class_share=0.999 * state.class_share + 0.001 * y.mean(0))

    def turns(self, count: int, device: torch.device) -> Tensor:
        """How many quarters each image is turned by."""
        if self.rotations == "quarters":
            return torch.arange(count, device=device) * 4 // count
        return torch.randint(4, (count,), device=device)
