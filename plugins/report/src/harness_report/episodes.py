"""Episodes to browse in a report: a fixed sample with the same questions from every run."""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from harness.plugins import make, task_set_spec
from harness.records import arguments_text
from harness.util.parsing import parse_cell

if TYPE_CHECKING:
    import polars as pl

    from harness.compare.runs import Run
    from harness.runs.rows import Call, Episode

log = logging.getLogger(__name__)

TEXT_LIMIT = 6000
"""Maximum number of characters kept of one prompt or answer."""
_TRAIN_SHARE = 0.2
Shown = dict[str, Any]
"""Contents of the page, by the names in its script."""


def sample(arms: Mapping[str, Sequence[Run]], cap: int) -> Shown:
    """Return at most `cap` episodes of every run's last validation and last training step.

    The validation questions are the same for every run.

    Returns:
        `episodes` (rows with their calls), `texts` (each prompt text once; calls refer to it by
        number),
        `total` (number of episodes of all runs), and `shown`.
    """
    runs = [(arm, run) for arm, group in arms.items() for run in group if len(run.episodes)]
    total = sum(len(run.episodes) for _, run in runs)
    texts: dict[str, int] = {}
    rows: list[Shown] = []
    if runs:
        each = max(1, cap // len(runs))
        for arm, run in runs:
            golds = golds_of(run)
            for table in shown(run, each):
                calls = _calls(run, table)
                for row in cast("list[Episode]", table.rows(named=True)):
                    steps = _steps(
                        _tool_calls(row["tool_calls"]),
                        calls.get(row.get("attempt_id", ""), []),
                        texts,
                    )
                    rows.append(
                        {
                            **_episode(arm, run, row),
                            "gold": _cut(golds.get(row["question"])),
                            "steps": steps,
                        }
                    )
    rows.sort(
        key=lambda row: (row["phase"] == "train", _rank(row["task"]), row["seed"])
    )  # one question side by side
    return {
        "episodes": rows[:cap],
        "texts": list(texts),
        "total": total,
        "shown": min(len(rows), cap),
    }


def newest(arms: Mapping[str, Sequence[Run]], cap: int) -> Shown:
    """Return the `cap` episodes that ended last, newest first, without calls (see `opened`).

    Returns:
        The keys of `sample`. A row's `id` is its attempt's or, without one, its position in the
        run.
    """
    import polars as pl

    found: list[tuple[float, Shown]] = []
    for arm, run in ((arm, run) for arm, group in arms.items() for run in group):
        rows = run.episodes.with_row_index("id")
        timed = {"attempt_id", "started_s", "elapsed_s"} <= set(
            rows.columns
        )  # not of published copies
        ended = pl.col("started_s") + pl.col("elapsed_s") if timed else pl.col("id").cast(float)
        # An episode with unknown times comes last.
        rows = rows.with_columns(ended=ended.fill_null(0.0))
        for row in rows.top_k(cap, by="ended").rows(named=True):
            name = str(row["attempt_id"] if timed else row["id"])
            found.append(
                (
                    row["ended"],
                    {**_episode(arm, run, cast("Episode", row)), "id": name, "steps": None},
                )
            )
    found.sort(key=lambda one: -one[0])
    total = sum(len(run.episodes) for group in arms.values() for run in group)
    return {
        "episodes": [row for _, row in found[:cap]],
        "texts": [],
        "total": total,
        "shown": min(len(found), cap),
    }


def opened(run: Run, name: str, calls: Sequence[Call] | None = None) -> Shown:
    """Return the `steps` of an episode of `newest` and the `texts` to which they refer.

    Args:
        name: Its `id`.
        calls: Its calls in order, if the run does not have them.

    Raises:
        LookupError: The run has no such episode.
    """
    rows = run.episodes
    rows = (
        rows.filter(attempt_id=name)
        if "attempt_id" in rows.columns
        else rows[int(name) : int(name) + 1]
    )
    if not len(rows):
        raise LookupError(name)
    row, texts = rows.row(0, named=True), dict[str, int]()
    found = _calls(run, rows).get(name, []) if calls is None else calls
    known = (
        {} if run.record["status"] == "running" else golds_of(run)
    )  # none within reach of agents
    steps = _steps(_tool_calls(row["tool_calls"]), found, texts)
    return {"steps": steps, "texts": list(texts), "gold": _cut(known.get(row["question"]))}


def shown(run: Run, count: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return `count` episodes of a run's last validation, and some of its last training step."""
    import polars as pl

    train = run.training
    train = train.filter(pl.col("step") == pl.col("step").max())
    few = _spread(train, int(count * _TRAIN_SHARE))
    return _spread(run.validation(), count - len(few)), few


def _spread(table: pl.DataFrame, count: int) -> pl.DataFrame:
    """Return a fixed sample of questions: those with the smallest hash, the same for all runs."""
    if len(table) <= count:
        return table
    ranks = [_rank(task) for task in table["task_id"]]
    return table[sorted(range(len(table)), key=ranks.__getitem__)[:count]]


def _rank(task: str) -> str:
    return hashlib.sha256(str(task).encode()).hexdigest()


def golds_of(run: Run) -> Mapping[str, str]:
    """Return golds by question, if the task set is installed and a question has only one."""
    return _golds(json.dumps(run.record["config"]["task"], sort_keys=True))


@cache
def _golds(described: str) -> dict[str, str]:
    task = json.loads(described)
    found: dict[str, set[str]] = {}
    try:
        task_set = make(task_set_spec(task["name"]), task["options"], "task.options")
        for split in {task["train_split"], task["val_split"]} - {""}:
            for one in task_set.load(split):
                found.setdefault(one.question, set()).add(one.gold)
    except (
        Exception
    ) as error:  # of another machine, or of a plugin that is gone: the report does without
        log.info("no golds of %s: %s", task["name"], error)
    return {question: gold for question, (gold, *others) in found.items() if not others}


def _calls(run: Run, table: pl.DataFrame) -> dict[str, list[Call]]:
    if run.transitions is None or "messages" not in run.transitions.columns or not len(table):
        return {}  # published copies keep no prompts
    found: dict[str, list[Call]] = {}
    wanted = run.transitions.filter(
        run.transitions["attempt_id"].is_in(table["attempt_id"].to_list())
    )
    for row in cast("list[Call]", wanted.sort("index", maintain_order=True).rows(named=True)):
        found.setdefault(row["attempt_id"], []).append(row)
    return found


def _tool_calls(text: object) -> list[Shown]:
    needed = {"tool", "arguments", "text", "ok"}
    calls: list[Shown] = parse_cell(text, [])
    return [call for call in calls if isinstance(call, dict) and needed <= call.keys()]


def _episode(arm: str, run: Run, row: Episode) -> Shown:
    reward, first = row["reward"], row["first_reward"]
    return {
        "arm": arm,
        "seed": run.seed,
        "run": run.id,
        "phase": row["phase"] if run.trained else "",
        "step": int(row["step"]),
        "task": row["task_id"],
        "cluster": row["cluster"],
        "difficulty": row["difficulty"],
        "question": _cut(row["question"]),
        "outcome": row["outcome"],
        "detail": _cut(row["detail"]),
        "answer": _cut(row["answer"]),
        "reward": reward,
        "first": first,
        "reason": _cut(row["reward_reason"]),
        "parts": parse_cell(row.get("reward_parts"), {}),
        "by_role": parse_cell(row.get("reward_by_role"), {}),
        "verdict": _verdict(reward, *run.record["identity"].get("reward_range", (0.0, 1.0))),
        "rewrite": ""
        if reward is None or first is None or reward == first
        else "helped"
        if reward > first
        else "hurt",
    }


def _verdict(reward: float | None, low: float, high: float) -> str:
    if reward is None:
        return "unscored"
    return "right" if reward >= high else "wrong" if reward <= low else "partly"


def _steps(tools: list[Shown], calls: Sequence[Call], texts: dict[str, int]) -> list[Shown]:
    """Return calls of the model and of tools in the order in which they were made."""
    steps: list[Shown] = []
    left = list(tools)
    for call in calls:
        called_s = call["started_s"] or 0.0
        while left and (left[0].get("started_s", math.inf) or 0.0) < called_s:
            steps.append(_tool(left.pop(0)))
        steps.append(_call(call, texts))
        if (
            left
            and "started_s" not in left[0]
            and arguments_text(left[0]["arguments"]) in call["response_text"]
        ):
            steps.append(
                _tool(left.pop(0))
            )  # of an older run: it follows the reply that has its argument
    return steps + [_tool(call) for call in left]


def _tool(call: Mapping[str, Any]) -> Shown:
    fault = call.get("fault", "")
    return {
        "tool": call["tool"],
        "arguments": _cut(arguments_text(call["arguments"])),
        "text": _cut(call["text"]),
        "said": "result" if call["ok"] else fault.replace("_", " ") or "error",
        "failed": not call["ok"],
    }


def _call(call: Call, texts: dict[str, int]) -> Shown:
    messages = [
        [message.get("role", ""), texts.setdefault(_cut(_said(message)), len(texts))]
        for message in parse_cell(call["messages"], [])
        if isinstance(message, dict)
    ]
    return {
        "role": call["role"],
        "trained": bool(call["trained"]),
        "messages": messages,
        "text": _cut(call["response_text"]),
        "finish": call["finish_reason"],
        "ms": round(1000 * (call["latency_s"] or 0.0)),
    }


def _said(message: Mapping[str, object]) -> str:
    """Return a message's text and its tool calls."""
    parts = [message[name] for name in ("content", "tool_calls") if message.get(name)]
    return "\n".join(
        part if isinstance(part, str) else json.dumps(part, ensure_ascii=False) for part in parts
    )


def _text(value: Any) -> str:
    return value or ""


def _cut(value: object) -> str:
    text = _text(value)
    return (
        text
        if len(text) <= TEXT_LIMIT
        else f"{text[:TEXT_LIMIT]} ... ({len(text) - TEXT_LIMIT} more characters)"
    )
