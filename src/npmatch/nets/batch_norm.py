"""Batch norm's statistics, from outside any network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def set_batch_norm_momentum(module: nn.Module, momentum: float) -> None:
    """The share of a new batch in the running statistics (torch's convention: TensorFlow's is 1 minus this)."""
    for norm in _norms(module):
        norm.momentum = momentum


@contextmanager
def frozen_batch_norm(module: nn.Module) -> Iterator[None]:
    """A while in which training-mode passes use their own batch's statistics and leave no trace in the running ones.

    The running buffers are not touched at all, rather than put back: writing to them between a pass and its backward
    would make autograd refuse the earlier pass. Not for passes in evaluation mode, which need them.
    """
    norms = [norm for norm in _norms(module) if norm.track_running_stats]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True


def _norms(module: nn.Module) -> list[_BatchNorm]:
    return [part for part in module.modules() if isinstance(part, _BatchNorm)]
