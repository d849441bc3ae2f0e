"""Create the Parquet files of a run folder from its row logs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from harness.util.parsing import finite_or_null
from harness.runs.record_types import columns
from harness.runs.folder import ROWS, Kind, RunFolder
from harness.runs.rows import Call, Episode, LoggedStep
from harness.runs.schema import RunRecord
from harness.runs.training_signal import mixed_groups

_TYPES: dict[str, pa.DataType] = {
    "int64": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "bool": pa.bool_(),
    "list<string>": pa.list_(pa.string()),
    "list<int32>": pa.list_(pa.int32()),
    "list<float>": pa.list_(pa.float32()),
}


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
        fault = error
        said = error.strerror if isinstance(error, OSError) else error
        reason = f"the tables of {folder.path} cannot be written: {said}"
        record = {**record, "status": "failed", "reason": record.get("reason") or reason}
    folder.release()  # its reserved space is for the record
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
    return _table(list(folder.rows(kind)), columns(Episode if kind == "episodes" else Call))


def episodes_table(rows: Sequence[Episode]) -> pa.Table:
    """Return rows of episodes as a table with every column."""
    return _table(rows, columns(Episode))


def steps_table(steps: Sequence[Mapping[str, float]]) -> pa.Table:
    """Return `step_rows` as a table, with a column for every figure of any step."""
    names = sorted({name for row in steps for name in row} - {"step"})
    return _table(steps, {"step": "int64", **dict.fromkeys(names, "double")})


def _table(rows: Sequence[Mapping[str, object]], kinds: Mapping[str, str]) -> pa.Table:
    schema = pa.schema([(name, _TYPES[kind]) for name, kind in kinds.items()])
    return pa.Table.from_pylist(
        [{name: row.get(name) for name in kinds} for row in rows], schema=schema
    )


def step_rows(logged: Sequence[LoggedStep], episodes: Sequence[Episode]) -> list[dict[str, float]]:
    """Return one row per step: the trainer's figures, and `rollout/` and `val/` of its rollouts."""
    rows: dict[int, dict[str, float]] = {}
    for entry in logged:
        row = rows.setdefault(entry["step"], {"step": entry["step"]})
        row.update(
            {
                name: number
                for name, value in entry["data"].items()
                if (number := finite_or_null(value)) is not None
            }
        )
    groups: dict[tuple[int, str], list[Episode]] = defaultdict(list)
    for episode in episodes:
        groups[(episode["step"], episode["phase"])].append(episode)
    for (step, phase), group in groups.items():
        prefix = "rollout" if phase == "train" else "val"
        row = rows.setdefault(step, {"step": step})
        row.update({f"{prefix}/{name}": value for name, value in rollout_figures(group).items()})
        if phase == "train":
            rewards = ((step, episode["task_id"], episode.get("used_reward")) for episode in group)
            whole, mixed = mixed_groups(rewards).get(step, (0, 0))
            row |= {"rollout/groups": float(whole), "rollout/mixed_groups": float(mixed)}
    return [rows[step] for step in sorted(rows)]


def rollout_figures(group: Sequence[Episode]) -> dict[str, float]:
    """Return figures over the rollouts of one step and phase; means leave unscored rollouts out."""
    count = len(group)
    rewards = [episode["reward"] for episode in group if episode["reward"] is not None]
    figures: dict[str, float] = {
        "rollouts": float(count),
        "scored": float(len(rewards)),
        "transitions_per_rollout": sum(episode["transitions"] for episode in group) / count,
        "trained_transitions_per_rollout": sum(episode["trained_transitions"] for episode in group)
        / count,
        "prompt_tokens_per_rollout": sum(episode["prompt_tokens"] for episode in group) / count,
        "response_tokens_per_rollout": sum(episode["response_tokens"] for episode in group) / count,
        "calls_with_tools": float(sum(episode.get("calls_with_tools") or 0 for episode in group)),
        "parsed_calls": float(sum(episode.get("parsed_calls") or 0 for episode in group)),
        "unread_calls": float(sum(episode.get("unread_calls") or 0 for episode in group)),
    }
    elapsed_s = [episode["elapsed_s"] for episode in group if episode["elapsed_s"] is not None]
    if elapsed_s:
        figures["elapsed_s"] = sum(elapsed_s) / len(elapsed_s)
    if rewards:
        figures["reward"] = sum(rewards) / len(rewards)
        rewritten = [(one["first_reward"], one["reward"]) for one in group if one["rewrites"]]
        pairs = [
            (before, after)
            for before, after in rewritten
            if before is not None and after is not None
        ]
        figures["rewritten"] = float(len(pairs))
        figures["rewrites_helped"] = float(sum(after > before for before, after in pairs))
        figures["rewrites_hurt"] = float(sum(after < before for before, after in pairs))
    for outcome in {episode["outcome"] for episode in group}:
        figures[f"outcome/{outcome}"] = float(
            sum(episode["outcome"] == outcome for episode in group)
        )
    return figures
