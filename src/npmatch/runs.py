"""The run folder: all that a training leaves behind, and all that anything after it reads.

config.toml    settings, versions, data     checkpoint/   the state at the last two saves
split.json     indices, drawn once          model/        what predicts
metrics.jsonl  one object a line            result.json   what the run came to
"""

from __future__ import annotations

import json
import math
import os
import re
import socket
import sys
import tomllib
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any

from torch import Tensor

from npmatch import checkpoint, ranks, toml
from npmatch.checkpoint import Checkpoint, Damaged, Names, read_pair, replacing, write_file, writing
from npmatch.config import flat
from npmatch.errors import UserError

SPLIT = ("labeled", "unlabeled", "val", "test")
MODEL = Names("weights.safetensors", "model.json")
LOCK = ".lock"


def default_path(data: str, algorithm: str, labels: int | str, seed: int) -> Path:
    """The first free one of `runs/<data>-<algorithm>-<labels>-s<seed>`, then with -2, -3 and so on.

    Of a path to data or to a file of labels only the last part is used.
    """
    words = [re.sub(r"[^\w.-]+", "_", Path(str(word)).resolve().name)[:60] for word in (data, algorithm, labels)]
    first = Path("runs") / f"{'-'.join(words)}-s{seed}"
    path, number = first, 2
    while path.exists():
        path, number = first.with_name(f"{first.name}-{number}"), number + 1
    return path


def differences(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Where two configurations disagree: (dotted key, stored value, wanted value), None for an absent one.

    Sections that `wanted` does not have (versions, data) are not compared.
    """
    as_stored = tomllib.loads(toml.dumps(wanted))  # without None, with tuples as lists
    before, after = flat({key: stored.get(key) for key in wanted}), flat(as_stored)
    return [
        (key, before.get(key), after.get(key))
        for key in [*after, *(key for key in before if key not in after)]
        if before.get(key) != after.get(key)
    ]


def read_model(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The weights and the description in a `model/`, wherever it was copied."""
    try:
        content, tensors = read_pair(folder, MODEL)
        if "description" not in content:
            raise Damaged(f"{folder / MODEL.description} describes no model")
    except Damaged as error:
        raise UserError(f"{error}; copy the folder again, or train it again") from error
    return tensors, content["description"]


class RunFolder:
    """The files of one run. `RunFolder(path)` reads a run; `RunFolder.create` is for the one process that writes it.

    Of several ranks that is rank 0: what the others would write is left out.
    """

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._config = self.path / "config.toml"
        self._split = self.path / "split.json"
        self._metrics = self.path / "metrics.jsonl"
        self._checkpoints = self.path / "checkpoint"
        self._model = self.path / "model"
        self._result = self.path / "result.json"
        self._lock: int | None = None

    @classmethod
    def create(cls, path: Path, *, resume: bool) -> RunFolder:
        """Makes the folder, or with `resume` enters an old one, and locks it until `close` or the process's end."""
        run = cls(path)
        run._enter(resume=resume)
        ranks.agreed(None)  # it is there
        return run

    @ranks.by_rank_0
    def _enter(self, *, resume: bool) -> None:
        self.refuse_taken(self.path, resume=resume)
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(self.path / LOCK)
            checkpoint.clean(self.path)
            checkpoint.clean(self._checkpoints)

    @staticmethod
    def refuse_taken(path: Path, *, resume: bool) -> None:
        """Complains where `create` would, and touches nothing."""
        with writing(path):
            if path.exists() and not path.is_dir():
                raise UserError(f"{path} is a file; pass another --out")
            names = {entry.name for entry in path.iterdir()} if path.exists() else set()
        if names and not resume:
            raise UserError(f"{path} exists; pass --resume to go on with it, or another --out")
        if names and not names & {"config.toml", LOCK}:
            raise UserError(f"{path} is not the folder of a run; pass another --out")
        above = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
        if not os.access(above, os.W_OK):
            raise UserError(f"cannot write {path}: {above} is not writable; pass another --out")

    def close(self) -> None:
        """Lets another process write the run."""
        if self._lock in _locks:
            _locks.remove(self._lock)
            os.close(self._lock)
        self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @ranks.by_rank_0
    def write_config(self, config: Mapping[str, Any]) -> None:
        """Stores the settings with the sections that go with them (versions, threads, data)."""
        write_file(self._config, toml.dumps(config).encode())

    def read_config(self) -> dict[str, Any]:
        """The stored configuration; a folder without one is not a run."""
        if not self._config.is_file():
            raise UserError(f"{self.path} is not the folder of a run: it has no config.toml")
        try:
            return tomllib.loads(_text(self._config))
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"{self._config} is damaged: {error}") from error

    @ranks.by_rank_0
    def write_split(self, split: Mapping[str, Iterable[int]]) -> None:
        """Stores, once, which indices of the data source are labeled, unlabeled, val and test."""
        if self._split.exists():
            raise RuntimeError(f"{self._split} exists: the split of a run is drawn once")
        _write_json(self._split, {part: [int(index) for index in split[part]] for part in SPLIT}, indent=None)

    def read_split(self) -> dict[str, list[int]] | None:
        """The split this run was given, None before it was: a resumed run takes it and never draws again."""
        split = _read_json(self._split)
        if split is None:
            return None
        if set(split) != set(SPLIT) or not all(_are_indices(part) for part in split.values()):
            raise UserError(f"{self._split} is damaged: it has to hold lists of indices named {', '.join(SPLIT)}")
        return split

    @ranks.by_rank_0
    def log(self, values: Mapping[str, Any]) -> None:
        """Appends one line to the metrics. `values` has a `step`; a number that is not finite is written as null."""
        line = json.dumps(_finite({"step": values["step"], **values}), allow_nan=False) + "\n"
        with writing(self._metrics, len(line)), open(self._metrics, "a", encoding="utf-8", newline="\n") as file:
            file.write(line)

    def read_metrics(self) -> list[dict[str, Any]]:
        """All lines so far, without a last one that is only partly written."""
        if not self._metrics.is_file():
            return []
        lines = _text(self._metrics).split("\n")
        rows: list[dict[str, Any]] = []
        for number, line in enumerate(lines[:-1], start=1):
            try:
                rows.append(_metrics_row(line))
            except ValueError as error:
                if number == len(lines) - 1:  # a power cut can leave the end of a file as zeros
                    break
                raise UserError(f"{self._metrics} line {number} is damaged: {error}; remove that line") from error
        return rows

    @ranks.by_rank_0
    def cut_metrics(self, step: int) -> None:
        """Keeps what was logged up to `step`, the checkpoint's, so that a resumed run logs no step twice."""
        if self._metrics.is_file():
            kept = [json.dumps(row) + "\n" for row in self.read_metrics() if row["step"] <= step]
            write_file(self._metrics, "".join(kept).encode())

    @ranks.by_rank_0
    def save_checkpoint(self, step: int, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Stores the state after `step` steps."""
        checkpoint.save(self._checkpoints, step, tensors, meta)

    def saved_step(self) -> int:
        """The step that `load_checkpoint` would go on from, if it is not damaged."""
        return checkpoint.newest_step(self._checkpoints)

    def load_checkpoint(self) -> Checkpoint | None:
        """The state to go on from, None for a start at step 0."""
        return checkpoint.load_newest(self._checkpoints)

    @ranks.by_rank_0
    def save_model(self, tensors: Mapping[str, Tensor], description: Mapping[str, Any]) -> None:
        """Stores what predicts: weights and the description from which its modules are built."""
        for _ in replacing(self._model, MODEL, tensors, {"description": dict(description)}):
            pass

    def load_model(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The weights, on the CPU, and their description."""
        if not self._model.is_dir():
            raise UserError(f"{self.path} has no model yet; train it to the end with --resume")
        return read_model(self._model)

    @ranks.by_rank_0
    def write_result(self, result: Mapping[str, Any]) -> None:
        """Stores what the run came to, which is also the sign that it is finished."""
        _write_json(self._result, _finite(result), indent=2)

    def read_result(self) -> dict[str, Any] | None:
        """The stored result, None while the run is not finished."""
        return _read_json(self._result)


# The lock is the operating system's, so it is gone with the process however that ends. Worker processes that are
# forked off would hold it on after a kill; they close their copies.
_locks: set[int] = set()

if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: int) -> None:
        os.lseek(file, 1 << 30, os.SEEK_SET)  # Windows lets nobody read a locked byte: lock one beyond the text
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        os.lseek(file, 0, os.SEEK_SET)
else:
    import fcntl

    def _try_lock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _forget_locks() -> None:
        for file in _locks:
            os.close(file)
        _locks.clear()

    os.register_at_fork(after_in_child=_forget_locks)


def _lock(path: Path) -> int:
    """The open file that is the lock of a run; if another process has it, an error that names that process."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _try_lock(file)
    except (BlockingIOError, PermissionError) as error:  # PermissionError is how Windows says it
        os.close(file)
        holder = path.read_text(encoding="utf-8", errors="replace").strip() or "another process"
        raise UserError(f"{path.parent} is being written by {holder}; wait for it or pass another --out") from error
    os.ftruncate(file, 0)
    started = datetime.now().astimezone().isoformat(timespec="seconds")
    os.write(file, f"pid {os.getpid()} on {socket.gethostname()} since {started}\n".encode())
    _locks.add(file)
    return file


def _finite(value: Any) -> Any:
    """The same with None for NaN and infinities, which JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value


def _metrics_row(line: str) -> dict[str, Any]:
    row = json.loads(line)
    if not isinstance(row, dict) or not isinstance(row.get("step"), int):
        raise ValueError("no object with a step")
    return row


def _are_indices(part: Any) -> bool:
    return isinstance(part, list) and all(type(index) is int and index >= 0 for index in part)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def _write_json(path: Path, content: Any, indent: int | None) -> None:
    write_file(path, (json.dumps(content, indent=indent, allow_nan=False) + "\n").encode())


def _read_json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        content = json.loads(_text(path))
    except ValueError as error:
        raise UserError(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} is damaged: it holds no JSON object")
    return content
