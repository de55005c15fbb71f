"""What is published of each method: the settings of its row in NP-Match's tables, and those of its own paper.

Both start from what `presets.paper` has for every method, and say only where a method differs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from npmatch.config import Settings
from npmatch.errors import UserError


@dataclass(frozen=True, kw_only=True)
class About:
    """What a preset may know of the data."""

    name: str
    image_size: int
    channels: int
    flip: bool  # a mirrored image is as natural
    labels: int = 40  # by default, in all


Change = Callable[[Settings, About], Settings]


def fixmatch_original(settings: Settings, about: About) -> Settings:
    """Sohn et al. 2020: two operations, each applied half the time, and a square of 16 pixels cut out."""
    net = replace(settings.net, block="correct")
    return replace(settings, views=replace(settings.views, strong="ra_fixmatch"), net=net)


# Rows of the tables that are not trained as FixMatch's.
TABLE: dict[str, Change] = {}

# --set algorithm.variant=original
ORIGINAL: dict[str, Change] = {
    "fixmatch": fixmatch_original,
}


def as_published(settings: Settings, about: About) -> Settings:
    """The settings of a method's row, or with variant "original" those of its own paper."""
    name = settings.algorithm_name
    if settings.variant == "table":
        return TABLE[name](settings, about) if name in TABLE else settings
    if name not in ORIGINAL:
        raise UserError(f"algorithm.variant=original: {name} has no settings but those of the tables")
    return ORIGINAL[name](settings, about)
