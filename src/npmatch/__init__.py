"""Many images, few labels, and a classifier that says when it may be trusted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from npmatch.errors import Diverged, RankLost, Stopped, UserError
    from npmatch.fitting import fit
    from npmatch.plan import Opening
    from npmatch.predictor import Predictions, Run, load

__version__ = "0.1.0"
__all__ = [
    "Diverged",
    "Opening",
    "Predictions",
    "RankLost",
    "Run",
    "Stopped",
    "UserError",
    "__version__",
    "fit",
    "load",
]

_HOMES = {
    "fit": "fitting",
    "Opening": "plan",
    "Predictions": "predictor",
    "Run": "predictor",
    "load": "predictor",
    "UserError": "errors",
    "Diverged": "errors",
    "Stopped": "errors",
    "RankLost": "errors",
}


def __getattr__(name: str) -> Any:
    """The public names, imported when first asked for: torch takes seconds, and `npmatch --help` needs none of it."""
    if name not in _HOMES:
        raise AttributeError(f"module 'npmatch' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"npmatch.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
