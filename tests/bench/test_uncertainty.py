"""The speed figure: what is timed does the work it says, and the numbers come out as the contract has them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from npmatch.bench.uncertainty import (
    HEADS,
    Method,
    as_graph,
    batched_sample,
    build,
    fixed_arithmetic,
    ratios,
    timed,
    uncertainty,
)
from npmatch.functional import chance
from npmatch.heads.memory_bank import MemoryBank
from tests.pets import npmatch

CPU = torch.device("cpu")
SMALL = ("bench", "uncertainty", "--net", "tiny", "--samples", "3,1", "--repeats", "3", "--warmup", "1")
ROW = {"net", "method", "num_samples", "batch_size", "captured", "ms_median", "ms_iqr", "samples", "device", "dropout"}


def test_rows_ratios_and_a_figure_that_opens(tmp_path: Path) -> None:
    out = tmp_path / "new" / "speed"
    done = npmatch(*SMALL, "--device", "cpu", "--out", str(out), "--json")
    found = json.loads(done.out)
    assert (done.code, done.out.count("\n")) == (0, 1)
    assert found == json.loads((out / "uncertainty.json").read_text())
    assert all(set(row) == ROW for row in found["rows"])
    of = {(row["method"], row["num_samples"]): row for row in found["rows"]}
    assert set(of) == {(m, t) for m in ("np", "mc_looped", "mc_batched") for t in (1, 3)} | {("deterministic", 1)}
    for (method, _), row in of.items():
        assert (row["samples"], row["batch_size"], row["captured"]) == (3, 16, False)
        assert row["ms_median"] > 0 <= row["ms_iqr"] and (row["dropout"] == 0.3) == method.startswith("mc_")
    assert len(found["ratios"]) == 1 and {"torch", "device_name"} <= found["environment"].keys()
    with Image.open(out / "uncertainty.png") as picture:
        picture.load()
        assert min(picture.size) > 500 and len(np.unique(np.asarray(picture.convert("L")))) > 10
    assert ElementTree.parse(out / "uncertainty.svg").getroot().tag.endswith("svg")
    again = npmatch(*SMALL, "--out", str(out))
    assert again.code == 2 and "holds uncertainty." in again.err and "another folder" in again.err


def test_ratios_are_of_medians_and_none_where_a_row_is_missing() -> None:
    times = {("np", 1): 2.0, ("np", 10): 3.0, ("mc_looped", 10): 30.0, ("deterministic", 1): 1.5}
    rows = [
        {"net": net, "captured": captured, "method": method, "num_samples": t, "ms_median": ms * factor}
        for net, captured, factor in (("a", False, 1), ("a", True, 0.5), ("b", False, 2))
        for (method, t), ms in times.items()
        if not (net == "b" and method == "np")
    ]
    first, second, third = ratios(rows)
    assert (first["net"], first["captured"], second["captured"], third["net"]) == ("a", False, True, "b")
    assert (first["np_10_over_deterministic"], first["mc_looped_10_over_np_10"]) == (2.0, 10.0)
    assert first["np_100_over_np_1"] is None and third["mc_looped_10_over_np_10"] is None
    assert {k: v for k, v in first.items() if k != "captured"} == {k: v for k, v in second.items() if k != "captured"}


@pytest.mark.parametrize(("words", "says"), [(("--samples", "1,0"), "'1,0'"), (("--net", "vgg"), "'vgg'")])
def test_what_cannot_be_timed_is_named(words: tuple[str, str], says: str) -> None:
    done = npmatch(*SMALL, *words)
    assert done.code == 2 and says in done.err and done.err.count("\n") == 1


def test_without_matplotlib_the_numbers_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    done = npmatch(*SMALL, "--out", str(tmp_path / "speed"), "--json")
    assert done.code == 2 and "pip install 'npmatch[figures]'" in done.err
    assert json.loads((tmp_path / "speed/uncertainty.json").read_text()) == json.loads(done.out)


@pytest.mark.parametrize(
    ("method", "passed"), [("np", [16]), ("mc_looped", [16] * 7), ("mc_batched", [7 * 16]), ("deterministic", [16])]
)
def test_a_neural_process_passes_the_network_once_and_mc_dropout_t_times(method: Method, passed: list[int]) -> None:
    """How many images each pass of the backbone has."""
    model, found = build("tiny", method, CPU), []
    model.backbone.register_forward_hook(lambda module, given, out: found.append(len(given[0])))
    images = torch.randn(16, 3, 32, 32)
    with fixed_arithmetic():
        logits = batched_sample(model, images, 7) if method == "mc_batched" else model.sample(images, 7)
        assert found == passed and logits.shape == (1 if method == "deterministic" else 7, 16, 10)
        assert not any(module.training for module in model.modules())
        torch.manual_seed(3)
        entropies = uncertainty(model, method, images, 7)
        torch.manual_seed(3)
        logits = batched_sample(model, images, 7) if method == "mc_batched" else model.sample(images, 7)
    mean = logits.double().softmax(-1).mean(0)
    torch.testing.assert_close(entropies.double(), -(mean * mean.log()).sum(-1), rtol=0, atol=1e-5)
    assert all(bank.size == 1 for bank in model.modules() if isinstance(bank, MemoryBank)), "as a loaded model's"


class FixedDropout(nn.Dropout):
    """The mask of an image at its t-th pass, whether that is in the t-th batch or in the t-th part of one."""

    def __init__(self, p: float, number: int, images: int) -> None:
        super().__init__(p)
        self.number, self.images, self.passes = number, images, 0

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return input
        first, self.passes = self.passes, self.passes + len(input) // self.images
        masks = [self.mask(t, input[: self.images]) for t in range(first, self.passes)]
        return input * torch.cat(masks) / (1 - self.p)

    def mask(self, t: int, like: Tensor) -> Tensor:
        draws = chance.uniform(chance.key(self.number, t, 0), torch.arange(like.numel()), 1)
        return (draws >= self.p).view_as(like).to(like.dtype)


def test_one_large_pass_is_t_passes_where_the_masks_are_the_same() -> None:
    model = build("wrn_28_2", "mc_looped", CPU).double()
    dropouts = [(m, name) for m in model.modules() for name, child in m.named_children() if type(child) is nn.Dropout]
    fixed = [FixedDropout(0.3, number, images=2) for number in range(len(dropouts))]
    for (parent, name), module in zip(dropouts, fixed):
        setattr(parent, name, module.eval())
    images = torch.randn(2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        looped = model.sample(images, 3)
        for module in fixed:
            module.passes = 0
        batched = batched_sample(model, images, 3)
    assert len(fixed) >= 12 and all(module.passes == 3 for module in fixed)
    assert (looped[0] - looped[1]).abs().max() > 1e-3, "the masks matter"
    torch.testing.assert_close(batched, looped, rtol=1e-10, atol=1e-12)


def test_arithmetic_is_the_protocols_and_is_put_back() -> None:
    def settings() -> tuple[object, ...]:
        cudnn = torch.backends.cudnn
        return (
            torch.get_float32_matmul_precision(),
            cudnn.allow_tf32,
            cudnn.benchmark,
            torch.is_inference_mode_enabled(),
        )

    before = settings()
    with fixed_arithmetic():
        assert settings() == ("highest", False, True, True)
    assert settings() == before


def test_runs_are_timed_one_by_one_and_the_first_do_not_count() -> None:
    calls: list[int] = []

    def work() -> Tensor:
        calls.append(1)
        return torch.zeros(1)

    assert len(timed(work, CPU, warmup=2, repeats=5)) == 5 and len(calls) == 7


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="captures a CUDA graph")
@pytest.mark.parametrize("method", list(HEADS))
def test_a_replay_has_fresh_chance_and_the_eager_numbers(method: Method) -> None:
    device = torch.device("cuda")
    model, images = build("tiny", method, device), torch.randn(16, 3, 32, 32, device=device)
    with fixed_arithmetic():
        replay = as_graph(lambda: uncertainty(model, method, images, 5))
        found = [replay().clone() for _ in range(200)]
        eager = torch.stack([uncertainty(model, method, images, 5) for _ in range(200)])
    assert torch.equal(found[0], found[1]) == (method == "deterministic")
    error = 6 * eager.std(0) / 200**0.5 + 1e-5
    assert ((torch.stack(found).mean(0) - eager.mean(0)).abs() < error).all()
