"""Each agent of a mixture makes an equal share of the rollouts, and all rollouts of a task."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from harness.config import load_config
from harness.errors import ConfigError, PluginError, RunFailed
from harness.plugins import agent_spec, load, offers_tools, program_of, roles_of, trained_by
from harness.records import Task
from harness.rollout.assignment import Assignment
from harness.training.checks import check
from harness.training.task_order import write_dataset
from harness.util.formatting import agent_label, members

AGENTS = ("first", "second", "third")
BATCH = 8


def tasks(count: int, per_pass: int) -> list[Task]:
    """Return tasks in order; each pass over them repeats their ids."""
    return [
        Task(f"t{number % per_pass}", "set", "train", "?", "gold", "x", data={})
        for number in range(count)
    ]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The order of a run of five steps, in which tasks occur again, and of its validation."""
    write_dataset(tmp_path / "train.parquet", tasks(5 * BATCH, 2 * BATCH), "train")
    write_dataset(tmp_path / "val.parquet", tasks(7, 7), "val")
    return tmp_path


def test_every_agent_gets_as_many_tasks_of_a_run(data: Path) -> None:
    assignment = Assignment(AGENTS, data, BATCH)
    agents = []
    for number, task in enumerate(tasks(5 * BATCH, 2 * BATCH)):
        agents.append(assignment.agent("train", 1 + number // BATCH, task.id))
    counts = Counter(agents)
    assert max(counts.values()) - min(counts.values()) <= 1 and set(counts) == set(AGENTS)
    for step in range(5):
        of_step = Counter(agents[step * BATCH : (step + 1) * BATCH])
        assert max(of_step.values()) - min(of_step.values()) <= 1
    # A task that occurs again is made by another agent, since 16 is no multiple of 3.
    assert assignment.agent("train", 1, "t0") != assignment.agent("train", 3, "t0")


def test_a_validation_task_has_the_same_agent_after_every_step(data: Path) -> None:
    assignment = Assignment(AGENTS, data, BATCH)
    before = [assignment.agent("val", 0, f"t{number}") for number in range(7)]
    after = [assignment.agent("val", 5, f"t{number}") for number in range(7)]
    assert before == after == ["first", "second", "third", "first", "second", "third", "first"]


def test_one_agent_makes_everything_without_any_file(tmp_path: Path) -> None:
    assert Assignment(("only",), tmp_path, BATCH).agent("train", 9, "anything") == "only"


def test_a_task_outside_of_the_order_is_refused(data: Path) -> None:
    with pytest.raises(RunFailed, match=r"task t9 is not in step 1 of .*train\.parquet"):
        Assignment(AGENTS, data, BATCH).agent("train", 1, "t9")


def test_a_list_in_a_configuration_is_a_mixture(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("agent: [reference_sql, langgraph_sql_idiomatic]\n")
    config = load_config("cpu", file)
    assert config.agent == "reference_sql,langgraph_sql_idiomatic"
    assert load_config("cpu", overrides=["agent=[reference_sql, a]"]).agent == "reference_sql,a"
    assert load_config("cpu", agent=config.agent).dump()["agent"] == config.agent
    in_files = load_config("cpu", agent="./one.py:A,./two.py:B").agent
    assert members(in_files) == (f"{Path.cwd()}/one.py:A", f"{Path.cwd()}/two.py:B")
    assert agent_label(in_files) == "one.py:A,two.py:B"


@pytest.mark.parametrize(
    ("agent", "agents"),
    [
        ("/a,b/x.py:A", ("/a,b/x.py:A",)),
        ("first,/a,b/x.py:A,second", ("first", "/a,b/x.py:A", "second")),
        ("/c++/x.py:A,/d/y.py:B@tool_loop", ("/c++/x.py:A", "/d/y.py:B@tool_loop")),
        ("first,", ("first,",)),
        ("", ("",)),
    ],
)
def test_a_comma_in_a_path_separates_no_agents(agent: str, agents: tuple[str, ...]) -> None:
    assert members(agent) == agents
    assert agent_label("/a,b/x.py:A") == "x.py:A"


def test_a_mixture_has_the_roles_of_all_its_agents() -> None:
    mixture = "langgraph_sql_idiomatic,reference_sql"
    spec = agent_spec(mixture)
    assert spec.roles == ("write_query", "check_query", "rewrite_query")
    assert roles_of(mixture) == spec.roles and not spec.strict
    assert {"httpx", "langgraph"} <= set(spec.frameworks)
    assert program_of(mixture) == "self_correcting_sql" and offers_tools(mixture)
    assert trained_by(mixture) == trained_by("reference_sql")


def test_agents_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ConfigError, match="Mix only agents of the same program"):
        agent_spec("reference_sql,reference_team")
    with pytest.raises(ConfigError, match="has reference_sql more than once"):
        agent_spec("reference_sql,reference_sql")
    with pytest.raises(PluginError, match="no agent called 'reference_sql,'"):
        agent_spec("reference_sql,")
    with pytest.raises(PluginError, match="no agent called 'nothing'"):
        agent_spec("reference_sql,nothing")
    with pytest.raises(ConfigError, match="matches none of the roles of langgraph_sql_idiomatic"):
        check(
            load_config("cpu", agent="reference_sql,langgraph_sql_idiomatic", agent_match="check")
        )


def test_a_mixture_is_only_trained() -> None:
    mixture = "reference_sql,langgraph_sql"
    advice = "only a training runs a mixture. Name one of them: reference_sql or langgraph_sql"
    check(load_config("cpu", agent=mixture))
    with pytest.raises(ConfigError, match=advice):
        check(load_config("cpu", agent=mixture), trains=False)
    with pytest.raises(ConfigError, match=advice):
        load(agent_spec(mixture))
