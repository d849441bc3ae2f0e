"""Format numbers and untrusted text, the same everywhere."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Characters that a terminal interprets instead of showing: controls except tab and newline, and
changes of direction.
"""


def printable(text: str) -> str:
    r"""Return a text with terminal controls replaced by escapes, such as `\x1b`."""
    return _CONTROL.sub(lambda found: found.group().encode("unicode_escape").decode(), text)


def printable_json(text: str) -> str:
    """Return `printable` of a JSON document, with the same meaning."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found.group()):04x}", text)


def shown(value: object) -> str:
    """Return a value from outside for a message, short enough for one line."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        # An integer with more digits than Python prints, or a value that contains itself.
        return f"a {type(value).__name__} too large to show"
    return shortened(text, 100, f"... ({len(text)} characters)", kept=80)


def shortened(text: str, chars: int, mark: str = "...", kept: int | None = None) -> str:
    """Return a text; the beginning of one with more than `chars` characters, and a mark.

    Args:
        kept: Length of that beginning; by default, text and mark have `chars` characters together.
    """
    if len(text) <= chars:
        return text
    beginning = max(chars - len(mark), 0) if kept is None else kept
    return f"{text[:beginning]}{mark}"


def without_middle(text: str, chars: int, mark: str = "..", kept: int | None = None) -> str:
    """Return a text; the beginning and end of one with more than `chars` characters, and a mark.

    Args:
        kept: Length of beginning and end; by default, they and the mark have `chars` characters.
    """
    if len(text) <= chars:
        return text
    letters = max(chars - len(mark), 0) if kept is None else kept
    end = letters // 2
    return f"{text[: letters - end]}{mark}{text[len(text) - end :]}"


_AGENT = re.compile(r"\w+|.*\.py:\w+(@\w+)?", re.DOTALL)
"""Name of an agent, or a class in a file and perhaps its program."""
MIXES = ","
"""Joins the names of agents that a run mixes."""


def members(agent: str) -> tuple[str, ...]:
    """Return the agents of a mixture, which is named `first,second`; or the agent itself.

    A comma in the path of an agent in a file separates no agents. Use an absolute path, or one that
    begins with `./`, for a file in such a folder.
    """
    agents: list[str] = []
    parts: list[str] = []
    for part in agent.split(MIXES):
        # The path of a file is complete with `.py:NAME`; a name has one part.
        parts.append(part)
        begun = MIXES.join(parts)
        if _AGENT.fullmatch(begun):
            agents.append(begun)
            parts = []
    return (agent,) if parts else tuple(agents)


def agent_label(name: str) -> str:
    """Return an agent's name for tables.

    An agent in a file is named by its file without the folder, a mixture by all its agents.
    """
    labels = []
    for member in members(name):
        labels.append(member.rpartition("/")[2] if ".py:" in member else member)
    return MIXES.join(labels)


def percent(value: float | None) -> str:
    """Return `62.5 %`, or a dash for None."""
    return "-" if value is None else f"{100 * value:.1f} %"


def is_graded(rewards: Iterable[float | None]) -> bool:
    """Return whether rewards have values other than 0 and 1, so that their mean is no accuracy."""
    return any(reward not in (None, 0, 1) and reward == reward for reward in rewards)


def measured(graded: bool) -> str:
    """Return the name of the mean reward."""
    return "mean reward" if graded else "accuracy"


def mean(value: float | None, graded: bool) -> str:
    """Return an accuracy as `62.5 %`, a mean reward as `0.625`."""
    return "-" if value is None else f"{value:.3f}" if graded else percent(value)


def duration(seconds: float | None) -> str:
    """Return `1 h 02 min`, `3 min 20 s`, `12 s`, or a dash for None."""
    if seconds is None:
        return "-"
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


_DIFFICULTIES = ("easy", "simple", "medium", "moderate", "hard", "challenging", "extra")
"""Names of difficulties that task sets use, from easy to hard."""


def difficulty_order(name: str) -> tuple[int, str]:
    """Return the key that sorts difficulties from easy to hard, then others by name."""
    known = name in _DIFFICULTIES
    return (_DIFFICULTIES.index(name) if known else len(_DIFFICULTIES)), name


def about(seconds: float) -> str:
    """Return an estimate with no more digits than are known: `about 30 s`, `about 3 min`."""
    if seconds >= 90:
        return f"about {round(seconds / 60)} min"
    whole = round(seconds) if seconds < 10 else 10 * round(seconds / 10)
    return f"about {max(whole, 1)} s"


def rate(per_s: float) -> str:
    """Return a rate per second: `0.4`, `12`, `1,250`; a dash if unknown."""
    return "-" if not per_s else f"{per_s:.1f}" if per_s < 10 else f"{per_s:,.0f}"


def unread(rollouts: int, of: int) -> str:
    """Return a warning about rollouts with unparsed tool calls; empty for a tenth or less."""
    if rollouts <= 0.1 * of:
        return ""
    return (
        f"in {rollouts} of {of} rollouts the model wrote a tool call "
        "that its server left in the text. Where it writes "
        "calls well, the server's parser is for another form; vLLM's is "
        "verl.actor_rollout_ref.rollout.engine_kwargs.vllm.tool_call_parser"
    )


def unparsed(unread_in: int, parsed_in: int, offered_in: int) -> str:
    """Return a warning about rollouts that offered tools, of which almost none has a parsed call.

    Args:
        unread_in: Rollouts with a reply that looks like a call.
    """
    return (
        f"tools were offered in {offered_in} rollouts, "
        f"a call was parsed in {parsed_in}, and in {unread_in} a reply "
        "looks like a call: the parser is probably not the one of this model's form, "
        "so the agent is measured without "
        "its tools. Look at one reply with `harness dev`, then name another parser: vLLM's is "
        "verl.actor_rollout_ref.rollout.engine_kwargs.vllm.tool_call_parser"
    )


def spoilt(result: Mapping[str, Any]) -> str:
    """Return a warning for the scores of a run with tasks that changed; empty if none did."""
    changed = result.get("data_changed")
    return f"; this means nothing: {', '.join(changed)} changed during the run" if changed else ""


def failed_itself(result: Mapping[str, object], graded: bool) -> str:
    """Return the share of rollouts that the agent failed, and the most common reason."""
    counted_as = f"counted as {'0' if graded else 'wrong'}"
    return (
        f"{result['agent_failed']} failed by the agent itself, "
        f"{counted_as}. {result['agent_failure']}"
    )


def answered_by(roles: Mapping[str, str]) -> str:
    """Return the models that answer roles instead of the policy; empty if there are none."""
    return "; ".join(f"{role} is answered by {name}" for role, name in roles.items())


def most_often(reasons: Counter[str]) -> str:
    """Return the most common reason, as the end of a sentence and one more."""
    return f"Most often: {' '.join(reasons.most_common(1)[0][0].split())[:300].rstrip('.')}."


def with_cores(cores: int | None) -> str:
    """Return ` with 4 cores each`; empty for None."""
    return f" with {cores} core{'s' * (cores > 1)} each" if cores else ""
