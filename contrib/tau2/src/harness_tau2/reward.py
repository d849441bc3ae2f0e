"""The reward `tau2`: the parts of tau2-bench's own reward that need no model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from harness import Attempt, Task, Verdict
from harness_dialogues.reward import NOT_ENDED
from harness_dialogues.roles import USER


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
        # Without gold changes, the database does not count.
        wrong = []
        if gold["changes"] is not None:
            wrong = _different(gold["changes"], attempt.state["changes"])
        messages = [text.lower().replace(",", "") for text in _messages_to_user(attempt)]
        missing = [text for text in gold["said"] if not _is_stated(text, messages)]
        parts = {"database": float(not wrong), "communicated": float(not missing)}
        calls = attempt.transitions
        cut_off = any(call.role == USER for call in calls) and calls[-1].role != USER
        reasons = []
        if wrong:
            reasons.append(f"{', '.join(wrong[:5])} not as it should be")
        if missing:
            reasons.append(f"not stated to the user: {', '.join(map(repr, missing[:5]))}")
        reason = "; ".join(reasons) or "all is as it should be"
        value = float(not wrong and not missing)
        return Verdict(value, reason, parts, flags=(NOT_ENDED,) if cut_off else ())

    def refuses(self, task: Task) -> str:
        """Refuse gold of another task set."""
        try:
            gold = json.loads(task.gold)
        except ValueError:
            gold = None
        known = isinstance(gold, dict) and {"changes", "said"} <= set(gold)
        return "" if known else f"the gold of {task.id} is not of tau2; use another reward"


def _is_stated(text: str, messages: Sequence[str]) -> bool:
    """Return whether a required text is part of one message, which is in lower case."""
    return any(text.lower() in message for message in messages)


def _messages_to_user(attempt: Attempt) -> Iterator[str]:
    """Yield the agent's messages to the user, and its last words, even if they were not delivered.

    In the user's conversation, the agent's messages have the role `user`; the first one is the
    program's greeting.
    """
    for call in reversed(attempt.transitions):
        if call.role == USER:
            for message in call.messages[2:]:
                if message.get("role") == "user":
                    yield str(message.get("content") or "")
            break
    yield attempt.answer or ""


def _different(gold: Mapping[str, str], left: object) -> list[str]:
    """Return records that differ from the result of the gold actions."""
    changes = left if isinstance(left, Mapping) else {}
    return sorted(key for key in {*gold, *changes} if gold.get(key) != changes.get(key))
