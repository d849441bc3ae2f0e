"""Parity finds every difference between a plugin and the reference, and names its place."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from harness.cli.common import results
from harness.cli.parity import _differences, _show
from harness.contracts.toolbox import LLM, Toolbox
from harness.errors import EnvironmentProblem
from harness.parity.comparison import Mismatch, Similarity, compare, measure
from harness.parity.recorder import Recording, record
from harness.records import Problem
from harness.testing.contract import AgentContract
from harness_sql.self_correcting.prompts import Prompt
from harness_sql.self_correcting.reference import ReferenceSQL
from harness_sql.self_correcting.scenarios import SCENARIOS, Scenario

from .bad_agents import Retries, SwallowsErrors

pytest.importorskip("langchain_openai")
PROGRAM = "self_correcting_sql"
CHOSEN = [one for one in SCENARIOS if one.name in ("wrong_then_fixed", "unicode", "server_error")]


class OfReference(AgentContract):
    __test__ = False
    agent = "reference_sql"


@pytest.fixture(scope="module")
def reference() -> list[Recording]:
    return asyncio.run(record(ReferenceSQL(), PROGRAM, CHOSEN))


@pytest.fixture(scope="module")
def everything() -> list[Recording]:
    return asyncio.run(record(ReferenceSQL(), PROGRAM))


def langgraph_recordings(scenarios: list[Scenario] = CHOSEN) -> list[Recording]:
    from harness_langgraph_sql.agent import LangGraphSQL

    return asyncio.run(record(LangGraphSQL(), PROGRAM, scenarios))


@pytest.mark.slow
def test_the_langgraph_plugin_is_the_reference(reference: list[Recording]) -> None:
    verdict = compare("langgraph_sql", langgraph_recordings(), reference)
    assert verdict.passed, [str(one) for one in verdict.mismatches]
    assert verdict.accepted == ("max_completion_tokens", "stream_false")


def test_one_changed_byte_of_a_prompt_is_named(
    reference: list[Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness_langgraph_sql import agent

    original = agent.ask

    async def ask(toolbox: Toolbox, prompt: Prompt) -> str:
        if prompt.role == "check_query":
            prompt = replace(prompt, user=prompt.user.replace("Result:\n", "Result: \n"))
        return await original(toolbox, prompt)

    monkeypatch.setattr(agent, "ask", ask)
    verdict = compare("langgraph_sql", langgraph_recordings(), reference)
    assert not verdict.passed
    assert verdict.failed[0] == "wrong_then_fixed"
    first = verdict.mismatches[0]
    assert first.place.startswith("call 1 (check_query) messages[1].content at character ")
    assert "Result:\\n" in first.expected and "Result: \\n" in first.got


@pytest.mark.slow
def test_a_changed_temperature_is_named(
    reference: list[Recording], monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness_langgraph_sql import agent

    original = agent.chat_model

    def chat_model(llm: LLM, toolbox: Toolbox) -> Any:
        return original(replace(llm, sampling={**llm.sampling, "temperature": 0.0}), toolbox)

    monkeypatch.setattr(agent, "chat_model", chat_model)
    verdict = compare("langgraph_sql", langgraph_recordings(), reference)
    places = [(one.place, one.expected, one.got) for one in verdict.mismatches]
    assert ("call 0 (write_query) temperature", "0.7", "0.0") in places
    rows = [asdict(one) for one in verdict.mismatches]
    assert len(rows) == verdict.calls_compared > 3
    lines = _differences(rows, verdict.calls_compared, len(CHOSEN))
    assert lines == ["in every call: temperature: expected 0.7, got 0.0"]
    (line,) = _differences(rows[1:], verdict.calls_compared, len(CHOSEN))
    shared = f"in {len(rows) - 1} of {len(rows)} calls, first in wrong_then_fixed: call 1 (check_query) temperature: "
    assert line == f"{shared}expected 0.7, got 0.0"
    (line,) = _differences(rows[:1], verdict.calls_compared, len(CHOSEN))
    assert line == "wrong_then_fixed: call 0 (write_query) temperature: expected 0.7, got 0.0"


@pytest.mark.parametrize(
    ("agent", "reason"),
    [
        (SwallowsErrors(), "the agent went on with the error's text: let errors out"),
        (Retries(), "the agent sent it again"),
    ],
)
def test_an_error_that_an_agent_does_not_let_out_is_named(
    reference: list[Recording], agent: ReferenceSQL, reason: str
) -> None:
    failing = [one for one in CHOSEN if one.name == "server_error"]
    recordings = asyncio.run(record(agent, PROGRAM, failing, ["alone"]))
    verdict = compare("bad", recordings, reference)
    (found,) = verdict.mismatches
    assert re.match(r"call \d \(\w+\) got HTTP 500 and ", found.got)
    assert reason in found.got


class Skips(ReferenceSQL):
    """Leaves the check out."""

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        sql = toolbox.prompts.parse_sql(await self.ask(toolbox, toolbox.prompts.write(problem)))
        await toolbox.execute(sql + " ")
        return sql


class OneList(ReferenceSQL):
    """Puts every prompt together in a list on the instance."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    async def ask(self, toolbox: Toolbox, prompt: Prompt) -> str:
        self.messages[:] = [prompt.user]
        await asyncio.sleep(0.01)
        return await super().ask(toolbox, replace(prompt, user=self.messages[0]))


class ByTask(ReferenceSQL):
    """Keeps a rollout's draft by its task, as a checkpointer's thread named after the task would."""

    def __init__(self) -> None:
        self.drafts: dict[str, str] = {}

    async def ask(self, toolbox: Toolbox, prompt: Prompt) -> str:
        task_id = toolbox.request.problem.task_id  # type: ignore[attr-defined]
        self.drafts[task_id] = await super().ask(toolbox, prompt)
        await asyncio.sleep(0.05)
        return self.drafts[task_id]


class Longer(ReferenceSQL):
    """Adds to the remarks from turn 4 on."""

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        prompts = toolbox.prompts
        sql = prompts.parse_sql(await self.ask(toolbox, prompts.write(problem)))
        for turn in range(1, toolbox.max_turns):
            result = await toolbox.execute(sql)
            remarks = await self.ask(toolbox, prompts.check(problem, sql, result))
            if prompts.approves(remarks):
                break
            added = self.added(remarks)
            remarks += added if turn >= 4 else ""
            sql = prompts.parse_sql(
                await self.ask(toolbox, prompts.rewrite(problem, sql, result, remarks))
            )
        return sql

    def added(self, remarks: str) -> str:
        return "\nTry harder."


class Remembers(Longer):
    """Adds what was remarked in any rollout."""

    def __init__(self) -> None:
        self.remarks: list[str] = []

    def added(self, remarks: str) -> str:
        self.remarks.append(remarks)
        return "".join(self.remarks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "shows"),
    [
        (OneList, ("unicode (together)", "template_characters (together)")),
        (ByTask, ("wrong_then_fixed (together)",)),
        (Longer, ("many_turns",)),
        (Remembers, ("many_turns",)),
    ],
)
def test_state_that_rollouts_share_is_named(
    agent: type[ReferenceSQL], shows: tuple[str, ...], everything: list[Recording]
) -> None:
    recordings = asyncio.run(record(agent(), PROGRAM))
    short = {one.name for one in SCENARIOS if one.max_turns <= 3}
    short_and_alone = [one for one in recordings if one.play == "alone" and one.scenario in short]
    assert compare(
        "shares", short_and_alone, everything
    ).passed  # one at a time, three turns: nothing to be seen
    verdict = compare("shares", recordings, everything)
    assert not verdict.passed and set(shows) <= set(verdict.failed), verdict.failed
    if agent in (ByTask, Remembers):  # the contract catches it, too, without the reference
        with pytest.raises(AssertionError, match=r"\(together\)"):
            OfReference().test_scenarios_at_once_go_as_they_do_alone(recordings)


class Slow(ReferenceSQL):
    """Lets time go by after each call, as a busy machine does, or an agent that computes."""

    def __init__(self, pause_s: float) -> None:
        self.pause_s = pause_s

    async def ask(self, toolbox: Toolbox, prompt: Prompt) -> str:
        reply = await super().ask(toolbox, prompt)
        await asyncio.sleep(self.pause_s)
        return reply


@pytest.mark.slow
@pytest.mark.parametrize(("pause_s", "outcome"), [(0.3, "endpoint_error"), (1.2, "timeout")])
def test_a_busy_machine_is_not_taken_for_an_agent_that_takes_its_time(
    pause_s: float, outcome: str
) -> None:
    hangs = next(replace(one, timeout_s=1.0) for one in SCENARIOS if one.hangs)
    (recording,) = asyncio.run(record(Slow(pause_s), PROGRAM, [hangs], ["alone"]))
    assert (recording.outcome, len(recording.calls)) == (outcome, 3)


def test_another_course_of_calls_is_named(reference: list[Recording]) -> None:
    recordings = asyncio.run(record(Skips(), PROGRAM, CHOSEN[:1]))
    places = [one.place for one in compare("skips", recordings, reference).mismatches]
    assert places == ["sequence of roles", "tool call 0", "answer"]


def test_a_leaked_gold_is_named(reference: list[Recording]) -> None:
    leaking = [replace(reference[0], leaks=["call 0"])]
    assert [one.place for one in compare("leaks", leaking, reference).mismatches] == ["gold"]


def test_a_deviation_is_measured_not_judged(reference: list[Recording]) -> None:
    deviation = measure("skips", asyncio.run(record(Skips(), PROGRAM, CHOSEN[:1])), reference)
    assert deviation.calls == (1, 4)
    assert deviation.same_answer == (0, 1)
    assert deviation.prompt_chars[0] < deviation.prompt_chars[1]
    assert deviation.injected == ()


def test_names_that_begin_alike_are_told_apart_in_one_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    names = [
        f"{one}_{kind}_idiomatic"
        for one in ("agent_framework", "openai_agents", "autogen")
        for kind in "abc"
    ]
    counts = dict.fromkeys(("calls", "prompt_chars", "same_tool_calls", "same_answer"), (1, 1))
    row = {
        "strict": False,
        **counts,
        **{key: [] for key in ("roles", "injected", "other_outcomes")},
    }
    results.cache_clear()
    _show({"scenarios": {}, "agents": {name: {**row, "changed_together": []} for name in names}})
    results.cache_clear()
    head = [
        line.split("\u2503")[2:-1]
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("\u2503")
    ]
    assert ["".join(cells).replace(" ", "") for cells in zip(*head, strict=True)] == names


def test_every_scenario_is_reached_by_its_script(everything: list[Recording]) -> None:
    assert [one.play for one in everything] == ["alone"] * len(SCENARIOS) + ["together"] * len(
        SCENARIOS
    )
    assert compare("reference_sql", everything, everything).passed
    recordings = {one.scenario: one for one in everything if one.play == "alone"}
    assert {name: one.outcome for name, one in recordings.items() if one.outcome != "ok"} == {
        "server_error": "endpoint_error",
        "refused": "agent_error",
        "broken_connection": "endpoint_error",
        "timeout": "endpoint_error",
    }
    assert len(recordings["never_approved"].calls) == 5
    assert len(recordings["many_turns"].executed) == 6
    assert recordings["single_turn"].executed == []
    assert "…" in str(recordings["long_result"].calls) or "rows are shown" in str(
        recordings["long_result"].calls
    )
    assert "Verkäufe" in str(recordings["unicode"].calls[0]) and "Verkäufe (" not in str(
        recordings["long_schema"].calls
    )


@pytest.mark.slow
def test_command_writes_a_certificate_that_a_changed_plugin_loses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.parity import certificate
    from harness.plugins import sources

    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path))
    assert certificate.certificate_for("openai_agents_sql") is None
    command = [sys.executable, "-m", "harness", "parity", "openai_agents_sql", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)["agents"]["openai_agents_sql"]
    found = certificate.certificate_for("openai_agents_sql")
    assert found is not None and found["hash"] == row["certificate"] and found["strict"]
    assert found["fingerprint"]["frameworks"]["openai-agents"]
    assert {"openai", "httpx", "httpcore"} <= found["fingerprint"]["clients"].keys()

    for name in ("httpcore", "jiter"):  # what sends a request, and what reads its answer
        metadata = tmp_path / name / f"{name}-99.0.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 99.0\n")
        with monkeypatch.context() as upgraded:
            upgraded.syspath_prepend(str(tmp_path / name))
            assert certificate.certificate_for("openai_agents_sql") is None
        assert certificate.certificate_for("openai_agents_sql") == found
    with monkeypatch.context() as imported:  # as `import ray` does, which has another psutil there
        imported.syspath_prepend(Path(sysconfig.get_path("purelib")) / "ray" / "thirdparty_files")
        assert certificate.certificate_for("openai_agents_sql") == found

    hash_of = sources.source_hash
    monkeypatch.setattr(
        sources,
        "source_hash",
        lambda module: hash_of(module)[:-1] + "x" if "agents_sql" in module else hash_of(module),
    )
    assert certificate.certificate_for("openai_agents_sql") is None


def test_a_cache_that_cannot_be_written_is_named_with_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.parity.certificate import write_certificate

    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "file" / "cache"))
    failed = Similarity("langgraph_sql", (Mismatch("s", "place", "a", "b"),), ("s",), (), 1)
    assert write_certificate("langgraph_sql", failed) is None
    result = Similarity("langgraph_sql", (), (), (), 1)
    with pytest.raises(EnvironmentProblem, match=r"file/cache/parity: .*Set HARNESS_CACHE_DIR"):
        write_certificate("langgraph_sql", result)


def test_unknown_scenario_and_agent_are_refused(
    command: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    for arguments, message in (
        (
            ["reference_sql"],
            "name one of agent_framework_sql, agent_framework_sql_idiomatic, autogen_sql",
        ),
        (["langgraph_sql", "--scenario", "unicod"], "did you mean 'unicode'?"),
        (["langgraf_sql"], "did you mean 'langgraph_sql'?"),
        ([], "Name some, or pass --all or --program"),
    ):
        done = command("parity", *arguments)
        assert done.returncode == 2 and message in done.stderr


def test_a_certificate_depends_on_every_file_of_the_agents_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.plugins.sources import source_hash

    monkeypatch.syspath_prepend(str(tmp_path))
    for package, files in (
        ("with_init", ["__init__.py", "agent.py"]),
        ("without_init", ["agent.py"]),
    ):
        folder = tmp_path / package
        folder.mkdir()
        for name in (*files, "prompts.yaml"):
            (folder / name).write_text("# one")
        found = {source_hash(f"{package}.agent")}
        for name in ("agent.py", "prompts.yaml"):
            (folder / name).write_text("# other")
            found.add(source_hash(f"{package}.agent"))
        (folder / "__pycache__").mkdir()
        for name in (
            "agent.cpython-311.pyc",
            "agent.cpython-311.pyc.140234872",
        ):  # the second while it is written
            (folder / "__pycache__" / name).write_text("made of it")
        found.add(source_hash(f"{package}.agent"))
        assert len(found) == 3 and "missing" not in found
    assert source_hash("nowhere_at_all.agent") == "missing"
