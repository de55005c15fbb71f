"""Progress as a person sees it: a bar on a terminal, plain lines elsewhere. Everything goes to stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

PLAIN_SECONDS = 10.0  # between plain lines
LEAST_BAR = 4  # columns: so far the bar gives way to numbers, and then they to it
ETA = "0:00:00"
SHOWN = {"images/s": ",.0f", "loss": ".3g", "kept": ".3g", "error": ".3g"}


class Terminal:
    """One bar at a time, made when work begins and closed when it is done."""

    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.what = ""
        self.bar: Any = None
        self.began, self.first, self.spoke = 0.0, 0, 0.0
        self.numbers = ""

    def say(self, text: str) -> None:
        self.console.print(text, markup=False)

    def warn(self, text: str) -> None:
        self.console.print(f"! {text}", style="yellow", markup=False)

    def work(self, what: str, done: int, total: int, numbers: Mapping[str, float] | None = None) -> None:
        now = time.monotonic()
        if what != self.what:
            self.close()
            self.what, self.began, self.first, self.spoke, self.numbers = what, now, done, now, ""
            if self.console.is_terminal:
                self.bar = self._bar(what, total)
        if numbers:
            said = [f"{name} {numbers[name]:{form}}" for name, form in SHOWN.items() if name in numbers]
            while self.bar is not None and said and len("  ".join(said)) > self._room(total):
                said.pop()  # half a number says something else
            self.numbers = "  ".join(said)
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=done, numbers=self.numbers)
        elif now - self.spoke >= PLAIN_SECONDS:
            self.spoke = now
            left = (total - done) * (now - self.began) / max(1, done - self.first)
            print(
                f"{what}: {done:,} of {total:,}, {left / 60:.1f} min left  {self.numbers}", file=sys.stderr, flush=True
            )
        if done >= total:
            self.close()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
        self.bar, self.what = None, ""

    def _room(self, total: int) -> int:
        """Columns left for the numbers beside what is said anyway."""
        return self.console.width - len(f"{self.what} {'':{LEAST_BAR}} {total}/{total} {ETA} ")

    def _bar(self, what: str, total: int) -> Any:
        from rich import progress
        from rich.table import Column

        bar = progress.Progress(
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),  # the only one that may shrink
            progress.MofNCompleteColumn(table_column=Column(no_wrap=True)),
            progress.TimeRemainingColumn(table_column=Column(no_wrap=True)),
            progress.TextColumn("{task.fields[numbers]}"),
            console=self.console,
            transient=True,
        )
        bar.start()
        bar.add_task(what, total=total, numbers="")
        return bar
