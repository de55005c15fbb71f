"""Which test images are worth looking at. NumPy only, so that evaluation can ask before it stores them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]
Integers = NDArray[np.integer]


def most_uncertain(uncertainty_N: Floats, most: int = 24) -> Integers:
    """The rows with the largest uncertainty, largest first."""
    return np.argsort(-uncertainty_N, kind="stable")[:most]


def most_confidently_wrong(probabilities_NK: Floats, labels_N: Integers, most: int = 24) -> Integers:
    """The rows whose most probable class is not the given one, the most probable first."""
    (wrong,) = np.nonzero(probabilities_NK.argmax(axis=1) != labels_N)
    return wrong[np.argsort(-probabilities_NK[wrong].max(axis=1), kind="stable")][:most]


def choose_examples(probabilities_NK: Floats, uncertainty_N: Floats, labels_N: Integers, most: int = 24) -> Integers:
    """The rows of the images a report shows: the most uncertain and the most confidently wrong ones, each row once."""
    rows = np.concatenate(
        [most_uncertain(uncertainty_N, most), most_confidently_wrong(probabilities_NK, labels_N, most)]
    )
    _, first = np.unique(rows, return_index=True)
    return rows[np.sort(first)]
