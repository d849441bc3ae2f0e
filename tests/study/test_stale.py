"""Which settings of an earlier run its arm no longer has."""

from __future__ import annotations

from harness_study.stale import changed_settings

VARIED = ("agent", "agent_match", "max_turns", "roles.planner")


def test_a_varied_setting_that_changed_is_named() -> None:
    before = {"agent": "reference_sql", "max_turns": 2, "train.steps": 20}
    now = {"agent": "reference_sql", "max_turns": 3, "train.steps": 40}
    assert changed_settings(before, now, VARIED) == ["max_turns=2"]


def test_the_model_of_a_role_may_follow_the_seed() -> None:
    before = {"max_turns": 2, "roles.planner.model": "seed-0"}
    now = {"max_turns": 2, "roles.planner.model": "seed-1"}
    assert changed_settings(before, now, VARIED) == []


def test_an_agent_in_a_file_may_move_with_its_project() -> None:
    before = {"agent": "/old/agents/mine.py:Mine"}
    assert changed_settings(before, {"agent": "/new/agents/mine.py:Mine"}, VARIED) == []
    for other in ("/new/agents/mine.py:Other", "/new/agents/yours.py:Mine", "reference_sql"):
        assert changed_settings(before, {"agent": other}, VARIED) == [
            "agent=/old/agents/mine.py:Mine"
        ]
