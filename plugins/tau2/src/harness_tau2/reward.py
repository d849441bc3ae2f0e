"""The reward `tau2`: tau2-bench's own, of the parts that are judged without a model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from harness import Attempt, Task, Verdict
from harness_dialogues.prompts import USER
from harness_dialogues.reward import NOT_ENDED


class Tau2Reward:
    """1 where the database ends as the gold actions leave it and the agent said all that it had to, else 0.

    Texts are compared as tau2-bench does: each that is to be said stands in one message to the user, whatever the
    case, and without that message's commas.
    """

    version = "tau2/1"

    async def score(self, task: Task, attempt: Attempt) -> Verdict:
        if attempt.state is None or "changes" not in attempt.state:
            return Verdict(None, "the environment left no state behind")
        gold = json.loads(task.gold)
        wrong = (
            [] if gold["changes"] is None else _different(gold["changes"], attempt.state["changes"])
        )
        heard = [text.lower().replace(",", "") for text in _told_the_user(attempt)]
        unsaid = [one for one in gold["said"] if not any(one.lower() in text for text in heard)]
        parts = {"database": float(not wrong), "communicated": float(not unsaid)}
        calls = attempt.transitions
        bound = any(call.role == USER for call in calls) and calls[-1].role != USER
        reasons = [f"{', '.join(wrong[:5])} not as it should be"] if wrong else []
        reasons += [f"the user was not told {', '.join(map(repr, unsaid[:5]))}"] if unsaid else []
        reason = "; ".join(reasons) or "all is as it should be"
        return Verdict(
            float(not wrong and not unsaid), reason, parts, flags=(NOT_ENDED,) if bound else ()
        )

    def refuses(self, task: Task) -> str:
        """Gold that is not this task set's."""
        try:
            gold = json.loads(task.gold)
        except ValueError:
            gold = None
        known = isinstance(gold, dict) and {"changes", "said"} <= set(gold)
        return "" if known else f"the gold of {task.id} is none of tau2's; take another reward"


def _told_the_user(attempt: Attempt) -> Iterator[str]:
    """What the user heard of the agent, and the agent's last words, which the user may not have been asked about.

    To the user the agent's messages are a user's; the first of them is the program's greeting.
    """
    heard = next((call for call in reversed(attempt.transitions) if call.role == USER), None)
    if heard is not None:
        for message in heard.messages[2:]:
            if message.get("role") == "user":
                yield str(message.get("content") or "")
    yield attempt.answer or ""


def _different(gold: Mapping[str, str], left: object) -> list[str]:
    """Records that are not as the gold actions leave them."""
    found = left if isinstance(left, Mapping) else {}
    return sorted(key for key in {*gold, *found} if gold.get(key) != found.get(key))
