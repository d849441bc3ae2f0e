"""Prints the Markdown tables of this folder from its run records: `python results/table.py cpu|gpu`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
PHASES = ("gen", "old_log_prob", "update_actor", "update_weights")


def percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def main(kind: str) -> None:
    print("| run | agent | trains | seed | validation before | after | steps | s/step | rollout | update | minutes |")
    print("|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for path in sorted((HERE / kind).glob("*/run.json")):
        record = json.loads(path.read_text())
        result = record["result"]
        steps = pd.read_parquet(path.parent / "steps.parquet")
        steps = steps[steps["timing_s/step"].notna()]
        whole = steps["timing_s/step"].sum()
        share = {phase: steps[f"timing_s/{phase}"].sum() / whole for phase in PHASES}
        trains = f"`{record['agent_match']}`" + (", shuffled rewards" if record["identity"]["reward_shuffled"] else "")
        print(
            f"| {path.parent.name} | {record['plugin']} | {trains} | {record['seed']} "
            f"| {percent(result['val_accuracy_initial'])} | {percent(result['val_accuracy_final'])} "
            f"| {result['steps']} | {result['step_s_median']:.1f} | {percent(share['gen'])} "
            f"| {percent(share['update_actor'] + share['old_log_prob'])} | {result['wall_s'] / 60:.1f} |"
        )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu")
