"""Tensors and their description on disk: written whole or not at all, refused by name when damaged.

A checkpoint is a folder `step-00001234` that holds `state.safetensors` and `state.json`. It is written under a
`.tmp-` name and renamed when all of it is on the disk, so a folder with the final name was complete once, and what is
wrong with it now is damage. The JSON carries the SHA-256 of the tensor file (its header has the names, dtypes and
shapes) and one of its own content: safetensors by itself loads most flipped bits without a word. Nothing is pickled.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from npmatch import __version__
from npmatch.errors import UserError

FORMAT = 1


class Names(NamedTuple):
    """What the two files of a pair are called."""

    tensors: str
    description: str


class Checkpoint(NamedTuple):
    """What a run needs to go on from a step."""

    step: int
    tensors: dict[str, Tensor]  # on the CPU
    meta: dict[str, Any]


class Damaged(Exception):
    """A file that is not what was written: its path, and what is wrong with it."""


STATE = Names("state.safetensors", "state.json")


def save(folder: Path, step: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
    """Writes a checkpoint into `folder`, then removes all but it and the one before it.

    `meta` is what JSON can hold. A process that dies in here leaves the old state or the new one, whole.
    """
    for _ in saving(folder, step, tensors, meta):
        pass


def saving(folder: Path, step: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> Iterator[str]:
    """`save` in stages, named as they are done; between any two of them the process may die."""
    with writing(folder):
        folder.mkdir(exist_ok=True)  # no parents: a run folder deleted meanwhile is an error, not made anew
        sync_folder(folder.parent)
    place = folder / f"step-{step:08d}"
    yield from replacing(place, STATE, tensors, {"step": step, "meta": dict(meta)})
    with writing(folder):
        yield from _pruning(folder, step)


def load_newest(folder: Path) -> Checkpoint | None:
    """The newest good checkpoint; None if there never was one. After a kill, `clean` comes first.

    A damaged one is named in a warning and the one before it taken. If there are checkpoints and all are damaged,
    that is a UserError: a run never starts afresh over what it had.
    """
    problems: list[str] = []
    for place in _places(folder):
        try:
            checkpoint = _load(place)
        except Damaged as error:
            problems.append(str(error))
            continue
        for problem in problems:
            warnings.warn(f"{problem}; going back to step {checkpoint.step}", stacklevel=2)
        return checkpoint
    if problems:
        raise UserError("\n".join([f"{folder} has no checkpoint that can be read; pass another --out:", *problems]))
    return None


def newest_step(folder: Path) -> int:
    """The step of the newest checkpoint, which may be damaged; 0 if there is none."""
    return max((_step(place) for place in _places(folder)), default=0)


def read_pair(folder: Path, names: Names) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The content and the tensors that `replacing` wrote, verified; Damaged names the file that is not as written."""
    description, weights = folder / names.description, folder / names.tensors
    content = _unseal(description)
    data = _read(weights)
    if hashlib.sha256(data).hexdigest() != content.get("sha256"):
        raise Damaged(f"{weights} is not the file that {names.description} describes: it was cut, altered or swapped")
    try:
        return content, safetensors.torch.load(data)
    except (SafetensorError, KeyError) as error:  # KeyError: a dtype this torch does not have
        raise Damaged(f"{weights} cannot be read: {error}") from error


def replacing(folder: Path, names: Names, tensors: Mapping[str, Tensor], content: Mapping[str, Any]) -> Iterator[str]:
    """Writes a folder of tensors and JSON in the place of whatever stood there, in stages as `saving` does."""
    # A clone for each: safetensors wants contiguous tensors and refuses two that share memory.
    own = {name: t.detach().cpu().clone(memory_format=torch.contiguous_format) for name, t in tensors.items()}
    data = safetensors.torch.save(own)  # no metadata, whose order in the file is by chance
    versions = {"format": FORMAT, "npmatch": __version__, "torch": torch.__version__}
    description = _seal({**versions, **content, "sha256": hashlib.sha256(data).hexdigest()})
    temporary, aside = folder.with_name(f".tmp-{folder.name}"), folder.with_name(f".old-{folder.name}")
    with writing(folder, len(data) + len(description)):
        clean(folder.parent)
        try:
            temporary.mkdir()
            for name, part in zip(names, (data, description)):
                yield from _write_synced(temporary / name, part)
            sync_folder(temporary)
            yield "names on disk"
            if folder.exists():  # no system renames a folder over a full one; `clean` takes this step back
                os.replace(folder, aside)
                yield "old folder aside"
            os.replace(temporary, folder)
            yield "renamed"
            sync_folder(folder.parent)
            yield "rename on disk"
        finally:  # the old folder goes, or comes back
            clean(folder.parent)


def write_file(path: Path, data: bytes) -> None:
    """Writes one file so that its name holds either the old bytes or the new ones, never a part."""
    temporary = path.with_name(f".tmp-{path.name}")
    with writing(path, len(data)):
        try:
            for _ in _write_synced(temporary, data):
                pass
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


def clean(folder: Path) -> None:
    """Takes away what a killed process left half done in `folder`; puts a folder back that was only set aside."""
    for temporary in list(folder.glob(".tmp-*")):
        _remove(temporary)
    for aside in list(folder.glob(".old-*")):
        place = folder / aside.name.removeprefix(".old-")
        if place.exists():
            _remove(aside)
        else:
            os.replace(aside, place)


@contextmanager
def writing(path: Path, size: int | None = None) -> Iterator[None]:
    """Turns a refusal of the disk into a UserError with the path and the bytes needed."""
    try:
        yield
    except OSError as error:
        needed = f" ({size:,} bytes needed)" if size is not None else ""
        cure = "make it writable or pass another --out"
        if error.errno in (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)):
            cure = "make room, then go on with --resume"
        raise UserError(f"cannot write {path}{needed}: {error.strerror}; {cure}") from error


def sync_folder(folder: Path) -> None:
    """Puts the names in a folder on the disk. Windows has no call for that and needs none."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _write_synced(path: Path, data: bytes) -> Iterator[str]:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        yield f"{path.name} written"
        os.fsync(file.fileno())
    yield f"{path.name} on disk"


def _remove(place: Path) -> None:
    """Removes a file or folder, under a name nobody reads: a folder is half gone if the process dies meanwhile."""
    gone = place if place.name.startswith(".tmp-") else place.with_name(f".tmp-{place.name}")
    os.replace(place, gone)
    if gone.is_dir():
        shutil.rmtree(gone)
    else:
        gone.unlink()


def _pruning(folder: Path, step: int) -> Iterator[str]:
    """Keeps `step` and the last one before it. A later one was damaged, or the run would have gone on from there."""
    numbered = [place for place in _places(folder) if _step(place) >= 0]
    earlier = [place for place in numbered if _step(place) < step]
    for place in numbered:
        if _step(place) != step and place not in earlier[:1]:
            _remove(place)
            yield f"{place.name} pruned"


def _places(folder: Path) -> list[Path]:
    """All that stands where checkpoints do, newest first; strangers last, so that they are named and not taken."""
    if not folder.is_dir():
        return []
    return sorted((p for p in folder.iterdir() if not p.name.startswith(".")), key=lambda p: (_step(p), p.name))[::-1]


def _step(place: Path) -> int:
    found = re.fullmatch(r"step-(\d{8,})", place.name, re.ASCII)
    return int(found[1]) if found else -1


def _load(place: Path) -> Checkpoint:
    if _step(place) < 0:
        raise Damaged(f"{place} is not a checkpoint of npmatch")
    content, tensors = read_pair(place, STATE)
    if content.get("step") != _step(place):
        raise Damaged(f"{place / STATE.description} is of step {content.get('step')}: it was moved from another folder")
    return Checkpoint(content["step"], tensors, content["meta"])


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Damaged(f"{path} cannot be read: {error.strerror}") from error


def _seal(content: Mapping[str, Any]) -> bytes:
    """JSON that ends with a digest of the rest."""
    body = json.dumps(content, indent=1, allow_nan=False)
    return json.dumps({**content, "seal": hashlib.sha256(body.encode()).hexdigest()}, indent=1).encode()


def _unseal(path: Path) -> dict[str, Any]:
    """The content under a seal. Compared as bytes: some flipped bits (1e-05, 1E-05) say the same and are damage too."""
    data = _read(path)
    try:
        sealed = json.loads(data)
        content = {key: value for key, value in sealed.items() if key != "seal"}
        whole = _seal(content) == data
    except (ValueError, AttributeError, RecursionError) as error:  # no JSON, no JSON object, a bomb of brackets
        raise Damaged(f"{path} is cut or is not a description written by npmatch") from error
    if content.get("format") != FORMAT:
        raise Damaged(f"{path} has format {content.get('format')}; npmatch {__version__} reads format {FORMAT}")
    if not whole:
        raise Damaged(f"{path} was altered: its content does not match its digest")
    return content
