"""The Parquet files of a run folder, made from its row logs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harness.results.episodes import EPISODE_COLUMNS, TRANSITION_COLUMNS
from harness.results.folder import ROWS, RunFolder
from harness.results.renamed import OLDER

_TYPES: dict[str, pa.DataType] = {
    "int64": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "bool": pa.bool_(),
    "list<string>": pa.list_(pa.string()),
    "list<int32>": pa.list_(pa.int32()),
    "list<float>": pa.list_(pa.float32()),
}


def conclude(folder: RunFolder, record: Mapping[str, Any]) -> str:
    """Write a run's last record, and then its tables.

    Returns:
        Why something of it is missing, where the disk takes no more; empty if all is written.
    """
    folder.release()
    try:
        folder.write(record)
        write_tables(folder)
    except OSError as error:
        reason = f"the tables of {folder.path} cannot be written: {error.strerror}"
        with suppress(OSError):
            folder.write({**record, "status": "failed", "reason": record.get("reason") or reason})
        return f"{reason}. Its rows are whole in logs/"
    return ""


def write_tables(folder: RunFolder) -> None:
    """Write `episodes.parquet`, `transitions.parquet` and `steps.parquet` from the row logs; safe to repeat."""
    rows = {kind: list(folder.rows(kind)) for kind in ROWS}
    for kind in ROWS:
        table = _typed(kind, rows[kind], rows["episodes"])
        if not len(table):
            continue
        path = folder.path / f"{kind}.parquet"
        temporary = path.with_suffix(".tmp")
        try:
            pq.write_table(table, temporary, compression="zstd")
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def logged_table(folder: RunFolder, kind: str) -> pa.Table:
    """`episodes`, `transitions` or `steps` as the row logs have them, with every column of its kind."""
    return _typed(kind, list(folder.rows(kind)), list(folder.rows("episodes")) if kind == "steps" else [])


def _typed(kind: str, rows: list[dict[str, Any]], episodes: list[dict[str, Any]]) -> pa.Table:
    """The table of one kind's rows; a step's has what `episodes` say of it."""
    rows = [{OLDER.get(name, name): value for name, value in row.items()} for row in rows]
    columns = EPISODE_COLUMNS if kind == "episodes" else TRANSITION_COLUMNS
    if kind == "steps":
        rows = step_rows(rows, episodes)
        names = sorted({name for row in rows for name in row} - {"step"})
        columns = {"step": "int64", **dict.fromkeys(names, "double")}
    schema = pa.schema([(name, _TYPES[of]) for name, of in columns.items()])
    return pa.Table.from_pylist([{name: row.get(name) for name in columns} for row in rows], schema=schema)


def step_rows(logged: list[dict[str, Any]], episodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row a step: what the trainer logged, and figures of the step's rollouts under `rollout/` and `val/`."""
    rows: dict[int, dict[str, Any]] = {}
    for entry in logged:
        row = rows.setdefault(entry["step"], {"step": entry["step"]})
        row.update({name: float(value) for name, value in entry["data"].items() if isinstance(value, int | float)})
    groups: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for episode in episodes:
        groups[(episode["step"], episode["phase"])].append(episode)
    for (step, phase), group in groups.items():
        prefix = "rollout" if phase == "train" else "val"
        row = rows.setdefault(step, {"step": step})
        row.update({f"{prefix}/{name}": value for name, value in rollout_figures(group).items()})
    return [rows[step] for step in sorted(rows)]


def rollout_figures(group: list[dict[str, Any]]) -> dict[str, float]:
    """Figures over the rollouts of one step and phase; means leave unscored rollouts out."""
    count = len(group)
    scored = [episode for episode in group if episode["reward"] is not None]
    figures: dict[str, float] = {
        "rollouts": float(count),
        "scored": float(len(scored)),
        "transitions_per_rollout": sum(episode["transitions"] for episode in group) / count,
        "trained_transitions_per_rollout": sum(episode["trained_transitions"] for episode in group) / count,
        "prompt_tokens_per_rollout": sum(episode["prompt_tokens"] for episode in group) / count,
        "response_tokens_per_rollout": sum(episode["response_tokens"] for episode in group) / count,
        "unread_calls": float(sum(episode.get("unread_calls") or 0 for episode in group)),
        "elapsed_s": sum(episode["elapsed_s"] for episode in group) / count,
    }
    if scored:
        figures["reward"] = sum(episode["reward"] for episode in scored) / len(scored)
        pairs = [(e["first_reward"], e["reward"]) for e in scored if e["first_reward"] is not None and e["rewrites"]]
        figures["rewritten"] = float(len(pairs))
        figures["rewrites_helped"] = float(sum(after > before for before, after in pairs))
        figures["rewrites_hurt"] = float(sum(after < before for before, after in pairs))
    for outcome in {episode["outcome"] for episode in group}:
        figures[f"outcome/{outcome}"] = float(sum(episode["outcome"] == outcome for episode in group))
    return figures
