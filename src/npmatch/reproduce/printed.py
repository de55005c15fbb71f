"""The numbers that NP-Match's paper prints: error in percent and its standard deviation. Most rows of its Table 1 are
the best of a run, selected on test, and many were taken over from other papers."""

from __future__ import annotations

from typing import NamedTuple


class Printed(NamedTuple):
    """A number, and its standard deviation if one is printed."""

    value: float
    std: float | None = None


COLUMNS = (
    *(("cifar10", labels) for labels in (40, 250, 4000)),
    *(("cifar100", labels) for labels in (400, 2500, 10000)),
    *(("stl10", labels) for labels in (40, 250, 1000)),
)

_TABLE1 = {
    "mixmatch": "36.19 6.48 13.63 .59 6.66 .26 67.59 .66 39.76 .48 27.78 .29 54.93 .96 34.52 .32 21.70 .68",
    "remixmatch": "9.88 1.03 6.30 .05 4.84 .01 42.75 1.05 26.03 .35 20.02 .27 32.12 6.24 12.49 1.28 6.74 .14",
    "uda": "10.62 3.75 5.16 .06 4.29 .07 46.39 1.59 27.73 .21 22.49 .23 37.42 8.44 9.72 1.15 6.64 .17",
    "comatch": "6.88 .92 4.90 .35 4.06 .03 40.02 1.11 27.01 .21 21.83 .23 31.77 2.56 11.56 1.27 8.66 .41",
    "semco": "7.87 .22 5.12 .27 3.80 .08 44.11 1.18 31.93 .33 24.45 .12 34.17 2.78 12.23 1.40 7.49 .29",
    "meta_pseudo_labels": "6.93 .17 4.94 .04 3.89 .07 44.23 .99 27.68 .22 22.48 .18 34.29 3.29 9.90 .96 6.45 .26",
    "flexmatch": "4.96 .06 4.98 .09 4.19 .01 39.94 1.62 26.49 .20 21.90 .15 29.15 4.16 8.23 .39 5.77 .18",
    "simmatch": "5.63 .72 4.50 .04 3.97 .03 39.29 .55 25.21 .17 20.63 .05 25.13 .76 8.72 .45 6.11 .19",
    "ups": "5.26 .29 5.11 .08 4.25 .05 41.07 1.66 27.14 .24 21.97 .23 30.82 2.16 9.77 .44 6.02 .28",
    "fixmatch": "7.47 .28 4.86 .05 4.21 .08 46.42 .82 28.03 .16 22.20 .12 35.96 4.14 9.81 1.04 6.25 .33",
    "npmatch": "4.91 .04 4.96 .06 4.11 .02 38.91 .99 26.03 .26 21.22 .13 14.20 .67 9.51 .37 5.59 .24",
}
_DIVERGENCES = {
    "kl": "5.32 .06 5.20 .02 4.36 .03 39.15 1.53 26.48 .23 21.51 .17 14.67 .38 9.92 .24 6.21 .23",
    "dual_js": "4.93 .02 4.87 .03 4.19 .04 38.67 1.29 26.24 .17 21.33 .10 14.45 .55 9.48 .28 5.47 .19",
    "js": _TABLE1["npmatch"],
}
_UCE = {"ups": (7.96, 7.02, 5.82, 17.23, 9.65, 5.69), "npmatch": (7.23, 6.85, 5.89, 12.45, 8.72, 5.28)}


def _row(text: str) -> dict[tuple[str, int], Printed]:
    numbers = [float(word) for word in text.split()]
    return {column: Printed(*pair) for column, *pair in zip(COLUMNS, numbers[::2], numbers[1::2], strict=True)}


TABLE1 = {method: _row(text) for method, text in _TABLE1.items()}
DIVERGENCES = {name: _row(text) for name, text in _DIVERGENCES.items()}
UCE_COLUMNS = tuple(column for column in COLUMNS if column[0] != "cifar100")
UCE = {method: dict(zip(UCE_COLUMNS, map(Printed, row), strict=True)) for method, row in _UCE.items()}
# One run each: top-1 and top-5 error.
IMAGENET = {
    "fixmatch": (Printed(43.66), Printed(21.80)),
    "flexmatch": (Printed(41.85), Printed(19.48)),
    "comatch": (Printed(42.17), Printed(19.64)),
    "ups": (Printed(42.69), Printed(20.23)),
    "npmatch": (Printed(41.78), Printed(19.33)),
}
