"""Draws `cpu/curve.png` from the run records beside it: `python results/plot.py` (needs a Chromium to rasterise)."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path

import plotly.graph_objects as go

HERE = Path(__file__).parent / "cpu"


def main() -> None:
    figure = go.Figure()
    for path in sorted(HERE.glob("*/run.json")):
        record = json.loads(path.read_text())
        curve = {int(step): value for step, value in record["result"]["val_curve"].items()}
        control = record["identity"]["reward_shuffled"]
        figure.add_scatter(
            x=list(curve),
            y=[100 * value for value in curve.values()],
            mode="lines+markers",
            name="shuffled rewards (control)" if control else f"seed {record['seed']}",
            line={"dash": "dot" if control else "solid", "width": 3},
        )
    figure.update_layout(
        template="plotly_white",
        title="GRPO on a CPU through LangGraph: 240 questions, unseen databases",
        xaxis_title="GRPO step (16 tasks x 4 rollouts)",
        yaxis={"title": "validation accuracy, %", "range": [40, 101]},
        width=900,
        height=460,
        font={"size": 15},
    )
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "curve.html"
        figure.write_html(page, include_plotlyjs=True, config={"displayModeBar": False})
        browser = shutil.which("chromium") or shutil.which("google-chrome") or "chromium"
        subprocess.run(
            [
                *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
                *("--virtual-time-budget=4000", "--window-size=916,476"),
                *(f"--screenshot={HERE / 'curve.png'}", page.as_uri()),
            ],
            check=True,
            capture_output=True,
        )


if __name__ == "__main__":
    main()
