"""Folders of images -> `Listing`: labeled/<class>/…, unlabeled/…, val/<class>/…, test/<class>/…, or one folder with a
labels file.

Order: labeled by class and path, then unlabeled, val, test. Hidden files are ignored; files that are no images are
recorded as skipped. A link is followed if it stays inside the folder (or leaving is allowed); each real folder is
read once, so a loop of links ends. A folder that is met twice otherwise would have two parts or classes: it is refused.
"""

from __future__ import annotations

import difflib
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
OTHER_NAMES = {  # what people call a part, beside what they misspell
    "train": "labeled",
    "training": "labeled",
    "validation": "val",
    "valid": "val",
    "dev": "val",
    "testing": "test",
}
NO_IMAGE = "not a type of image that is read"  # why something is left out that training does without, too
NO_PART = "a folder that is no part"
IGNORED = frozenset(("thumbs.db", "desktop.ini", "__macosx"))


@dataclass
class Walk:
    """What is met on the way through a folder."""

    root: Root
    names: dict[str, str] = field(default_factory=dict)  # real path of a folder -> the name it was read by
    twice: list[str] = field(default_factory=list)  # folders of two names; a fault where names say parts and classes
    skipped: list[tuple[str, str]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def enter(self, name: str, above: tuple[str, ...] = ()) -> str:
        """The real path of a folder that is now read, "" of one that is not read again. A link to one of the folders
        `above` it is a loop."""
        real = os.path.realpath(os.path.join(self.root.real, name))
        if real in above:
            return ""
        first = self.names.setdefault(real, name)
        if first == name:
            return real
        itself = os.path.normpath(os.path.join(self.root.real, name)) == real
        link, other = (first, name) if itself else (name, first)
        self.names[real] = other
        where = f"to {other}/" if other else f"out of {link.partition('/')[0]}/ into the other parts"
        self.twice.append(f"{link}: leads {where}: remove the link")
        return ""

    def images(self, name: str, above: tuple[str, ...] = ()) -> Iterator[str]:
        """Image files below a folder, both named relative to the root with "/", in order."""
        real = self.enter(name, above)
        if not real:
            return
        for entry, is_folder in self.entries(name):
            below = f"{name}/{entry}" if name else entry
            if is_folder:
                yield from self.images(below, (*above, real))
            elif _is_image(entry):
                yield below
            else:
                self.skipped.append((below, NO_IMAGE))

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
    walk.enter("")
    have = {name for name, is_folder in walk.entries("") if is_folder}
    first = next(iter(layout))
    if first not in have:
        found = ", ".join(sorted(have)[:10]) or "no folders"
        raise UserError(
            f"{folder}: no folder {first}/ (found: {found}): put images in {first}/<class>/, or name their labels in a "
            "CSV file with the columns path and label"
        )
    if layout is OWN_LAYOUT:  # a benchmark may share its folder with others
        _tell_others(walk, have - {*layout, "unlabeled"}, folder)
    rows: list[tuple[str, str | None, str]] = []  # path, label, part
    for name, part in layout.items():
        if name in have:
            rows += [(path, label, part) for path, label in _classes(walk, name, needed=name == first)]
        if name == first and "unlabeled" in have:
            rows += [(path, None, "train") for path in walk.images("unlabeled")]
    paths = [path for path, _, _ in rows]
    labels = [label for _, label, _ in rows]
    parts = [part for _, _, part in rows]
    walk.problems += walk.twice
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


def _tell_others(walk: Walk, names: set[str], folder: Path) -> None:
    """Record folders that are no parts: those that seem meant as one as problems, the others as skipped."""
    for name in sorted(names):
        meant = OTHER_NAMES.get(name.lower(), name.lower())
        near = difflib.get_close_matches(meant, (*OWN_LAYOUT, "unlabeled"), n=1, cutoff=0.8)
        if near:
            walk.problems.append(
                f"{name}/: is no part, did you mean {near[0]}/? Rename it, or move it out of {folder.resolve().name}/"
            )
        else:
            walk.skipped.append((f"{name}/", NO_PART))


def _classes(walk: Walk, name: str, *, needed: bool) -> Iterator[tuple[str, str]]:
    """Path and class of each image below a folder of class folders. Where they are `needed`, none may be empty."""
    real = walk.enter(name)
    if not real:
        return
    for entry, is_folder in walk.entries(name):
        below = f"{name}/{entry}"
        if not is_folder:
            if _is_image(entry):
                walk.problems.append(f"{below}: lies in no class folder: move it to {name}/<class>/")
            continue
        told = len(walk.twice)
        images = list(walk.images(below, (real,)))
        if needed and not images and len(walk.twice) == told:
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
