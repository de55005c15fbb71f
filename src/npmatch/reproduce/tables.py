"""The tables, as the runs they are made of. Two tables that want the same run share it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from npmatch.algorithms import ALGORITHMS
from npmatch.reproduce import printed
from npmatch.reproduce.printed import Printed


@dataclass(frozen=True)
class Cell:
    """One number of a table: the mean of one run for each seed."""

    method: str
    dataset: str
    labels: int
    metric: str = "error"  # of result.json
    changes: Mapping[str, Any] = field(default_factory=dict)  # to preset paper
    printed: Printed | None = None

    @property
    def row(self) -> str:
        """What it is called in the table's first column."""
        return " ".join([self.method, *(f"{key.partition('.')[2]}={value}" for key, value in self.changes.items())])

    @property
    def name(self) -> str:
        return f"{self.row.replace(' ', ',')}/{self.dataset}-{self.labels}"

    @property
    def is_built(self) -> bool:
        return self.method in ALGORITHMS

    def folder(self, dataset: str, seed: int) -> str:
        """Where its run of a seed lies, on this data or on what stands in for it."""
        return f"{dataset}-{self.row.replace(' ', ',')}-{self.labels}-s{seed}"


@dataclass(frozen=True)
class Table:
    title: str
    cells: Sequence[Cell]


def table1() -> Table:
    rows = [
        Cell(method, *column, printed=number)
        for method, row in printed.TABLE1.items()
        for column, number in row.items()
    ]
    return Table("Error in percent (Table 1)", rows)


def imagenet() -> Table:
    rows = [
        Cell(method, "imagenet", 100_000, metric, printed=number)
        for method, numbers in printed.IMAGENET.items()
        for metric, number in zip(("error", "top5"), numbers)
    ]
    return Table("ImageNet with 100,000 labels: top-1 and top-5 error in percent", rows)


def uce() -> Table:
    rows = [
        Cell(method, *column, "uce", printed=number)
        for method, row in printed.UCE.items()
        for column, number in row.items()
    ]
    return Table("Expected uncertainty calibration error in percent", rows)


# The paper prints no values for its four sweeps, and does not say on what they were made.
SWEPT: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("algorithm.max_uncertainty", (0.2, 0.3, 0.4, 0.5, 0.6)),
    ("head.bank_size", (640, 1280, 2560, 5120)),
    ("algorithm.divergence_weight", (0.001, 0.01, 0.1, 1.0)),
    ("head.num_samples", (1, 2, 5, 10, 20)),
)
SWEPT_ON = ("cifar10", 40), ("cifar100", 400), ("stl10", 40)


def ablations() -> Table:
    rows = [
        Cell("npmatch", *column, changes={} if name == "js" else {"head.divergence": name}, printed=number)
        for name, row in printed.DIVERGENCES.items()
        for column, number in row.items()
    ]
    rows += [
        Cell("npmatch", *column, changes={key: value})
        for key, values in SWEPT
        for value in values
        for column in SWEPT_ON
    ]
    return Table("NP-Match's divergence, and four settings", rows)


TABLES = {"table1": table1, "imagenet": imagenet, "uce": uce, "ablations": ablations}
