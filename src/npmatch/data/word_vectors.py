"""Vectors of class names, from a file that a person brings: a semantic prior over the classes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from npmatch.errors import UserError, refuse


def read_word_vectors(path: Path, names: Sequence[str]) -> np.ndarray:
    """The vector of each name -> (K, D) float32, from an .npz of one array per name, or text: a name and its numbers a
    line, as ConceptNet Numberbatch, GloVe and fastText have it.

    Case, spaces, hyphens and underscores make no difference. A name without a vector is an error: a random one would
    be a prior that says nothing, and nobody would see it.
    """
    wanted = {_plain(name) for name in names}
    try:
        found = _from_npz(path, wanted) if path.suffix == ".npz" else _from_text(path, wanted)
    except OSError as error:
        raise UserError(f"algorithm.word_vectors={path}: cannot be read ({error.strerror or error})") from None
    except (ValueError, BadZipFile) as error:
        raise UserError(f"algorithm.word_vectors={path}: is no file of word vectors ({error})") from None
    missing = [name for name in names if _plain(name) not in found]
    refuse(f"algorithm.word_vectors={path}: has no vector for these classes; add a line for each", missing)
    vectors = [found[_plain(name)] for name in names]
    if len({vector.shape for vector in vectors}) > 1 or vectors[0].ndim != 1:
        raise UserError(f"algorithm.word_vectors={path}: the vectors are not of one length")
    table = np.stack(vectors)
    wrong = [name for name, vector in zip(names, table) if not (np.isfinite(vector).all() and vector.any())]
    refuse(f"algorithm.word_vectors={path}: these have no direction: their vectors are zero or not finite", wrong)
    return table


def _from_npz(path: Path, wanted: set[str]) -> Mapping[str, np.ndarray]:
    with np.load(path) as arrays:
        return {_plain(name): arrays[name].astype(np.float32) for name in arrays.files if _plain(name) in wanted}


def _from_text(path: Path, wanted: set[str]) -> Mapping[str, np.ndarray]:
    """Line by line: such files can be larger than memory. Of two spellings of a name the first one counts."""
    found: dict[str, np.ndarray] = {}
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            name, *numbers = line.split() or [""]
            if _plain(name) in wanted and len(numbers) > 1:  # a first line may count the others
                found.setdefault(_plain(name), _numbers(name, numbers))
    return found


def _numbers(name: str, texts: Iterable[str]) -> np.ndarray:
    try:
        return np.array([float(text) for text in texts], np.float32)
    except ValueError:
        raise ValueError(f"after {name} stands what is no number; join the words of a name by _") from None


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]+", "_", name.strip().lower())
