"""Prompt texts that every framework sends, and the parser of its replies.

The texts must be identical between runs, so that `PROMPTS.hash` is part of every run record.
Standard library only, so that any module may import it.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.util.reasoning import without_reasoning

if TYPE_CHECKING:
    from harness.records import Problem

APPROVED = "THE QUERY IS CORRECT."
REJECTED = "THE QUERY IS INCORRECT."

_WRITE = """\
You write one SQLite query that answers a question about a database.
Use only tables and columns of the schema.
Reply with the query in a ```sql block."""

TRY = "\nCall the tool `execute` to try a query before you reply."
"""Addition for agents that call a tool of their own framework."""

_CHECK = f"""\
You check whether a SQLite query answers a question about a database.
Look at the query and at its result, and name what is wrong, if anything is.
End your reply with one of these two lines:
{APPROVED}
{REJECTED}"""

_REWRITE = """\
You repair a SQLite query that does not answer the question about a database.
Use only tables and columns of the schema, and the remarks of the check.
Reply with the repaired query in a ```sql block."""

_PART = "{name}:\n{text}\n\n"
_QUESTION = "Question: {question}"
_QUERY = "\n\nQuery:\n```sql\n{sql}\n```\n\nResult:\n{result}"
_REMARKS = "\n\nCheck:\n{remarks}"

READING = "2: last block tagged sql or sqlite, else the last block; no text of reasoning"
"""Version of the reply parser. It is part of the prompts' hash, because it affects the answers."""

# A tag is a word alone on the fence's line. On one line with the query only `sql` and `sqlite` are
# tags.
_FENCE = re.compile(
    r"(?P<fence>`{3,}|~{3,})"
    r"(?:[^\S\n]*(?P<line_tag>[\w+-]*)[^\S\n]*\n|(?P<tag>(?i:sqlite|sql)\b))?"
    r"(?P<text>.*?)(?:(?P=fence)|\Z)",
    re.DOTALL,
)
_QUERY_TAGS = ("sql", "sqlite")


@dataclass(frozen=True, slots=True)
class Prompt:
    """One role's input: a system text and a user text."""

    role: str
    system: str
    user: str

    @property
    def messages(self) -> list[dict[str, str]]:
        """Return the two messages of a chat completion request, in order."""
        return [{"role": "system", "content": self.system}, {"role": "user", "content": self.user}]


class Prompts:
    """Build every prompt and parse every reply, so that all frameworks do both in the same way."""

    hash = hashlib.sha256(
        "\0".join(
            (
                *(
                    _WRITE,
                    _CHECK,
                    _REWRITE,
                    _PART.format(name="Schema", text="{schema}") + _QUESTION,
                ),
                *(_QUERY, _REMARKS, APPROVED, REJECTED, READING),
            )
        ).encode()
    ).hexdigest()[:16]

    def write(self, problem: Problem) -> Prompt:
        """Return the prompt of `write_query`: schema, other context of the task, question."""
        return Prompt("write_query", _WRITE, self._task(problem))

    def check(self, problem: Problem, sql: str, result: str) -> Prompt:
        """Return the prompt of `check_query`, which adds the query and its execution's text."""
        return Prompt(
            "check_query", _CHECK, self._task(problem) + _QUERY.format(sql=sql, result=result)
        )

    def rewrite(self, problem: Problem, sql: str, result: str, remarks: str) -> Prompt:
        """Return the prompt of `rewrite_query`, which adds the whole reply of the check."""
        user = (
            self._task(problem)
            + _QUERY.format(sql=sql, result=result)
            + _REMARKS.format(remarks=remarks)
        )
        return Prompt("rewrite_query", _REWRITE, user)

    def parse_sql(self, reply: str) -> str:
        """Return the query in a reply, without surrounding white space.

        It is the last fenced block tagged `sql` or `sqlite`, else the last block, else the whole
        reply.
        Reasoning is ignored. A block that is never closed (a truncated reply) extends to the
        reply's end.
        """
        reply = without_reasoning(reply)
        blocks = list(_FENCE.finditer(reply))
        tagged = [
            block
            for block in blocks
            if (block["tag"] or block["line_tag"] or "").lower() in _QUERY_TAGS
        ]
        chosen = tagged or blocks
        return (chosen[-1]["text"] if chosen else reply).strip()

    def approves(self, reply: str) -> bool:
        """Return whether a check approves, by its last verdict phrase outside of reasoning.

        A check without a verdict phrase does not approve.
        """
        reply = without_reasoning(reply)
        return reply.rfind(APPROVED) > reply.rfind(REJECTED)

    @staticmethod
    def _task(problem: Problem) -> str:
        parts_by_name = {"schema": problem.context["schema"], **problem.context}
        parts = "".join(
            _PART.format(name=name.capitalize(), text=text) for name, text in parts_by_name.items()
        )
        return parts + _QUESTION.format(question=problem.question)


PROMPTS = Prompts()
