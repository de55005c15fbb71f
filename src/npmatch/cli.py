"""The command line: a thin layer over `npmatch.fit`, `npmatch.load` and what they return."""

from __future__ import annotations

import time

STARTED = time.time()  # before anything heavy: `seconds` in result.json counts from here

import json  # noqa: E402
import os  # noqa: E402
import signal  # noqa: E402
import sys  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402
from contextlib import contextmanager, redirect_stdout  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any, TypeVar  # noqa: E402

import click  # noqa: E402

from npmatch import __version__  # noqa: E402
from npmatch.bench.commands import bench  # noqa: E402
from npmatch.errors import Diverged, RankLost, Stopped, UserError, printable  # noqa: E402
from npmatch.reproduce.commands import reproduce  # noqa: E402

# Read once, when torch is imported. Its threads wait for each other by spinning unless told otherwise, and where other
# programs want the same cores, small tensors then take many times as long. No result depends on it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

Command = TypeVar("Command", bound=Callable[..., Any])


def main() -> None:
    """Run the command line; faults of ours keep their traceback and exit with 1."""
    try:
        with together():
            code = npmatch(standalone_mode=False, prog_name="npmatch")
        sys.exit(code)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)  # the help itself
        sys.exit(error.exit_code)
    except click.ClickException as error:
        verb = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "npmatch"
        click.echo(f"{verb}: {' '.join(error.format_message().split())} (see {verb} --help)", err=True)
        sys.exit(error.exit_code)
    except Diverged as error:
        click.echo(f"npmatch: training diverged: {error}", err=True)
        sys.exit(error.code)
    except (UserError, Stopped, RankLost) as error:
        click.echo(f"npmatch: {printable(str(error))}", err=True)
        sys.exit(error.code)


def alone() -> bool:
    """Whether this process is the only one of its job."""
    return "RANK" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1"


@contextmanager
def together() -> Iterator[None]:
    """While inside, the processes that torchrun started are at one work, and rank 0 speaks. One alone is as ever."""
    if alone():
        yield
        return
    from npmatch import ranks

    with ranks.joined(), open(os.devnull, "w") as nowhere, redirect_stdout(nowhere if ranks.rank() else sys.stdout):
        try:
            yield
        except BaseException:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # by which torchrun ends the others, before the last word
            raise


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="npmatch")
@click.pass_context
def npmatch(context: click.Context) -> None:
    """Many images, few labels: a classifier that says when it may be trusted.

    \b
    npmatch fit digits                    try it: no download, no GPU
    npmatch check my_images/              what is in a folder, before training on it
    npmatch fit my_images/ --budget 10m   labeled/<class>/…, unlabeled/…, optional val/ and test/
    npmatch predict runs/… new/ --out answers.csv --accept-at 0.95
    """
    if context.invoked_subcommand not in ("fit", "evaluate") and not alone():
        raise UserError(f"npmatch {context.invoked_subcommand} is for one process; start it without torchrun")


LABELS_HELP = "A CSV or Parquet file with path,label for a flat folder; or, to train, how many labels in all."


def data_options(command: Command) -> Command:
    """How images are found and read; the same for every verb that reads DATA."""
    options = [
        click.option("--labels", metavar="N|FILE", help=LABELS_HELP),
        click.option("--image-size", type=int, help="Side in pixels. Default: 32, 96 or 224, from the data."),
        click.option("--resize", type=click.Choice(["crop", "squash", "pad"]), help="How images become square."),
        click.option("--data-dir", type=click.Path(path_type=Path), help="Where built-in data sets are kept."),
        click.option("--download", is_flag=True, help="Fetch a built-in data set that is not there."),
        click.option("--skip-unreadable", is_flag=True, help="Go on without files that cannot be read."),
        click.option("--allow-outside", is_flag=True, help="Let a manifest name files outside its folder."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def as_json(command: Command) -> Command:
    return click.option("--json", "to_json", is_flag=True, help="One JSON object on stdout, all else on stderr.")(
        command
    )


@npmatch.command()
@click.argument("data")
@click.option(
    "--views",
    type=click.Path(path_type=Path),
    metavar="[PNG]",
    is_flag=False,
    flag_value="views.png",
    help="Draw a contact sheet into PNG, or views.png: images as stored, with weak and strong views of each.",
)
@click.option("--preset", default="quick", show_default=True, help="Whose views and settings to look at.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Any setting, dotted, as for fit.")
@data_options
@as_json
def check(
    data: str,
    views: Path | None,
    preset: str,
    assignments: tuple[str, ...],
    labels: str | None,
    image_size: int | None,
    resize: str | None,
    to_json: bool,
    **opening: Any,
) -> None:
    """What is in DATA, before training on it: counts, sizes, copies, leaks, broken files, views.

    Exits with 2 where fit would refuse the data, such as for a file that cannot be read.
    """
    from npmatch.check import check as look
    from npmatch.check import lines
    from npmatch.config import parse_assignments, together
    from npmatch.plan import Opening
    from npmatch.terminal import Terminal

    if views is not None:
        from npmatch.contact_sheet import refuse_taken

        refuse_taken(views)
    given = labels_settings(labels) | {"data.image_size": image_size, "data.resize": resize}
    changes = together(given, parse_assignments(assignments))
    checked = look(data, changes, preset_name=preset, opening=Opening(**opening), progress=Terminal())
    if to_json:
        click.echo(json.dumps(checked.to_dict()))
    else:
        for line in lines(checked):
            click.echo(line)
        click.echo()
        for warning in checked.warnings:
            click.secho(f"! {warning}", fg="yellow")
        for advice in checked.advice:
            click.echo(f"- {advice}")
    if views is not None:
        from npmatch.contact_sheet import save_contact_sheet

        save_contact_sheet(views, checked.source, checked.settings, without=checked.findings.broken)
    if checked.refusals:
        raise UserError("\n".join(checked.refusals))


@npmatch.command()
@click.argument("data", required=False)
@click.option("--labels-per-class", type=int, help="How many labels of each class.")
@click.option("--algorithm", help="See npmatch list algorithms. Default: npmatch.")
@click.option("--head", help="linear, dropout or neural_process. Default: the algorithm's own.")
@click.option("--net", help="wrn_28_2, wrn_28_8, wrn_37_2, resnet50, tiny, or any timm name.")
@click.option("--preset", help="quick (800 steps, the default), standard (20,000, for a GPU) or paper (2^20).")
@click.option("--steps", type=int, help="How long to train.")
@click.option("--budget", help="How long to train, in time: 90s, 10m, 1.5h. Turned into steps once, after a trial.")
@click.option("--seed", type=int, help="Of the labels drawn, the first weights, the batches.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1 or mps.")
@click.option("--out", type=click.Path(path_type=Path), help="The run's folder. Default: runs/<data>-<algorithm>-….")
@click.option("--resume", is_flag=True, help="Go on with the run in --out, to the same bits as if never stopped.")
@click.option("--deterministic", is_flag=True, help="The same bits each time on a GPU too; slower there.")
@click.option("--no-compile", is_flag=True, help="On a GPU: start at once, with slower steps.")
@click.option(
    "--calibrate",
    type=int,
    metavar="FOLDS",
    help="Learn when predictions may be accepted, by "
    "training FOLDS more times with some labels held out. Not needed where there is a val/.",
)
@click.option("--tensorboard", is_flag=True, help="Write RUN/tensorboard too.")
@click.option(
    "--set",
    "assignments",
    multiple=True,
    metavar="KEY=VALUE",
    help="Any setting, dotted; npmatch show quick lists them.",
)
@click.option("--config", type=click.Path(path_type=Path), help="A TOML file of settings, such as a run's config.toml.")
@data_options
@as_json
def fit(
    data: str | None,
    labels: str | None,
    deterministic: bool,
    no_compile: bool,
    assignments: tuple[str, ...],
    image_size: int | None,
    resize: str | None,
    to_json: bool,
    data_dir: Path | None,
    download: bool,
    skip_unreadable: bool,
    allow_outside: bool,
    **rest: Any,
) -> None:
    """Train on DATA: a built-in name, a folder, a CSV or Parquet manifest, or an .npz.

    A folder holds labeled/<class>/…, unlabeled/… and, if you have them, val/<class>/… and test/<class>/…. Leaves a
    run folder with the model, every number, and report.html.
    """
    from npmatch.config import parse_assignments, together
    from npmatch.fitting import fit as run_fit
    from npmatch.plan import Opening
    from npmatch.terminal import Terminal

    given = labels_settings(labels) | {
        "data.image_size": image_size,
        "data.resize": resize,
        "train.deterministic": deterministic or None,
        "train.compile": False if no_compile else None,
    }
    settings = together(given, parse_assignments(assignments))
    opening = Opening(
        data_dir=data_dir, download=download, skip_unreadable=skip_unreadable, allow_outside=allow_outside
    )
    run = run_fit(data, settings=settings, opening=opening, progress=Terminal(), started=STARTED, **rest)
    result = run.result
    if to_json:
        click.echo(json.dumps({"run": str(run.path)} | result))
        return
    error = result["error"]
    if error is not None:
        low, high = result["error_ci95"]
        on = result["evaluated_on"]
        click.echo(f"error {error:.2f} % (95 % interval {low:.2f} to {high:.2f}) on {on['images']} {on['part']} images")
    else:
        click.echo(f"error unknown: {result['reasons']['error']}")
    click.echo(f"report: {run.path / 'report.html'}")


def labels_settings(labels: str | None) -> dict[str, Any]:
    """What --labels sets: a number, or a file; a file that is not there is more likely meant than a bad number."""
    if labels is None:
        return {}
    if labels.lstrip("-").isdigit():
        return {"data.labels": int(labels)}
    if not Path(labels).is_file():
        raise UserError(f"--labels {labels}: is neither a number nor a file")
    return {"data.labels_file": labels}


@npmatch.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("images", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), required=True, help="A .csv or .parquet file.")
@click.option(
    "--accept-at",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    metavar="ACCURACY",
    help="Fill the accept column so that this share of the accepted is right, if that can be claimed.",
)
@click.option("--skip-unreadable", is_flag=True, help="Go on without files that cannot be read.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1 or mps.")
@as_json
def predict(
    run: Path, images: Path, out: Path, accept_at: float | None, skip_unreadable: bool, device: str, to_json: bool
) -> None:
    """Predict IMAGES (a folder or a file) with RUN: label, probability, uncertainty, and whether to accept."""
    from npmatch.answers import write_answers
    from npmatch.predictor import load
    from npmatch.terminal import Terminal

    written = write_answers(
        load(run, device=device), images, out, accept_at=accept_at, skip_unreadable=skip_unreadable, progress=Terminal()
    )
    if to_json:
        click.echo(json.dumps(written))
        return
    click.echo(f"{written['images']} predictions in {out}")


@npmatch.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("data", required=False)
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1 or mps.")
@data_options
@as_json
def evaluate(
    run: Path,
    data: str | None,
    device: str,
    labels: str | None,
    image_size: int | None,
    resize: str | None,
    to_json: bool,
    **opening: Any,
) -> None:
    """How good RUN is: on its own test images, or on the labeled images of DATA."""
    from npmatch.predictor import load

    if image_size is not None or resize is not None:
        raise UserError("--image-size and --resize: a trained model keeps those it was trained with; leave them out")
    named = labels_settings(labels)
    if "data.labels" in named:
        raise UserError("--labels: here it is a file; all labels of DATA are measured on, leave the number out")
    numbers = load(run, device=device).evaluate(data, labels_file=named.get("data.labels_file"), **opening)
    if to_json:
        click.echo(json.dumps(numbers))
        return
    for name in ("error", "top5", "ece", "uce", "aurc", "nll", "brier"):
        if numbers[name] is None:
            click.echo(f"{name:6} -        {numbers['reasons'].get(name, '')}")
        else:
            low, high = numbers[f"{name}_ci95"]
            click.echo(f"{name:6} {numbers[name]:8.3f}   {low:.3f} to {high:.3f}")


@npmatch.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@as_json
def report(runs: tuple[Path, ...], to_json: bool) -> None:
    """Write report.html of each of RUNS anew."""
    from npmatch.report.page import write_report

    pages = [str(write_report(run)) for run in runs]
    click.echo(json.dumps({"reports": pages}) if to_json else "\n".join(pages))


@npmatch.command()
@click.argument("preset")
@as_json
def show(preset: str, to_json: bool) -> None:
    """Every setting of PRESET: quick, standard, paper, or a cell such as table1/npmatch/cifar10-40."""
    from npmatch import toml
    from npmatch.presets import named

    settings = named(preset).to_dict()
    click.echo(json.dumps(settings) if to_json else toml.dumps(settings))


@npmatch.command("list")
@click.argument("what", type=click.Choice(["algorithms", "heads", "networks", "datasets", "presets"]))
@as_json
def list_(what: str, to_json: bool) -> None:
    """What there is."""
    from npmatch.catalog import catalog

    rows = catalog(what)
    if to_json:
        click.echo(json.dumps({what: rows}))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        click.echo(f"{row['name']:{width}}  {row['summary']}" + (f" ({row['paper']})" if row.get("paper") else ""))


npmatch.add_command(bench)
npmatch.add_command(reproduce)
