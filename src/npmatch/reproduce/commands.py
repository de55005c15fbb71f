"""The verb `npmatch reproduce`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from npmatch.bench.commands import bench
from npmatch.errors import UserError

if TYPE_CHECKING:
    from npmatch.reproduce.jobs import Job
    from npmatch.reproduce.tables import Table

TABLES = ("table1", "imagenet", "uce", "ablations", "timing")


@click.command()
@click.argument("table", type=click.Choice(TABLES))
@click.option("--cells", default="", metavar="NAME,…", help="Which, such as fixmatch/cifar10-*. Default: all.")
@click.option("--seeds", default="0,1,2", show_default=True, metavar="N,…", help="A run for each.")
@click.option("--dry-run", is_flag=True, help="Say what is done, what is missing and what it will cost. Runs nothing.")
@click.option("--budget", metavar="TIME", help="Of this sitting: 90s, 10m, 8h. What is under way then is saved.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs/reproduce"),
    show_default=True,
    help="Where the runs and the tables lie.",
)
@click.option("--stand-in", metavar="DATA", help="Data to run on in place of the table's, to try it out.")
@click.option("--preset", default="paper", show_default=True, help="Whose settings.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Any setting, dotted, for all runs.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1 or mps.")
@click.option("--data-dir", type=click.Path(path_type=Path), help="Where built-in data sets are kept.")
@click.option("--download", is_flag=True, help="Fetch built-in data sets that are not there.")
@click.option("--json", "to_json", is_flag=True, help="One JSON object on stdout, all else on stderr.")
def reproduce(
    table: str,
    cells: str,
    seeds: str,
    dry_run: bool,
    budget: str | None,
    out: Path,
    stand_in: str | None,
    preset: str,
    assignments: tuple[str, ...],
    device: str,
    data_dir: Path | None,
    download: bool,
    to_json: bool,
) -> None:
    """Run a TABLE of NP-Match's paper, or a part of it, and set ours beside the printed numbers.

    Runs go one after another; call it again to go on, also after a kill: what is done is not done twice. Each run is a
    folder of its own in --out, and the table is written there as Markdown, CSV and HTML after each. Cells that have not
    been run stay empty.

    \b
    npmatch reproduce table1 --dry-run                               all 297 runs, and their cost
    npmatch reproduce table1 --cells npmatch/cifar10-40 --seeds 0    one cell
    """
    from npmatch.config import parse_assignments
    from npmatch.fitting import checked_budget
    from npmatch.plan import Opening
    from npmatch.reproduce.jobs import cost, described, for_seconds, jobs_of, step_seconds
    from npmatch.reproduce.tables import TABLES
    from npmatch.terminal import Terminal

    if table == "timing":
        time_predictions(out, device, dry_run=dry_run, to_json=to_json)
        return
    chosen, seconds = TABLES[table](), checked_budget(budget, None)
    jobs = jobs_of(
        chosen.cells,
        seeds=numbers(seeds),
        out=out,
        patterns=[word.strip() for word in cells.split(",") if word.strip()],
        stand_in=stand_in,
        preset=preset,
        changes=parse_assignments(assignments),
    )
    planned = described(jobs, step_seconds(jobs))
    if dry_run:
        if to_json:
            click.echo(json.dumps({"runs": planned}))
            return
        for row in planned:
            hours = "" if row["hours"] is None else f"{row['hours']:8.2f} h"
            click.echo(f"{row['status']:9} {row['cell']:40} seed {row['seed']} {hours}")
        click.echo(cost(planned))
        return
    note = note_on(stand_in, preset, assignments)
    progress = Terminal()
    opening = Opening(data_dir=data_dir, download=download)
    files = written(chosen, jobs, out, table, note)
    with for_seconds(seconds):
        for number, job in enumerate(jobs, start=1):
            if job.status not in ("missing", "begun"):
                continue
            progress.say(f"run {number} of {len(jobs)}: {job.cell.name}, seed {job.seed}")
            job.run(opening, device, progress)
            files = written(chosen, jobs, out, table, note)
    if to_json:
        click.echo(json.dumps({"runs": described(jobs, step_seconds(jobs)), "files": [str(file) for file in files]}))
    else:
        click.echo("\n".join(str(file) for file in files))


def written(table: Table, jobs: list[Job], out: Path, stem: str, note: str) -> list[Path]:
    """The table as it stands, with its figures."""
    from npmatch.reproduce import figures
    from npmatch.reproduce.results import found, write

    cells = found(table, jobs)
    files = write(table, cells, out, stem, note)
    if stem == "uce":
        files += figures.classes(jobs, out)
    if stem == "ablations":
        files += figures.sweeps(cells, out)
    return files


def time_predictions(out: Path, device: str, *, dry_run: bool, to_json: bool) -> None:
    """The paper's speed figure, which takes no training."""
    words = ["uncertainty", "--device", device, "--out", str(out / "timing"), *(["--json"] if to_json else [])]
    if not dry_run:
        bench.main(words, standalone_mode=False)
    elif to_json:
        click.echo(json.dumps({"runs": []}))
    else:
        click.echo(f"npmatch bench {' '.join(words)}: no training, about ten minutes on a GPU")


def numbers(seeds: str) -> list[int]:
    words = [word.strip() for word in seeds.split(",")]
    if not all(word.isdecimal() for word in words):
        raise UserError(f"--seeds {seeds}: write them as 0,1,2")
    return [int(word) for word in words]


def note_on(stand_in: str | None, preset: str, assignments: tuple[str, ...]) -> str:
    """What a reader must know of these numbers."""
    said = [
        "Ours is mean ± standard deviation over seeds (ddof = 1). The printed errors are comparable with the best of a "
        "run, which is selected on test: the difference is from that where there is one, else from the last model."
    ]
    if stand_in:
        said.append(f"These runs are on {stand_in}, which stands in for every data set: nothing here is comparable.")
    if preset != "paper" or assignments:
        changed = ", ".join([f"preset {preset}", *assignments])
        said.append(f"The settings are not those of the paper: {changed}.")
    return " ".join(said)
