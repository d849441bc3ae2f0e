"""Measures a policy without any framework: drafts, and the whole loop of checks and repairs.

`python -m recipes.pocket_sql.evaluate [--model DIR] [--device cuda] [--samples 8]`
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from typing import Any

from harness.records import Problem, Task
from harness_sql.self_correcting.prompts import PROMPTS
from harness_sql.sqlite.environment import database_of
from harness_sql.sqlite.sandbox import Limits, execute
from harness_sql.tasks.generated import GeneratedTasks
from harness_sql.tasks.pocket import PocketTasks
from recipes.finetune.policy import Policy, load, share, spread
from recipes.pocket.world import same_rows

_WHOLE = Limits(max_rows=10_000)


class Pocket:
    """Tasks of one split, with what is needed to judge an answer."""

    def __init__(
        self,
        split: str = "val",
        limit: int | None = None,
        cache_dir: str | None = None,
        of: Callable[[str], GeneratedTasks] = PocketTasks,
    ) -> None:
        self.set = of(cache_dir or tempfile.mkdtemp(prefix="pocket-"))
        self.tasks = list(self.set.load(split))[:limit]
        self.gold = {t.id: execute(database_of(t), t.gold, _WHOLE).rows for t in self.tasks}

    def problem(self, task: Task) -> Problem:
        return Problem(task.id, task.question, self.set.context(task))

    def right(self, task: Task, sql: str) -> bool:
        """Execution match with the gold."""
        got = execute(database_of(task), sql, _WHOLE)
        return got.ok and same_rows(got.rows, self.gold[task.id], ordered="ORDER BY" in task.gold)

    def drafts(
        self, policy: Policy, temperature: float = 0.0, most: int | None = None
    ) -> list[bool]:
        """Whether a single draft is right, task by task; of at most so many, spread over all."""
        tasks = spread(self.tasks, most)
        replies = policy.complete([PROMPTS.write(self.problem(t)) for t in tasks], temperature)
        return [self.right(t, PROMPTS.parse_sql(r)) for t, r in zip(tasks, replies, strict=True)]

    def loop(self, policy: Policy, max_turns: int = 3, most: int | None = None) -> list[bool]:
        """Whether the answer of write, check and rewrite is right, as `drafts`."""
        tasks = spread(self.tasks, most)
        problems = {t.id: self.problem(t) for t in tasks}
        replies = policy.complete([PROMPTS.write(problems[t.id]) for t in tasks])
        answers = {t.id: PROMPTS.parse_sql(r) for t, r in zip(tasks, replies, strict=True)}
        active = list(tasks)
        for _ in range(max_turns - 1):
            results = {t.id: execute(database_of(t), answers[t.id]).text for t in active}
            checks = policy.complete(
                [PROMPTS.check(problems[t.id], answers[t.id], results[t.id]) for t in active]
            )
            rejected = [
                (t, c) for t, c in zip(active, checks, strict=True) if not PROMPTS.approves(c)
            ]
            if not rejected:
                break
            repairs = policy.complete(
                [
                    PROMPTS.rewrite(problems[t.id], answers[t.id], results[t.id], c)
                    for t, c in rejected
                ]
            )
            for (task, _), reply in zip(rejected, repairs, strict=True):
                answers[task.id] = PROMPTS.parse_sql(reply)
            active = [t for t, _ in rejected]
        return [self.right(t, answers[t.id]) for t in tasks]


def report(policy: Policy, samples: int = 0, limit: int | None = None) -> dict[str, Any]:
    """Everything that is worth knowing about a policy on `pocket`."""
    pocket = Pocket(limit=limit)
    drafts = pocket.drafts(policy)
    kinds: Counter[str] = Counter(str(t.data["kind"]) for t in pocket.tasks)
    hits = Counter(
        str(t.data["kind"]) for t, good in zip(pocket.tasks, drafts, strict=True) if good
    )
    slips: Counter[str] = Counter(str(t.data["slip"]) for t in pocket.tasks)
    slip_hits = Counter(
        str(t.data["slip"]) for t, good in zip(pocket.tasks, drafts, strict=True) if good
    )
    found: dict[str, Any] = {
        "val_draft_greedy": share(drafts),
        "val_loop_greedy": share(pocket.loop(policy)),
        "by_slip": {name or "none": f"{slip_hits[name]}/{n}" for name, n in sorted(slips.items())},
        "by_kind": {kind: f"{hits[kind]}/{n}" for kind, n in sorted(kinds.items())},
    }
    if samples:
        drawn = [pocket.drafts(policy, temperature=1.0) for _ in range(samples)]
        found["val_draft_sampled"] = share([good for row in drawn for good in row])
        found[f"val_draft_pass_at_{samples}"] = share(
            [any(column) for column in zip(*drawn, strict=True)]
        )
        found[f"val_draft_in_2_of_{samples}"] = share(
            [sum(column) >= 2 for column in zip(*drawn, strict=True)]
        )
    return found


def main() -> int:
    from harness.policies import resolve

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="pocket-sql")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--samples", type=int, default=8)
    arguments = parser.parse_args()
    policy = load(resolve(arguments.model), arguments.device)
    sys.stdout.write(json.dumps(report(policy, arguments.samples), indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
