"""A program with prompts for any task shows the form of the answers that the reward can score."""

import pytest

from harness.config import load_config
from harness.plugins import program
from harness.records import Task
from harness.rollout.request import RolloutRequest
from harness_sql.tool_loop.prompts import PROMPTS

TASK = Task("1", "pocket", "val", "How many singers?", "SELECT 1", data={"database": "x.sqlite"})
SCHEMA = {"schema": "CREATE TABLE singer (name TEXT)"}
FORM = "Answer with one SQLite query that returns what is asked, and nothing else."


def problem(agent, reward, **options):
    config = load_config(
        agent=agent, overrides=[f"reward.name={reward}", ("reward.options", options)]
    )
    return RolloutRequest.build(TASK, SCHEMA, config, "val").problem


@pytest.mark.parametrize(
    "reward", ["execution_accuracy", "soft_f1", "bird_accuracy", "bird_soft_f1", "bird_r_ves"]
)
def test_an_agent_for_any_task_is_asked_for_a_query_where_the_reward_executes_the_answer(reward):
    asked = PROMPTS.user(problem("reference_tools", reward))
    assert asked.endswith(f"Form of the answer:\n{FORM}\n\nQuestion: How many singers?")


def test_a_weighted_reward_shows_the_form_that_one_of_its_parts_needs():
    judged = {"weight": 1.0, "options": {"endpoint": "http://127.0.0.1:1/v1", "model": "m"}}
    parts = {"judge": judged, "execution_accuracy": {"weight": 1.0}}
    assert FORM in PROMPTS.user(problem("reference_tools", "hybrid", parts=parts))
    assert problem("reference_tools", "hybrid", parts={"judge": judged}).context == SCHEMA


@pytest.mark.parametrize("reward", ["facts", "judge"])
def test_an_answer_in_words_needs_no_form(reward):
    assert problem("reference_tools", reward).context == SCHEMA


def test_a_program_that_asks_for_a_query_itself_gets_no_form():
    assert problem("reference_sql", "execution_accuracy").context == SCHEMA


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("```sql\nSELECT 1\n```", "SELECT 1"),
        ("<think>count</think>\n```SQLite\nSELECT 1;\n```\n", "SELECT 1;"),
        ("```sql\nSELECT `a b` FROM t\n```", "SELECT `a b` FROM t"),
        (
            "```sql\nSELECT 1\n```\n```sql\nSELECT 2\n```",
            "```sql\nSELECT 1\n```\n```sql\nSELECT 2\n```",
        ),
        ("SELECT 1", "SELECT 1"),
        ("There are 3 singers.", "There are 3 singers."),
        ("```\nSELECT 1\n```", "```\nSELECT 1\n```"),
        ("I ran ```sql\nSELECT 1\n``` and got 3.", "I ran ```sql\nSELECT 1\n``` and got 3."),
    ],
)
def test_a_fence_around_the_only_query_is_removed_and_nothing_else(text, answer):
    assert program("tool_loop").read_answer(text) == answer
