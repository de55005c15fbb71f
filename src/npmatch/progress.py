"""What long work says while it runs. Silent from Python; the command line shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class Progress(Protocol):
    def say(self, text: str) -> None:
        """One line a person should read."""

    def warn(self, text: str) -> None:
        """One line a person should act on."""

    def work(self, what: str, done: int, total: int, numbers: Mapping[str, float] | None = None) -> None:
        """How far some work is, with what is measured on the way."""


class Silent:
    def say(self, text: str) -> None: ...

    def warn(self, text: str) -> None: ...

    def work(self, what: str, done: int, total: int, numbers: Mapping[str, float] | None = None) -> None: ...
