"""A function compiled, or left as it is where that fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

OPTIONS: dict[str, Any] = {
    "fallback_random": True,  # the numbers of torch's generator, as uncompiled code draws them
}
# A hash uses each of its steps twice. Fused far, steps are written out in exponential number, and compiling views takes
# many times as long; so interim results are kept sooner than where they are large.
VIEWS = OPTIONS | {"realize_opcount_threshold": 10}


class Compiled:
    """`function` compiled at its first call, for the shapes it is called with then."""

    def __init__(
        self, function: Callable[..., Any], say: Callable[[str], None], options: dict[str, Any] = OPTIONS
    ) -> None:
        self.plain = function
        self.say = say
        self.chosen: Callable[..., Any] = torch.compile(function, dynamic=False, options=options)
        self.worked = False

    def __call__(self, *inputs: Any) -> Any:
        if self.worked:
            return self.chosen(*inputs)
        from torch._dynamo.exc import TorchDynamoException

        try:
            found = self.chosen(*inputs)
        except TorchDynamoException as error:  # no C++ compiler on this machine, or code that torch cannot compile
            self.say(f"the step cannot be compiled and runs as it is: {_first_line(error)}")
            self.chosen = self.plain
            found = self.plain(*inputs)
        self.worked = True
        return found


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
