"""The training log as charts: error, pseudo-labels, losses and whatever else was logged."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from markupsafe import Markup

from npmatch.report.folder import number
from npmatch.report.svg import Axis, Line, Point, line_chart

SHARES = {"kept": ("kept", 1), "sure": ("sure", 3), "refused_by_uncertainty": ("refused", 2)}
_LOSSES = ("loss", "labeled", "unlabeled", "divergence")
_MOST_POINTS = 160  # of a curve; longer logs are averaged in bins
_MOST_PANELS = 16


@dataclass(frozen=True)
class Series:
    """One logged number over training."""

    name: str
    steps: list[float]
    values: list[float]


@dataclass(frozen=True)
class Panel:
    """A small chart with its name and last value."""

    name: str
    last: str
    chart: Markup


def series(metrics: Sequence[dict[str, Any]], key: str) -> Series:
    """The steps at which a number was logged, and the number. Null, NaN and missing ones are left out."""
    found = [(number(line.get("step")), number(line.get(key))) for line in metrics]
    pairs = [(step, value) for step, value in found if step is not None and value is not None]
    return Series(key, [step for step, _ in pairs], [value for _, value in pairs])


def error_curve(errors: Series, part: str) -> Markup | None:
    """Error over steps, with the smallest one marked for what it is."""
    if not errors.values:
        return None
    low = int(np.argmin(errors.values))
    best, last = errors.values[low], errors.values[-1]
    marks = []
    if best < last:
        says = f"step {errors.steps[low]:,.0f}"
        marks.append(Point(errors.steps[low], best, f"best {best:.2f}, selected on {part}", says, color=2))
    line = _line(errors, f"last {last:.2f}", 1, "{:.2f} %", band=False)
    describe = f"Error on {part} over {errors.steps[-1]:,.0f} steps: last {last:.2f} %, smallest {best:.2f} %"
    return line_chart([line], _steps(errors.steps), Axis.around(f"error on {part} (%)", errors.values), describe, marks)


def share_curves(metrics: Sequence[dict[str, Any]]) -> Markup | None:
    """The shares of pseudo-labels kept and refused, in percent."""
    found = [(name, color, series(metrics, key)) for key, (name, color) in SHARES.items()]
    lines = []
    for name, color, shares in found:
        if shares.values:
            percent = Series(shares.name, shares.steps, [100 * value for value in shares.values])
            line = _line(percent, f"{name} {percent.values[-1]:.0f} %", color, name + " {:.1f} %")
            lines.append(line)
    if not lines:
        return None
    describe = "Shares of pseudo-labels over training, at the end: " + ", ".join(line.name for line in lines)
    steps = [step for _, _, shares in found for step in shares.steps]
    return line_chart(lines, _steps(steps), Axis("pseudo-labels (%)", 0, 100), describe)


def panels(metrics: Sequence[dict[str, Any]]) -> tuple[list[Panel], list[str]]:
    """A small chart for each other number that training logged, the losses first, and the names left out for room."""
    training = [line for line in metrics if "error" not in line]
    logged = dict.fromkeys(key for line in training for key in line if key != "step" and key not in SHARES)
    names = [key for key in _LOSSES if key in logged] + sorted(key for key in logged if key not in _LOSSES)
    found = [s for s in (series(training, name) for name in names) if s.values]
    return [_panel(s) for s in found[:_MOST_PANELS]], [s.name for s in found[_MOST_PANELS:]]


def _panel(logged: Series) -> Panel:
    name = logged.name.replace("_", " ")
    last = f"{logged.values[-1]:,.4g}"
    line = _line(logged, "", 1, "{:,.4g}")
    x = Axis("", 0.0, max(*logged.steps, 1.0), most_ticks=3)
    y = Axis.around("", logged.values, most_ticks=3)
    return Panel(name, last, line_chart([line], x, y, f"{name} over training, last value {last}", small=True))


def _line(logged: Series, name: str, color: int, says: str, band: bool = True) -> Line:
    """A curve of few enough points: means of equal bins, with the range of each bin as a band."""
    if len(logged.values) <= _MOST_POINTS:
        steps, values, low, high = logged.steps, logged.values, None, None
    else:
        edges = np.linspace(0, len(logged.values), _MOST_POINTS + 1).astype(int)
        bins = [np.asarray(logged.values[a:b]) for a, b in pairwise(edges)]
        steps = [float(np.mean(logged.steps[a:b])) for a, b in pairwise(edges)]
        values = [float(b.mean()) for b in bins]
        low = [float(b.min()) for b in bins] if band else None
        high = [float(b.max()) for b in bins] if band else None
    words = [f"step {step:,.0f}: " + says.format(value) for step, value in zip(steps, values)]
    return Line(name, steps, values, words, color, low, high)


def _steps(steps: Sequence[float]) -> Axis:
    return Axis("step", 0.0, max(*steps, 1.0), most_ticks=4)
