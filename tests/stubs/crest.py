"""CReST: rounds around an unchanged `train`; a finished run labels part of the pool for the next one."""

from dataclasses import dataclass, replace

import numpy as np

from npmatch.config import Settings
from npmatch.data.splits import Split
from npmatch.evaluate import Predicted


@dataclass(frozen=True)
class CReSTState:
    round: int
    labels: np.ndarray  # (N,) the source's labels and those added so far


def next_round(
    split: Split, state: CReSTState, said: Predicted, settings: Settings, share_K: np.ndarray
) -> tuple[Split, CReSTState, Settings]:
    """Rare classes take in more of what was predicted as them."""
    rank = np.argsort(np.argsort(-share_K))
    take = said.probabilities.max(1) > np.quantile(said.probabilities.max(1), rank[said.label] / len(share_K))
    added = split.unlabeled[take]
    labels = state.labels.copy()
    labels[added] = said.label[take]
    grown = Split(np.concatenate([split.labeled, added]), split.unlabeled, split.val, split.test)
    return grown, CReSTState(state.round + 1, labels), replace(settings, seed=settings.seed + 1)
