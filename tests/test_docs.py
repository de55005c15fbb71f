"""The documentation is true: its Python runs, its commands parse, and what it names exists."""

import ast
import dataclasses
import importlib
import inspect
import re
import shlex
import typing
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from npmatch import fit
from npmatch.algorithms import ALGORITHMS
from npmatch.algorithms._skeleton import Skeleton
from npmatch.bench.commands import bench
from npmatch.cli import npmatch as command_line
from npmatch.config import HEADS, Settings
from npmatch.presets import BUILTIN, PRESETS, preset
from npmatch.progress import Silent
from tests import toy
from tests.contract import test_algorithms as contract

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ALL_PAGES = [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
CHEAP = {"list", "show"}  # verbs that are run and not only parsed

each_page = pytest.mark.parametrize("page", ALL_PAGES, ids=lambda page: page.name)


def blocks(page, language):
    """Fenced code of one language: (line number, text)."""
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S):
        if match[1] == language:
            yield text.count("\n", 0, match.start()) + 2, match[2]


def prose(page):
    """The page without its fenced code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def in_backticks(page):
    return re.findall(r"`([^`\n]+)`", prose(page))


@pytest.fixture
def desk(tmp_path, monkeypatch):
    """A reader's folder, with images of their own in my_images/."""
    chance = np.random.default_rng(0)
    for part, count in (("labeled/cat", 6), ("labeled/dog", 6), ("unlabeled", 30), ("test/cat", 4), ("test/dog", 4)):
        folder = tmp_path / "my_images" / part
        folder.mkdir(parents=True)
        for number in range(count):
            Image.fromarray(chance.integers(0, 256, (32, 32, 3), np.uint8)).save(folder / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    known = dict(ALGORITHMS)
    yield tmp_path
    ALGORITHMS.clear()  # a page may add a method of its own
    ALGORITHMS.update(known)


@pytest.mark.parametrize("page", [page for page in PAGES if any(blocks(page, "python"))], ids=lambda page: page.name)
def test_python_runs_as_pasted(page, desk):
    namespace = {"__name__": "__main__"}
    for line, code in blocks(page, "python"):
        exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)


def commands(page):
    """Every npmatch command of the page's shell blocks, in words."""
    for line, text in blocks(page, "sh"):
        for number, one in enumerate(text.replace("\\\n", " ").splitlines()):
            for part in re.split(r"&&|\||;", one.partition(" #")[0]):
                words = shlex.split(part)
                if "npmatch" in words:
                    yield line + number, words[words.index("npmatch") + 1 :]


@each_page
def test_commands_exist_and_parse(page, desk):
    for line, words in commands(page):
        if not words or words[0].startswith("-"):
            result = CliRunner().invoke(command_line, words or ["--help"])
            assert result.exit_code == 0, f"{page.name}:{line}: {result.output}"
            continue
        verb = command_line.commands.get(words[0])
        assert verb is not None, f"{page.name}:{line}: there is no npmatch {words[0]}"
        try:
            verb.make_context(words[0], list(words[1:]))
        except click.ClickException as error:
            pytest.fail(f"{page.name}:{line}: {error.format_message()}")
        if words[0] in CHEAP:
            result = CliRunner().invoke(command_line, words)
            assert result.exit_code == 0, f"{page.name}:{line}: {result.output}"


@each_page
def test_links_resolve(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(file), f"{page.name}: {target} among {sorted(anchors(file))}"


def anchors(page):
    headings = re.findall(r"^#+ (.*)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def settings_of(cls, section):
    hints = typing.get_type_hints(cls)
    return {f"{section}.{field.name}": hints[field.name] for field in dataclasses.fields(cls)}


def all_settings():
    """Dotted key -> type, for every section and every member that can stand in it."""
    hints = typing.get_type_hints(Settings)
    found = {"preset": hints["preset"], "seed": hints["seed"]}
    for section in ("data", "views", "net"):
        found |= settings_of(hints[section], section)
    for section, members in (("head", HEADS), ("algorithm", ALGORITHMS)):
        found[f"{section}.name"] = typing.Literal[*members]
        found |= {"algorithm.variant": hints["variant"]} if section == "algorithm" else {}
        for cls in members.values():
            found |= {key: hint for key, hint in settings_of(cls, section).items() if key not in found}
    for section in ("optimizer", "train"):
        found |= settings_of(hints[section], section)
    return found


@each_page
def test_settings_exist(page):
    known = all_settings()
    sections = {key.partition(".")[0] for key in known if "." in key}
    words = [*in_backticks(page), *(word for _, found in commands(page) for word in found)]
    for word in words:
        for key in re.findall(rf"(?<![\w./])((?:{'|'.join(sections)})\.[a-z]\w*)", word):
            file = re.fullmatch(r"\w+\.(py|md|csv|json|toml|html|png|npz|jsonl)", key)
            assert key in known or file, f"{page.name}: there is no setting {key}"


@each_page
def test_options_exist(page):
    options = {"--help", "--version"}
    for verb in [*command_line.commands.values(), *bench.commands.values()]:
        options |= {name for parameter in verb.params for name in parameter.opts}
    for word in in_backticks(page):
        if word.startswith(("npmatch ", "--")):
            for option in re.findall(r"(?<!\S)--[a-z][a-z-]*", word):
                assert option in options, f"{page.name}: {word}: no verb has {option}"


@each_page
def test_named_code_exists(page):
    for word in in_backticks(page):
        if path := re.fullmatch(r"((?:src|tests|benchmarks|results|\.ci)/[\w./-]*)(?:::(\w+))?", word):
            file = ROOT / path[1]
            assert file.exists(), f"{page.name}: {word}"
            if path[2]:
                names = {getattr(node, "name", "") for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))}
                assert path[2] in names, f"{page.name}: {word}"
        elif re.fullmatch(r"npmatch(\.\w+)+(\(\))?", word):
            assert resolves(word.removesuffix("()")), f"{page.name}: {word}"


def resolves(dotted):
    """Whether a dotted name is a module, or something in one."""
    parts = dotted.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for name in parts[cut:]:
            if name in getattr(found, "__dataclass_fields__", {}):
                return name == parts[-1]
            found = getattr(found, name, None)
        return found is not None
    return False


def settings_rows():
    """docs/settings.md without what a person wrote: setting, values, and what the presets say for color photographs.

    A dagger stands where a preset looks at the data or the method.
    """
    columns = [defaults() | preset_values(name) for name in PRESETS]
    for key, hint in all_settings().items():
        yield [f"`{key}`", spelled(hint), *(column[key] for column in columns)]


def preset_values(name):
    """For photographs: of NP-Match, and of a setting that it has not, of the first method that has it."""
    shown_for = [values(preset(name, BUILTIN["cifar10"], method)) for method in ("npmatch", *ALGORITHMS)]
    of_photographs = {key: value for one in reversed(shown_for) for key, value in one.items()}
    others = [values(preset(name, about, method)) for about in BUILTIN.values() for method in ALGORITHMS]
    return {
        key: value + "†" * any(other.get(key, value) != value for other in others)
        for key, value in of_photographs.items()
    }


def values(settings):
    found = {"preset": settings.preset, "seed": shown(settings.seed), "algorithm.name": settings.algorithm_name}
    found |= {"algorithm.variant": settings.variant}
    for section in ("data", "views", "net", "head", "algorithm", "optimizer", "train"):
        found |= {f"{section}.{key}": shown(value) for key, value in vars(getattr(settings, section)).items()}
    return found


def defaults():
    """Of the heads and methods that no preset takes by itself."""
    return {f"head.{key}": shown(value) for cls in HEADS.values() for key, value in vars(cls()).items()}


def shown(value):
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def spelled(hint):
    """A type as the page writes it."""
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(f"`{choice}`" for choice in typing.get_args(hint))
    names = {bool: "true, false", int: "whole number", float: "number", str: "text", type(None): "none"}
    return names[hint] if hint in names else " or ".join(spelled(option) for option in typing.get_args(hint))


def test_the_settings_page_lists_exactly_the_settings():
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (ROOT / "docs" / "settings.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    ]
    assert [row[:-1] for row in rows] == list(settings_rows())
    assert all(row[-1] for row in rows), "each setting has a meaning"


class PullsThePlug(Silent):
    """Ends a run between two checkpoints, as a kill would: nothing is saved on the way out."""

    def work(self, what, done, total, numbers=None):
        if (what, done) == ("training", 13):
            raise KeyboardInterrupt


def test_a_stopped_run_goes_on_as_if_it_had_not(desk):
    """docs/reliability.md, first table."""
    whole = fit("digits", steps=30, out="whole")
    with pytest.raises(KeyboardInterrupt):
        fit("digits", steps=30, out="stopped", progress=PullsThePlug())
    stopped = fit(out="stopped", resume=True)

    assert stopped.result["resumed_from"] == [12]
    assert stopped.folder.read_metrics() == whole.folder.read_metrics()
    one, other = (run.path / "model" / "weights.safetensors" for run in (whole, stopped))
    assert one.read_bytes() == other.read_bytes()


def test_the_skeleton_keeps_the_contract(monkeypatch):
    """A copy of it is a method that works."""
    monkeypatch.setitem(ALGORITHMS, "skeleton", Skeleton)
    monkeypatch.setitem(toy.GENTLE, "skeleton", {})
    tests = [
        test
        for name, test in inspect.getmembers(contract, inspect.isfunction)
        if name.startswith("test_") and list(inspect.signature(test).parameters) == ["algorithm", "head"]
    ]
    assert len(tests) >= 7
    for test in tests:
        test("skeleton", "neural_process")
