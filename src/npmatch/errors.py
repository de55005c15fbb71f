"""What a person can put right. Everything else is a fault of ours and keeps its traceback."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN = 20  # problems named in one error


class UserError(Exception):
    """Wrong use or bad input: one line that names the thing and the cure."""

    code = 2  # of the command line, as for those below


class Diverged(Exception):
    """Training met a number that is not finite."""

    code = 4


class Stopped(Exception):
    """A signal stopped the run after its state was saved. Its code is 130 or 143."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class RankLost(Exception):
    """Another process that works on the same run has ended."""

    code = 1


def printable(text: str) -> str:
    """Text that a terminal only shows: names of files and classes may hold any character."""
    return "".join(char if char.isprintable() or char == "\n" else "?" for char in text)


def shown(name: str, most: int) -> str:
    """A name in a line for people: of a long one both ends."""
    text = printable(name).replace("\n", "?")
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-(most // 2) :]}"


def refuse(what: str, problems: Sequence[str]) -> None:
    """Raise one UserError that names all the problems, if there are any."""
    if not problems:
        return
    lines = [what, *problems[:SHOWN]]
    if len(problems) > SHOWN:
        lines.append(f"… and {len(problems) - SHOWN} more")
    raise UserError("\n  ".join(lines))
