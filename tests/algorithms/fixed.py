"""A batch whose images are features already, before a linear classifier of fixed weights, all in float64.

So a test can compute a method's loss again with numpy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from npmatch.functional import chance
from npmatch.heads.linear import LinearHead
from npmatch.types import Algorithm, Model, Step, Views
from tests import toy

B, U, FEATURES, CLASSES = 16, 60, 5, 3
Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass
class Batch:
    model: Model
    teacher: Model
    views: Views

    def logits(self, view: str, of: str = "model") -> Array:
        head = getattr(self, of).head.classifier
        return (self.views[view] @ head.weight.T + head.bias).detach().numpy()

    def probs(self, view: str, of: str = "model") -> Array:
        return softmax(self.logits(view, of))

    def step(self, method: Algorithm[Any], state: Any = None) -> Step[Any]:
        return method.step(self.model, self.teacher, self.views, method.init(FACTS) if state is None else state)


FACTS = toy.facts(num_classes=CLASSES, feature_dim=FEATURES, num_steps=100, dtype=torch.float64)


def batch(*names: str, step: int = 0, seed: int = 0) -> Batch:
    """Predictions between unsure and sure, with the classes not alike."""
    torch.manual_seed(chance.number(seed, step, 7))
    models = [Model(nn.Identity(), LinearHead(FEATURES, CLASSES)).double() for _ in range(2)]
    for model in models:
        nn.init.normal_(model.head.classifier.weight)
        nn.init.normal_(model.head.classifier.bias)
    images = {name: torch.randn(B if name == "labeled" else U, FEATURES).double() for name in names}
    y = torch.randint(CLASSES, (B,))
    return Batch(*models, Views(images, y, torch.arange(B), torch.arange(U), torch.tensor(step)))


def softmax(logits: Array) -> Array:
    mass = np.exp(logits - logits.max(-1, keepdims=True))
    return mass / mass.sum(-1, keepdims=True)


def log_loss(probs: Array, label: Any) -> Array:
    """Of class indices."""
    return -np.log(probs[np.arange(len(probs)), np.asarray(label)])


def labeled_loss(given: Batch) -> float:
    return float(log_loss(given.probs("labeled"), given.views.y).mean())
