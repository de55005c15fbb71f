"""What goes wrong in semi-supervised training, said in plain words while it happens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass
class Health:
    """Looks at the logged means and speaks once of each trouble. Never changes a run."""

    num_classes: int
    num_steps: int
    can_align: bool = False  # whether the method has a setting against uneven guesses
    said: dict[str, str] = field(default_factory=dict)

    def look(self, step: int, means: Mapping[str, float], moved: float | None = None) -> list[str]:
        """New messages about the means logged at `step`. `moved`: how far the weights went since the first step."""
        found: dict[str, str] = {}
        late = step >= 0.25 * self.num_steps
        kept = means.get("kept")
        if moved == 0.0:
            found["still"] = "the weights have not moved: optimizer.lr is 0, or no gradient reaches the network"
        if kept is not None and late and kept == 0.0:
            found["nothing kept"] = (
                f"no pseudo-label passed the thresholds (mean confidence {means.get('confidence', 0):.2f}): the "
                "unlabeled images teach nothing yet; train longer, or lower algorithm.min_confidence"
            )
        largest, fair = means.get("largest_class"), 1 / self.num_classes
        if largest is not None and kept and late and largest > min(0.95, max(4 * fair, 0.5)):
            cure = "more labels, or algorithm.alignment=batch" if self.can_align else "or more labels"
            found["collapse"] = (
                f"{largest:.0%} of the kept pseudo-labels are of one class: if your images are not so uneven, training "
                f"is collapsing; try another seed, {cure}"
            )
        if means.get("labeled", 0.0) > 1e3:
            found["loss"] = (
                f"the labeled loss is {means['labeled']:.3g}: lower optimizer.lr, or set optimizer.clip_norm=3"
            )
        new = [text for name, text in found.items() if name not in self.said]
        self.said |= {name: f"step {step}: {text}" for name, text in found.items() if name not in self.said}
        return new

    @property
    def messages(self) -> list[str]:
        return list(self.said.values())
