"""The test error of several runs over their steps, as one SVG: python benchmarks/curves.py OUT.svg RUN RUN ..."""

from __future__ import annotations

import sys
from importlib.resources import files
from pathlib import Path

from npmatch.report.svg import Axis, Line, line_chart
from npmatch.runs import RunFolder


def main(out: str, *folders: str) -> None:
    lines = []
    for number, folder in enumerate(folders):
        rows = [row for row in RunFolder(Path(folder)).read_metrics() if row.get("error") is not None]
        steps, errors = [row["step"] for row in rows], [row["error"] for row in rows]
        says = [f"{Path(folder).name}, step {step}: {error:.2f} %" for step, error in zip(steps, errors)]
        lines.append(Line(Path(folder).name, steps, errors, says, color=number % 4 + 1))
    x = Axis("step", 0, max(line.x[-1] for line in lines))
    y = Axis.around("test error (%)", [error for line in lines for error in line.y])
    chart = str(line_chart(lines, x, y, f"Test error over steps of {', '.join(line.name for line in lines)}"))
    style = (files("npmatch.report") / "style.css").read_text(encoding="utf-8")
    head, rest = chart.removeprefix("<svg").split(">", 1)
    opening = f'<svg xmlns="http://www.w3.org/2000/svg"{head}><style>{style} svg {{ font-family: sans-serif }}</style>'
    Path(out).write_text(f"{opening}{rest}\n", encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
