"""Whatever a person has, a name, a folder, a file or Python objects -> `Source`."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npmatch.data.arrays import from_arrays, read_npz
from npmatch.data.builtin import BUILTIN, open_builtin
from npmatch.data.decode import Resize
from npmatch.data.folder import read_flat_folder, read_folder
from npmatch.data.listing import Storing, load
from npmatch.data.manifest import Frame, read_frame, read_manifest
from npmatch.data.source import Files, Progress, Source
from npmatch.errors import UserError

__all__ = ["BUILTIN", "Files", "Source", "default_data_dir", "open_source"]

MANIFESTS = (".csv", ".tsv", ".txt", ".parquet")


def open_source(
    data: str | os.PathLike[str] | tuple[Any, Any] | Mapping[str, Any] | Frame,
    *,
    labels_file: str | os.PathLike[str] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    image_size: int | None = None,
    kept_size: int | None = None,
    resize: Resize = "crop",
    channels: int | None = None,
    skip_unreadable: bool = False,
    download: bool = False,
    allow_outside: bool = False,
    group_column: str | None = None,
    max_memory: int = 2 * 2**30,
    progress: Progress | None = None,
) -> Source:
    """Open a data set.

    `data` is a built-in name, a folder (see data.folder), a CSV or Parquet manifest or a data frame (data.manifest),
    an .npz file or a mapping of such arrays (data.arrays), or a pair (images, labels). A built-in name wins over a
    folder of that name: write ./digits for the folder. `data_dir` is where built-in data lie and where the paths of a
    data frame start. Image files are kept in memory up to `max_memory` bytes of pixels, else decoded on demand. A
    trained model says with `kept_size` how large its own images were kept.
    """
    storing = Storing(
        image_size=image_size,
        kept_size=kept_size,
        resize=resize,
        channels=channels,
        skip_unreadable=skip_unreadable,
        max_memory=max_memory,
        progress=progress,
    )
    if isinstance(data, tuple):
        if len(data) != 2:
            raise UserError(f"{len(data)} arrays: a pair (images, labels) is needed; -1 marks images without label")
        return from_arrays("arrays", {"x": data[0], "y": data[1]}, storing)
    if isinstance(data, Mapping):
        return from_arrays("arrays", data, storing)
    if isinstance(data, Frame):
        root = Path(data_dir or Path.cwd())
        return load(read_frame(data, root=root, allow_outside=allow_outside, group_column=group_column), storing)
    if not isinstance(data, (str, os.PathLike)):
        raise UserError(f"data of type {type(data).__name__}: give (images, labels), a data frame, a path or a name")
    if isinstance(data, str) and data in BUILTIN:
        folder = Path(data_dir) if data_dir else default_data_dir()
        return open_builtin(data, folder, storing, download=download, allow_outside=allow_outside)

    path = _existing(data)
    if path.suffix.lower() == ".npz":
        return from_arrays(path.name, read_npz(path), storing)
    if path.is_dir() and labels_file is None:
        listing = read_folder(path, allow_outside=allow_outside)
    elif path.is_dir() and labels_file is not None:
        listing = read_flat_folder(path, _existing(labels_file), allow_outside=allow_outside, group_column=group_column)
    elif path.suffix.lower() in MANIFESTS:
        listing = read_manifest(path, allow_outside=allow_outside, group_column=group_column)
    else:
        raise UserError(f"{path}: not a folder, a CSV or Parquet manifest or an .npz file")
    return load(listing, storing)


def default_data_dir() -> Path:
    """Where built-in data are looked for: the folder named by NPMATCH_DATA, else data/ here."""
    return Path(os.environ.get("NPMATCH_DATA") or "data")


def _existing(data: str | os.PathLike[str]) -> Path:
    path = Path(data)
    if "\0" not in str(path) and path.exists():
        return path
    near = difflib.get_close_matches(str(data), BUILTIN, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"built-in names are {', '.join(BUILTIN)}"
    raise UserError(f"{str(data)!r}: no such file or folder; {hint}")
