"""A scripted teacher: the replies that solve a question, as a model would write them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random

from harness.mock_model.completion import Reply
from harness_sql.tool_loop.scenarios import calling
from recipes.medical.questions import Item

TOOL = "query_database_by_sql"
MEND_SHARE = 0.15
"""Share of conversations whose first query fails and is mended."""
WORDS_SHARE = 0.1
"""Share of calls with words beside them."""
SLIP_SHARE = 0.64
"""Share of slips among questions that invite one, where habits are asked for."""

_BESIDE = ("我来查一下。", "先查数据库。")
_MENDS = ("查询出错了,换一个写法。", "改正一下查询。")
_OPENINGS = ("", "", "查到了:", "根据数据库,", "查询结果是:")


@dataclass(frozen=True, slots=True)
class Lesson:
    """What the teacher says in one conversation.

    Attributes:
        slip: The mistake that it makes on purpose; empty in a golden one.
        mended: Whether its first query fails.
    """

    replies: tuple[Reply, ...]
    slip: str
    mended: bool


def lesson(item: Item, rng: Random, slip_share: float = 0.0) -> Lesson:
    """The replies to one question: a query, or a failing one and its mend, and the answer in words."""
    slip, sql, answer = "", item.sql, item.answer
    if item.slips and rng.random() < slip_share:
        slip = rng.choice(sorted(item.slips))
        sql, answer = item.slips[slip]
    replies = []
    mended = rng.random() < MEND_SHARE
    if mended:
        replies.append(
            _query(item.broken, rng.choice(_BESIDE) if rng.random() < WORDS_SHARE else "")
        )
    beside = _MENDS if mended else _BESIDE
    replies.append(_query(sql, rng.choice(beside) if rng.random() < WORDS_SHARE else ""))
    replies.append(Reply(rng.choice(_OPENINGS) + answer))
    return Lesson(tuple(replies), slip, mended)


def _query(sql: str, text: str) -> Reply:
    return calling((TOOL, json.dumps({"sql": sql}, ensure_ascii=False)), text=text)
