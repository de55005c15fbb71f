"""What a run is to do, settled before its first step: settings, images, split."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import torch

from npmatch import __version__, ranks
from npmatch.algorithms import ALGORITHMS
from npmatch.build import choose_precision
from npmatch.config import Data, Settings, flat, from_dict, override
from npmatch.data.check import CHUNK, prints
from npmatch.data.folder import NO_IMAGE, NO_PART
from npmatch.data.source import Source
from npmatch.data.sources import open_source
from npmatch.data.splits import Split, draw_split
from npmatch.errors import UserError
from npmatch.presets import BUILTIN, About, preset
from npmatch.progress import Progress
from npmatch.runs import RunFolder, differences

LABELS_PER_CLASS = 4  # of a benchmark, where nobody says how many


@dataclass(frozen=True, kw_only=True)
class Opening:
    """How to get at the images; none of it changes what they are."""

    data_dir: Path | None = None
    download: bool = False
    skip_unreadable: bool = False
    allow_outside: bool = False


@dataclass(frozen=True)
class Plan:
    settings: Settings
    source: Source
    split: Split
    fingerprint: str
    device: torch.device

    def config(self) -> dict[str, Any]:
        """What config.toml says: every setting, and what else the numbers depend on."""
        table = self.settings.to_dict()
        table["data"]["fingerprint"] = self.fingerprint
        return table | {"environment": environment(self.device)}


def environment(device: torch.device) -> dict[str, Any]:
    """The versions and the machine a run's bits depend on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor()
    versions = {"npmatch": __version__, "python": platform.python_version(), "torch": torch.__version__}
    versions |= {"numpy": np.__version__, "pillow": PIL.__version__}
    versions |= {"device": str(device), "device_name": name, "threads": torch.get_num_threads()}
    return versions | {"ranks": ranks.size()}


def processor() -> str:
    """The processor's model: of two, one may round a sum otherwise. Linux tells it in a file only."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def new_plan(
    data: Any,
    changes: Mapping[str, Any],
    *,
    preset_name: str | None,
    opening: Opening,
    device: torch.device,
    progress: Progress,
) -> Plan:
    """A plan from a preset and what a person changed. Every wrong setting is named before an image is read."""
    preset_name = preset_name or str(changes.get("preset", "quick"))  # a run's config.toml names its own
    changes = {key: value for key, value in changes.items() if key != "preset"}
    data = changes.get("data.source") if data is None else data
    if data is None or (isinstance(data, str) and not data.strip()):
        raise UserError("what is there to learn from? name a data set, a folder, a manifest or an .npz")
    algorithm = str(changes.get("algorithm.name", "npmatch"))
    algorithm = algorithm if algorithm in ALGORITHMS else "npmatch"  # override names it, with all else that is wrong
    variant = str(changes.get("algorithm.variant", "table"))
    trial = override(preset(preset_name, BUILTIN["digits"], algorithm, variant), changes)
    source = open_data(data, trial.data, opening, progress)
    about = About(name=source.name, image_size=source.image_size, channels=source.images.shape[1], flip=source.flip)
    settings = override(preset(preset_name, about, algorithm, variant), changes)
    chosen = settings.data
    if source.benchmark and chosen.labels is None and chosen.labels_per_class is None:
        chosen = replace(chosen, labels_per_class=LABELS_PER_CLASS)
    name = str(data) if isinstance(data, str | Path) else source.name
    chosen = replace(chosen, source=name, image_size=source.image_size, channels=about.channels)
    precision = choose_precision(settings.train.precision, device)  # a run keeps what it was begun with
    settings = replace(settings, data=chosen, train=replace(settings.train, precision=precision))
    return Plan(settings, source, split_of(source, settings), source.fingerprint(), device)


def split_of(source: Source, settings: Settings) -> Split:
    """The split that the settings ask for."""
    chosen = settings.data
    return draw_split(
        source,
        labels=chosen.labels,
        labels_per_class=chosen.labels_per_class,
        seed=settings.seed,
        include_labeled=chosen.include_labeled,
        val_share=chosen.val_share,
    )


def agreed_settings(folder: RunFolder, changes: Mapping[str, Any], *, preset_name: str | None) -> Settings:
    """The settings of a run that was begun. What a person now says otherwise is an error."""
    stored = folder.read_config()
    if "fingerprint" not in stored.get("data", {}):
        raise UserError(f"{folder.path / 'config.toml'} was not written by npmatch fit; pass another --out")
    settings = from_dict(stored)
    wanted = override(settings, changes)
    if preset_name is not None:
        wanted = replace(wanted, preset=preset_name)
    told = [
        f"{key} is {before!r} in {folder.path} and {after!r} here"
        for key, before, after in differences(settings.to_dict(), wanted.to_dict())
        if key != "data.source" and None not in (before, after)  # other settings of another method say nothing more
    ]
    if told:
        raise UserError("; ".join(told) + "; leave it out to go on as before, or start another run with another --out")
    return settings


def stored_plan(
    folder: RunFolder, settings: Settings, data: Any, *, opening: Opening, device: torch.device, progress: Progress
) -> Plan:
    """The plan of a run that was begun: its own settings and split."""
    recorded = flat(folder.read_config())
    source = open_data(settings.data.source if data is None else data, settings.data, opening, progress)
    fingerprint = source.fingerprint()
    if fingerprint != recorded["data.fingerprint"]:
        raise UserError(f"{folder.path} was begun on other images or labels than {source.name} holds now")
    indices = folder.read_split()
    if indices is None:  # it was stopped before the first step
        split = split_of(source, settings)
        folder.write_split(vars(split))
    else:
        split = Split(**{part: np.asarray(places, np.int64) for part, places in indices.items()})
        if max((place for places in indices.values() for place in places), default=0) >= len(source):
            raise UserError(f"{folder.path / 'split.json'} is damaged: {source.name} has {len(source)} images")
    found = environment(device)
    before = {key: recorded.get(f"environment.{key}", now) for key, now in found.items()}
    changed = [f"{key} {before[key]} → {now}" for key, now in found.items() if before[key] != now]
    if changed:
        progress.warn(f"the run goes on elsewhere ({', '.join(changed)}): its numbers may differ in the last digits")
    return Plan(settings, source, split, fingerprint, device)


def leaks(plan: Plan) -> list[str]:
    """Sentences on test and validation images that train too, pixel for pixel: their error is no longer one of images
    never seen. Of images in memory only; `npmatch check` looks at files."""
    source, split, found = plan.source, plan.split, []
    if not isinstance(source.images, torch.Tensor):
        return found
    hashes = [digest for chunk in source.images.split(CHUNK) for digest, _ in prints(chunk)]
    labeled, unlabeled = ({hashes[place] for place in places} for places in (split.labeled, split.unlabeled))
    for part, places in (("test", split.test), ("val", split.val)):
        own = [hashes[place] for place in places]
        with_label = sum(one in labeled for one in own)
        without = sum(one in unlabeled and one not in labeled for one in own)
        for count, how in ((with_label, "with their labels"), (without, "without labels")):
            if count:
                found.append(
                    f"{count:,} of {len(own):,} {part} images are training images too, {how}: the error flatters; "
                    "npmatch check names them"
                )
    return found


def open_data(data: Any, chosen: Data, opening: Opening, progress: Progress) -> Source:
    """The images, as the `data` settings want them."""
    source = open_source(
        data,
        labels_file=chosen.labels_file,
        data_dir=opening.data_dir,
        image_size=chosen.image_size,
        resize=chosen.resize,
        channels=chosen.channels,
        skip_unreadable=opening.skip_unreadable,
        download=opening.download,
        allow_outside=opening.allow_outside,
        group_column=chosen.group_column,
        max_memory=chosen.in_memory_mib * 2**20,
        progress=lambda done, total: progress.work("reading images", done, total),
    )
    broken = [name for name, reason in source.skipped if reason not in (NO_IMAGE, NO_PART)]
    if broken:
        progress.warn(f"{len(broken)} unreadable files are left out, {broken[0]} the first")
    if others := [name for name, reason in source.skipped if reason in (NO_IMAGE, NO_PART)]:
        progress.say(f"{len(others)} files or folders that are no images are left out, {others[0]} the first")
    return source
