"""Folders of images -> `Listing`: labeled/<class>/…, unlabeled/…, val/<class>/…, test/<class>/…, or one folder with a
labels file.

Order: labeled by class and path, then unlabeled, val, test. Hidden files are ignored; files that are no images are
recorded as skipped. A link is followed if it stays inside the folder (or leaving is allowed); each real folder is
read once, so a loop of links ends.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from npmatch.data.decode import EXTENSIONS
from npmatch.data.labels import as_text, number
from npmatch.data.listing import Listing
from npmatch.data.manifest import Root, read_manifest
from npmatch.errors import UserError, refuse

OWN_LAYOUT = {"labeled": "train", "val": "val", "test": "test"}  # folder -> part; unlabeled/ belongs to training
IMAGENET_LAYOUT = {"train": "train", "val": "test"}  # its validation images are what papers test on
IGNORED = frozenset(("thumbs.db", "desktop.ini", "__macosx"))


@dataclass
class Walk:
    """What is met on the way through a folder."""

    root: Root
    seen: set[str] = field(default_factory=set)  # real paths of folders
    skipped: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def images(self, name: str) -> Iterator[str]:
        """Image files below a folder, both named relative to the root with "/", in order."""
        real = os.path.realpath(os.path.join(self.root.real, name))
        if real in self.seen:
            return
        self.seen.add(real)
        for entry, is_folder in self.entries(name):
            below = f"{name}/{entry}" if name else entry
            if is_folder:
                yield from self.images(below)
            elif _is_image(entry):
                yield below
            else:
                self.skipped.append((below, "not a type of image that is read"))

    def entries(self, name: str) -> list[tuple[str, bool]]:
        """Names in a folder, sorted, and whether each is a folder. Without hidden files and forbidden links."""
        folder = os.path.join(self.root.real, name)
        try:
            found = sorted(os.listdir(folder))
        except OSError as error:
            self.problems.append(f"{name or folder}: cannot be read ({error.strerror})")
            return []
        entries = []
        for entry in found:
            path, below = os.path.join(folder, entry), f"{name}/{entry}" if name else entry
            if entry.startswith(".") or entry.lower() in IGNORED:
                continue
            if not _is_utf8(entry):
                shown = os.fsencode(below).decode("utf-8", "replace")
                self.problems.append(f"{shown}: the name is not UTF-8: rename it")
            elif os.path.islink(path) and not self.root.permits(os.path.realpath(path)):
                self.problems.append(f"{below}: a link that leaves the folder (--allow-outside permits it)")
            else:
                entries.append((entry, os.path.isdir(path)))
        return entries


def read_folder(folder: Path, *, layout: Mapping[str, str] = OWN_LAYOUT, allow_outside: bool = False) -> Listing:
    """The images of a folder with one subfolder for each class. `layout` names the part of each of its folders; the
    first must be there."""
    walk = Walk(Root(folder, allow_outside=allow_outside))
    have = {name for name, is_folder in walk.entries("") if is_folder}
    first = next(iter(layout))
    if first not in have:
        found = ", ".join(sorted(have)[:10]) or "no folders"
        raise UserError(
            f"{folder}: no folder {first}/ (found: {found}): put images in {first}/<class>/, or name their labels in a "
            "CSV file with the columns path and label"
        )
    rows: list[tuple[str, str | None, str]] = []  # path, label, part
    for name, part in layout.items():
        if name in have:
            rows += [(path, label, part) for path, label in _classes(walk, name, needed=name == first)]
        if name == first and "unlabeled" in have:
            rows += [(path, None, "train") for path in walk.images("unlabeled")]
    paths = [path for path, _, _ in rows]
    labels = [label for _, label, _ in rows]
    parts = [part for _, _, part in rows]
    if not walk.problems:
        walk.problems += number(labels, parts, paths)[2]
    return _listing(walk, folder, paths=paths, labels=labels, parts=parts)


def read_flat_folder(
    folder: Path, labels_file: Path, *, allow_outside: bool = False, group_column: str | None = None
) -> Listing:
    """The images of a folder whose labels stand in a file: its rows in their order, then the other images, which have
    no label, in the order of their paths."""
    named = read_manifest(labels_file, root=folder, allow_outside=allow_outside, group_column=group_column)
    root = Root(folder, allow_outside=allow_outside)
    walk = Walk(root)
    known = {root.resolve(path) for path in named.paths}
    others = [path for path in walk.images("") if os.path.realpath(folder / path) not in known]
    groups = None if named.groups is None else [*named.groups, *[""] * len(others)]
    return _listing(
        walk,
        folder,
        paths=[*named.paths, *others],
        labels=[*named.labels, *[None] * len(others)],
        parts=[*named.parts, *["train"] * len(others)],
        groups=groups,
        places=[*named.places, *others],
    )


def _classes(walk: Walk, name: str, *, needed: bool) -> Iterator[tuple[str, str]]:
    """Path and class of each image below a folder of class folders. Where they are `needed`, none may be empty."""
    for entry, is_folder in walk.entries(name):
        below = f"{name}/{entry}"
        if not is_folder:
            if _is_image(entry):
                walk.problems.append(f"{below}: lies in no class folder: move it to {name}/<class>/")
            continue
        images = list(walk.images(below))
        if needed and not images:
            walk.problems.append(f"{below}: holds no images: add some or remove the folder")
        yield from ((path, as_text(entry)) for path in images)


def _listing(
    walk: Walk,
    folder: Path,
    *,
    paths: list[str],
    labels: list[str | None],
    parts: list[str],
    groups: list[str] | None = None,
    places: list[str] | None = None,
) -> Listing:
    name = folder.resolve().name
    refuse(f"{name}: {len(walk.problems)} problem{'s' * (len(walk.problems) != 1)}", walk.problems)
    return Listing(
        name=name,
        root=Path(walk.root.real),
        paths=paths,
        labels=labels,
        parts=parts,
        groups=groups,
        places=places or paths,
        skipped=tuple(walk.skipped),
    )


def _is_image(name: str) -> bool:
    return os.path.splitext(name)[1].lower() in EXTENSIONS


def _is_utf8(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:  # Linux allows any bytes
        return False
    return True
