"""What the runs of a table came to, beside the printed numbers: Markdown, CSV and HTML."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from npmatch.checkpoint import write_file, writing
from npmatch.reproduce.jobs import Job
from npmatch.reproduce.printed import Printed
from npmatch.reproduce.tables import Cell, Table
from npmatch.runs import RunFolder

# How a run's error is reported; the printed ones are comparable with the best alone, which is selected on test.
KINDS = {
    "last": "{metric}",
    "median of the last 20": "{metric}_median20",
    "best (selected on test)": "{metric}_best_on_test",
}
BEST = "best (selected on test)"


@dataclass(frozen=True)
class Stat:
    """Mean and standard deviation over seeds; of one seed there is no deviation."""

    mean: float
    std: float | None
    seeds: int

    def __str__(self) -> str:
        spread = "" if self.std is None else f" ± {self.std:.2f}"
        return f"{self.mean:.2f}{spread} (n = {self.seeds})"


@dataclass(frozen=True)
class Found:
    """A cell with what its runs came to, by kind; a kind that no run has is left out."""

    cell: Cell
    stats: Mapping[str, Stat]
    settings: str  # in which it deviates, or may: weak pass, alignment, precision


def found(table: Table, jobs: Sequence[Job]) -> list[Found]:
    """All the table's cells; those without a finished run are empty."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for job in jobs:
        result = RunFolder(job.path).read_result() if job.status == "done" else None
        if result is not None:
            by_name.setdefault(job.cell.name, []).append(result)
    return [_found(cell, by_name.get(cell.name, [])) for cell in table.cells]


def _found(cell: Cell, results: Sequence[Mapping[str, Any]]) -> Found:
    stats = {}
    for kind, key in KINDS.items():
        numbers = [result.get(key.format(metric=cell.metric)) for result in results]
        numbers = [number for number in numbers if number is not None]
        if numbers:
            stats[kind] = Stat(fmean(numbers), stdev(numbers) if len(numbers) > 1 else None, len(numbers))
    names = ("steps", "weak_pass", "alignment", "head", "net", "device")
    said = [f"{name} {'/'.join(sorted({str(result[name]) for result in results}))}" for name in names if results]
    return Found(cell, stats, ", ".join(said))


def rows(cells: Iterable[Found]) -> list[dict[str, Any]]:
    """A row for each cell, with all there is to say of it."""
    table = []
    for one in cells:
        row: dict[str, Any] = {"method": one.cell.row, "dataset": one.cell.dataset, "labels": one.cell.labels}
        row["metric"] = one.cell.metric
        for kind in KINDS:
            stat = one.stats.get(kind)
            word = kind.partition(" ")[0]
            row |= {word: stat and stat.mean, f"{word}_std": stat and stat.std}
        row["seeds"] = max((stat.seeds for stat in one.stats.values()), default=0)
        printed = one.cell.printed
        row |= {"printed": printed and printed.value, "printed_std": printed and printed.std}
        row |= {"difference": _difference(one), "settings": one.settings}
        table.append(row)
    return table


def _difference(one: Found) -> float | None:
    """Ours less the printed number."""
    ours = one.stats.get(BEST) or one.stats.get("last")
    return None if ours is None or one.cell.printed is None else ours.mean - one.cell.printed.value


def markdown(table: Table, cells: Sequence[Found], note: str) -> str:
    """A row for each method, a column for each data set and number of labels; ours over the printed."""
    columns = list(dict.fromkeys((one.cell.dataset, one.cell.labels, one.cell.metric) for one in cells))
    by_place = {(one.cell.row, (one.cell.dataset, one.cell.labels, one.cell.metric)): one for one in cells}
    heads = [
        f"{dataset}, {labels:,}" + ("" if metric == "error" else f", {metric}") for dataset, labels, metric in columns
    ]
    lines = [f"# {table.title}", "", note, "", f"| method | {' | '.join(heads)} |", "|---" * (len(columns) + 1) + "|"]
    for name in dict.fromkeys(one.cell.row for one in cells):
        texts = [_text(by_place.get((name, column))) for column in columns]
        lines.append(f"| {name} | {' | '.join(texts)} |")
    return "\n".join(lines) + "\n"


def _text(one: Found | None) -> str:
    if one is None:
        return ""
    ours = [f"{kind}: {stat}" for kind, stat in one.stats.items()]
    return "<br>".join([*ours, *([f"printed: {_printed(one.cell.printed)}"] if one.cell.printed else [])])


def _printed(number: Printed) -> str:
    return f"{number.value:.2f}" + ("" if number.std is None else f" ± {number.std:.2f}")


PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{{ title }}</title>
<style>
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem; color: #222; background: #fff }
table { border-collapse: collapse } td, th { padding: .3rem .7rem; text-align: right; border-bottom: 1px solid #ddd }
td:first-child, th:first-child { text-align: left } .empty { color: #767676 }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #1b1b1b } td, th { border-color: #444 } }
</style>
<h1>{{ title }}</h1><p>{{ note }}</p>
<table><thead><tr>{% for name in names %}<th>{{ name }}</th>{% endfor %}</tr></thead><tbody>
{% for row in rows %}<tr{% if not row.seeds %} class="empty"{% endif %}>
{% for name in names %}<td>{% if row[name] is number and row[name] is not integer %}{{ "%.2f" % row[name] }}
{%- elif row[name] is not none %}{{ row[name] }}{% endif %}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></html>
"""


def write(table: Table, cells: Sequence[Found], folder: Path, stem: str, note: str) -> list[Path]:
    """The table in the three forms -> their files."""
    import jinja2

    lines = rows(cells)
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    page = jinja2.Environment(autoescape=True).from_string(PAGE)
    html = page.render(title=table.title, note=note, names=list(lines[0]), rows=lines)
    contents = {"md": markdown(table, cells, note), "csv": text.getvalue(), "html": html}
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for kind, content in contents.items():
        write_file(folder / f"{stem}.{kind}", content.encode())
    return [folder / f"{stem}.{kind}" for kind in contents]
