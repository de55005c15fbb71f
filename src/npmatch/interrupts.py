"""Signals that ask a run to stop, heard between steps."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

from npmatch.errors import Stopped


@dataclass
class Asked:
    """Whether a signal has asked for a stop, and whether somebody looks for that between steps."""

    signal: int | None = None
    looking: bool = False


@contextmanager
def listening() -> Iterator[Asked]:
    """While inside, SIGINT and SIGTERM ask for a stop after the step under way; where no step is, they stop at once.

    A second SIGINT stops at once too.
    """
    asked = Asked()
    if threading.current_thread() is not threading.main_thread():
        yield asked  # signals reach the main thread alone
        return

    def note(number: int, frame: FrameType | None) -> None:
        if not asked.looking or (asked.signal is not None and number == signal.SIGINT):
            raise Stopped("stopped; what was saved stays", 128 + number)
        asked.signal = number

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
