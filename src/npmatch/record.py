"""A function of the device's tensors recorded as one CUDA graph, so that the host starts a step in microseconds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

WARM_UP = 3  # calls before the recording: they choose kernels, and make what lasts (gradients, the optimizer's state)


class Recorded:
    """`function(*inputs)`, which returns nothing and works in place, run as it is a few times and replayed ever after.

    Replays read what stands in memory at the time: the step, the learning rate, the weights. Random numbers come from
    torch's generator as it is seeded then, so they are those of the function itself. A function that waits for the
    device or has shapes that depend on data cannot be recorded: it runs as it is, and `say` is told why.
    """

    def __init__(self, function: Callable[..., None], say: Callable[[str], None]) -> None:
        self.function = function
        self.say = say
        self.calls = 0
        self.inputs: tuple[Tensor, ...] = ()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.side = torch.cuda.Stream()

    def __call__(self, *inputs: Tensor) -> None:
        self.calls += 1
        if self.calls == WARM_UP + 1:
            self._record(inputs)
        if self.graph is None:
            self._beside(inputs)
            return
        for kept, given in zip(self.inputs, inputs):
            kept.copy_(given, non_blocking=True)
        self.graph.replay()

    def _beside(self, inputs: tuple[Tensor, ...]) -> None:
        """On a stream of its own, as a recording will be: memory and autograd's streams are then the same."""
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            self.function(*inputs)
        torch.cuda.current_stream().wait_stream(self.side)

    def _record(self, inputs: tuple[Tensor, ...]) -> None:
        self.inputs = tuple(given.clone() for given in inputs)
        graph = torch.cuda.CUDAGraph()
        try:
            # Thread by thread: a worker that pins memory meanwhile does not disturb.
            with torch.cuda.graph(graph, stream=self.side, capture_error_mode="thread_local"):
                self.function(*self.inputs)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.inputs = ()
            why = str(error).splitlines()[0]
            self.say(f"the step cannot be recorded as one CUDA graph and runs kernel by kernel: {why}")
        else:
            self.graph = graph
