"""Runs of agents in files: the same source is one agent, wherever the file is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.compare.comparison import compare
from harness.compare.selection import select
from harness.errors import NotComparable
from harness.runs.folder import RunFolder

from .synthetic import certificate

Write = Callable[..., RunFolder]
TEXT = """\
class Mine:
    program = "self_correcting_sql"

    async def solve(self, problem, toolbox):
        return "SELECT 1"
"""


@pytest.fixture
def write(write_run: Write, tmp_path: Path) -> Write:
    """Writes a file with an agent below `tmp_path`, and a run of this agent as it is then."""

    def written(file: str, seed: int, comment: str = "", **options: Any) -> RunFolder:
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(TEXT + comment, encoding="utf-8")
        run = write_run("reference_sql", seed, val_limit=20, **options)
        agent = f"{path}:Mine"
        record = run.read()
        run.write(record | described(agent) | {"config": record["config"] | {"agent": agent}})
        return run

    return written


def described(agent: str) -> Any:
    """What the record of a new run has on its agent."""
    from harness.parity.certificate import fingerprint
    from harness.util.formatting import agent_label

    return {"agent": agent_label(agent), "agent_source": fingerprint(agent)["agent_source"]}


def arms(*runs: RunFolder, **options: Any) -> dict[str, list[int]]:
    """The seeds of every arm, by its name."""
    found = compare(select([run.path for run in runs]), **options)
    return {arm["name"]: arm["seeds"] for arm in found["arms"]}


def test_the_same_source_in_two_folders_is_one_agent(write: Write) -> None:
    runs = [write("one/mine.py", 0), write("other/mine.py", 1)]
    assert arms(*runs) == arms(*reversed(runs)) == {"mine.py:Mine": [0, 1]}


def test_two_copies_with_the_same_seed_are_two_arms(write: Write) -> None:
    found = arms(write("one/mine.py", 0), write("other/mine.py", 0), write("other/mine.py", 1))
    assert sorted(found.values()) == [[0], [0, 1]]


def test_a_setting_of_an_agent_from_two_folders_is_an_arm_of_its_own(write: Write) -> None:
    other: Any = {"overrides": ["max_turns=3"]}
    runs = [write("one/mine.py", 0), write("other/mine.py", 1)]
    runs += [write("one/mine.py", 0, **other), write("other/mine.py", 1, **other)]
    assert arms(*runs, allow=["max_turns"]) == {
        "mine.py:Mine max_turns=2": [0, 1],
        "mine.py:Mine max_turns=3": [0, 1],
    }


def test_another_source_is_another_agent_at_the_same_path(write: Write) -> None:
    runs = [write("one/mine.py", 0), write("one/mine.py", 1, "# edited\n", parity=None)]
    with pytest.raises(NotComparable, match=r"the source of mine\.py:Mine changed between runs"):
        arms(*runs)


def test_an_edited_checkout_is_refused_for_its_source_not_for_its_path(write: Write) -> None:
    runs = [write("one/mine.py", 0), write("other/mine.py", 1)]
    runs.append(write("other/mine.py", 2, "# edited\n", parity=None))
    with pytest.raises(NotComparable, match="the source of") as refused:
        arms(*runs)
    assert "agent differs" not in str(refused.value)
    runs[2].update(parity=certificate())  # every version is proven to be the same agent
    assert arms(*runs) == {"mine.py:Mine": [0, 1, 2]}


def test_other_sources_in_other_folders_are_two_agents(write: Write, tmp_path: Path) -> None:
    runs = [write("one/mine.py", 0), write("copy/mine.py", 1)]
    runs += [write("other/mine.py", seed, "# another\n", parity=None) for seed in range(2)]
    with pytest.raises(NotComparable, match="parity differs"):
        arms(*runs)
    assert arms(*runs, allow=["parity"]) == {
        f"{tmp_path}/copy/mine.py:Mine": [0, 1],
        f"{tmp_path}/other/mine.py:Mine": [0, 1],
    }


def test_other_names_of_the_same_source_are_two_agents(write: Write) -> None:
    runs = [write("one/mine.py", 0), write("one/mine.py", 0)]
    record = runs[1].read()
    config = record["config"] | {"agent": record["config"]["agent"].replace(":Mine", ":Yours")}
    runs[1].update(agent="mine.py:Yours", config=config)
    assert arms(*runs, allow=["parity"]) == {"mine.py:Mine": [0], "mine.py:Yours": [0]}


def test_without_a_recorded_source_the_path_decides(write: Write, tmp_path: Path) -> None:
    runs = [write("one/mine.py", 0), write("other/mine.py", 1), write("one/mine.py", 2)]
    for run in runs[:2]:
        run.update(agent_source="", parity=None)
    assert arms(*runs) == {
        f"{tmp_path}/one/mine.py:Mine": [0, 2],
        f"{tmp_path}/other/mine.py:Mine": [1],
    }


def test_an_arm_of_a_study_is_one_agent_from_two_folders(write: Write) -> None:
    chosen = select([write("one/mine.py", 0).path, write("other/mine.py", 1).path])
    for run in chosen.runs:
        run.arm = "mine"
    (arm,) = compare(chosen)["arms"]
    assert arm["seeds"] == [0, 1]
    chosen.runs[0].record["agent_source"] = ""
    with pytest.raises(NotComparable, match=r"agent differs: '.*one/mine\.py.*other/mine\.py"):
        compare(chosen)
