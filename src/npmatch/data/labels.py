"""What people write as labels, to class names and numbers."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np

from npmatch.errors import shown

PARTS = ("train", "val", "test")
NO_LABEL = frozenset(("", "nan", "-1", "-1.0"))  # as text; -1 is scikit-learn's mark, -1.0 what pandas makes of it
UNCLEAR = frozenset(("na", "n/a", "none", "null"))  # pandas reads them as no label, and they can be the name of a class


def as_text(value: object) -> str:
    """A cell of a table as text, "" where it is missing; 3.0 is "3", as pandas makes floats of numbers with gaps.

    An accent may be a letter of its own (macOS writes file names so): it is joined to the letter before.
    """
    if value is None or type(value).__name__ in ("NAType", "NaTType"):  # pandas' marks, known without importing it
        return ""
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace").strip()
    if isinstance(value, (float, np.floating)):
        if np.isnan(value):
            return ""
        return str(int(value)) if float(value).is_integer() else str(value)
    return unicodedata.normalize("NFC", str(value).strip())


def read_labels(values: Iterable[object], places: Sequence[str]) -> tuple[list[str | None], list[str]]:
    """Each label's class name, None where there is no label, and the problems found.

    None, NaN, -1 and empty text mean no label; so does the text "nan", but not the name of a folder. Numbers and text
    in one column are a problem: 1 and "1" would be two classes or one, by accident. `places` says where each value
    stands, for messages.
    """
    names: list[str | None] = []
    problems: list[str] = []
    first: dict[str, str] = {}  # where numbers and text were first met
    unclear = ""
    for value, place in zip(values, places):
        name = as_text(value)
        if name.lower() in NO_LABEL:
            names.append(None)
            continue
        names.append(name)
        first.setdefault("text" if isinstance(value, (str, bytes)) else "a number", place)
        if name.lower() in UNCLEAR and not unclear:
            unclear = f"{place}: {name!r} may be no label or a class: leave it empty for no label, or rename the class"
        if isinstance(value, (float, np.floating)) and not float(value).is_integer():
            problems.append(f"{place}: {value} is not a class")
        elif isinstance(value, (int, float, np.number)) and value < -1:
            problems.append(f"{place}: {value} is not a class: only -1 means no label")
    problems += [unclear] if unclear else []
    if len(first) == 2:
        (kind, place), (other, later) = first.items()
        problems.append(f"{later}: this label is {other}, the one at {place} {kind}: write all as one kind")
    return names, problems


def number(
    names: Sequence[str | None], parts: Sequence[str], places: Sequence[str], classes: Sequence[str] | None = None
) -> tuple[np.ndarray, tuple[str, ...], list[str]]:
    """Labels (N,) int64 with -1 for none, the class names, and the problems found.

    Unless `classes` gives them, the classes are the names on training images, in sorted order (as numbers, where all
    are whole numbers). Images for validation and test need a label that training can know.
    """
    if classes is None:
        seen = {name for name, part in zip(names, parts) if part == "train" and name is not None}
        classes = sorted(seen, key=int) if all(_is_whole(name) for name in seen) else sorted(seen)
    numbers = {name: index for index, name in enumerate(classes)}
    problems = []
    if len(numbers) < 2:
        only = f"only the class {classes[0]!r} has" if numbers else "no class has"
        problems.append(f"{only} labeled training images: at least two classes need some")
    labels = np.full(len(names), -1, np.int64)
    for index, (name, part) in enumerate(zip(names, parts)):
        if name is None and part != "train":
            problems.append(f"{places[index]}: an image for {part} needs a label")
        elif name is not None and name not in numbers:
            problems.append(
                f"{places[index]}: {name!r} is not a class of the training images: label some of them so (in folders: "
                f"labeled/{shown(name, 40)}/), or take it out"
            )
        elif name is not None:
            labels[index] = numbers[name]
    return labels, tuple(classes), problems


def _is_whole(name: str) -> bool:
    return len(name) < 20 and name.removeprefix("-").isdecimal() and str(int(name)) == name
