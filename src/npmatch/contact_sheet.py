"""A picture of what training would see: some images as stored, with weak and strong views of each beside them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo
from torch import Tensor

from npmatch.build import build_views
from npmatch.config import Settings
from npmatch.data.augment import RECIPES
from npmatch.data.source import Source
from npmatch.data.stream import view_key
from npmatch.errors import UserError

ROWS = 8
WEAK, STRONG = 3, 6  # views of each image
TILE = 96  # pixels, about: small images are enlarged by a whole factor
MARGIN, GAP, GROUP_GAP, CAPTION = 20, 6, 22, 20
HEADING = 78  # above the first row
INK, FAINT, PAPER = (32, 36, 42), (104, 110, 118), (255, 255, 255)

MARK = ("Software", "npmatch")  # a PNG text that says whose sheet it is

Font = ImageFont.ImageFont | ImageFont.FreeTypeFont


class Column(NamedTuple):
    """One view of every image shown."""

    view: str  # "stored", or the name of a view
    step: int  # of the run whose view it is
    images: Tensor  # (rows, C, H, W) uint8


def save_contact_sheet(path: Path, source: Source, settings: Settings, *, without: Collection[str] = ()) -> None:
    """Write the sheet as a PNG."""
    refuse_taken(path)
    sheet, mark = contact_sheet(source, settings, without=without), PngInfo()
    mark.add_text(*MARK)
    try:
        sheet.save(path, format="PNG", pnginfo=mark)
    except OSError as error:
        raise UserError(f"--views {path}: cannot be written ({error.strerror or error})") from error


def refuse_taken(path: Path) -> None:
    """Complains where the name is of no PNG, or of a file that is not a sheet which may be replaced."""
    if path.suffix.lower() != ".png":
        raise UserError(f"--views {path}: its name must end in .png")
    if path.exists() and not _is_ours(path):
        raise UserError(f"--views {path}: exists and is not a sheet that npmatch wrote; pass another name")


def _is_ours(path: Path) -> bool:
    try:
        with Image.open(path, formats=["PNG"]) as picture:
            return picture.info.get(MARK[0]) == MARK[1]
    except Exception:  # whatever Pillow makes of other bytes
        return False


def contact_sheet(source: Source, settings: Settings, *, without: Collection[str] = ()) -> Image.Image:
    """The sheet for a source. Images whose ids are in `without` are not shown."""
    places = choose(source, settings.seed, without)
    captions = [source.classes[source.labels[place]] for place in places]
    title = f"{source.name}: what training sees (preset {settings.preset}, seed {settings.seed})"
    return draw(columns(source, settings, places), captions, title, says=_in_words(source, settings))


def choose(source: Source, seed: int, without: Collection[str] = ()) -> np.ndarray:
    """Places of up to eight labeled training images: one of each class, then further ones until there are enough."""
    usable = np.array([name not in without for name in source.ids]) & (source.parts == "train") & (source.labels >= 0)
    drawn = np.random.default_rng(seed)
    order = drawn.permutation(np.flatnonzero(usable))
    classes = drawn.permutation(len(source.classes))
    turns = [(turn, place) for k in classes for turn, place in enumerate(order[source.labels[order] == k])]
    taken = [place for _, place in sorted(turns, key=lambda pair: pair[0])][:ROWS]
    return np.array(sorted(taken, key=lambda place: source.labels[place]), np.int64)


def columns(source: Source, settings: Settings, places: np.ndarray) -> list[Column]:
    """The images as stored, then the views that training would make of them, standing in this order in its batch."""
    images = source.take(places)
    views = build_views(settings, source.image_size)
    rows = torch.arange(len(images))
    shown = [Column("stored", 0, images)]
    for name, count in (("weak" if "weak" in views else "labeled", WEAK), ("strong", STRONG)):
        if name in views:
            keys = [view_key(settings.seed, step, name) for step in range(count)]
            shown += [Column(name, step, views[name](images, key, rows)) for step, key in enumerate(keys)]
    return shown


def _in_words(source: Source, settings: Settings) -> dict[str, str]:
    """The heading of each kind of column."""
    chosen, side = settings.views, source.images.shape[2]
    moved = f"shifted by up to {chosen.padding}" if chosen.crop == "shift" else f"{chosen.min_area:.0%} of it or more"
    weak = f"weak: {moved}, {'mirrored or not' if chosen.flip else 'never mirrored'}"
    operations = chosen.num_ops or RECIPES[chosen.strong].num_ops
    without = "".join(f", no {name}" for name in ("color", "geometry", "cutout") if not getattr(chosen, name))
    strong = f"strong: {chosen.strong}, up to {operations} operations{without}"
    return {"stored": f"as stored, {side} x {side}", "labeled": weak, "weak": weak, "strong": strong}


def corners(shown: Sequence[Column], rows: int) -> tuple[list[int], list[int], int]:
    """The left edges of the columns, the top edges of the rows, and by how much images are enlarged."""
    factor = max(1, round(TILE / shown[-1].images.shape[3]))
    lefts, left = [], MARGIN
    for before, column in zip([None, *shown], shown):
        left += GROUP_GAP if before is not None and before.view != column.view else 0
        lefts.append(left)
        left += factor * column.images.shape[3] + GAP
    height = factor * max(column.images.shape[2] for column in shown) + CAPTION + GAP
    return lefts, [HEADING + row * height for row in range(rows)], factor


def draw(shown: Sequence[Column], captions: Sequence[str], title: str, says: Mapping[str, str]) -> Image.Image:
    """Rows of images, each with its caption below the first."""
    lefts, tops, factor = corners(shown, len(captions))
    width = lefts[-1] + factor * shown[-1].images.shape[3] + MARGIN
    bottom = tops[-1] + factor * max(column.images.shape[2] for column in shown) + CAPTION + MARGIN
    sheet = Image.new("RGB", (width, bottom), PAPER)
    pen, large, small = ImageDraw.Draw(sheet), ImageFont.load_default(18), ImageFont.load_default(12)
    pen.text((MARGIN, MARGIN - 4), title, INK, large)
    for index, (left, column) in enumerate(zip(lefts, shown)):
        if column.step == 0:
            end = next((at for at, other in zip(lefts, shown) if at > left and other.view != column.view), width)
            pen.text((left, HEADING - 24), _fitting(pen, says[column.view], end - left - GAP, small), FAINT, small)
        for top, image in zip(tops, column.images):
            tile = _picture(image)
            tile = tile.resize((factor * tile.width, factor * tile.height), Image.Resampling.NEAREST)
            sheet.paste(tile, (left, top))
            if index == 0:
                caption = captions[tops.index(top)]
                pen.text(
                    (left, top + tile.height + 3), _fitting(pen, caption, width - left - MARGIN, small), INK, small
                )
    return sheet


def _fitting(pen: ImageDraw.ImageDraw, text: str, width: int, font: Font) -> str:
    """The text, cut short where it would be wider."""
    if pen.textlength(text, font) <= width:
        return text
    while text and pen.textlength(text + "...", font) > width:
        text = text[:-1]
    return text + "..."


def _picture(image_CHW: Tensor) -> Image.Image:
    """Of other than 1 or 3 channels the first 3, or the first, are shown."""
    pixels = image_CHW.permute(1, 2, 0).numpy()
    return Image.fromarray(np.ascontiguousarray(pixels[..., :3] if pixels.shape[2] >= 3 else pixels[..., 0]))
