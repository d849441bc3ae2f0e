"""How replies are read: one definition for every framework."""

from __future__ import annotations

import pytest

from harness.records import Problem
from harness_sql.self_correcting.prompts import APPROVED, PROMPTS, REJECTED

PROBLEM = Problem("t", "How many {singers}?", {"schema": "singer(name text)"})


@pytest.mark.parametrize(
    ("reply", "sql"),
    [
        ("```sql\nSELECT 1\n```", "SELECT 1"),
        ("first ```sql\nSELECT 1\n``` then ```\nSELECT 2\n```", "SELECT 1"),
        ("first ```\nSELECT 1\n``` then ```\nSELECT 2\n```", "SELECT 2"),
        ("```sql\nSELECT 1\n```\n```SQLite\nSELECT 2\n```\n```\n3\n```", "SELECT 2"),
        ("```sql\nSELECT 1\n```\nRows:\n```text\nid | name\n1 | Ana\n```", "SELECT 1"),
        ("```sql SELECT 1``` gives ```json\n[1]\n```", "SELECT 1"),
        ("````sql\nSELECT '```'\n````", "SELECT '```'"),
        ("~~~sql\nSELECT 1\n~~~", "SELECT 1"),
        ("<think>```sql\nSELECT 1\n```</think>```\nSELECT 2\n```", "SELECT 2"),
        ("```sql\nSELECT 1\n```<think>or ```sql\nSELECT 2\n```?</think>", "SELECT 1"),
        ("I try ```sql\nSELECT 1\n```</think>\n```sql\nSELECT 2\n```", "SELECT 2"),
        ("<think>```sql\nSELECT 1\n```", ""),  # cut off while it reasons
        ("<THINKING>one</THINKING> SELECT 2", "SELECT 2"),
        ("<think>a<think>b</think>c</think>SELECT 3", "SELECT 3"),
        ("[THINK]one[/THINK]SELECT 4", "SELECT 4"),
        ("```SELECT 3```", "SELECT 3"),
        ("```sqlite SELECT 4 ```", "SELECT 4"),
        ("```SQL\nSELECT 5", "SELECT 5"),  # cut off: the block runs to the end
        ("  SELECT 6 ", "SELECT 6"),
        ("", ""),
        ("```sql\n```", ""),
    ],
)
def test_the_last_block_is_the_query(reply: str, sql: str) -> None:
    assert PROMPTS.parse_sql(reply) == sql


@pytest.mark.parametrize(
    ("reply", "approved"),
    [
        (APPROVED, True),
        (REJECTED, False),
        (f"{REJECTED} On second thought: {APPROVED}", True),
        (f"{APPROVED} No. {REJECTED}", False),
        ("looks fine to me", False),
        (f"<think>{REJECTED}</think>{APPROVED}", True),
        (f"<think>{APPROVED}", False),
        (f"{APPROVED}</think>I do not know.", False),
        ("", False),
    ],
)
def test_the_last_verdict_counts_and_none_means_no(reply: str, approved: bool) -> None:
    assert PROMPTS.approves(reply) is approved


def test_braces_in_questions_and_queries_are_left_alone() -> None:
    prompt = PROMPTS.rewrite(PROBLEM, "SELECT '{x}'", "{}", "see {this}")
    assert (
        "How many {singers}?" in prompt.user
        and "SELECT '{x}'" in prompt.user
        and "see {this}" in prompt.user
    )
    assert [message["role"] for message in prompt.messages] == ["system", "user"]


def test_what_the_task_set_tells_stands_between_schema_and_question() -> None:
    schema = "Schema:\nsinger(name text)\n\n"
    assert PROMPTS.write(PROBLEM).user == f"{schema}Question: How many {{singers}}?"
    problem = Problem(
        PROBLEM.task_id, PROBLEM.question, {"evidence": "{x} is 1", "schema": "singer(name text)"}
    )
    assert (
        PROMPTS.write(problem).user
        == f"{schema}Evidence:\n{{x}} is 1\n\nQuestion: How many {{singers}}?"
    )
