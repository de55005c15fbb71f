"""The speed figure: milliseconds over the number of predictions, a panel for each network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npmatch.errors import UserError

FORMATS = ("png", "svg")
# Okabe and Ito's colors, which people who are color-blind tell apart, with a marker each for printing in gray.
LOOKS = {
    "mc_looped": ("#D55E00", "o", "MC dropout, T passes"),
    "mc_batched": ("#E69F00", "s", "MC dropout, one large pass"),
    "np": ("#0072B2", "D", "neural process"),
    "deterministic": ("#000000", "", "one prediction, no uncertainty"),
}


def draw(found: dict[str, Any], folder: Path, stem: str) -> None:
    """Write `<stem>.png` and `<stem>.svg`."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("the figure needs the package matplotlib: pip install 'npmatch[figures]'") from None
    rows = found["rows"]
    nets = list(dict.fromkeys(row["net"] for row in rows))
    figure = Figure(figsize=(max(7.5, 5.2 * len(nets)), 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(nets), sharey=True, squeeze=False)[0]
    for panel, net in zip(panels, nets):
        _panel(panel, net, [row for row in rows if row["net"] == net])
    panels[0].set_ylabel(f"ms for {rows[0]['batch_size']} images")
    figure.suptitle(f"Uncertainty on {rows[0]['device']}, float32")
    handles = {line.get_label(): line for panel in panels for line in panel.lines}
    figure.legend(list(handles.values()), list(handles), loc="outside lower center", ncols=2, frameon=False)
    for kind in FORMATS:
        figure.savefig(folder / f"{stem}.{kind}", dpi=200)


def _panel(panel: Any, net: str, rows: list[dict[str, Any]]) -> None:
    counts = sorted({row["num_samples"] for row in rows})
    for method, (color, marker, says) in LOOKS.items():
        for captured in (False, True):
            own = [row for row in rows if (row["method"], row["captured"]) == (method, captured)]
            if not own:
                continue
            looks = {
                "color": color,
                "linestyle": "-" if captured else "--",
                "label": f"{says}, {'CUDA graph' if captured else 'eager'}",
            }
            if method == "deterministic":  # it has no T: a level to see the others against
                panel.axhline(own[0]["ms_median"], **looks)
            else:
                panel.plot([r["num_samples"] for r in own], [r["ms_median"] for r in own], marker=marker, **looks)
    panel.set(title=net, xlabel="predictions T", xscale="log", yscale="log")
    panel.set_xticks(counts, [str(count) for count in counts])
    panel.minorticks_off()
    panel.yaxis.set_major_formatter("{x:g}")
    panel.grid(alpha=0.3)
