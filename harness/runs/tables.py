"""Create the Parquet files of a run folder from its row logs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from harness.runs.folder import ROWS, Kind, RunFolder
from harness.runs.record_types import columns, described
from harness.runs.rows import Call, Episode, LoggedStep
from harness.runs.schema import RunRecord
from harness.runs.training_signal import mixed_groups
from harness.util.parsing import finite_or_null

_TYPES: dict[str, pa.DataType] = {
    "int64": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "bool": pa.bool_(),
    "list<string>": pa.list_(pa.string()),
    "list<int32>": pa.list_(pa.int32()),
    "list<float>": pa.list_(pa.float32()),
}
_MEANS = ("transitions", "trained_transitions", "prompt_tokens", "response_tokens")
"""Columns of episodes; their means per rollout are figures of a step."""
_TOTALS = ("calls_with_tools", "parsed_calls", "unread_calls")
"""Columns of episodes; their sums are figures of a step."""


def conclude(folder: RunFolder, record: RunRecord) -> str:
    """Write a run's tables, then its final record, so that a `finished` run is complete.

    Returns:
        Why part of it is missing on a full disk; empty if everything is written.

    Raises:
        Exception: The rows form no table. The record is written and states so.
    """
    fault: Exception | None = None
    reason = ""
    try:
        write_tables(folder)
    except Exception as error:
        # The record is written all the same: without it, the folder looks like a running run.
        fault = error
        cause = error.strerror if isinstance(error, OSError) else error
        reason = f"the tables of {folder.path} cannot be written: {cause}"
        record = {**record, "status": "failed", "reason": record.get("reason") or reason}
    folder.release()  # release the reserved space for the record
    try:
        folder.write(record)
    except OSError as error:
        reason = reason or f"the record of {folder.path} cannot be written: {error.strerror}"
    if fault is not None and not isinstance(fault, OSError):
        raise fault
    return f"{reason}. Its rows are whole in logs/" if reason else ""


def write_tables(folder: RunFolder) -> None:
    """Write `episodes.parquet`, `transitions.parquet` and `steps.parquet`; safe to repeat."""
    for kind in ROWS:
        table = logged_table(folder, kind)
        if not len(table):
            continue
        path = folder.path / f"{kind}.parquet"
        # A reader, or a stop in the middle, never meets half a table.
        temporary = path.with_suffix(".tmp")
        try:
            pq.write_table(table, temporary, compression="zstd")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def logged_table(folder: RunFolder, kind: Kind) -> pa.Table:
    """Return `episodes`, `transitions` or `steps` from the row logs, with all columns."""
    if kind == "steps":
        return steps_table(step_rows(list(folder.rows("steps")), list(folder.rows("episodes"))))
    rows: list[Mapping[str, object]] = list(folder.rows(kind))
    return _table(rows, _columns_in(rows, Episode if kind == "episodes" else Call))


def episodes_table(rows: Sequence[Episode]) -> pa.Table:
    """Return rows of episodes as a table with every column."""
    return _table(rows, columns(Episode))


def steps_table(steps: Sequence[Mapping[str, float]]) -> pa.Table:
    """Return `step_rows` as a table, with a column for every figure of any step."""
    names: set[str] = set()
    for row in steps:
        names |= row.keys()
    names.discard("step")
    return _table(steps, {"step": "int64", **dict.fromkeys(sorted(names), "double")})


def _columns_in(rows: Sequence[Mapping[str, object]], part: type) -> dict[str, str]:
    """Return the columns of a table: all that are required, and those that some row has."""
    present = {}
    for name, kind in columns(part).items():
        required = described(part)[name][1]
        if required or any(name in row for row in rows):
            present[name] = kind
    return present


def _table(rows: Sequence[Mapping[str, object]], kinds: Mapping[str, str]) -> pa.Table:
    # A row of an older version lacks newer columns, which are empty then.
    whole = []
    for row in rows:
        whole.append({name: row.get(name) for name in kinds})
    # With a schema a column keeps its type even where it is empty, so tables of runs fit together.
    schema = pa.schema([(name, _TYPES[kind]) for name, kind in kinds.items()])
    return pa.Table.from_pylist(whole, schema=schema)


def step_rows(logged: Sequence[LoggedStep], episodes: Sequence[Episode]) -> list[dict[str, float]]:
    """Return one row per step: the trainer's figures, and `rollout/` and `val/` of its rollouts."""
    rows: dict[int, dict[str, float]] = {}
    for entry in logged:
        row = rows.setdefault(entry["step"], {"step": entry["step"]})
        for name, value in entry["data"].items():
            # A trainer may log NaN or infinity, which neither tables nor charts can use.
            number = finite_or_null(value)
            if number is not None:
                row[name] = number
    groups: dict[tuple[int, str], list[Episode]] = defaultdict(list)
    for episode in episodes:
        groups[(episode["step"], episode["phase"])].append(episode)
    for (step, phase), group in groups.items():
        prefix = "rollout" if phase == "train" else "val"
        row = rows.setdefault(step, {"step": step})
        for name, figure in rollout_figures(group).items():
            row[f"{prefix}/{name}"] = figure
        if phase == "train":
            # `used_reward`, not `reward`: whether a group teaches depends on what was trained on.
            rewards = ((step, episode["task_id"], episode.get("used_reward")) for episode in group)
            whole, mixed = mixed_groups(rewards).get(step, (0, 0))
            row |= {"rollout/groups": float(whole), "rollout/mixed_groups": float(mixed)}
    return [rows[step] for step in sorted(rows)]


def rollout_figures(group: Sequence[Episode]) -> dict[str, float]:
    """Return figures over the rollouts of one step and phase; means leave unscored rollouts out."""
    rewards: list[float] = []
    elapsed_s: list[float] = []
    outcomes: list[str] = []
    for episode in group:
        outcomes.append(episode["outcome"])
        # An unscored rollout has no reward; a mean with 0 for it would blame the policy.
        if episode["reward"] is not None:
            rewards.append(episode["reward"])
        if episode["elapsed_s"] is not None:
            elapsed_s.append(episode["elapsed_s"])
    figures: dict[str, float] = {"rollouts": float(len(group)), "scored": float(len(rewards))}
    rows = cast(Sequence[Mapping[str, Any]], group)
    for column in _MEANS:
        figures[f"{column}_per_rollout"] = sum(row[column] for row in rows) / len(rows)
    for column in _TOTALS:
        # Rows of older versions lack these columns.
        figures[column] = float(sum(row.get(column) or 0 for row in rows))
    if elapsed_s:
        figures["elapsed_s"] = sum(elapsed_s) / len(elapsed_s)
    if rewards:
        figures["reward"] = sum(rewards) / len(rewards)
        figures |= _rewrites(group)
    for outcome in sorted(set(outcomes)):
        figures[f"outcome/{outcome}"] = float(outcomes.count(outcome))
    return figures


def _rewrites(group: Sequence[Episode]) -> dict[str, float]:
    """Count the rollouts that rewrote, and those with a higher or lower reward by it."""
    rewritten = helped = hurt = 0
    for episode in group:
        before, after = episode["first_reward"], episode["reward"]
        # Without both rewards there is nothing to compare.
        if not episode["rewrites"] or before is None or after is None:
            continue
        rewritten += 1
        helped += after > before
        hurt += after < before
    return {
        "rewritten": float(rewritten),
        "rewrites_helped": float(helped),
        "rewrites_hurt": float(hurt),
    }
