from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from npmatch.nets import Block, build_network
from npmatch.nets.wide_resnet import WideResNet


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


@pytest.mark.parametrize(
    ("name", "size", "features"),
    [("wrn_28_2", 1_468_352, 128), ("wrn_28_8", 23_357_792, 512), ("wrn_37_2", 5_931_200, 256)],
)
@pytest.mark.parametrize("block", ["torchssl", "correct"])
def test_sizes(name, size, features, block):
    network = build_network(name, 3, block=block)
    assert parameters(network) == size and network.feature_dim == features
    assert all(conv.bias is not None for conv in network.modules() if isinstance(conv, nn.Conv2d))
    norms = [m for m in network.modules() if isinstance(m, nn.BatchNorm2d)]
    assert {(norm.momentum, norm.eps) for norm in norms} == {(0.001, 0.001)}


def test_maps_of_the_network_for_96_pixels():
    network, widths = build_network("wrn_37_2", 1), []
    assert isinstance(network, WideResNet)
    for block in network.blocks:
        block.register_forward_hook(lambda _module, _inputs, out: widths.append(out.shape[-1]))
    with torch.no_grad():
        assert network(torch.zeros(2, 1, 96, 96)).shape == (2, 256)
    assert widths == [48] * 4 + [24] * 4 + [12] * 4 + [6] * 4


def by_hand(network: WideResNet, x: Tensor, block: Block) -> Tensor:
    """The forward pass from the state dict alone: TorchSSL's flow of activations, or TensorFlow's."""
    p = dict(network.state_dict())

    def conv(x: Tensor, name: str, stride: int = 1, padding: int = 1) -> Tensor:
        return F.conv2d(x, p[f"{name}.weight"], p[f"{name}.bias"], stride, padding)

    def activated(x: Tensor, name: str) -> Tensor:
        normalized = F.batch_norm(
            x, None, None, p[f"{name}.weight"], p[f"{name}.bias"], training=True, momentum=0, eps=0.001
        )
        return F.leaky_relu(normalized, 0.1)

    x = conv(x, "stem")
    for i in range(12):
        at, first, stride = f"blocks.{i}", i % 4 == 0, 2 if i in (4, 8) else 1
        inner = activated(x, f"{at}.norm1")
        if first and i == 0:
            x = inner
        elif first and block == "torchssl":
            inner = x
        inner = conv(activated(conv(inner, f"{at}.conv1", stride), f"{at}.norm2"), f"{at}.conv2")
        x = (conv(x, f"{at}.shortcut", stride, padding=0) if first else x) + inner
    return F.adaptive_avg_pool2d(activated(x, "norm"), 1).flatten(1)


@pytest.mark.parametrize("block", ["torchssl", "correct"])
def test_forward_by_hand(block):
    torch.manual_seed(0)
    network = WideResNet(3, width=2, block=block).double()
    for norm in (m for m in network.modules() if isinstance(m, nn.BatchNorm2d)):
        nn.init.normal_(norm.weight, 1, 0.2)
        nn.init.normal_(norm.bias, 0, 0.2)
    x = torch.randn(4, 3, 16, 16, dtype=torch.float64)
    expected = by_hand(network, x, block)
    torch.testing.assert_close(network(x), expected)
    other = by_hand(network, x, "correct" if block == "torchssl" else "torchssl")
    assert (expected - other).abs().max() > 0.01  # the variants differ, so this test can tell them apart


@pytest.mark.parametrize("block", ["torchssl", "correct"])
def test_the_known_slip_leaves_two_batch_norms_untrained(block):
    torch.manual_seed(0)
    network = WideResNet(3, width=1, block=block)
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    network(torch.randn(4, 3, 8, 8)).sum().backward()
    untrained = {name for name, p in network.named_parameters() if p.grad is None}
    slip = {f"blocks.{i}.norm1.{part}" for i in (4, 8) for part in ("weight", "bias")}
    assert untrained == (slip if block == "torchssl" else set())
    moved = {name for name, buffer in network.named_buffers() if not torch.equal(buffer, before[name])}
    assert moved == set(before)  # their statistics move all the same


def test_first_weights():
    """Kaiming by fan-out with gain sqrt 2, biases as torch's, the same for the same seed."""
    torch.manual_seed(3)
    network = build_network("wrn_28_2", 3)
    torch.manual_seed(3)
    again = build_network("wrn_28_2", 3)
    assert all(torch.equal(a, b) for a, b in zip(network.parameters(), again.parameters()))
    conv = network.get_submodule("blocks.8.conv1")
    assert isinstance(conv, nn.Conv2d) and conv.bias is not None
    assert float(conv.weight.detach().std()) == pytest.approx((2 / (128 * 9)) ** 0.5, rel=0.02)
    assert 0 < conv.bias.detach().abs().max() <= (64 * 9) ** -0.5
