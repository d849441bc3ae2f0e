"""The tasks of a domain: the customer's instructions and the result of the gold actions."""

from __future__ import annotations

import importlib
import json
from typing import Any

from harness_tau2.worker.domain import Domain
from harness_tau2.worker.messages import TaskEntry
from harness_tau2.worker.standins import PACKAGE

JUDGED = {"DB", "COMMUNICATE"}
"""Bases of tau2-bench's rewards that are judged here."""


def tasks(domain: Domain) -> list[TaskEntry]:
    """Return all tasks, in the order of their file."""
    model: Any = importlib.import_module(f"{PACKAGE}.data_model.tasks").Task
    rows = json.loads((domain.files / "tasks.json").read_text(encoding="utf-8"))
    splits = json.loads((domain.files / "split_tasks.json").read_text(encoding="utf-8"))
    held_out = set(splits["test"])
    base = set(splits["base"])
    entries = []
    for row in rows:
        if row["id"] in base:
            split = "val" if row["id"] in held_out else "train"
            entries.append(_task(domain, model.model_validate(row), split))
    return entries


def _task(domain: Domain, task: Any, split: str) -> TaskEntry:
    entry: TaskEntry = {
        "id": task.id,
        "split": split,
        "scenario": str(task.user_scenario),
        "assertions": 0,
    }
    criteria = task.evaluation_criteria
    if criteria is None or criteria.actions is None:
        return {**entry, "left_out": "it has no gold actions"}
    entry["assertions"] = len(criteria.nl_assertions or ())
    basis = {kind.value for kind in criteria.reward_basis}
    if unjudged := sorted(basis - JUDGED):
        return {**entry, "left_out": f"its reward needs {', '.join(unjudged)}"}
    if task.initial_state is not None:
        return {**entry, "left_out": "it starts with another database"}
    if any(action.requestor != "assistant" for action in criteria.actions):
        return {**entry, "left_out": "its user calls tools"}
    actions = [(action.name, action.arguments) for action in criteria.actions]
    try:
        changes, refused = domain.replay(actions)
    except Exception as error:
        reason = f"its gold cannot be replayed: {type(error).__name__}: {error}"[:200]
        return {**entry, "left_out": reason}
    required_texts = list(criteria.communicate_info or ()) if "COMMUNICATE" in basis else []
    judged = changes if "DB" in basis else None
    return {
        **entry,
        "changes": judged,
        "said": required_texts,
        "actions": len(criteria.actions),
        "refused": refused,
    }
