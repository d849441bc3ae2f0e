"""The contract of every environment, as a test class to inherit.

    from harness.testing.environment_contract import EnvironmentContract

    class TestContract(EnvironmentContract):
        environment = "my_environment"
        calls = (("add", {"a": 1, "b": 2}),)
        changing = ("clear", {})  # if a call changes the result of the next one

        @pytest.fixture(scope="class")
        @classmethod
        def tasks(cls): ...

The tests cannot be overridden. Needs pytest and nothing else.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from harness import plugins
from harness.contracts.environments import Environment
from harness.contracts.hookspecs import EnvironmentSpec
from harness.parity.recorder import LIMITS
from harness.records import JSON, Problem, Task, ToolCall
from harness.rollout.request import RolloutRequest
from harness.rollout.tools import CLOSE_S, HostToolbox
from harness.testing.data_contract import Contract, check_payloads
from harness.util.json_schema import check_schema

NOT_JSON = ("", "{", "[1]", '"text"', "null")
"""Arguments that no tool accepts."""


class EnvironmentContract(Contract):
    """Requirements of host, gateway and programs.

    Set `environment` to its name, `calls` to some that succeed.
    """

    environment: ClassVar[str] = ""
    calls: ClassVar[Sequence[tuple[str, Mapping[str, Any]]]] = ()
    """Tools and arguments to call on the first task, in this order."""
    changing: ClassVar[tuple[str, Mapping[str, Any]] | None] = None
    """A call that changes the results of `calls` or the session's final state; None if the
    environment keeps no state.
    """

    @pytest.fixture(scope="class")
    @classmethod
    def tasks(cls) -> Sequence[Task]:
        """Return some tasks of the environment, with gold."""
        raise NotImplementedError("override the fixture `tasks`")

    @pytest.fixture(scope="class")
    @classmethod
    def made(cls) -> Environment:
        """Return the environment, built as in a run."""
        assert cls.environment, "set `environment` to the environment's name"
        return plugins.environment(cls.environment)

    def test_tools_are_fit_for_a_chat_completion_request(
        self, made: Environment, tasks: Sequence[Task]
    ) -> None:
        offered = made.tools_for(made.payload(tasks[0], LIMITS))
        assert bool(offered) == bool(self.calls), (
            "set `calls` to some that succeed, or to none if it has no tools"
        )
        names = [tool.name for tool in offered]
        assert len(set(names)) == len(names), names
        # Servers refuse other names, and models choose by the descriptions.
        for tool in offered:
            assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", tool.name), tool.name
            assert tool.description.strip(), f"{tool.name} has no description"
            assert tool.parameters.get("type") == "object", (
                f"the arguments of {tool.name} are no object"
            )
            check_schema(tool.parameters)
            assert json.loads(json.dumps(tool.definition)) == tool.definition, tool.name

    def test_a_payload_is_plain_json_without_gold_and_fits_here(
        self, made: Environment, tasks: Sequence[Task]
    ) -> None:
        check_payloads(made, tasks)

    def test_another_process_sends_the_same_payload(
        self, made: Environment, tasks: Sequence[Task]
    ) -> None:
        other = plugins.load(
            plugins.registry().spec("environment", self.environment, EnvironmentSpec)
        )()
        for task in tasks:
            assert other.payload(task, LIMITS) == made.payload(task, LIMITS)

    def test_an_answer_means_the_same_again(self, made: Environment, tasks: Sequence[Task]) -> None:
        # A lone surrogate is a text that cannot be encoded; a model's reply may contain one.
        for answer in (tasks[0].gold, "", "no answer", "\ud800"):
            first = asyncio.run(made.meaning(tasks[0], answer))
            again = asyncio.run(made.meaning(tasks[0], answer))
            assert first == again and isinstance(first, str | None), answer

    def test_calls_go_well_alone_and_at_once(
        self, made: Environment, tasks: Sequence[Task]
    ) -> None:
        offered = {tool.name for tool in made.tools_for(made.payload(tasks[0], LIMITS))}
        called = {tool for tool, _ in self.calls}
        assert called == offered, f"`calls` leaves out {offered - called}"

        async def play() -> tuple[list[ToolCall], list[list[ToolCall]]]:
            alone = await _played(self._toolbox(made, tasks[0]), self.calls)
            # Sessions of one environment may share a process or a cache, which shows here.
            at_once = []
            for _ in range(4):
                at_once.append(_played(self._toolbox(made, tasks[0]), self.calls))
            return alone, await asyncio.gather(*at_once)

        alone, together = asyncio.run(play())
        for call in alone:
            assert call.ok and not call.fault and call.text.strip(), call
        for other in together:
            assert _texts(other) == _texts(alone), (
                "concurrent calls have other results than successive ones"
            )

    def test_what_a_model_gets_wrong_is_told_and_typed(
        self, made: Environment, tasks: Sequence[Task]
    ) -> None:
        offered = made.tools_for(made.payload(tasks[0], LIMITS))
        wrong: list[tuple[str, Any]] = [("no_such_tool", {})]
        for tool in offered:
            for text in NOT_JSON:
                wrong.append((tool.name, text))
        for tool in offered:
            # Without required arguments, a schema may allow this one.
            if tool.parameters.get("required"):
                wrong.append((tool.name, {"no_such_argument": 1}))
        for call in asyncio.run(_played(self._toolbox(made, tasks[0]), wrong)):
            expected = "unknown_tool" if call.tool == "no_such_tool" else "bad_arguments"
            assert call.fault == expected, call
            # The text tells the model what was wrong, so that it can try again.
            assert not call.ok and call.text.strip(), call

    def test_no_attempt_sees_what_another_one_changed(
        self, made: Environment, tasks: Sequence[Task]
    ) -> None:
        async def play() -> list[tuple[list[str], Mapping[str, JSON] | None]]:
            alone = self._toolbox(made, tasks[0])
            changes = self._toolbox(made, tasks[0])
            other = self._toolbox(made, tasks[0])
            first = await _left(alone, self.calls)
            # Both sessions are open before anything is changed in one of them.
            await asyncio.gather(changes.open("contract/changes"), other.open("contract/other"))
            if self.changing is not None:
                await changes.call(*self.changing)
                assert changes.tool_calls.pop().ok, self.changing
            in_other = await _left(other, self.calls, opened=True)
            in_changed = await _left(changes, self.calls, opened=True)
            later = await _left(self._toolbox(made, tasks[0]), self.calls)
            return [first, in_other, in_changed, later]

        alone, other, changes, later = asyncio.run(play())
        assert other == alone, "a session that was open during the change sees it"
        assert later == alone, "a session that was opened after the change sees it"
        assert (changes != alone) == (self.changing is not None), (
            f"what it changes shows: {changes != alone}"
        )

    def test_a_session_closes_in_time_also_amid_a_call(
        self, made: Environment, tasks: Sequence[Task]
    ) -> None:
        async def play() -> tuple[float, HostToolbox, list[ToolCall]]:
            box = self._toolbox(made, tasks[0])
            await box.open("contract/closing")
            tool, arguments = (self.calls or [("no_such_tool", {})])[0]
            call = asyncio.ensure_future(box.call(tool, arguments))
            # One turn of the loop begins the call, so that the cancellation falls into it.
            await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait({call})
            began = time.monotonic()
            await box.close()
            took_s = time.monotonic() - began
            return took_s, box, await _played(self._toolbox(made, tasks[0]), self.calls)

        took_s, box, after = asyncio.run(play())
        assert took_s < CLOSE_S and not box.fault, box.fault
        for call in after:
            assert call.ok, after

    def _toolbox(self, made: Environment, task: Task) -> HostToolbox:
        request = RolloutRequest(
            problem=Problem(task.id, task.question),
            program="tool_loop",
            environment=self.environment,
            payload=made.payload(task, LIMITS),
            phase="train",
            max_turns=1,
            sampling={},
            tool_timeout_s=LIMITS["timeout_s"],
            timeout_s=30.0,
            retries=0,
        )
        return HostToolbox(request, lambda role: "", "", "", None)  # type: ignore[arg-type]


async def _played(
    box: HostToolbox, calls: Sequence[tuple[str, Mapping[str, Any] | str]]
) -> list[ToolCall]:
    """Return the host's record of successive calls in their own session."""
    await _left(box, calls)
    return box.tool_calls


async def _left(
    box: HostToolbox, calls: Sequence[tuple[str, Mapping[str, Any] | str]], opened: bool = False
) -> tuple[list[str], Mapping[str, JSON] | None]:
    """Return the results of successive calls, and the final state of their session."""
    if not opened:
        await box.open(f"contract/{id(box)}")
    assert not box.fault, box.fault
    for call in calls:
        await box.call(*call)
    await box.close()
    assert not box.fault, box.fault
    return _texts(box.tool_calls), box.state


def _texts(calls: Sequence[ToolCall]) -> list[str]:
    return [call.text for call in calls]
