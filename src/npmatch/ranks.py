"""Several processes at one run, as torchrun starts them. Of n ranks each has an nth of every batch and all of the rest.

A rank makes the views of its own images and passes them through the network. Then features are gathered, so that head,
thresholds, banks and loss see the whole batch, alike on every rank, and no method or head knows of ranks.

One process is rank 0 of 1: what it passes to these functions comes back as it is.
"""

from __future__ import annotations

import itertools
import json
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist

from npmatch.errors import Diverged, RankLost, Stopped, UserError

Given = ParamSpec("Given")
Value = TypeVar("Value", bound="str | int | bool | None")

TIMEOUT = timedelta(minutes=10)  # for a machine that is gone without a word; a process that ends is noticed at once

_rank, _size = 0, 1
_groups = itertools.count()
_seed, _times = 0, 0  # of the last `own_chance`, and how often it was entered since that seed was set


def rank() -> int:
    """Which of the processes this is. Rank 0 writes and speaks."""
    return _rank


def size() -> int:
    """How many processes there are."""
    return _size


def by_rank_0(write: Callable[Given, None]) -> Callable[Given, None]:
    """The same function, which does nothing on other ranks."""

    @wraps(write)
    def maybe(*args: Given.args, **kwargs: Given.kwargs) -> None:
        if _rank == 0:
            write(*args, **kwargs)

    return maybe


def local_rank() -> int:
    """Which of the processes on this machine: the number of its GPU."""
    return int(os.environ.get("LOCAL_RANK", "0"))


@contextmanager
def joined() -> Iterator[None]:
    """While inside, the processes that torchrun started are ranks of one run. A program's own group is used as it is.

    They leave together. If one has to leave with an error the others leave too, in silence and with its exit code.
    """
    global _rank, _size
    if _size > 1 or "RANK" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1":
        yield
        agreed(None)  # what rank 0 has written is there for all
        return
    store = None if dist.is_initialized() else _begin()
    _rank, _size = dist.get_rank(), dist.get_world_size()
    try:
        with warnings.catch_warnings():
            if _rank:
                warnings.simplefilter("ignore")  # rank 0 says it
            yield
            agreed(None)
    except BaseException as error:  # the group is left to the process's end: destroying it could wait for the others
        first, code = _first_to_fail(store, error)
        time.sleep(0.1)  # in which gloo's threads let go of their last tensors: in an interpreter that ends they abort
        if first != _rank:
            raise SystemExit(code) from error
        raise
    else:
        if store is not None:
            dist.destroy_process_group()
    finally:
        _rank, _size = 0, 1


def _begin() -> dist.Store:
    """Form the process group -> where its processes leave each other words, also when one of them has ended."""
    import torch.distributed.nn.functional  # imported later, its default arguments would keep the group alive

    kept, number, count = next(iter(dist.rendezvous("env://", timeout=TIMEOUT)))
    # The store outlives a group, and the processes that torchrun --max-restarts replaces: theirs are other words.
    store = dist.PrefixStore(f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{next(_groups)}", kept)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=store, rank=number, world_size=count, timeout=TIMEOUT)
    return store


def _first_to_fail(store: dist.Store | None, error: BaseException) -> tuple[int, int]:
    """The rank that first had to leave with an error, and its exit code: this one's if there was none before."""
    own = (_rank, error.code if isinstance(error, UserError | Diverged | Stopped | RankLost) else 1)
    try:
        word = json.dumps(own) if store is None else store.compare_set("npmatch/failed", "", json.dumps(own))
    except RuntimeError:  # the store went with the process that kept it
        return own
    first, code = json.loads(word)
    return first, code


@contextmanager
def _others() -> Iterator[None]:
    """Tells a failure to reach the other ranks from faults of ours."""
    try:
        yield
    except RuntimeError as error:
        raise RankLost("another rank has ended, or does not answer") from error


def total(x: Tensor) -> Tensor:
    """The sum over all ranks, in the place of x."""
    if _size > 1:
        with _others():
            dist.all_reduce(x)
    return x


def gather(x: Tensor) -> Tensor:
    """What all ranks hold, in their order: (N, …) -> (ranks · N, …).

    All ranks compute the same loss from it. So the gradient of a rank's own part is whole, not one to be summed.
    """
    if _size == 1:
        return x
    own = x.contiguous()
    parts = [torch.empty_like(own) for _ in range(_size)]
    with _others():
        dist.all_gather(parts, own.detach())
    parts[_rank] = own
    return torch.cat(parts)


def share(x: Tensor) -> Tensor:
    """This rank's part of what all ranks have, by which gather would make it whole again."""
    return x.chunk(_size)[_rank]


def agreed(value: Value) -> Value:
    """Rank 0's value, on every rank, which waits for it."""
    if _size == 1:
        return value
    text = torch.tensor(list(json.dumps(value).encode()), dtype=torch.uint8)
    length = torch.tensor(len(text))
    with _others():
        dist.broadcast(length, 0)
        text = text if _rank == 0 else text.new_empty(int(length))
        dist.broadcast(text, 0)
    return json.loads(bytes(text.tolist()))


def largest(number: int) -> int:
    """The largest that a rank has."""
    if _size == 1:
        return number
    found = torch.tensor(number)
    with _others():
        dist.all_reduce(found, dist.ReduceOp.MAX)
    return int(found)


def sum_gradients(own: Iterable[nn.Module], same: Iterable[nn.Module]) -> None:
    """Make all gradients those of the whole batch, alike on every rank to the bit.

    Of `own` each rank has the gradient that its images give: their sum counts. Of `same` each rank has the whole one:
    rank 0's counts, so that ranks cannot drift apart.
    """
    if _size == 1:
        return
    repeated = [p.grad for part in same for p in part.parameters() if p.grad is not None]
    if _rank and repeated:
        torch._foreach_zero_(repeated)
    grads = [p.grad for part in own for p in part.parameters() if p.grad is not None] + repeated
    whole = total(torch.cat([grad.flatten() for grad in grads])).split([grad.numel() for grad in grads])
    torch._foreach_copy_(grads, [part.view(grad.shape) for grad, part in zip(grads, whole)])


def own_chance(device: torch.device) -> AbstractContextManager[None]:
    """While inside, each rank draws other numbers (dropout of its own images), and others each time that it is entered
    within a step; after it all draw as if it had not been."""
    return nullcontext() if _size == 1 else _own_chance(device)


@contextmanager
def _own_chance(device: torch.device) -> Iterator[None]:
    global _seed, _times
    seed = torch.initial_seed()  # another one in each step
    _seed, _times = seed, _times + 1 if seed == _seed else 1
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed + _times * _size + _rank)
        yield
