"""`npmatch bench uncertainty`: what T predictions of an image cost (spec §5.2), the paper's speed figure.

A neural process passes a batch through the network once and samples in its head; MC dropout passes it T times, one
after another (`mc_looped`) or as one batch T times as large (`mc_batched`). A classifier's single prediction
(`deterministic`) is the yardstick. Timed is all from images on the device to the entropy of the mean probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import product
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from npmatch.bench.timing import Marks, summary
from npmatch.build import build_model
from npmatch.config import Dropout, Linear, Net, NeuralProcess, Settings
from npmatch.functional.uncertainty import entropy, mean_probs
from npmatch.plan import environment
from npmatch.predictor import compact, to_predict
from npmatch.progress import Progress
from npmatch.types import Model

BATCH = 16
SIDE = 32
CLASSES = {"wrn_28_8": 100}  # CIFAR-100's network; the others predict the 10 of CIFAR-10
DROPOUT = 0.3

Method = Literal["np", "mc_looped", "mc_batched", "deterministic"]
HEADS: dict[Method, Dropout | Linear | NeuralProcess] = {
    "np": NeuralProcess(),
    "mc_looped": Dropout(dropout=DROPOUT),
    "mc_batched": Dropout(dropout=DROPOUT),
    "deterministic": Linear(),
}
RATIOS: dict[str, tuple[tuple[Method, int], tuple[Method, int]]] = {
    "np_10_over_deterministic": (("np", 10), ("deterministic", 1)),
    "np_100_over_np_1": (("np", 100), ("np", 1)),
    "mc_looped_10_over_np_10": (("mc_looped", 10), ("np", 10)),
    "mc_batched_10_over_np_10": (("mc_batched", 10), ("np", 10)),
}


class Case(NamedTuple):
    """One row of the result."""

    net: str
    method: Method
    captured: bool  # replayed as one CUDA graph
    num_samples: int  # T


def measure(
    nets: Sequence[str],
    samples: Sequence[int],
    *,
    warmup: int,
    repeats: int,
    device: torch.device,
    progress: Progress,
) -> dict[str, Any]:
    """Rows, their ratios, and the machine."""
    cases = [
        Case(net, method, captured, num_samples)
        for net, method, captured in product(nets, HEADS, [False, True] if device.type == "cuda" else [False])
        for num_samples in ((1,) if method == "deterministic" else samples)
    ]
    machine = _machine(device)
    rows = []
    with fixed_arithmetic(), torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        for done, case in enumerate(cases):
            progress.work("timing", done, len(cases))
            rows.append(
                {
                    **case._asdict(),
                    "batch_size": BATCH,
                    **summary(_milliseconds(case, device, warmup, repeats)),
                    "device": machine["device_name"],
                    "dropout": DROPOUT if case.method.startswith("mc_") else None,
                }
            )
        progress.work("timing", len(cases), len(cases))
    return {"rows": rows, "ratios": ratios(rows), "environment": machine}


def ratios(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the figure says, in numbers: for each network, eager and captured; None where a row is missing."""
    found = []
    for net, captured in dict.fromkeys((row["net"], row["captured"]) for row in rows):
        own = [row for row in rows if (row["net"], row["captured"]) == (net, captured)]
        ms = {(row["method"], row["num_samples"]): row["ms_median"] for row in own}
        parts = {name: (ms.get(above), ms.get(below)) for name, (above, below) in RATIOS.items()}
        quotients = {name: above / below if above and below else None for name, (above, below) in parts.items()}
        found.append({"net": net, "captured": captured, **quotients})
    return found


def build(net: str, method: Method, device: torch.device) -> Model:
    """An untrained model, as one that was loaded to predict."""
    settings = Settings(net=Net(name=net), head=HEADS[method])
    model = build_model(settings, num_classes=CLASSES.get(net, 10), channels=3)
    return to_predict(compact(model).to(device))


def uncertainty(model: Model, method: Method, images: Tensor, num_samples: int) -> Tensor:
    """Entropy of the mean of T predictions -> (N,) nats."""
    if method == "mc_batched":
        return entropy(mean_probs(batched_sample(model, images, num_samples)))
    return entropy(mean_probs(model.sample(images, num_samples)))


def batched_sample(model: Model, images: Tensor, num_samples: int) -> Tensor:
    """MC dropout's logits (T, N, K) in one pass: every image stands in the batch T times, with a mask for each."""
    once = model.sample(images.repeat(num_samples, 1, 1, 1), 1)
    return once[0].unflatten(0, (num_samples, len(images)))


def _milliseconds(case: Case, device: torch.device, warmup: int, repeats: int) -> np.ndarray:
    model = build(case.net, case.method, device)
    images = torch.randn(BATCH, 3, SIDE, SIDE, device=device)

    def work() -> Tensor:
        return uncertainty(model, case.method, images, case.num_samples)

    if not case.captured:
        return timed(work, device, warmup, repeats)
    replay = as_graph(work)
    if case.method != "deterministic" and torch.equal(replay().clone(), replay()):
        raise RuntimeError(f"{case.method}: a replayed graph repeats its random numbers")
    return timed(replay, device, warmup, repeats)


def as_graph(work: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The same work as one CUDA graph; its result is overwritten by each replay. Chance comes from torch's default
    generator, which the graph knows: a replay goes on with its numbers."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # what is set up once (kernels chosen, handles made) must not be captured
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = work()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


def timed(work: Callable[[], Tensor], device: torch.device, warmup: int, repeats: int) -> np.ndarray:
    """Milliseconds of single runs, each begun on an idle device, after some that do not count."""
    found = []
    for _ in range(warmup + repeats):
        marks = Marks(device)
        marks.note()
        result = work()
        if not marks.on_gpu:
            result.cpu()  # Apple's MPS is not done before
        marks.note()
        found.append(marks.times()[0])
    return np.array(found[warmup:])


@contextmanager
def fixed_arithmetic() -> Iterator[None]:
    """float32 all through, without TF32; the fastest convolutions for these shapes; nothing kept for gradients."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    flags = torch.backends.cudnn.flags(enabled=True, benchmark=True, deterministic=False, allow_tf32=False)
    try:
        with flags, torch.inference_mode():
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def _machine(device: torch.device) -> dict[str, Any]:
    cuda = {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()} if device.type == "cuda" else {}
    return environment(device) | cuda


def lines(found: dict[str, Any]) -> Iterator[str]:
    """The result for people: a table for each network, eager and captured."""
    for ratio in found["ratios"]:
        rows = [row for row in found["rows"] if (row["net"], row["captured"]) == (ratio["net"], ratio["captured"])]
        how = "one CUDA graph" if ratio["captured"] else "eager"
        yield f"{ratio['net']}, {how}: ms for {BATCH} images (IQR), on {rows[0]['device']}"
        yield f"{'T':>5}" + "".join(f"{method:>22}" for method in HEADS)
        for count in sorted({row["num_samples"] for row in rows}):
            told = {r["method"]: f"{r['ms_median']:.3f} ({r['ms_iqr']:.3f})" for r in rows if r["num_samples"] == count}
            yield f"{count:5}" + "".join(f"{told.get(method, ''):>22}" for method in HEADS)
        yield from (f"{name} {ratio[name]:.2f}" for name in RATIOS if ratio[name] is not None)
        yield ""
