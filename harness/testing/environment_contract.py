"""The contract of every environment, as a test class to inherit.

    from harness.testing.environment_contract import EnvironmentContract

    class TestContract(EnvironmentContract):
        environment = "my_environment"
        calls = (("add", {"a": 1, "b": 2}),)

        @pytest.fixture(scope="class")
        @classmethod
        def tasks(cls): ...

The tests cannot be overridden. Needs pytest and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from harness import plugins
from harness.environments import Environment
from harness.hookspecs import EnvironmentSpec
from harness.parity.recorder import LIMITS
from harness.records import Problem, Task, ToolCall
from harness.rollout.host import HostToolbox
from harness.rollout.request import RolloutRequest
from harness.testing.data_contract import Contract, check_payloads

NOT_JSON = ("", "{", "[1]", '"text"', "null")
"""Arguments that no tool takes."""


class EnvironmentContract(Contract):
    """What host, gateway and programs rely on. Set `environment` to its name, `calls` to some that go well."""

    environment: ClassVar[str] = ""
    calls: ClassVar[Sequence[tuple[str, Mapping[str, Any]]]] = ()
    """Tool and arguments, to be carried out on the first task."""

    @pytest.fixture(scope="class")
    @classmethod
    def tasks(cls) -> Sequence[Task]:
        """Some tasks of the environment, with gold."""
        raise NotImplementedError("override the fixture `tasks`")

    @pytest.fixture(scope="class")
    @classmethod
    def made(cls) -> Environment:
        """The environment, made as a run makes it."""
        assert cls.environment, "set `environment` to the environment's name"
        return plugins.environment(cls.environment)

    def test_tools_are_fit_for_a_chat_completion_request(self, made: Environment) -> None:
        from jsonschema import Draft202012Validator

        assert made.tools, "no tools"
        names = [tool.name for tool in made.tools]
        assert len(set(names)) == len(names), names
        for tool in made.tools:
            assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", tool.name), tool.name
            assert tool.description.strip(), f"{tool.name} says nothing of itself"
            assert tool.parameters.get("type") == "object", f"the arguments of {tool.name} are no object"
            Draft202012Validator.check_schema(dict(tool.parameters))
            assert json.loads(json.dumps(tool.definition)) == tool.definition, tool.name

    def test_a_payload_is_plain_json_without_gold_and_fits_here(self, made: Environment, tasks: Sequence[Task]) -> None:
        check_payloads(made, tasks)

    def test_another_process_sends_the_same_payload(self, made: Environment, tasks: Sequence[Task]) -> None:
        other = plugins.load(plugins.registry().spec("environment", self.environment, EnvironmentSpec))()
        assert [other.payload(task, LIMITS) for task in tasks] == [made.payload(task, LIMITS) for task in tasks]

    def test_an_answer_means_the_same_again(self, made: Environment, tasks: Sequence[Task]) -> None:
        meaning = getattr(made, "meaning", None)
        if meaning is None:
            pytest.skip("it has no `meaning`: answers are compared as plain text")
        for answer in (tasks[0].gold, "", "no answer", "\ud800"):
            first, again = (asyncio.run(meaning(tasks[0], answer)) for _ in range(2))
            assert first == again and isinstance(first, str | None), answer

    def test_calls_go_well_alone_and_at_once(self, made: Environment, tasks: Sequence[Task]) -> None:
        assert self.calls, "set `calls` to some that go well"
        known = {tool.name for tool in made.tools}
        assert {tool for tool, _ in self.calls} == known, (
            f"`calls` leaves out {known - {tool for tool, _ in self.calls}}"
        )
        alone = [_played(self.environment, made, tasks[0], [call])[0] for call in self.calls]
        for call in alone:
            assert call.ok and not call.fault and call.text.strip(), call
        together = _played(self.environment, made, tasks[0], list(self.calls) * 4)
        assert [call.text for call in together] == [call.text for call in alone] * 4, "calls at once go otherwise"

    def test_what_a_model_gets_wrong_is_told_and_typed(self, made: Environment, tasks: Sequence[Task]) -> None:
        wrong: list[tuple[str, Any]] = [("no_such_tool", {})]
        wrong += [(tool.name, text) for tool in made.tools for text in NOT_JSON]
        wrong += [(tool.name, {"no_such_argument": 1}) for tool in made.tools if tool.parameters.get("required")]
        for call in _played(self.environment, made, tasks[0], wrong):
            assert call.fault == ("unknown_tool" if call.tool == "no_such_tool" else "bad_arguments"), call
            assert not call.ok and call.text.strip(), call


def _played(
    name: str, made: Environment, task: Task, calls: Sequence[tuple[str, Mapping[str, Any] | str]]
) -> list[ToolCall]:
    """The host's record of calls made at once, in the order given."""
    request = RolloutRequest(
        problem=Problem(task.id, task.question),
        program="tool_loop",
        environment=name,
        payload=made.payload(task, LIMITS),
        phase="train",
        max_turns=1,
        sampling={},
        tool_timeout_s=LIMITS["timeout_s"],
        timeout_s=30.0,
        retries=0,
    )

    async def play() -> list[ToolCall]:
        boxes = [HostToolbox(request, lambda role: "", "", "", None) for _ in calls]  # type: ignore[arg-type]
        await asyncio.gather(*(box.call(*call) for box, call in zip(boxes, calls, strict=True)))
        return [box.tool_calls[0] for box in boxes]

    return asyncio.run(play())
