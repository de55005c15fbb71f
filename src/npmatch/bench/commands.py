"""The verbs of `npmatch bench`. What they measure stands in the modules beside this one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from npmatch.errors import UserError

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group()
def bench() -> None:
    """How fast this machine is.

    \b
    npmatch bench step --conventional                 a training step, and one as most published code has it
    npmatch bench uncertainty --out speed/            what T predictions cost: neural process, MC dropout
    npmatch bench uncertainty --net wrn_28_2 --samples 1,10 --repeats 5     a minute's worth, for a CPU
    npmatch bench predict                             images per second, from JPEG files to a table
    npmatch bench predict runs/… my_images/           the same, with your model and your images
    """


def measured(command: Command) -> Command:
    """Where to measure and where the numbers go; the same for every verb here."""
    options = [
        click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:1 or mps."),
        click.option("--out", type=click.Path(path_type=Path), metavar="FOLDER", help="Write what is found there."),
        click.option("--json", "to_json", is_flag=True, help="One JSON object on stdout, all else on stderr."),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def numbers(context: click.Context, parameter: click.Parameter, text: str) -> tuple[int, ...]:
    """`1,2,5` as numbers of at least 1, in order."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise click.BadParameter(f"{text!r} are no whole numbers from 1 on; write them as 1,10,100")
    return tuple(sorted({int(word) for word in words}))


def size(context: click.Context, parameter: click.Parameter, text: str | None) -> tuple[int, int] | None:
    """`500x375` as (width, height)."""
    if text is None:
        return None
    words = text.split("x")
    if len(words) != 2 or not all(word.isdecimal() and 0 < int(word) <= 4096 for word in words):
        raise click.BadParameter(f"{text!r} is no size; write width and height in pixels, as in 500x375")
    return int(words[0]), int(words[1])


@bench.command()
@click.argument("data", required=False)
@click.option("--algorithm", "algorithms", multiple=True, default=["npmatch"], show_default=True, help="Repeatable.")
@click.option("--net", "nets", multiple=True, default=["wrn_28_2"], show_default=True, help="Repeatable.")
@click.option(
    "--weak-pass",
    "weak_passes",
    type=click.Choice(["joint", "separate"]),
    multiple=True,
    default=["joint", "separate"],
    show_default=True,
    help="Whether the weak views go through the network with the others or alone. Repeatable.",
)
@click.option("--preset", default="paper", show_default=True, help="Whose settings: batch size, views, optimizer.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="Any setting, dotted, as for fit.")
@click.option("--steps", type=click.IntRange(2), default=200, show_default=True, help="Timed steps of each row.")
@click.option("--conventional", is_flag=True, help="Beside each network the usual loop: Pillow in workers, float32.")
@click.option("--workers", type=click.IntRange(0), default=4, show_default=True, help="Of the conventional loop.")
@click.option("--stages", is_flag=True, help="Where the time goes: each stage timed alone.")
@click.option("--no-compile", is_flag=True, help="Without the minute it takes to fuse the kernels.")
@measured
def step(
    data: str | None,
    algorithms: tuple[str, ...],
    nets: tuple[str, ...],
    weak_passes: tuple[str, ...],
    preset: str,
    assignments: tuple[str, ...],
    steps: int,
    conventional: bool,
    workers: int,
    stages: bool,
    no_compile: bool,
    device: str,
    out: Path | None,
    to_json: bool,
) -> None:
    """How long a complete training step takes: views, network, head, thresholds, bank, optimizer, average, log.

    On DATA, or on made-up images of CIFAR's size: a step is no longer or shorter for what is in them. With
    --conventional the same step as most published code takes it, so that the ratio holds on your machine. With --out:
    step.json.
    """
    refuse_taken(out, "step")
    from npmatch.bench.step import bench_step, lines
    from npmatch.build import choose_device
    from npmatch.config import parse_assignments
    from npmatch.terminal import Terminal

    found = bench_step(
        data,
        parse_assignments(assignments),
        preset_name=preset,
        algorithms=algorithms,
        nets=nets,
        weak_passes=weak_passes,
        steps=steps,
        compiled=not no_compile,
        conventional=conventional,
        workers=workers,
        stages=stages,
        device=choose_device(device),
        progress=Terminal(),
    )
    hand_over(found, lines(found), out, "step", to_json=to_json)


@bench.command()
@click.option(
    "--net",
    "nets",
    type=click.Choice(["wrn_28_2", "wrn_28_8", "tiny"]),
    multiple=True,
    default=["wrn_28_2", "wrn_28_8"],
    show_default=True,
    help="May be given again.",
)
@click.option(
    "--samples",
    default="1,2,5,10,20,50,100",
    show_default=True,
    callback=numbers,
    metavar="T,T,…",
    help="How many predictions of each image.",
)
@click.option("--repeats", type=click.IntRange(2), default=100, show_default=True, help="Timed runs of each row.")
@click.option("--warmup", type=click.IntRange(0), default=20, show_default=True, help="Runs before, not counted.")
@measured
def uncertainty(
    nets: tuple[str, ...],
    samples: tuple[int, ...],
    repeats: int,
    warmup: int,
    device: str,
    out: Path | None,
    to_json: bool,
) -> None:
    """What it costs to know how sure a prediction is: T predictions by a neural process and by MC dropout.

    The paper's speed figure: batches of 16 random images on the device, float32; median and interquartile range. A
    neural process needs one pass of the network for all T, MC dropout T passes. With --out: uncertainty.json, .png and
    .svg. On a CPU the whole of it takes days; give it one --net, few --samples and few --repeats.
    """
    refuse_taken(out, "uncertainty")
    from npmatch.bench.figure import draw
    from npmatch.bench.uncertainty import lines, measure
    from npmatch.build import choose_device
    from npmatch.terminal import Terminal

    found = measure(nets, samples, warmup=warmup, repeats=repeats, device=choose_device(device), progress=Terminal())
    hand_over(found, lines(found), out, "uncertainty", to_json=to_json)
    if out is not None:
        draw(found, out, "uncertainty")


@bench.command()
@click.argument("run", type=click.Path(path_type=Path), required=False)
@click.argument("images", type=click.Path(path_type=Path), required=False)
@click.option("--net", help="Of an untrained model, where there is no RUN. Default: wrn_28_2.")
@click.option(
    "--images",
    "number",
    type=click.IntRange(1),
    metavar="N",
    help="How many to generate, and then four times as many, where there are no IMAGES. Default: 2000.",
)
@click.option(
    "--size",
    callback=size,
    metavar="WxH",
    help="Of generated images. Default: what RUN keeps, or 500x375 if it cuts its images from photographs; 32x32.",
)
@measured
def predict(
    run: Path | None,
    images: Path | None,
    net: str | None,
    number: int | None,
    size: tuple[int, int] | None,
    device: str,
    out: Path | None,
    to_json: bool,
) -> None:
    """Images per second from files to a table of predictions with their uncertainty, as npmatch predict does it.

    Also without the network, and without the files; and how far memory rises. Without IMAGES, JPEG files are
    generated; without RUN, an untrained model predicts them. With --out: predict.json.
    """
    refuse_taken(out, "predict")
    from npmatch.bench.predict import lines, measure
    from npmatch.terminal import Terminal

    found = measure(run, images, net=net, number=number, size=size, device=device, progress=Terminal())
    hand_over(found, lines(found), out, "predict", to_json=to_json)


def refuse_taken(folder: Path | None, stem: str) -> None:
    """Complains before anything is measured where its numbers could not be written."""
    if folder is None:
        return
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--out {folder}: is a file; name a folder")
    if taken := next(folder.glob(f"{stem}.*"), None):
        raise UserError(f"--out {folder}: holds {taken.name} already; name another folder")


def hand_over(found: dict[str, Any], lines: Iterable[str], out: Path | None, stem: str, *, to_json: bool) -> None:
    """The numbers to the folder and to whoever asked."""
    from npmatch.checkpoint import write_file, writing

    if out is not None:
        with writing(out):
            out.mkdir(parents=True, exist_ok=True)
        write_file(out / f"{stem}.json", (json.dumps(found, indent=2) + "\n").encode())
    click.echo(json.dumps(found) if to_json else "\n".join(lines))
