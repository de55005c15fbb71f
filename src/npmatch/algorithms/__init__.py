"""The methods, by the name the command line knows them by."""

from __future__ import annotations

from npmatch.algorithms.adamatch import AdaMatch
from npmatch.algorithms.comatch import CoMatch
from npmatch.algorithms.fixmatch import FixMatch
from npmatch.algorithms.flexmatch import FlexMatch
from npmatch.algorithms.freematch import FreeMatch
from npmatch.algorithms.mean_teacher import MeanTeacher
from npmatch.algorithms.meta_pseudo_labels import MetaPseudoLabels
from npmatch.algorithms.mixmatch import MixMatch
from npmatch.algorithms.npmatch import NPMatch
from npmatch.algorithms.pseudo_label import PseudoLabel
from npmatch.algorithms.remixmatch import ReMixMatch
from npmatch.algorithms.semco import SemCo
from npmatch.algorithms.simmatch import SimMatch
from npmatch.algorithms.softmatch import SoftMatch
from npmatch.algorithms.supervised import Supervised
from npmatch.algorithms.uda import UDA
from npmatch.algorithms.ups import UPS

ALGORITHMS = {
    "supervised": Supervised,
    "pseudo_label": PseudoLabel,
    "mean_teacher": MeanTeacher,
    "mixmatch": MixMatch,
    "remixmatch": ReMixMatch,
    "uda": UDA,
    "fixmatch": FixMatch,
    "flexmatch": FlexMatch,
    "freematch": FreeMatch,
    "softmatch": SoftMatch,
    "adamatch": AdaMatch,
    "comatch": CoMatch,
    "simmatch": SimMatch,
    "semco": SemCo,
    "meta_pseudo_labels": MetaPseudoLabels,
    "ups": UPS,
    "npmatch": NPMatch,
}
