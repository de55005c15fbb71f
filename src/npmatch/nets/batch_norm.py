"""Batch norm's statistics, from outside any network."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from npmatch import ranks
from npmatch.errors import UserError
from npmatch.functional.precision import at_least_float32


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


def running_batch_norm(module: nn.Module) -> AbstractContextManager[None]:
    """A while in which passes use the running statistics, as predictions do, in training mode too."""
    return _batch_norm_in(module, training=False)


def training_batch_norm(module: nn.Module) -> AbstractContextManager[None]:
    """A while in which passes use their own batch's statistics, in evaluation mode too."""
    return _batch_norm_in(module, training=True)


@contextmanager
def _batch_norm_in(module: nn.Module, *, training: bool) -> Iterator[None]:
    norms = _norms(module)
    were = [norm.training for norm in norms]
    for norm in norms:
        norm.training = training
    try:
        yield
    finally:
        for norm, was in zip(norms, were):
            norm.training = was


def _norms(module: nn.Module) -> list[_BatchNorm]:
    return [part for part in module.modules() if isinstance(part, _BatchNorm)]


def join_batch_norm(module: nn.Module) -> None:
    """Make training-mode passes use the statistics of the images of all ranks. Names and tensors stay."""
    for norm in _norms(module):
        if type(norm).forward is not _BatchNorm.forward:
            kind = type(norm).__name__
            raise UserError(f"net.name: this network has batch norm of its own kind ({kind}): train it in one process")
        norm.__class__ = _Joined


class _Joined(_BatchNorm):
    """Batch norm over the images of all ranks, of which each has as many."""

    def _check_input_dim(self, input: Tensor) -> None: ...

    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        with torch.no_grad():
            own = torch.var_mean(at_least_float32(input), _but_channels(input), correction=0)
            variances, means = ranks.gather(torch.stack(own)[None]).unbind(1)
            mean = means.mean(0)
            variance = variances.mean(0) + means.var(0, correction=0)
            if self.track_running_stats:
                self._follow(mean, variance, ranks.size() * input.numel() // input.shape[1])
        affine = (self.weight, self.bias) if self.affine else (torch.ones_like(mean), torch.zeros_like(mean))
        return _Normalized.apply(input, *affine, mean, (variance + self.eps).rsqrt())

    def _follow(self, mean: Tensor, variance: Tensor, count: int) -> None:
        """The running statistics, as torch has them: the variance is unbiased."""
        assert self.num_batches_tracked is not None and self.running_mean is not None and self.running_var is not None
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_((variance * (count / (count - 1))).to(self.running_var.dtype), share)


class _Normalized(torch.autograd.Function):
    """(x - mean) / std * weight + bias, where mean and std depend on x, on that of the other ranks too."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight, mean, scale)
        mean, scale, weight, bias = (_beside_channels(part, x) for part in (mean, scale, weight, bias))
        return ((at_least_float32(x) - mean) * (scale * weight) + bias).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, scale = ctx.saved_tensors
        dims, grad = _but_channels(x), at_least_float32(grads[0])
        normal = (at_least_float32(x) - _beside_channels(mean, x)) * _beside_channels(scale, x)
        own = torch.stack([grad.sum(dims), (grad * normal).sum(dims)])
        whole = ranks.total(own.clone()) / (ranks.size() * x.numel() // x.shape[1])
        through_mean, through_scale = (_beside_channels(part, x) for part in whole)
        found = (grad - through_mean - normal * through_scale) * _beside_channels(scale * weight, x)
        return found.to(x.dtype), own[1].to(weight.dtype), own[0].to(weight.dtype), None, None


def _but_channels(x: Tensor) -> list[int]:
    return [dim for dim in range(x.ndim) if dim != 1]


def _beside_channels(values_C: Tensor, x: Tensor) -> Tensor:
    return values_C.view(-1, *[1] * (x.ndim - 2))
