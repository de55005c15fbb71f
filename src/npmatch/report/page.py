"""The report of one run: report.html, one file that needs no network and no script to be read.

It reads the run folder and nothing else: no model, no data set.
"""

from __future__ import annotations

import os
from base64 import b64encode
from hashlib import sha256
from pathlib import Path
from shlex import quote
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from npmatch.errors import UserError
from npmatch.report import curves, words
from npmatch.report.folder import RunFiles, again, number, read_run
from npmatch.report.mistakes import contact_sheets, mistakes
from npmatch.report.trust import trust


def write_report(folder: Path) -> Path:
    """Write report.html into a run folder, in one move, and return its path."""
    page = folder / "report.html"
    half = folder / "report.html.part"
    half.write_text(render(read_run(folder)), encoding="utf-8", newline="\n")
    os.replace(half, page)
    return page


def render(run: RunFiles) -> str:
    """The page as text. Whatever comes from the folder is escaped; the content policy stops what would slip through."""
    here = Path(__file__).parent
    script = (here / "script.js").read_text(encoding="utf-8")
    environment = Environment(
        loader=PackageLoader("npmatch.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("template.html.j2").render(
        style=Markup((here / "style.css").read_text(encoding="utf-8")),
        script=Markup(script),
        script_hash="sha256-" + b64encode(sha256(script.encode()).digest()).decode(),
        **content(run),
    )


def content(run: RunFiles) -> dict[str, Any]:
    """Everything the template shows, in words, numbers and drawings."""
    names = class_names(run)
    found = run.predictions
    labels = run.result.get("labeled_counts") or []
    sections = [
        ("health", "Health"),
        ("training", "Unlabeled images"),
        ("numbers", "All numbers"),
        ("made", "How it was made"),
    ]
    if found:
        sections[1:1] = [("trust", "Trust"), ("mistakes", "Mistakes")] + ([("images", "Images")] if run.images else [])
    return {
        "name": run.folder.resolve().name,
        "headline": headline(run),
        "lead": lead(run),
        "missing_commands": [] if found else [_command("evaluate", run, "DATA"), _command("report", run)],
        "errors": errors(run.result),
        "contents": sections,
        "health": run.result.get("health") or [],
        "healthy": healthy(run.result),
        "trust": trust(found, run.result) if found else None,
        "mistakes": mistakes(found, names, labels) if found else None,
        "sheets": contact_sheets(found, names, run.images) if found and run.images else [],
        "training": training(run, len(names)),
        "numbers": numbers(run.result),
        "made": made(run),
        "label_counts": list(zip(names, labels)),
        "settings": settings(run.config),
    }


def class_names(run: RunFiles) -> list[str]:
    """The classes' names, numbers where the run knows none."""
    named = [str(name) for name in run.result.get("classes") or []]
    if run.predictions is None:
        return named or [str(k) for k in range(len(run.result.get("labeled_counts") or []))]
    num_classes = run.predictions.probabilities.shape[1]
    if named and len(named) != num_classes:
        raise UserError(
            f"{run.folder}: result.json names {len(named)} classes, the predictions have {num_classes}: "
            + again(run.folder)
        )
    return named or [str(k) for k in range(num_classes)]


def part_and_images(run: RunFiles) -> tuple[str, int | None]:
    """On which part the run was evaluated ("test") and on how many images."""
    told = run.result.get("evaluated_on")
    count = len(run.predictions.labels) if run.predictions else None
    if isinstance(told, dict):
        return str(told.get("part", "test")), told.get("images", count)
    return str(told or "test"), count


def headline(run: RunFiles) -> str:
    """The result in one sentence."""
    error = number(run.result.get("error"))
    part, images = part_and_images(run)
    if error is not None:
        of = f"{images:,} {part} images" if images is not None else f"the {part} images"
        return f"{words.figure(error, '%')} of {of} are classified wrongly"
    return "Trained, not yet evaluated" if run.result else "This run has not finished"


def lead(run: RunFiles) -> list[str]:
    """What was trained, from how much, for how long; and what is missing."""
    result, sentences = run.result, []
    if result:
        labels = number(result.get("labels"))
        given = words.count(int(labels), "label") if labels is not None else "an unknown number of labels"
        pool = len(run.split.get("unlabeled") or [])
        unlabeled = f" and {words.count(pool, 'image')} used without labels" if pool else ""
        steps = words.count(int(number(result.get("steps")) or 0), "step")
        sentences.append(
            f"The method {result.get('algorithm', '?')} with a {result.get('head', '?')} head on the network "
            f"{result.get('net', '?')} learned {result.get('dataset', 'the data')} from {given}{unlabeled}, "
            f"in {steps} and {words.duration(result.get('seconds'))} on {result.get('device', 'an unknown device')}."
        )
    interval = words.interval(result.get("error_ci95"), "%")
    if interval:
        sentences.append(
            f"The 95 % interval of the error is {interval}. It speaks of other images of the same kind; "
            "another training run, with other labels or another seed, can lie outside."
        )
    if run.predictions is None:
        why = f" ({reason(result, 'error')})" if number(result.get("error")) is None else ""
        sentences.append(
            "There are no predictions on test images here, so the page cannot say how good the model is, "
            f"when to trust it, or what it confuses{why}. "
            "Put labeled images that it has not been trained on into test/<class>/ and train again, "
            "or have the numbers alone from a folder of them:"
        )
    return sentences


def errors(result: dict[str, Any]) -> list[dict[str, str]]:
    """Last, median and best, side by side. The best one is said to be selected on the test set."""
    notes = {
        "error": "The last averaged model. Quote this one.",
        "error_median20": "Less luck in it than in any single evaluation.",
        "error_best_on_test": "Flatters: the choice looked at the test labels. Only for tables made that way.",
    }
    return [
        {
            "name": metric.name,
            "value": words.figure(result.get(metric.key), "%"),
            "interval": words.interval(result.get(f"{metric.key}_ci95"), "%"),
            "note": notes[metric.key] if number(result.get(metric.key)) is not None else reason(result, metric.key),
        }
        for metric in words.METRICS
        if metric.key in notes and number(result.get("error")) is not None
    ]


def healthy(result: dict[str, Any]) -> str:
    """What to say when there is no message."""
    if "health" in result:
        return "Nothing unusual was seen while training."
    return "This run recorded no health checks."


def training(run: RunFiles, num_classes: int) -> dict[str, Any]:
    """The curves of training, and what they say about the unlabeled images."""
    part, _ = part_and_images(run)
    kept = curves.series(run.metrics, "kept").values
    refused = curves.series(run.metrics, "refused_by_uncertainty").values
    sentences = [words.kept_sentence(kept)] if kept else ["This run logged no pseudo-labels."]
    if refused:
        aligned = run.result.get("alignment") not in (None, "none")
        sentences.append(words.refused_sentence(refused, run.config.get("algorithm", {}), num_classes, aligned))
    command = None
    if kept and run.result:
        sentences.append(
            "One run cannot show whether the unlabeled images made the model better. "
            "Train on the same labels alone, and compare the two errors and their intervals:"
        )
        command = f"npmatch fit --config {quote(str(run.folder / 'config.toml'))} --algorithm supervised"
    panels, left_out = curves.panels(run.metrics)
    evaluations = curves.series(run.metrics, "error")
    return {
        "sentences": sentences,
        "command": command,
        "shares": curves.share_curves(run.metrics),
        "error": curves.error_curve(evaluations, part),
        "error_caption": f"{words.count(len(evaluations.values), 'evaluation')} of the averaged model.",
        "panels": panels,
        "left_out": left_out,
    }


def numbers(result: dict[str, Any]) -> list[dict[str, str]]:
    """Every measure of result.json, with its interval, or with the reason why it is absent."""
    return [
        {
            "key": metric.key,
            "name": metric.name,
            "value": words.figure(result.get(metric.key), metric.unit),
            "interval": words.interval(result.get(f"{metric.key}_ci95"), metric.unit),
            "meaning": metric.meaning,
            "reason": "" if number(result.get(metric.key)) is not None else reason(result, metric.key),
        }
        for metric in words.METRICS
    ]


def reason(result: dict[str, Any], key: str) -> str:
    """Why a number is absent, as the evaluation told it."""
    return str((result.get("reasons") or {}).get(key) or "no reason was recorded")


def made(run: RunFiles) -> list[tuple[str, str]]:
    """What it takes to know which run this is: data, labels, versions, time."""
    result = run.result
    facts = {
        key.replace("_", " "): str(result[key])
        for key in (
            "dataset",
            "labels",
            "seed",
            "preset",
            "algorithm",
            "head",
            "net",
            "weak_pass",
            "alignment",
            "device",
        )
        if result.get(key) is not None
    }
    for key, name in (("seconds", "wall clock"), ("train_seconds", "training alone")):
        if number(result.get(key)) is not None:
            facts[name] = words.duration(result[key])
    if number(result.get("images_per_second")) is not None:
        facts["images per second"] = f"{result['images_per_second']:,.0f}"
    if result.get("resumed_from"):
        facts["resumed from step"] = plain(result["resumed_from"])
    for part, places in run.split.items():
        facts[f"{part} images"] = f"{len(places):,}"
    facts["data fingerprint"] = str(run.config.get("data", {}).get("fingerprint", "not recorded"))
    return list((facts | dict(rows(run.config.get("environment", {})))).items())


def settings(config: dict[str, Any]) -> list[tuple[str, list[tuple[str, str]]]]:
    """The sections of config.toml, before them what stands outside of any."""
    sections = [(name, rows(value)) for name, value in config.items() if isinstance(value, dict)]
    alone = rows({key: value for key, value in config.items() if not isinstance(value, dict)})
    return [("general", alone), *sections] if alone else sections


def rows(table: dict[str, Any], above: str = "") -> list[tuple[str, str]]:
    """A table of settings as lines, nested ones with a dot."""
    found: list[tuple[str, str]] = []
    for key, value in table.items():
        if isinstance(value, dict):
            found += rows(value, f"{above}{key}.")
        else:
            found.append((f"{above}{key}", plain(value)))
    return found


def plain(value: object) -> str:
    """A setting's value to read, a list without its brackets."""
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _command(verb: str, run: RunFiles, more: str = "") -> str:
    return f"npmatch {verb} {quote(str(run.folder))} {more}".rstrip()
