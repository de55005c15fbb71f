from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from npmatch.errors import UserError
from npmatch.nets import NETWORKS, build_network, frozen_batch_norm, set_batch_norm_momentum
from npmatch.nets.tiny import Tiny

TIMM = "test_resnet"  # a few thousand parameters, made for tests


def state(network: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in network.named_buffers()}


@pytest.mark.parametrize("name", [*NETWORKS, TIMM])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_network_gives_features_as_long_as_it_says(name, channels):
    torch.manual_seed(0)
    network = build_network(name, channels, dropout=0.3)
    size = 8 if name == "tiny" else 32
    images = torch.randn(2, channels, size, size)
    with torch.no_grad():
        features = network.eval()(images)
        assert features.shape == (2, network.feature_dim) and features.isfinite().all()
        torch.testing.assert_close(network(images), features, rtol=0, atol=0)
        dropouts = [m.train() for m in network.modules() if isinstance(m, nn.Dropout) and m.p > 0]
        assert dropouts and {m.p for m in dropouts} == {0.3}
        assert not torch.equal(network(images), network(images))  # Monte-Carlo dropout has something to switch on


@pytest.mark.parametrize("name", ["wrn_28_2", "tiny", "resnet50", TIMM])
def test_no_dropout_unless_asked_for_and_the_seed_decides_the_weights(name):
    torch.manual_seed(1)
    network = build_network(name, 1)
    torch.manual_seed(1)
    again = build_network(name, 1)
    assert not any(isinstance(m, nn.Dropout) and m.p > 0 for m in network.modules())
    assert all(torch.equal(a, b) for a, b in zip(network.state_dict().values(), again.state_dict().values()))


def test_sizes():
    resnet = build_network("resnet50", 3)
    assert sum(p.numel() for p in resnet.parameters()) == 23_508_032 and resnet.feature_dim == 2048
    assert {(m.momentum, m.eps) for m in resnet.modules() if isinstance(m, nn.BatchNorm2d)} == {(0.1, 1e-5)}
    assert all((m.weight == 1).all() for m in resnet.modules() if isinstance(m, nn.BatchNorm2d))  # the last ones too
    strides = {n: m.stride for n, m in resnet.named_modules() if isinstance(m, nn.Conv2d) and ".conv" in n}
    assert {n.rsplit(".", 1)[1] for n, stride in strides.items() if stride == (2, 2) and "layer" in n} == {"conv2"}
    tiny = build_network("tiny", 1)
    assert sum(p.numel() for p in tiny.parameters()) == 74_400 and tiny.feature_dim == 96


def test_tiny_takes_larger_images():
    with torch.no_grad():
        assert Tiny(3).eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 96)


def test_unknown_networks_are_refused_with_a_hint():
    with pytest.raises(UserError, match=r"no network 'resnet5O'.*resnet50"):
        build_network("resnet5O", 3)
    with pytest.raises(UserError, match=r"timm\.list_models"):
        build_network("?", 3)


def test_pretrained_weights_that_cannot_be_had_are_a_persons_affair():
    with pytest.raises(UserError, match="no pretrained weights; use a timm name"):
        build_network("tiny", 1, pretrained=True)
    with pytest.raises(UserError, match=r"no pretrained weights for 'resnet10t\.nope'"):
        build_network("resnet10t.nope", 3, pretrained=True)


def test_batch_norm_momentum_reaches_every_batch_norm():
    for name in ("wrn_28_2", TIMM):
        network = build_network(name, 1)
        set_batch_norm_momentum(network, 0.25)
        assert {m.momentum for m in network.modules() if isinstance(m, nn.BatchNorm2d)} == {0.25}


@pytest.mark.parametrize("name", ["wrn_28_2", "tiny", TIMM])
def test_frozen_batch_norm_uses_the_batch_and_leaves_no_trace(name):
    torch.manual_seed(0)
    network, images = build_network(name, 1), torch.randn(8, 1, 32, 32)
    network(torch.randn(8, 1, 32, 32))
    before = state(network)
    with frozen_batch_norm(network):
        features = network(images)
    assert all(torch.equal(buffer, before[key]) for key, buffer in network.named_buffers())
    torch.testing.assert_close(features, network(images))  # as any training-mode pass
    assert any(not torch.equal(buffer, before[key]) for key, buffer in network.named_buffers())  # which leaves traces
    assert (features - _evaluated(network, images)).abs().max() > 0.01


def test_frozen_passes_have_gradients_and_end_even_when_they_fail():
    network, images = Tiny(1), torch.randn(8, 1, 8, 8)
    live = network(images)
    with frozen_batch_norm(network):
        frozen = network(images)
    (live.sum() + frozen.sum()).backward()
    assert all(p.grad is not None for p in network.parameters())
    with pytest.raises(ValueError), frozen_batch_norm(network):
        network(torch.zeros(1, 2, 3))
    assert all(m.track_running_stats for m in network.modules() if isinstance(m, nn.BatchNorm2d))


def _evaluated(network: nn.Module, images: Tensor) -> Tensor:
    network.eval()
    features = network(images)
    network.train()
    return features
