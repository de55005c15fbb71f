"""The progress bar, drawn on terminals of several widths."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from npmatch.terminal import Terminal

NUMBERS = {"images/s": 3903.4, "loss": 1.234, "kept": 0.5123, "error": 12.345}
SAID = ["images/s 3,903", "loss 1.23", "kept 0.512", "error 12.3"]


def drawn(width: int, steps: int, numbers: dict[str, float]) -> str:
    """The line of a bar after 106 steps, of which the last took two seconds each."""
    clock, screen, terminal = [0.0], io.StringIO(), Terminal()
    terminal.console = Console(
        file=screen, width=width, force_terminal=True, color_system=None, soft_wrap=True, get_time=lambda: clock[0]
    )
    terminal.work("training", 0, steps)
    for done in range(96, 107):
        clock[0] = 2.0 * done
        terminal.work("training", done, steps, numbers)
    terminal.bar.refresh()
    lines = [line for line in re.split(r"[\r\n]|\x1b\[[^a-zA-Z]*[a-zA-Z]", screen.getvalue()) if line.strip()]
    terminal.close()
    assert all(len(line) <= width for line in lines), lines
    return lines[-1]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize(("steps", "left"), [(800, "0:23:08"), (1_000_000, "555:29:48")])
def test_count_and_time_left_stay_whole_beside_numbers(width: int, steps: int, left: str) -> None:
    """The time left by hand: two seconds for each step that is not done."""
    line = drawn(width, steps, NUMBERS)
    assert line.startswith("training ") and re.search(rf" +106/{steps} +{left} ", line), line
    shown = [words for words in SAID if words in line]
    assert shown == SAID[: len(shown)] and line.rstrip().endswith(shown[-1] if shown else left), "cut between numbers"
    assert shown == SAID or width < 80 or steps > 800


def test_the_bar_gives_way_before_the_numbers_do() -> None:
    places = {(width, bool(n)): drawn(width, 800, n).index("106/800") for width in (80, 120) for n in (NUMBERS, {})}
    assert places == {(80, False): 50, (120, False): 50, (120, True): 50, (80, True): 15}  # of 40 columns 5 are left
