"""The figures behind two tables: accuracy and uncertainty by class, and the error over a setting's values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from npmatch.errors import UserError
from npmatch.reproduce.jobs import Job
from npmatch.reproduce.results import Found
from npmatch.reproduce.tables import SWEPT
from npmatch.runs import RunFolder

FORMATS = ("png", "svg")
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")  # Okabe and Ito's, which the color-blind tell apart
MARKERS = "oDsv"


def classes(jobs: Sequence[Job], folder: Path) -> list[Path]:
    """Mean uncertainty and accuracy of each class, a line for each number of labels: of NP-Match's finished runs."""
    done = [job for job in jobs if job.cell.method == "npmatch" and job.status == "done"]
    results = [(job, RunFolder(job.path).read_result() or {}) for job in done]
    results = [(job, result) for job, result in results if result.get("per_class")]
    data = list(dict.fromkeys(job.data for job, _ in results))
    if not data:
        return []
    figure = _figure(6.0 * len(data), 6.0)
    panels = figure.subplots(2, len(data), squeeze=False, sharex="col")
    for column, name in enumerate(data):
        seeds = {job.seed for job, _ in results if job.data == name}
        own = [(job, result) for job, result in results if job.data == name]
        names = own[0][1]["classes"]
        for number, labels in enumerate(sorted({job.cell.labels for job, _ in own})):
            tables = [result["per_class"] for job, result in own if job.cell.labels == labels]
            for panel, key in zip(panels[:, column], ("uncertainty", "accuracy")):
                values = np.array([[row[key] for row in table] for table in tables], np.float64)  # None becomes NaN
                look = {"color": COLORS[number % 4], "marker": MARKERS[number % 4]}
                panel.plot(range(len(names)), values.mean(0), label=f"{labels:,} labels", **look)
                panel.set_ylabel(f"{key}, %")
                panel.grid(alpha=0.3)
        panels[0, column].set_title(f"{name}, mean of {len(seeds)} seeds" if len(seeds) > 1 else name)
        panels[1, column].set_xticks(range(len(names)), names, rotation=60, ha="right")
        panels[0, column].legend(frameon=False)
    return _saved(figure, folder, "classes")


def sweeps(cells: Sequence[Found], folder: Path) -> list[Path]:
    """The last error over the values of each setting, a line for each data set."""
    swept = [one for one in cells if "last" in one.stats and set(one.cell.changes) & {key for key, _ in SWEPT}]
    if not swept:
        return []
    figure = _figure(4.2 * len(SWEPT), 3.8)
    for panel, (key, _) in zip(figure.subplots(1, len(SWEPT), squeeze=False)[0], SWEPT):
        own = [one for one in swept if key in one.cell.changes]
        for number, name in enumerate(dict.fromkeys((one.cell.dataset, one.cell.labels) for one in own)):
            line = [one for one in own if (one.cell.dataset, one.cell.labels) == name]
            look = {"color": COLORS[number % 4], "marker": MARKERS[number % 4], "capsize": 3}
            means, spreads = ([getattr(one.stats["last"], of) for one in line] for of in ("mean", "std"))
            x = [one.cell.changes[key] for one in line]
            panel.errorbar(x, means, [spread or 0.0 for spread in spreads], label=f"{name[0]}, {name[1]}", **look)
        panel.set(xlabel=key, ylabel="error, %", xscale="linear" if key.endswith("uncertainty") else "log")
        panel.grid(alpha=0.3)
        if own:
            panel.legend(frameon=False)
    return _saved(figure, folder, "sweeps")


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("the figure needs the package matplotlib: pip install 'npmatch[figures]'") from None
    figure = Figure(figsize=(max(5.0, width), height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _saved(figure: Any, folder: Path, stem: str) -> list[Path]:
    files = [folder / f"{stem}.{kind}" for kind in FORMATS]
    for file in files:
        figure.savefig(file, dpi=200)
    return files
