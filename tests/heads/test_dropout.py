"""Monte-Carlo dropout: T passes of the whole network in which dropout is all that is in training mode."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.heads.dropout import DropoutHead
from npmatch.types import Model
from tests import toy

IMAGES = torch.rand(9, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def trained() -> Model:
    """In evaluation mode, with running statistics that are not those of a batch."""
    made = toy.model("dropout")
    norm = made.backbone[2]
    norm.running_mean.fill_(0.3)
    norm.running_var.fill_(2.0)
    return made.eval()


def buffers(model: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def test_each_sample_drops_other_features_and_batch_norm_keeps_its_statistics() -> None:
    model = trained()
    before = buffers(model)
    torch.manual_seed(1)
    samples = model.sample(IMAGES, 3)
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())

    _, linear, norm, activation = model.backbone
    hidden = linear(IMAGES.flatten(1))
    features = activation((hidden - 0.3) / (2 + norm.eps) ** 0.5 * norm.weight + norm.bias)
    torch.manual_seed(1)
    by_hand = torch.stack([model.head.classifier(F.dropout(features, 0.2)) for _ in range(3)])
    torch.testing.assert_close(samples, by_hand)
    assert not torch.equal(samples[0], samples[1])


def test_as_many_samples_as_the_head_has_unless_told() -> None:
    model = trained()
    assert model.sample(IMAGES).shape == (4, 9, toy.CLASSES) and model.sample(IMAGES, 2).shape == (2, 9, toy.CLASSES)


def test_dropout_inside_the_network_is_sampled_too() -> None:
    backbone = nn.Sequential(nn.Flatten(), nn.Linear(64, toy.FEATURES), nn.Dropout(0.5))
    model = Model(backbone, DropoutHead(toy.FEATURES, toy.CLASSES, dropout=0.0)).eval()
    one, two = model.sample(IMAGES, 2)
    assert not torch.equal(one, two)


@pytest.mark.parametrize("was", ["eval", "train", "dropout"])
def test_every_module_is_as_it_was_afterwards(was: str) -> None:
    model = trained().train(was == "train")
    if was == "dropout":
        model.head.dropout.train()
    before = [module.training for module in model.modules()]
    model.sample(IMAGES, 2)
    assert [module.training for module in model.modules()] == before
    if was == "eval":
        assert torch.equal(model(IMAGES), model(IMAGES))
