"""The reward `tau2`: the parts of tau2-bench's own reward that need no model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from harness import Attempt, Task, Verdict
from harness_dialogues.prompts import USER
from harness_dialogues.reward import NOT_ENDED


class Tau2Reward:
    """1 if the database matches the gold actions and the agent stated all required texts, else 0.

    Texts are compared as in tau2-bench: each required text must be part of one message to the user,
    ignoring case and that message's commas.
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
        reasons += [f"not stated to the user: {', '.join(map(repr, unsaid[:5]))}"] if unsaid else []
        reason = "; ".join(reasons) or "all is as it should be"
        return Verdict(
            float(not wrong and not unsaid), reason, parts, flags=(NOT_ENDED,) if bound else ()
        )

    def refuses(self, task: Task) -> str:
        """Refuse gold of another task set."""
        try:
            gold = json.loads(task.gold)
        except ValueError:
            gold = None
        known = isinstance(gold, dict) and {"changes", "said"} <= set(gold)
        return "" if known else f"the gold of {task.id} is not of tau2; use another reward"


def _told_the_user(attempt: Attempt) -> Iterator[str]:
    """Yield the agent's messages to the user, and its last words, which the user may not have received.

    In the user's conversation, the agent's messages have the role `user`; the first one is the
    program's greeting.
    """
    heard = next((call for call in reversed(attempt.transitions) if call.role == USER), None)
    if heard is not None:
        for message in heard.messages[2:]:
            if message.get("role") == "user":
                yield str(message.get("content") or "")
    yield attempt.answer or ""


def _different(gold: Mapping[str, str], left: object) -> list[str]:
    """Return records that differ from the result of the gold actions."""
    found = left if isinstance(left, Mapping) else {}
    return sorted(key for key in {*gold, *found} if gold.get(key) != found.get(key))
