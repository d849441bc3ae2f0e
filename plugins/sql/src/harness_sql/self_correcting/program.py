"""The program `self_correcting_sql`: write a query, execute it, check it, rewrite it."""

from __future__ import annotations

from harness.contracts.programs import Played, TaughtCall, Turn
from harness.records import Attempt, Problem
from harness_sql.self_correcting.prompts import PROMPTS
from harness_sql.self_correcting.roles import ROLES


class SelfCorrectingSQL(Played):
    """write -> execute -> check -> (end | rewrite -> ...); the last query is unchecked."""

    reference = "reference_sql"
    environment = "sql"
    calls_tools = False
    roles = ROLES
    checkers = ("check_query",)
    trains = "write"
    revisers = ("rewrite_query",)
    taught_role = "write_query"
    prompts = PROMPTS
    prompts_hash = PROMPTS.hash
    scenes = "harness_sql.self_correcting.scenarios"

    def turns(self, attempt: Attempt) -> tuple[Turn, ...]:
        calls = attempt.transitions
        wrote = [n for n, call in enumerate(calls) if call.role not in self.checkers]
        answers = {
            n: PROMPTS.parse_sql(calls[n].response_text)
            for n in wrote
            if calls[n].finish_reason != "tool_calls"
        }
        if wrote and attempt.answer is not None:
            answers[wrote[-1]] = attempt.answer
        found: list[Turn] = []
        for number, call in enumerate(calls):
            if call.role in self.checkers:
                judged = next(
                    (answers[n] for n in reversed(wrote) if n < number and n in answers), None
                )
                found.append(Turn(judged, PROMPTS.approves(call.response_text)))
            else:  # a query that is only tried goes with the answer that comes of it
                found.append(
                    Turn(next((answers[n] for n in wrote if n >= number and n in answers), None))
                )
        return tuple(found)

    def taught(self, problem: Problem, answer: str) -> TaughtCall | None:
        """Return the writing of a query, with a reply of `answer` in a block, as prompts ask."""
        prompt = PROMPTS.write(problem)
        reply = f"```sql\n{answer}\n```"
        # A query with a fence of its own would be read back as another query.
        if PROMPTS.parse_sql(reply) != answer:
            return None
        return TaughtCall(prompt.role, prompt.messages, reply)
