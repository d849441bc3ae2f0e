"""A data set for Hugging Face: rollouts, steps and calls in Parquet, and a card."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from harness.errors import RunFailed, UserError
from harness.runs.reading import Run
from harness.util.formatting import members

if TYPE_CHECKING:
    import polars as pl

SPLITS = {"train": "train", "val": "validation"}
"""Split of each phase."""
RECORD = (
    *(
        "id",
        "kind",
        "status",
        "reason",
        "agent",
        "agent_match",
        "seed",
        "roles",
        "harness_version",
        "commit",
    ),
    *(
        "versions",
        "frameworks",
        "hardware",
        "device",
        "tasks",
        "graded",
        "identity",
        "agent_source",
    ),
    *("agent_distribution", "parent", "result"),
)
"""Exported keys of `run.json`. The configuration may name folders and addresses and is left out."""
TABLES = {
    "episodes": "one row per rollout: question, answer, tool calls with results, outcome, reward and reason",
    "steps": "one row per step: the trainer's figures, and means over its rollouts",
    "calls": "one row per call: role, prompt, reply, lengths and times, and whether it was trained",
}
LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]*")
"""Licence names in the Hub's format: apache-2.0, cc-by-sa-4.0, other."""
PATH = "(a local path)"
LOCAL = re.compile(r"(?<![^\s'\"(=:])[~/][^\s'\"):,;]*/[^\s'\"):,;]*")
ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://[^\s'\")]+")


def export(run: Run, where: str, *, push: str | None = None, licence: str | None = None) -> str:
    """Write a run as a folder that `datasets.load_dataset` reads.

    Args:
        where: The folder to create; by default `hf/RUN`.
        push: `USER/NAME` of a data set on the Hub; it is created as private if missing.
        licence: Licence in the Hub's format; without one, the publisher adds it to the card.

    Raises:
        UserError: The folder has files, or an option's value is invalid.
        RunFailed: The Hub refused it, or did not answer. The folder stays.
    """
    if licence is not None and not LICENCE.fullmatch(licence):
        raise UserError(
            f"--licence {licence}: use the Hub's format, for example apache-2.0, cc-by-4.0 or other"
        )
    if push is not None:
        _check_name(push)
    folder = Path(where or f"hf/{run.id}")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--where {folder}: has files already; remove it, or choose another")
    rows: dict[str, dict[str, int]] = {}
    for name, table in _tables(run):
        for split, part in _splits(table):
            path = folder / name / f"{split}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            part.write_parquet(path)
            rows.setdefault(name, {})[split] = len(part)
    if not rows:
        raise UserError(f"{run.id} has no rows yet: nothing to export")
    record: dict[str, object] = {}
    for key in RECORD:
        # Keys that a run of this kind does not have are left out, not written as null.
        if key in run.record:
            record[key] = _portable(run.record[key])  # type: ignore[literal-required]
    (folder / "run.json").write_text(
        json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    (folder / "README.md").write_text(_card(run, rows, licence), encoding="utf-8")
    return (
        f"{folder}, {_pushed(folder, push)}"
        if push
        else f"{folder}; read by datasets.load_dataset({str(folder)!r})"
    )


def _tables(run: Run) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield the existing tables, without gold, token ids and log-probabilities."""
    tables = {"episodes": run.episodes, "steps": run.steps, "calls": run.transitions}
    for name, table in tables.items():
        if table is not None and len(table):
            yield name, table


def _splits(table: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    if "phase" not in table.columns:
        yield "train", table
        return
    for phase, split in SPLITS.items():
        if len(part := table.filter(phase=phase)):
            yield split, part


def _portable(value: object) -> object:
    """Return a value without folder names of this machine and addresses of servers."""
    if isinstance(value, dict):
        return {key: _portable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_portable(item) for item in value]
    return LOCAL.sub(PATH, ADDRESS.sub("(an address)", value)) if isinstance(value, str) else value


def _card(run: Run, rows: dict[str, dict[str, int]], licence: str | None) -> str:
    configs: list[dict[str, Any]] = []
    for name, parts in rows.items():
        files = [{"split": split, "path": f"{name}/{split}.parquet"} for split in parts]
        # The first table is what `load_dataset` returns by default.
        default = {} if configs else {"default": True}
        configs.append({"config_name": name, **default, "data_files": files})
    header: dict[str, object] = {"license": licence} if licence else {}
    header |= {
        "pretty_name": f"Rollouts of {run.record['agent']}, run {run.id}",
        "tags": [
            "agent-rl-harness",
            "agents",
            "reinforcement-learning",
            *members(run.record["agent"]),
        ],
        "configs": configs,
    }
    record, identity = run.record, run.record["identity"]
    facts = {
        "run": record["id"],
        "kind": record["kind"],
        "status": record["status"],
        "agent": record["agent"],
        "program": identity["program"],
        "policy": identity["model"],
        "task set": identity["task_set"].get("name"),
        "its licence": identity["task_set"].get("licence"),
        "reward": identity["reward"],
        "seed": record["seed"],
        "steps": identity["steps"],
        "validation before and after": _from_to(run),
        "harness": record["harness_version"],
    }
    missing = "" if licence else _UNLICENSED
    fact_rows = []
    for name, value in facts.items():
        if value is not None:
            fact_rows.append(f"| {name} | {_cell(value)} |")
    table = "\n".join(fact_rows)
    table_rows = []
    for name, parts in rows.items():
        counts = ", ".join(f"{split} {count:,}" for split, count in parts.items())
        table_rows.append(f"| `{name}` | {counts} | {TABLES[name]} |")
    tables = "\n".join(table_rows)
    front = yaml.safe_dump(header, sort_keys=False, allow_unicode=True)
    return _TEXT.format(front=front, run=run.id, missing=missing, facts=table, tables=tables)


def _from_to(run: Run) -> str | None:
    if (result := run.record["result"]) is None:
        return None
    before, after = result.get("val_accuracy_initial"), result.get("val_accuracy_final")
    return None if before is None or after is None else f"{before:.3f}, {after:.3f}"


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


_UNLICENSED = """
**No licence is stated.** Questions are the task set's, replies are the policy's: put the licence that both allow into
the header (`license: ...`) before you publish this.
"""
_TEXT = """---
{front}---

# Run {run}
{missing}
| | |
|---|---|
{facts}

| configuration | rows by split | what it has |
|---|---|---|
{tables}

Of episodes and calls the split `train` has those of training, `validation` those of validation, each with its `step`.
Steps are in `train`, with what was validated after them. Columns are described in harness's `docs/records.md`.

```python
from datasets import load_dataset

episodes = load_dataset("...")
steps = load_dataset("...", "steps")
```

**What is in it.** Questions, the agent's answers, its tool calls with what they returned, the rewards with their
reasons, and, where the run kept calls, prompts and replies. `run.json` is the run's identity: what must be equal where
runs are compared, its versions and its results.

**What is not.** Gold is in no row; but a reason tells what distinguishes an answer from gold, and an answer with full
reward is as good as gold. Token ids, log-probabilities, weights and the configuration stay with the run.
"""


def _check_name(push: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    try:
        validate_repo_id(push)
    except HFValidationError as error:
        raise UserError(f"--push {push}: write USER/NAME; {_line(error)}") from error


def _pushed(folder: Path, name: str) -> str:
    """Upload a folder with huggingface_hub's own token: `HF_TOKEN`, or that of `hf auth login`."""
    import httpx
    from huggingface_hub import HfApi, constants, get_token

    kept = (
        f"The folder {folder} is complete; "
        f"upload it later: hf upload {name} {folder} . --repo-type dataset"
    )
    if not get_token():
        raise RunFailed(
            f"--push {name}: there is no token; "
            f"set HF_TOKEN, or log in with `hf auth login`. {kept}"
        )
    hub = HfApi()
    try:
        hub.create_repo(name, repo_type="dataset", private=True, exist_ok=True)
        hub.upload_folder(
            repo_id=name,
            repo_type="dataset",
            folder_path=folder,
            commit_message=f"Run {folder.name}",
        )
    except (
        OSError,
        ValueError,
        httpx.HTTPError,
    ) as error:  # includes the Hub's own errors
        raise RunFailed(f"--push {name}: {constants.ENDPOINT}: {_line(error)}. {kept}") from error
    return f"{constants.ENDPOINT}/datasets/{name}"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
