"""Tables that name image files: CSV, Parquet and data frames -> `Listing`.

Columns: path, label (empty: no label), optionally split (train, val or test) and group; others are ignored. Paths are
relative to the manifest's folder and may not leave it, by "..", a link or otherwise, unless that is allowed: a
manifest may come from elsewhere. A path may be named once.
"""

from __future__ import annotations

import csv
import os
import posixpath
import re
import stat
from collections.abc import Iterable, Mapping, Sequence
from io import StringIO
from pathlib import Path, PureWindowsPath
from typing import Any, Protocol, runtime_checkable

from npmatch.data.labels import PARTS, as_text, number, read_labels
from npmatch.data.listing import Listing
from npmatch.errors import UserError, refuse, shown

ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")  # file:/, http:/, ...; a drive letter is handled before


@runtime_checkable
class Frame(Protocol):
    """A data frame, of pandas or like it."""

    columns: Any

    def __getitem__(self, name: str, /) -> Iterable[object]: ...


class Root:
    """A folder that paths may not leave. Real paths of folders are looked up once."""

    def __init__(self, root: Path, *, allow_outside: bool) -> None:
        self.real = os.path.realpath(root)
        self.allow_outside = allow_outside
        self._real_folders: dict[str, str] = {}

    def resolve(self, name: str) -> str:
        """The real path of a file named in a manifest. Raises ValueError that says what is wrong with the name."""
        if not name or "\0" in name:
            raise ValueError("no path" if not name else "a NUL in the path")
        if name.startswith("~"):
            raise ValueError("~ is not expanded: write the folder out")
        windows = PureWindowsPath(name)
        if not windows.drive and ADDRESS.match(name):
            raise ValueError("an address, not a path")
        if not self.allow_outside and (windows.drive or windows.root):
            raise ValueError("an absolute path (--allow-outside permits it)")
        if not self.allow_outside and ".." in name.split("/"):
            raise ValueError('".." may leave the folder (--allow-outside permits it)')
        real = self._real(os.path.join(self.real, name))
        if not self.permits(real):
            raise ValueError("a link that leaves the folder (--allow-outside permits it)")
        try:
            status = os.stat(real)
        except OSError as error:
            raise ValueError("no such file" if isinstance(error, FileNotFoundError) else error.strerror) from error
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("not a regular file")
        return real

    def permits(self, real: str) -> bool:
        """Whether a file at this real path may be read."""
        return self.allow_outside or os.path.join(real, "").startswith(os.path.join(self.real, ""))

    def _real(self, path: str) -> str:
        if os.path.islink(path):
            return os.path.realpath(path)
        folder, file = os.path.split(path)
        if folder not in self._real_folders:
            self._real_folders[folder] = os.path.realpath(folder)
        return os.path.join(self._real_folders[folder], file)


def read_manifest(
    path: Path, *, root: Path | None = None, allow_outside: bool = False, group_column: str | None = None
) -> Listing:
    """The images a CSV or Parquet file names. Paths count from `root`, by default the file's own folder."""
    problems: list[str] = []
    if path.suffix.lower() == ".parquet":
        columns = _read_parquet(path, (group_column,))
        places = [f"row {row}" for row in range(len(columns.get("path", ())))]
    else:
        columns, places = _read_csv(path, problems)
    root_folder = Root(root or path.parent, allow_outside=allow_outside)
    return _listing(path.name, columns, places, problems, root_folder, group_column)


def read_frame(frame: Frame, *, root: Path, allow_outside: bool = False, group_column: str | None = None) -> Listing:
    """The images a data frame names, relative to `root`. Rows count from 0 in messages."""
    columns = {str(name): list(frame[name]) for name in frame.columns if name in _wanted((group_column,))}
    places = [f"row {row}" for row in range(len(columns.get("path", ())))]
    return _listing("data frame", columns, places, [], Root(root, allow_outside=allow_outside), group_column)


def _wanted(more: Iterable[str | None]) -> set[str]:
    return {"path", "label", "split", "group", *(name for name in more if name)}


def _read_parquet(path: Path, more: Iterable[str | None]) -> dict[str, Sequence[object]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(f"{path}: reading Parquet needs pyarrow: pip install 'npmatch[parquet]'") from error
    try:
        file = pyarrow.parquet.ParquetFile(path)
        table = file.read([name for name in file.schema_arrow.names if name in _wanted(more)])
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a Parquet file that can be read ({str(error).splitlines()[0]})") from error
    return {name: table.column(name).to_pylist() for name in table.column_names}


def _read_csv(path: Path, problems: list[str]) -> tuple[dict[str, Sequence[object]], list[str]]:
    """Columns and the line of each row. The separator is the one of , ; tab that the first line has most of."""
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}: line {line} is not UTF-8: save the file as UTF-8") from error
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    first = re.split("[\r\n]", text, maxsplit=1)[0]
    reader = csv.reader(StringIO(text, newline=""), delimiter=max(",;\t", key=first.count), strict=True)
    rows: list[list[str]] = []
    places: list[str] = []
    header: list[str] = []
    line = 1
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if not header:
                header = [cell.lower() for cell in cells]
            elif len(cells) == len(header):
                rows.append(cells)
                places.append(f"line {line}")
            elif any(cells):
                problems.append(f"line {line}: {len(cells)} fields where the first line has {len(header)}")
            line = reader.line_num + 1
    except csv.Error as error:
        problems.append(f"line {line}: {error}")
    twice = [name for name in _wanted(()) if header.count(name) > 1]
    refuse(f"{path.name}: a column is named twice", twice)
    return {name: [row[column] for row in rows] for column, name in enumerate(header)}, places


def _listing(
    name: str,
    columns: Mapping[str, Sequence[object]],
    places: list[str],
    problems: list[str],
    root: Root,
    group_column: str | None,
) -> Listing:
    """The checked rows, or one error that names every bad one."""
    for needed in ("path", "label", group_column):
        if needed is not None and needed not in columns:
            have = ", ".join(repr(column) for column in columns) or "none"
            raise UserError(f"{name}: no column {needed!r}: the columns are named path and label (found: {have})")
    labels, more = read_labels(columns["label"], places)
    problems += more
    parts = _read_parts(columns.get("split"), places, problems)
    paths = _read_paths(columns["path"], labels, places, root, problems)
    problems += number(labels, parts, places)[2]
    refuse(f"{name}: {len(problems)} problem{'s' * (len(problems) != 1)}", problems)
    groups = columns.get(group_column or "group")
    return Listing(
        name=name,
        root=Path(root.real),
        paths=paths,
        labels=labels,
        parts=parts,
        groups=None if groups is None else [as_text(group) for group in groups],
        places=[f"{place} ({path})" for place, path in zip(places, paths)],
    )


def _read_parts(values: Sequence[object] | None, places: Sequence[str], problems: list[str]) -> list[str]:
    """Each row's part; an empty one is training."""
    if values is None:
        return ["train"] * len(places)
    parts = []
    for value, place in zip(values, places):
        part = as_text(value).lower()
        if part not in ("", *PARTS):
            problems.append(f"{place}: split {value!r} is not train, val or test")
        parts.append(part or "train")
    return parts


def _read_paths(
    values: Sequence[object], labels: Sequence[str | None], places: Sequence[str], root: Root, problems: list[str]
) -> list[str]:
    """Each row's path with "/", resolved and named once."""
    paths: list[str] = []
    seen: dict[str, int] = {}
    for row, value in enumerate(values):
        written = str(value).replace("\\", "/") if isinstance(value, (str, os.PathLike)) else ""
        paths.append(posixpath.normpath(written))
        try:
            real = root.resolve(written)
        except ValueError as error:
            problems.append(f"{places[row]}: {shown(as_text(value), 200)}: {error}")
            continue
        first = seen.setdefault(real, row)
        if first != row:
            how = "again" if labels[first] == labels[row] else f"with two labels, {labels[first]!r} and {labels[row]!r}"
            problems.append(f"{places[row]}: {shown(as_text(value), 200)}: named at {places[first]} and here {how}")
    return paths
