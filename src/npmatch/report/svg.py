"""Small charts as inline SVG, written by hand: no plotting library, no script, colors from the page's style sheet.

Every chart is a function from numbers to markup. Lengths are in the chart's own units, one of which is about one pixel
on a phone. Colors are classes (`c1` blue, `c2` vermilion, ...), so one drawing serves light, dark and paper.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

_LETTER = 7.0  # mean width of a letter at the charts' font size
_LINE = 14.0  # height of a line of text


def tag(name: str, *children: str, **attributes: str | float) -> Markup:
    """One element. Children and values are escaped unless they are Markup; in names `_` becomes `-`, `class_` class."""
    written = Markup().join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _number(value))
        for key, value in attributes.items()
    )
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(name), written, Markup().join(children))


def _number(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")


def shorten(text: str, most: int) -> str:
    """The text, or its beginning and its end: names of classes and files often differ in the end only."""
    if len(text) <= most:
        return text
    end = most // 2
    return text[: most - 1 - end].rstrip() + "…" + text[-end:].lstrip()


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers from low to high, at most `most` + 1 of them."""
    step = (high - low) / most
    size = 10.0 ** math.floor(math.log10(step))
    step = next(size * f for f in (1, 2, 2.5, 5, 10) if size * f >= step * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def tick_label(value: float, step: float) -> str:
    """A number with as many decimals as its neighbors need: 0.05, 250,000, 1.5M."""
    if step >= 100_000:
        return f"{value / 1e6:g}M" if value else "0"
    decimals = next(d for d in range(8) if abs(step * 10**d - round(step * 10**d)) < 1e-6 or d == 7)
    return f"{value:,.{decimals}f}"


@dataclass(frozen=True)
class Axis:
    """What one direction of a chart measures, with the unit in its label."""

    label: str
    low: float
    high: float
    most_ticks: int = 5

    @classmethod
    def around(cls, label: str, values: Sequence[float], most_ticks: int = 5, floor: float | None = 0.0) -> Axis:
        """An axis that holds all values and ends on a tick. It begins at `floor` if no value lies below."""
        low, high = min(values), max(values)
        if floor is not None:
            low = min(low, floor)
        if high - low < 1e-12:
            high = low + (abs(low) or 1.0)
        inside = ticks(low, high, most_ticks)
        step = inside[1] - inside[0]
        return cls(label, math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step, most_ticks)


@dataclass(frozen=True)
class Frame:
    """The plane of a chart: where a pair of values lies, the grid and the labels around it."""

    x: Axis
    y: Axis
    width: float = 440
    height: float = 260
    left: float = 44
    right: float = 16
    top: float = 26
    bottom: float = 40

    def across(self, value: float) -> float:
        share = (value - self.x.low) / (self.x.high - self.x.low)
        return self.left + share * (self.width - self.left - self.right)

    def up(self, value: float) -> float:
        share = (value - self.y.low) / (self.y.high - self.y.low)
        return self.height - self.bottom - share * (self.height - self.top - self.bottom)

    def draw(self) -> Markup:
        floor = self.height - self.bottom
        parts: list[Markup] = []
        heights = ticks(self.y.low, self.y.high, self.y.most_ticks)
        for value in heights:
            y = self.up(value)
            parts.append(tag("line", x1=self.left, x2=self.width - self.right, y1=y, y2=y, class_="grid"))
            name = tick_label(value, heights[1] - heights[0])
            parts.append(tag("text", name, x=self.left - 6, y=y + 4, class_="tick end"))
        places = ticks(self.x.low, self.x.high, self.x.most_ticks)
        for value in places:
            x = self.across(value)
            parts.append(tag("line", x1=x, x2=x, y1=floor, y2=floor + 4, class_="axis"))
            name = tick_label(value, places[1] - places[0])
            parts.append(tag("text", name, x=x, y=floor + 17, class_="tick middle"))
        parts.append(tag("line", x1=self.left, x2=self.width - self.right, y1=floor, y2=floor, class_="axis"))
        if self.y.label:
            parts.append(tag("text", f"↑ {self.y.label}", x=2, y=12, class_="name"))
        if self.x.label:
            parts.append(tag("text", f"{self.x.label} →", x=self.width - self.right, y=floor + 34, class_="name end"))
        return Markup().join(parts)


@dataclass(frozen=True)
class Line:
    """A curve with its name, which is written at its end, and what hovering over each point says."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    says: Sequence[str]
    color: int = 1
    low: Sequence[float] | None = None  # the band around it, if any
    high: Sequence[float] | None = None


@dataclass(frozen=True)
class Point:
    """A dot with a name. `low` and `high` are the ends of its interval in y."""

    x: float
    y: float
    name: str
    says: str = ""
    low: float | None = None
    high: float | None = None
    color: int = 1


def line_chart(
    lines: Sequence[Line],
    x: Axis,
    y: Axis,
    describe: str,
    marks: Sequence[Point] = (),
    level: float | None = None,
    small: bool = False,
) -> Markup:
    """Curves over a shared x, named at their ends. `marks` are points with names, `level` a height to compare with."""
    named = [line for line in lines if line.name]
    room = 18 + _LETTER * max((len(line.name) for line in named), default=0)
    if small:
        frame = Frame(x, y, width=250, height=132, left=40, top=24, bottom=24, right=12)
    else:
        frame = Frame(x, y, right=max(room, 16))
    parts = [frame.draw()]
    if level is not None:
        height, edges = frame.up(level), (frame.across(x.low), frame.across(x.high))
        parts.append(tag("line", x1=edges[0], x2=edges[1], y1=height, y2=height, class_="ideal"))
    for line in lines:
        parts.append(_curve(frame, line))
    for line, height in zip(named, _apart([frame.up(line.y[-1]) for line in named])):
        edge = frame.across(line.x[-1]) + 6
        parts.append(tag("text", line.name, x=edge, y=height + 4, class_=f"direct f{line.color}"))
    for mark in marks:
        parts.append(_mark(frame, mark))
    hover = [
        [[round(frame.across(a), 1), round(frame.up(b), 1), text] for a, b, text in zip(line.x, line.y, line.says)]
        for line in lines
    ]
    parts.append(_cursor(frame, [line.color for line in lines]))
    return _svg(frame.width, frame.height, describe, parts, hover)


def _curve(frame: Frame, line: Line) -> Markup:
    band = Markup()
    if line.low is not None and line.high is not None:
        there = [(frame.across(a), frame.up(b)) for a, b in zip(line.x, line.high)]
        back = [(frame.across(a), frame.up(b)) for a, b in zip(line.x, line.low)][::-1]
        band = tag("path", d=_path(there + back) + "Z", class_=f"band f{line.color}")
    corners = [(frame.across(a), frame.up(b)) for a, b in zip(line.x, line.y)]
    if len(corners) == 1:
        return tag("circle", cx=corners[0][0], cy=corners[0][1], r=3.5, class_=f"f{line.color}")
    return band + tag("path", d=_path(corners), class_=f"line s{line.color}")


def _path(corners: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in corners)


def _mark(frame: Frame, mark: Point) -> Markup:
    x, y = frame.across(mark.x), frame.up(mark.y)
    side = "end" if x > frame.width / 2 else "start"
    below = y + 18 if y + 24 < frame.up(frame.y.low) else y - 8  # a minimum has room below
    dot = tag("circle", tag("title", mark.says), cx=x, cy=y, r=4, class_=f"hollow s{mark.color}")
    return dot + tag(
        "text", mark.name, x=x + 4 if side == "end" else x - 4, y=below, class_=f"direct f{mark.color} {side}"
    )


def _apart(heights: Sequence[float]) -> list[float]:
    """The heights, moved so that labels of one line each do not touch."""
    moved = list(heights)
    for _ in range(20):
        order = sorted(range(len(moved)), key=moved.__getitem__)
        for above, below in pairwise(order):
            lack = _LINE - (moved[below] - moved[above])
            if lack > 0:
                moved[above] -= lack / 2
                moved[below] += lack / 2
    return moved


def _cursor(frame: Frame, colors: Sequence[int]) -> Markup:
    """What a pointer moves: hidden until the page's script shows it."""
    rule = tag("line", x1=0, x2=0, y1=frame.top, y2=frame.height - frame.bottom, class_="rule")
    dots = Markup().join(tag("circle", cx=0, cy=0, r=3.5, class_=f"f{color}") for color in colors)
    says = tag("text", "", x=frame.width - 4, y=12, class_="readout end")
    return tag("g", rule, dots, says, class_="cursor", visibility="hidden")


def scatter(points: Sequence[Point], x: Axis, y: Axis, describe: str, names: int = 40) -> Markup:
    """Named dots with intervals. At most `names` are named, the first ones; the rest say their name when pointed at."""
    frame = Frame(x, y, height=300)
    taken = [(frame.across(p.x) - 5, frame.up(p.y) - 5, frame.across(p.x) + 5, frame.up(p.y) + 5) for p in points]
    bars, dots, labels = [], [], []
    for i, point in enumerate(points):
        cx, cy = frame.across(point.x), frame.up(point.y)
        if point.low is not None and point.high is not None:
            bars.append(tag("line", x1=cx, x2=cx, y1=frame.up(point.low), y2=frame.up(point.high), class_="bar s1"))
        look = f"dot f{point.color} crowded" if len(points) > 60 else f"dot f{point.color}"
        dots.append(tag("circle", tag("title", point.says), cx=cx, cy=cy, r=4.5, class_=look))
        place = _free_place(cx, cy, point.name, taken, frame) if i < names else None
        if place:
            taken.append(place)
            labels.append(tag("text", shorten(point.name, 18), x=place[0], y=place[3] - 3, class_="label"))
    return _svg(frame.width, frame.height, describe, [frame.draw(), *bars, *dots, *labels])


Box = tuple[float, float, float, float]  # left, top, right, bottom


def _free_place(x: float, y: float, name: str, taken: Sequence[Box], frame: Frame) -> Box | None:
    """Where a label fits near its dot without touching a dot or another label."""
    width = _LETTER * len(shorten(name, 18))
    for reach in (8, 14):
        for left, middle in (
            (x + reach, y),
            (x - reach - width, y),
            (x - width / 2, y - reach - 4),
            (x - width / 2, y + reach + 4),
            (x + reach, y - reach),
            (x + reach, y + reach),
            (x - reach - width, y - reach),
            (x - reach - width, y + reach),
        ):
            box = (left, middle - _LINE / 2, left + width, middle + _LINE / 2)
            inside = (
                box[0] > frame.left
                and box[2] < frame.width
                and frame.top - 8 < box[1]
                and box[3] < frame.up(frame.y.low)
            )
            if inside and not any(_touch(box, other) for other in taken):
                return box
    return None


def _touch(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


@dataclass(frozen=True)
class Bin:
    """One bar of a calibration diagram: what was claimed, what happened, for what share of the images."""

    low: float
    high: float
    claimed: float
    happened: float
    share: float
    says: str


def calibration_bars(
    bins: Sequence[Bin], x: Axis, y: Axis, describe: str, color: int = 1, bad_above: bool = False
) -> Markup:
    """What happened per bin as bars, what was claimed as the diagonal, the share of images as a strip below.

    The gap between the two stands out where it does harm: below what was claimed, or above it if `bad_above`.
    """
    frame = Frame(x, y, height=320, bottom=96)
    floor, strip = frame.up(frame.y.low), 34.0
    most = max((b.share for b in bins), default=1.0)
    bars: list[Markup] = []
    for b in bins:
        left, width = frame.across(b.low) + 0.75, frame.across(b.high) - frame.across(b.low) - 1.5
        top, due = frame.up(b.happened), frame.up(b.claimed)
        size = strip * b.share / most
        gap = "gap" if (b.happened > b.claimed) == bad_above else f"mild f{color}"
        bars.append(
            tag(
                "g",
                tag("title", b.says),
                tag(
                    "rect", x=left, width=width, y=max(top, due), height=floor - max(top, due), class_=f"soft f{color}"
                ),
                tag("rect", x=left, width=width, y=min(top, due), height=abs(top - due), class_=gap),
                tag("line", x1=left, x2=left + width, y1=top, y2=top, class_=f"line s{color}"),
                tag("rect", x=left, width=width, y=frame.height - 14 - size, height=size, class_="count"),
            )
        )
    diagonal = tag(
        "line", x1=frame.across(x.low), y1=frame.up(x.low), x2=frame.across(x.high), y2=frame.up(x.high), class_="ideal"
    )
    below = tag("text", "images in each bin", x=frame.left, y=frame.height - 1, class_="name")
    return _svg(frame.width, frame.height, describe, [frame.draw(), *bars, diagonal, below])


def heat_map(counts: Sequence[Sequence[int]], names: Sequence[str], describe: str) -> Markup:
    """A confusion matrix: a row for each given class, a column for each predicted one, shaded by share of the row."""
    size = len(names)
    cell = max(18.0, min(56.0, 380 / size))
    label = _LETTER * max(len(shorten(name, 16)) for name in names) + 10
    turned = label > cell
    top = 34 + (label * 0.75 if turned else 10)
    right = label * 0.7 if turned else 8
    parts = [tag("text", "given ↓  predicted →", x=label - 4, y=12, class_="name")]
    for i, name in enumerate(names):
        middle = i * cell + cell / 2
        parts.append(
            tag("text", tag("title", name), shorten(name, 16), x=label - 6, y=top + middle + 4, class_="tick end")
        )
        x, y = label + middle, top - 7
        turn = {"transform": f"rotate(-45 {x:.1f} {y:.1f})"} if turned else {}
        side = "tick" if turned else "tick middle"
        parts.append(tag("text", tag("title", name), shorten(name, 16), x=x, y=y, class_=side, **turn))
    for i, row in enumerate(counts):
        for j, count in enumerate(row):
            place = {"x": label + j * cell, "y": top + i * cell, "width": cell - 1, "height": cell - 1}
            parts.append(tag("rect", class_="cell", **place))
            if count:
                share = count / sum(row)
                says = f"given {names[i]}, predicted {names[j]}: {count} of {sum(row)} ({100 * share:.1f} %)"
                # The square root lets a few errors among many images be seen.
                strength = math.sqrt(share) * (0.9 if i == j else 1.0)
                color, ink = "f1" if i == j else "f2", "count-in strong" if strength > 0.6 else "count-in"
                fill = tag("rect", class_=color, fill_opacity=strength, **place)
                at = {"x": place["x"] + cell / 2 - 0.5, "y": place["y"] + cell / 2 + 3.5}
                shown = tag("text", str(count), class_=f"{ink} middle", **at)
                parts.append(tag("g", tag("title", says), fill, shown))
    width = label + size * cell + right
    return _svg(width, top + size * cell + 4, describe, parts, least_width=0.75 * width)


def _svg(
    width: float,
    height: float,
    describe: str,
    parts: Sequence[Markup],
    hover: Sequence[object] = (),
    least_width: float = 0,
) -> Markup:
    # The drawing is one image to a screen reader, told by `describe`; the page gives the same numbers as text.
    head = Markup('<svg viewBox="0 0 {:.0f} {:.0f}" style="min-width:{:.0f}px;max-width:{:.0f}px"').format(
        width, height, least_width, 1.35 * width
    )
    head += Markup(' role="img" aria-label="{}"').format(describe)
    if hover:
        head += Markup(' tabindex="0" data-hover="{}"').format(json.dumps(hover, ensure_ascii=False))
    return head + Markup(">") + Markup().join(parts) + Markup("</svg>")
