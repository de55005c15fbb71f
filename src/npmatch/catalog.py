"""What there is to choose from, as `npmatch list` tells it."""

from __future__ import annotations

from npmatch.algorithms import ALGORITHMS
from npmatch.config import HEADS
from npmatch.nets import NETWORKS
from npmatch.presets import BUILTIN, PRESETS, About, table_cells


def catalog(what: str) -> list[dict[str, str]]:
    """Rows of name and summary; of an algorithm its paper too."""
    match what:
        case "algorithms":
            return [{"name": name, "summary": _first_line(cls), "paper": cls.paper} for name, cls in ALGORITHMS.items()]
        case "heads":
            return [{"name": name, "summary": _first_line(cls)} for name, cls in HEADS.items()]
        case "networks":
            return [{"name": name, "summary": _first_line(net)} for name, net in NETWORKS.items()]
        case "datasets":
            return [{"name": name, "summary": _described(about)} for name, about in BUILTIN.items()]
        case _:
            rows = [{"name": name, "summary": _first_line(function)} for name, function in PRESETS.items()]
            return rows + [{"name": name, "summary": "a cell of the paper's Table 1"} for name in table_cells()]


def _described(about: About) -> str:
    color = "gray" if about.channels == 1 else "color"
    return f"{about.image_size}x{about.image_size}, {color}"


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").partition("\n")[0]
