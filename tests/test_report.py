"""The report is made from run folders whose predictions are a real classifier's, and read in a real browser."""

from __future__ import annotations

import json
import re
import shutil
from base64 import b64encode
from collections.abc import Callable, Iterator
from hashlib import sha256
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, sync_playwright
from safetensors.numpy import load_file
from scipy.stats import binomtest

from npmatch.errors import UserError
from npmatch.report.page import write_report
from tests.made_runs import CONFIG, HEALTH, digits, many_classes, write_run, write_training

HOSTILE = [
    "<script>document.title='taken'</script>",
    '"><img src=x onerror="document.title=\'taken\'">',
    "it's & ]]> {{7*7}}",
]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
QUIET += ["--disable-component-update", "--disable-sync"]


def words_of(page: Path) -> str:
    """What a reader reads: the text without tags, scripts and styles, with single spaces."""
    text = re.sub(r"<(script|style)>.*?</\1>", " ", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", text)).split())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "digits-npmatch-40-s0"
    return write_run(folder, *digits(), [str(k) for k in range(10)], health=[HEALTH])


@pytest.fixture(scope="module")
def written(run: Path) -> Path:
    return write_report(run)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("no Chromium or Chrome on this machine")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield opened
        opened.close()


@pytest.fixture
def visit(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Opens a file; at the end, nothing may have been asked of a network or said on the console."""
    complaints: list[str] = []
    contexts = []

    def visit(path: Path, **options: Any) -> Page:
        contexts.append(browser.new_context(**options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("dialog", lambda dialog: complaints.append(dialog.message))
        page.on("request", lambda request: complaints.append(request.url) if not local(request.url) else None)
        page.goto(path.as_uri())
        return page

    def local(url: str) -> bool:
        return url.startswith(("file:", "data:"))

    yield visit
    for context in contexts:
        context.close()
    assert complaints == []


def test_the_page_says_what_result_json_says(run: Path, written: Path):
    text, result = words_of(written), json.loads((run / "result.json").read_text())
    assert text.count(f"{result['error']:.2f} % of 360 test images are classified wrongly") == 2  # title and heading
    for key in ("error", "error_median20", "error_best_on_test", "top5", "ece", "uce", "aurc"):
        assert f"{result[key]:.2f} %" in text, key
    for key in ("error", "top5", "ece", "uce", "aurc"):
        low, high = result[f"{key}_ci95"]
        assert f"{low:.2f} to {high:.2f} %" in text, key
    for key in ("nll", "brier", "uce_nats"):
        assert f"{result[key]:.3f}" in text, key
    lines = [json.loads(line) for line in (written.parent / "metrics.jsonl").read_text().splitlines()]
    kept = next(line["kept"] for line in reversed(lines) if "kept" in line)
    assert f"kept {100 * kept:.0f} % refused 0 %" in text  # the names at the ends of the curves
    assert f"best {result['error_best_on_test']:.2f}, selected on test" in text
    for words in (
        "Error, best (selected on test)",
        "40 labels",
        "1 min 32 s on cpu",
        HEALTH,
        "sha256:5f2a9c",
        "2.11.0",
    ):
        assert words in text, words


def test_what_to_accept_is_counted_right(run: Path, written: Path):
    text = words_of(written)
    stored = load_file(run / "evaluation" / "predictions.safetensors")
    order = np.argsort(stored["uncertainty"])
    wrong = (stored["probabilities"].argmax(1) != stored["labels"])[order]
    for share, n in ((100, 360), (95, 342), (80, 288), (50, 180)):
        limit = stored["uncertainty"][order][n - 1]
        low, high = binomtest(int(wrong[:n].sum()), n).proportion_ci(method="wilson")
        row = f"{share} % {n} {100 * wrong[:n].mean():.2f} % {100 * low:.2f} to {100 * high:.2f} % {limit:.3f}"
        assert row in text
    assert text.count(f"{100 * wrong.mean():.2f} % 95 % interval {row_of_all(run)}") == 1  # the headline says the same


def row_of_all(run: Path) -> str:
    low, high = json.loads((run / "result.json").read_text())["error_ci95"]
    return f"{low:.2f} to {high:.2f} %"


def test_a_class_has_two_numbers_with_intervals(run: Path, written: Path):
    """What result.json says of it, uncertainty in nats instead of as a share of log K."""
    text = words_of(written)
    for k, row in enumerate(json.loads((run / "result.json").read_text())["per_class"]):
        ends = [f"{end:.2f}" for end in row["accuracy_ci95"]]
        nats, low, high = (share / 100 * np.log(10) for share in (row["uncertainty"], *row["uncertainty_ci95"]))
        said = f"{row['accuracy']:.1f} % {' to '.join(ends)} % {nats:.3f} {low:.3f} to {high:.3f} {row['images']} 4"
        assert f" {k} {said}" in text
        assert row["uncertainty_ci95"][0] < row["uncertainty"] < row["uncertainty_ci95"][1]


def test_writing_again_changes_nothing(run: Path):
    first = write_report(run).read_bytes()
    assert write_report(run).read_bytes() == first
    assert not [path for path in run.iterdir() if path.name.startswith("report.html.")]


def test_only_the_script_of_the_page_may_run(written: Path):
    page = written.read_text(encoding="utf-8")
    (script,) = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    allowed = "sha256-" + b64encode(sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src '{allowed}'" in page
    assert not re.findall(r"(?:src|href)=\"(?!data:|#)", page)


def test_a_browser_shows_it_and_its_slider_moves(written: Path, visit: Callable[..., Page]):
    page = visit(written, viewport={"width": 1200, "height": 900})
    assert page.locator("svg").count() >= 10
    assert page.get_by_role("region", name="When may I trust it?").count() == 1  # what a screen reader is told
    assert page.get_by_role("region").count() == page.locator("section").count() >= 7
    assert page.locator("#accepted").inner_text().startswith("If you accept the 80 % most certain (288 of 360 images")
    page.locator("#accept").press("End")
    assert page.locator("#accepted").inner_text().startswith("If you accept the 100 % most certain (360 of 360 images")
    assert page.locator("#risk-coverage .readout").text_content() == "100 % accepted: error 13.89 %"
    page.locator("table.sortable th button", has_text="accuracy").click()
    assert page.locator("table.sortable tbody th").first.inner_text() == "8"  # the class that is hardest
    curve = page.locator("#training svg[data-hover]").first
    curve.hover()
    assert re.match(r"step [\d,]+: kept [\d.]+ % · refused 0.0 %", curve.locator(".readout").text_content() or "")
    assert page.evaluate("[...document.images].every(i => i.complete && i.naturalWidth)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_in_any_light_without_scripts(written: Path, visit: Callable[..., Page], scheme: str):
    size = {"width": 390, "height": 844}
    page = visit(written, viewport=size, color_scheme=scheme, java_script_enabled=False)
    assert page.locator("main").bounding_box()["width"] <= 390  # type: ignore[index]
    assert page.locator("#trust table").first.is_visible()
    assert not page.locator("#accept").is_visible()  # a slider that does nothing is not shown
    assert page.locator("#accepted").count() == 1


def test_names_cannot_break_out(tmp_path: Path, visit: Callable[..., Page]):
    folder = write_run(
        tmp_path / "x", *many_classes(3, 60), HOSTILE, health=HOSTILE, dataset=HOSTILE[0], device=HOSTILE[1]
    )
    (folder / "config.toml").write_text(CONFIG + f"note = {json.dumps(HOSTILE[0])}\n")
    page = visit(write_report(folder), viewport={"width": 390, "height": 844})
    assert "classified wrongly" in page.title()
    assert page.evaluate(
        "[document.scripts.length, document.querySelectorAll('img:not([src^=\"data:\"])').length]"
    ) == [1, 0]
    assert page.locator("ul.health li").all_inner_texts() == HOSTILE
    assert sorted(page.locator("table.sortable tbody th").all_inner_texts()) == sorted(HOSTILE)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_without_test_images_the_page_says_what_is_missing(tmp_path: Path, visit: Callable[..., Page]):
    nothing = dict.fromkeys(("error", "top5", "ece", "uce", "aurc", "nll", "brier", "uce_nats"))
    folder = write_training(
        tmp_path / "mine", ["cat", "dog"], {**nothing, "reasons": {"error": "the data has no test images"}}
    )
    page = visit(write_report(folder))
    text = page.locator("body").inner_text()
    assert "Trained, not yet evaluated" in text and "(the data has no test images)" in text
    assert f"npmatch evaluate {folder} DATA" in text, "a command that works from where the page was written"
    assert page.locator("#training svg").count() >= 5
    assert page.locator("#trust, #mistakes, #images").count() == 0
    assert not re.search(r"\bNone\b|\bnan\b", text)


def test_a_run_in_progress_has_a_page(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 10, "loss": 2.5, "kept": NaN}\n{"step": 20, "loss": 2.0}\n{"step": 3'
    )
    text = words_of(write_report(tmp_path))
    assert "This run has not finished" in text and "loss 2" in text


def test_half_a_line_of_zeros_is_what_a_power_cut_leaves(tmp_path: Path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 10, "loss": 2.5}\n{"step": 20, "loss": 2.0}\n\0\0\0\0\n')
    assert "loss 2" in words_of(write_report(tmp_path))


def test_long_names_leave_the_cards_of_images_low(tmp_path: Path, visit: Callable[..., Page]):
    """In two lines for each name, whole in the title; a short name takes no more than before."""
    heights = {}
    for kind, names in {"short": ["cat", "dog"], "long": ["cat " * 50 + "A", "dog" * 67]}.items():
        folder = write_run(tmp_path / kind, *many_classes(2, 40), names)
        page = visit(write_report(folder), viewport={"width": 1000, "height": 800})
        heights[kind] = page.locator(".sheet li").first.bounding_box()["height"]  # type: ignore[index]
        titles = page.locator(".sheet .name").evaluate_all("found => found.map(one => one.title)")
        assert set(titles) == set(names)
        assert page.locator(".sheet .name").first.evaluate("one => one.offsetHeight <= 3 * 1.4 * 12.5")
    assert heights["long"] < heights["short"] + 75, "two names of a line more, and the line of the probability"


@pytest.mark.parametrize(("num_classes", "num_images"), [(2, 40), (200, 1000)])
def test_few_and_many_classes(num_classes: int, num_images: int, tmp_path: Path, visit: Callable[..., Page]):
    names = [f"species number {k}" for k in range(num_classes)]
    folder = write_run(tmp_path / "run", *many_classes(num_classes, num_images), names, evaluated_on="val")
    page = visit(write_report(folder), viewport={"width": 390, "height": 844})
    matrix = page.locator("svg[aria-label^='Confusion matrix']").count()
    assert matrix == (num_classes == 2)
    assert f" % of {num_images:,} val images" in page.title()
    assert matrix or "species number 5 species number 6" in words_of(folder / "report.html")  # a confused pair
    assert page.locator("table.sortable tbody tr").count() == num_classes
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    absent = "Absent: says nothing with five classes or fewer" in page.locator("#numbers").inner_text()
    assert absent == (num_classes == 2)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("result.json", "{", "is damaged: .*; delete .*result.json, and npmatch fit --resume --out .*run evaluates"),
        ("result.json", "[]", "holds no JSON object; delete .*result.json"),
        ("config.toml", "a = ", "is damaged"),
        ("split.json", '{"test": [0]}', "is damaged"),
        ("metrics.jsonl", "{\n{}\n", "line 1 is damaged: .*; remove that line"),
        ("evaluation/predictions.safetensors", "no tensors", "is damaged .*: delete .*run/result.json"),
        ("evaluation/predictions.json", "[]", "is damaged .*: delete .*run/result.json"),
        ("evaluation/predictions.json", '{"ids": ["one"]}', "names 1 images"),
    ],
)
def test_a_broken_file_is_named(run: Path, tmp_path: Path, name: str, content: str, told: str):
    folder = shutil.copytree(run, tmp_path / "run")
    (folder / name).write_text(content)
    with pytest.raises(UserError, match=told if "names 1" in told else f"{name}.*{told}"):
        write_report(folder)


def test_a_folder_without_a_run_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="not a run folder"):
        write_report(tmp_path)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colors_can_be_read(written: Path, visit: Callable[..., Page], scheme: str):
    """WCAG AA: text and lines stand out from the paper, 4.5 to 1."""
    page = visit(written, color_scheme=scheme)
    style = "name => getComputedStyle(document.documentElement).getPropertyValue('--' + name)"
    colors = {name: luminance(page.evaluate(style, name)) for name in ("paper", "ink", "muted", "c1", "c2", "c3", "c4")}
    for name, color in colors.items():
        low, high = sorted((color, colors["paper"]))
        assert name == "paper" or (high + 0.05) / (low + 0.05) >= 4.5, name


def luminance(color: str) -> float:
    """Relative luminance of #rrggbb, as WCAG 2 defines it."""
    parts = np.array([int(color.strip()[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])
