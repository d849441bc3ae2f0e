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
from harness.util.formatting import shortened
from harness.util.parsing import parse_cell

if TYPE_CHECKING:
    import polars as pl

    from harness.runs.reading import Run
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
    runs: list[tuple[str, Run]] = []
    total = 0
    for arm, group in arms.items():
        for run in group:
            # A run that has just begun must not take room from those with something to show.
            if len(run.episodes):
                runs.append((arm, run))
                total += len(run.episodes)
    texts: dict[str, int] = {}
    rows: list[Shown] = []
    for arm, run in runs:
        # The same number of every run, or runs with many episodes would leave no room for others.
        rows += _sampled(arm, run, max(1, cap // len(runs)), texts)
    # One question is followed by the same question of other runs, so that answers can be compared.
    rows.sort(key=lambda row: (row["phase"] == "train", _rank(row["task"]), row["seed"]))
    return {
        "episodes": rows[:cap],
        "texts": list(texts),
        "total": total,
        "shown": min(len(rows), cap),
    }


def _sampled(arm: str, run: Run, count: int, texts: dict[str, int]) -> list[Shown]:
    """Return `count` episodes of a run with their calls; new texts are added to `texts`."""
    golds = golds_of(run)
    rows = []
    for table in shown(run, count):
        calls = _calls(run, table)
        for row in cast("list[Episode]", table.rows(named=True)):
            own_calls = calls.get(row.get("attempt_id", ""), [])
            steps = _steps(_tool_calls(row["tool_calls"]), own_calls, texts)
            gold = _cut(golds.get(row["question"]))
            rows.append({**_episode(arm, run, row), "gold": gold, "steps": steps})
    return rows


def newest(arms: Mapping[str, Sequence[Run]], cap: int) -> Shown:
    """Return the `cap` episodes that ended last, newest first, without calls (see `opened`).

    Returns:
        The keys of `sample`. A row's `id` is its attempt's or, without one, its position in the
        run.
    """
    import polars as pl

    by_end: list[tuple[float, Shown]] = []
    total = 0
    for arm, group in arms.items():
        for run in group:
            total += len(run.episodes)
            rows = run.episodes.with_row_index("id")
            # Published copies have no times, so their order has to do.
            timed = {"attempt_id", "started_s", "elapsed_s"} <= set(rows.columns)
            ended = pl.col("started_s") + pl.col("elapsed_s") if timed else pl.col("id").cast(float)
            # An episode with unknown times comes last.
            rows = rows.with_columns(ended=ended.fill_null(0.0))
            for row in rows.top_k(cap, by="ended").rows(named=True):
                name = str(row["attempt_id"] if timed else row["id"])
                episode = _episode(arm, run, cast("Episode", row))
                by_end.append((row["ended"], {**episode, "id": name, "steps": None}))
    by_end.sort(key=lambda entry: -entry[0])
    return {
        "episodes": [episode for _, episode in by_end[:cap]],
        "texts": [],
        "total": total,
        "shown": min(len(by_end), cap),
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
    if "attempt_id" in rows.columns:
        rows = rows.filter(attempt_id=name)
    else:
        rows = rows[int(name) : int(name) + 1]
    if not len(rows):
        raise LookupError(name)
    row, texts = rows.row(0, named=True), dict[str, int]()
    if calls is None:
        calls = _calls(run, rows).get(name, [])
    # The page of a running training is served on this machine, where its agents could read it.
    golds = {} if run.state == "running" else golds_of(run)
    steps = _steps(_tool_calls(row["tool_calls"]), calls, texts)
    return {"steps": steps, "texts": list(texts), "gold": _cut(golds.get(row["question"]))}


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
    by_question: dict[str, set[str]] = {}
    try:
        task_set = make(task_set_spec(task["name"]), task["options"], "task.options")
        for split in {task["train_split"], task["val_split"]} - {""}:
            for loaded in task_set.load(split):
                by_question.setdefault(loaded.question, set()).add(loaded.gold)
    # The task set may be on another machine, or its plugin gone: the report does without golds.
    except Exception as error:
        log.info("no golds of %s: %s", task["name"], error)
    certain: dict[str, str] = {}
    for question, golds in by_question.items():
        # Episodes hold the question but not the task's id, so a question with several golds has
        # none that is certain.
        if len(golds) == 1:
            certain[question] = golds.pop()
    return certain


def _calls(run: Run, table: pl.DataFrame) -> dict[str, list[Call]]:
    # Published copies keep no prompts.
    if run.transitions is None or "messages" not in run.transitions.columns or not len(table):
        return {}
    attempts = table["attempt_id"].to_list()
    wanted = run.transitions.filter(run.transitions["attempt_id"].is_in(attempts))
    by_attempt: dict[str, list[Call]] = {}
    for row in cast("list[Call]", wanted.sort("index", maintain_order=True).rows(named=True)):
        by_attempt.setdefault(row["attempt_id"], []).append(row)
    return by_attempt


def _tool_calls(text: object) -> list[Shown]:
    needed = {"tool", "arguments", "text", "ok"}
    calls: list[Shown] = []
    # A run folder may come from another version or from others: what is no whole call is left out.
    for call in parse_cell(text, []):
        if isinstance(call, dict) and needed <= call.keys():
            calls.append(call)
    return calls


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
        "rewrite": _effect(reward, first),
    }


def _effect(reward: float | None, first: float | None) -> str:
    """Return what the rewrites of an answer did to its reward."""
    if reward is None or first is None or reward == first:
        return ""
    return "helped" if reward > first else "hurt"


def _verdict(reward: float | None, low: float, high: float) -> str:
    if reward is None:
        return "unscored"
    if reward >= high:
        return "right"
    return "wrong" if reward <= low else "partly"


def _steps(tools: list[Shown], calls: Sequence[Call], texts: dict[str, int]) -> list[Shown]:
    """Return calls of the model and of tools in the order in which they were made."""
    steps: list[Shown] = []
    left = list(tools)
    for call in calls:
        called_s = call["started_s"] or 0.0
        while left and (left[0].get("started_s", math.inf) or 0.0) < called_s:
            steps.append(_tool(left.pop(0)))
        steps.append(_call(call, texts))
        # Older runs have no times of tool calls: one follows the reply that has its argument.
        untimed = left and "started_s" not in left[0]
        if untimed and arguments_text(left[0]["arguments"]) in call["response_text"]:
            steps.append(_tool(left.pop(0)))
    return steps + [_tool(call) for call in left]


def _tool(call: Mapping[str, Any]) -> Shown:
    fault = call.get("fault", "")
    return {
        "tool": call["tool"],
        "arguments": _cut(arguments_text(call["arguments"])),
        "text": _cut(call["text"]),
        "result": "result" if call["ok"] else fault.replace("_", " ") or "error",
        "failed": not call["ok"],
    }


def _call(call: Call, texts: dict[str, int]) -> Shown:
    # Calls of one rollout repeat most of their prompt, so a text is kept once, and calls have its
    # number.
    messages = []
    for message in parse_cell(call["messages"], []):
        if isinstance(message, dict):
            number = texts.setdefault(_cut(_message_text(message)), len(texts))
            messages.append([message.get("role", ""), number])
    return {
        "role": call["role"],
        "trained": bool(call["trained"]),
        "messages": messages,
        "text": _cut(call["response_text"]),
        "finish": call["finish_reason"],
        "ms": round(1000 * (call["latency_s"] or 0.0)),
    }


def _message_text(message: Mapping[str, object]) -> str:
    """Return a message's text and its tool calls."""
    parts = []
    for name in ("content", "tool_calls"):
        part = message.get(name)
        if part:
            parts.append(part if isinstance(part, str) else json.dumps(part, ensure_ascii=False))
    return "\n".join(parts)


def _text(value: Any) -> str:
    return value or ""


def _cut(value: object) -> str:
    text = _text(value)
    more = len(text) - TEXT_LIMIT
    return shortened(text, TEXT_LIMIT, f" ... ({more} more characters)", kept=TEXT_LIMIT)
