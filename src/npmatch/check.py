"""`check`: what is in a data set, what of it would spoil a training, and what to do about it. In words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np

from npmatch.config import Settings, override
from npmatch.data.check import Findings, examine
from npmatch.data.source import Source
from npmatch.errors import UserError, printable, shown
from npmatch.functional.metrics import accept_threshold
from npmatch.plan import LABELS_PER_CLASS, Opening, open_data, split_of
from npmatch.presets import BUILTIN, About, preset
from npmatch.progress import Progress, Silent
from npmatch.report.words import count

UNEVEN = 5  # times as many labels of the largest class as of the smallest: worth a warning
FEW = 2  # labels of a class
CUT = 0.25  # of the median image is lost to the centered square: worth a word
CLAIM = 0.95  # the accuracy of accepted predictions that advice speaks of
MOST_CLASSES = 24  # rows of the table
NAMED = 3  # examples in a sentence
NUMBER = re.compile(r"[+-]?\d+(\.\d*)?")


@dataclass(frozen=True)
class Checked:
    """A data set, what is in it, and what to say of it."""

    source: Source
    settings: Settings  # what the preset would train with
    findings: Findings
    refusals: tuple[str, ...]  # why `fit` would not start on it
    warnings: tuple[str, ...]
    advice: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The findings as plain values, with `warnings` (refusals first) and `advice` in words."""
        words = {"warnings": [*self.refusals, *self.warnings], "advice": list(self.advice)}
        return self.findings.to_dict() | words


def check(data: Any, changes: Mapping[str, Any], *, preset_name: str, opening: Opening, progress: Progress) -> Checked:
    """Look at every image of `data`, opened as `fit` would with this preset and these changed settings."""
    trial = override(preset(preset_name, BUILTIN["digits"], _algorithm(changes)), changes)
    # Files are looked at one by one, whatever would fit in memory, so that each that cannot be read is found.
    chosen = replace(trial.data, in_memory_mib=0)
    source = open_data(data, chosen, replace(opening, skip_unreadable=True), Silent())  # its warnings come below
    about = About(name=source.name, image_size=source.image_size, channels=source.images.shape[1], flip=source.flip)
    settings = override(preset(preset_name, about, _algorithm(changes)), changes)
    found = examine(source, progress=lambda done, total: progress.work("looking at images", done, total))
    return Checked(
        source,
        settings,
        found,
        refusals=tuple(_refusals(source, settings, found, skip_unreadable=opening.skip_unreadable)),
        warnings=tuple(_warnings(source, found)),
        advice=tuple(_advice(settings, found)),
    )


def _algorithm(changes: Mapping[str, Any]) -> str:
    return str(changes.get("algorithm.name", "npmatch"))


def _refusals(source: Source, settings: Settings, found: Findings, *, skip_unreadable: bool) -> Iterator[str]:
    bad = [name for name, _ in found.unreadable + found.undecodable]
    undecodable = [name for name, _ in found.undecodable]
    if bad and not skip_unreadable:
        yield (
            f"{count(len(bad), 'file')} cannot be read ({_some(bad, _file)}): repair or remove them, or go on without "
            "them with --skip-unreadable"
        )
    elif undecodable and not _in_memory(settings, found):
        yield (
            f"{count(len(undecodable), 'file')} cannot be decoded ({_some(undecodable, _file)}): repair or remove "
            "them, because data too large for memory is decoded while training"
        )
    chosen = settings.data
    if not source.benchmark or chosen.labels is not None or chosen.labels_per_class is not None:
        try:
            split_of(source, settings)
        except UserError as error:
            yield printable(str(error))


def _warnings(source: Source, found: Findings) -> Iterator[str]:
    yield from _leaks(found)
    if found.conflicts.images:
        pairs = [
            f"{_file(a)} is {_class(of_a)}, {_file(b)} is {_class(of_b)}"
            for a, of_a, b, of_b in found.conflicts.examples
        ]
        yield f"{count(found.conflicts.images, 'image')} carry another label on the same pixels: {_some(pairs)}"
    if found.plain:
        named = _some(found.plain, _file)
        yield f"{count(len(found.plain), 'image')} are of one color all over, probably broken: {named}"
    if alike := _written_otherwise(found.classes):
        yield f"classes that differ only in how a number is written: {_some(alike)}; if they are one, write it alike"
    labels = {name: counts[found.known] for name, counts in found.class_counts.items()}
    tested = [name for name, counts in found.class_counts.items() if counts["val"] + counts["test"]]
    if unknown := [name for name in tested if not labels[name]]:
        yield f"nothing can be learnt of {_some(unknown, _class)}: in val or test, but no labeled image for training"
    if few := [name for name, number in labels.items() if 0 < number < FEW]:
        yield f"fewer than {FEW} labeled images of {_some(few, _class)}: how such a class varies cannot be seen"
    if (ratio := unevenness(found)) is not None and ratio >= UNEVEN and not found.benchmark:
        most, least = (_class(choose(labels, key=labels.__getitem__)) for choose in (max, min))
        yield (
            f"the labels are uneven: {ratio:.1f} times as many of {most} as of {least}. The error counts images, so a "
            "rare class hardly shows in it: look at the classes one by one in report.html"
        )
    if not found.counts["unlabeled"] and not found.benchmark:
        yield "there are no unlabeled images: pseudo-labels have only the labeled images themselves to be made on"
    if not found.counts["test"] and not found.counts["val"]:
        yield "there are no test and no val images: the error of the model will not be known"
    if not source.canonical:
        yield f"{found.name} is not in its published order here: its splits are not those of the papers"


def _leaks(found: Findings) -> Iterator[str]:
    """What training and testing share, pixel for pixel."""
    for copies in found.between:
        (first, second), (_, shared) = copies.parts, copies.images
        if not shared or second == "unlabeled":  # labeled images belong to the unlabeled ones anyway
            continue
        what = {
            "unlabeled": "the model trains on them, though not on their labels",
            "val": "what is tuned on val is tested on it, too",
        }.get(first, "the model is tested on what it was trained on")
        total, named = found.counts[second], _some([f"{_file(b)} = {_file(a)}" for a, b in copies.examples])
        yield (
            f"{second}: {shared:,} of {count(total, 'image')} ({shared / total:.1%}) stand in {first} too, pixel for "
            f"pixel: {what} ({named})"
        )


def _written_otherwise(classes: Sequence[str]) -> list[str]:
    """Classes that are the same number, such as 1, 1.0 and 01. Leading zeros may be meant, so it is no error."""
    same: dict[Decimal, list[str]] = {}
    for name in classes:
        if NUMBER.fullmatch(name):
            same.setdefault(Decimal(name), []).append(_class(name))
    return [" and ".join(names) for names in same.values() if len(names) > 1]


def unevenness(found: Findings) -> float | None:
    """How many times as many labels the largest class has as the smallest; none if a class has no label."""
    numbers = [counts[found.known] for counts in found.class_counts.values()]
    return max(numbers) / min(numbers) if numbers and min(numbers) else None


def _advice(settings: Settings, found: Findings) -> Iterator[str]:
    if settings.views.flip and not found.benchmark:
        yield (
            "flip is on: for digits, text or X-rays, where a mirrored image is wrong, switch it off with "
            "--set views.flip=false"
        )
    if found.originals is not None and settings.data.resize == "crop" and found.originals.beyond_square > CUT:
        yield (
            f"half of the images lose {found.originals.beyond_square:.0%} or more to the centered square: "
            "--resize pad or --resize squash keep all of it"
        )
    train, each = settings.train, LABELS_PER_CLASS
    if found.benchmark:
        labels = each * len(found.classes)
        yield f"say how many labels to draw; without --labels it is {each} of each class, --labels {labels}"
    else:
        yield _claim(found)
    yield (
        f"preset {settings.preset} trains {settings.net.name} for {train.steps:,} steps of {train.batch_size} labeled "
        f"and {train.batch_size * train.unlabeled_ratio} unlabeled images"
        + ("; --preset standard is for a GPU" if settings.preset == "quick" else "")
    )


def _claim(found: Findings) -> str:
    """Whether there are enough labels to learn from which confidence on predictions may be accepted."""
    nobody = np.empty(0)
    needed = accept_threshold(nobody, nobody, CLAIM).needed
    labels, val = found.counts[found.known], found.counts["val"]
    have = f"{count(labels, 'label')} in {count(len(found.classes), 'class', 'classes')}, {val:,} in val"
    asked = f"to accept predictions at {CLAIM:.0%} takes {needed} held-out labels or more"
    if val >= needed:
        return f"{have}: {asked}; val has them"
    if val:
        return f"{have}: {asked}; add {needed - val} to val"
    if labels >= needed:
        return f"{have}: {asked}; --calibrate 5 gets them from the labels by training five more times"
    return f"{have}: {asked}; {needed - labels} more labels and --calibrate, or a val part, would give them"


def lines(checked: Checked) -> Iterator[str]:
    """The report for people, without warnings and advice."""
    found = checked.findings
    total = sum(found.counts.values())
    yield f"{_class(found.name)}: {count(total, 'image')}, {count(len(found.classes), 'class', 'classes')}"
    yield ""
    yield from _table(found)
    yield ""
    for name, text in _facts(checked):
        yield f"{name:12} {text}"


def _facts(checked: Checked) -> Iterator[tuple[str, str]]:
    found = checked.findings
    if (seen := found.originals) is not None:
        yield "originals", f"{_range(seen.width, seen.height)}, {count(seen.distinct, 'size')}"
        for name, numbers in (("formats", seen.formats), ("modes", seen.modes)):
            yield name, ", ".join(f"{number:,} {kind}" for kind, number in numbers.items())
        if seen.rotated:
            yield "rotated", f"{count(seen.rotated, 'image')} by EXIF, which is applied"
    color = {1: "gray", 3: "color"}.get(found.channels, f"{found.channels} channels")
    how = "" if seen is None else f" ({checked.settings.data.resize})"
    kept = "" if found.stored_size == found.image_size else f", cut from {found.stored_size} x {found.stored_size}"
    yield "trained as", f"{found.image_size} x {found.image_size} {color}{kept}{how}"
    place = "in memory" if _in_memory(checked.settings, found) else "decoded by workers while training"
    yield "pixels", f"{found.memory / 2**20:,.1f} MiB, {place}"
    copies = [f"{number:,} in {part}" for part, number in found.within.items() if number]
    copies += [f"{c.images[1]:,} of {c.parts[1]} in {c.parts[0]}" for c in found.between if c.images[1]]
    yield "copies", ", ".join(copies) or "none, pixel for pixel"
    if found.ignored:
        yield "ignored", f"{count(len(found.ignored), 'file')} of other types: {_some(found.ignored, _file)}"
    if found.ignored_folders:
        folders = count(len(found.ignored_folders), "folder that is no part", "folders that are no parts")
        yield "ignored", f"{folders}: {_some(found.ignored_folders, _file)}"
    for name, reason in found.unreadable + found.undecodable:
        yield "unreadable", f"{_file(name)}: {printable(reason)}"


def _range(width: Sequence[int], height: Sequence[int]) -> str:
    smallest, middle, largest = (f"{w} x {h}" for w, h in zip(width, height))
    return smallest if smallest == largest else f"{smallest} to {largest}, median {middle}"


def _table(found: Findings) -> Iterator[str]:
    """Images of each class in each part. Of many classes only the largest and the smallest are shown."""
    parts = [part for part, number in found.counts.items() if number]
    classes = list(found.class_counts.items())
    left_out = len(classes) - MOST_CLASSES
    if left_out > 0:
        classes.sort(key=lambda each: -each[1][found.known])
    rows = [[_class(name), *(f"{counts[p]:,}" if p in counts else "" for p in parts)] for name, counts in classes]
    if left_out > 0:
        half = MOST_CLASSES // 2
        rows = [*rows[:half], [f"... {left_out:,} more"] + [""] * len(parts), *rows[-half:]]
    rows = [["class", *parts], *rows, ["all", *(f"{found.counts[part]:,}" for part in parts)]]
    widths = [max(len(row[column]) for row in rows) for column in range(len(parts) + 1)]
    for row in rows:
        yield "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]
        ).rstrip()


def _in_memory(settings: Settings, found: Findings) -> bool:
    return found.originals is None or found.memory <= settings.data.in_memory_mib * 2**20


def _class(name: str) -> str:
    return shown(name, 40)


def _file(name: str) -> str:
    return shown(name, 100)  # a path has to be found again


def _some(names: Sequence[str], show: Callable[[str], str] = str) -> str:
    more = len(names) - NAMED
    return ", ".join(map(show, names[:NAMED])) + (f" and {more:,} more" if more > 0 else "")
