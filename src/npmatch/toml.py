"""Nested settings as TOML: the writer the standard library lacks. `tomllib` reads it back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from npmatch.errors import UserError


def dumps(mapping: Mapping[str, Any]) -> str:
    """Nested mappings of str, int, float, bool and list as TOML, a section for each mapping.

    None is left out, since TOML has no word for it; in a list it is a TypeError, as is any other type.
    """
    return "\n".join(_lines(mapping, ())) + "\n"


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> list[str]:
    sections = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    values = {key: value for key, value in table.items() if key not in sections and value is not None}
    lines = [f"{_key(key)} = {_value(value)}" for key, value in values.items()]
    if path and (values or not sections):
        lines = ["", f"[{'.'.join(map(_key, path))}]", *lines]
    for key, section in sections.items():  # after the values: in TOML what follows a header belongs to it
        lines += _lines(section, (*path, key))
    return lines


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _string(key)


def _value(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _string(value)
        case int():
            return int.__repr__(value)
        case float():  # not repr(value): NumPy's float64 is a float that prints its own name
            return float.__repr__(value)
        case list() | tuple():
            return f"[{', '.join(map(_value, value))}]"
    raise TypeError(f"TOML has no form for {value!r}")


def _string(text: str) -> str:
    """In quotes. JSON's escapes are TOML's, but for DEL."""
    try:
        text.encode()
    except UnicodeEncodeError as error:  # the name of a file from a system with another encoding
        raise UserError(f"{text!r} is not Unicode text and cannot be stored; rename it") from error
    return json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007f")
