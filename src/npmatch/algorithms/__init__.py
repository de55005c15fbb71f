"""The methods, by the name the command line knows them by."""

from __future__ import annotations

from npmatch.algorithms.fixmatch import FixMatch
from npmatch.algorithms.flexmatch import FlexMatch
from npmatch.algorithms.npmatch import NPMatch
from npmatch.algorithms.supervised import Supervised

ALGORITHMS = {
    "supervised": Supervised,
    "fixmatch": FixMatch,
    "flexmatch": FlexMatch,
    "npmatch": NPMatch,
}
