"""The toolbox of an attempt: it calls tools in the attempt's own session and records each call.

Members of a team get parts of it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from harness.contracts.environments import EnvironmentSession, Observation, Tool
from harness.contracts.toolbox import LLM, Arguments, Carrier, Report, Toolbox
from harness.errors import EnvironmentFault
from harness.plugins import environment, program
from harness.records import JSON, ToolCall, ToolFault
from harness.rollout.json_values import misfit, parsed, plain_state, storable
from harness.rollout.request import Phase, RolloutRequest
from harness.util import clock
from harness.util.branches import caller
from harness.util.deadlines import DeadlinePassed, Raised, within
from harness.util.json_schema import SchemaFault, check_schema

if TYPE_CHECKING:
    import httpx

TOOL_GRACE_S = 2.0
"""Seconds after its own deadline for which the host still waits for a tool."""
READY_S, OPEN_S, CLOSE_S = 300.0, 30.0, 10.0
"""Seconds for an environment to become ready, to open a session and to close it. They do not count
as the agent's time.
"""


@dataclass
class HostToolbox:
    """The toolbox of one attempt.

    It calls tools in the attempt's own session and records each call.

    An agent gets this object. What decides whether its attempt is scored, and on which state, is
    read-only.
    """

    request: RolloutRequest
    url: Callable[[str], str]
    """Returns the base URL of a role."""
    key: str
    model: str
    http_client: httpx.AsyncClient
    tool_calls: list[ToolCall] = field(default_factory=list)
    report: Report = field(default_factory=Report, init=False)
    begun: Counter[str] = field(default_factory=Counter, init=False)
    """The number of branches that each branch has begun."""

    def __post_init__(self) -> None:
        self._fault = ""
        self._state: Mapping[str, JSON] | None = None
        self._environment = environment(self.request.environment)
        # A copy, because agents can reach the request and must not change the database or
        # the limits of their next call.
        self._payload = deepcopy(self.request.payload)
        self._session: EnvironmentSession | None = None
        self.broken: asyncio.Future[None] | None = None  # done after a fault of the environment
        self.tools: Sequence[Tool] = self._environment.tools_for(self._payload)
        self.prompts: Any = program(self.request.program).prompts_for(self.tools)

    def replay(self, session: EnvironmentSession) -> None:
        """Use a session with recorded results instead of opening one of the environment."""
        self._session = session

    async def prepare(self) -> None:
        """Check schemas and payload and wait for shared data; record a failure as a fault."""

        async def prepared() -> None:
            self._check_schemas()
            self._environment.check(self._payload)
            await self._environment.ready(self._payload)

        await self._noted(READY_S, prepared, "was not ready")

    def _check_schemas(self) -> None:
        """Refuse tools with arguments that cannot be checked safely.

        Raises:
            EnvironmentFault: The message names the tool and what is wrong with its schema.
        """
        for tool in self.tools:
            try:
                check_schema(tool.parameters)
            except SchemaFault as fault:
                raise EnvironmentFault(f"the schema of tool {tool.name!r} {fault}") from None

    async def open(self, attempt: str) -> None:
        """Open the session of an attempt, given its unique id; record a failure as a fault."""
        self.broken = asyncio.get_running_loop().create_future()

        async def opened() -> None:  # stores the session even if the caller is cancelled
            self._session = await self._environment.open(self._payload, attempt)

        if not self.fault:
            await self._noted(OPEN_S, opened, "opened no session")

    async def close(self) -> None:
        """Close the session and keep its final state; record a failure as a fault."""
        if self._session is None:
            return
        try:
            self._state = plain_state(await within(CLOSE_S, self._session.close))
        except (DeadlinePassed, Raised, ValueError, TypeError, RecursionError) as error:
            self._note(error, f"did not close its session within {CLOSE_S:g} s")

    async def _noted(
        self, limit_s: float, work: Callable[[], Coroutine[None, None, None]], late: str
    ) -> None:
        try:
            await within(limit_s, work)
        except (DeadlinePassed, Raised) as error:
            self._note(error, f"{late} within {limit_s:g} s")

    def _note(self, error: Exception, late: str) -> None:
        """Record the first fault of the environment in one line."""
        # The wrapper of an `EnvironmentFault` only adds the name of the exception.
        cause: BaseException = error
        if isinstance(error.__cause__, EnvironmentFault):
            cause = error.__cause__
        reason = late if isinstance(error, DeadlinePassed) else " ".join(str(cause).split())
        # Later faults usually follow from the first one.
        self._fault = self._fault or storable(
            f"environment {self.request.environment!r}: {reason}"[:500]
        )

    @property
    def fault(self) -> str:
        """Return the environment's first fault; empty without one.

        After it, no tool is called any more, and the attempt is left unscored.
        """
        return self._fault

    @property
    def state(self) -> Mapping[str, JSON] | None:
        """Return the session's final state, after it was closed."""
        return self._state

    @property
    def max_turns(self) -> int:
        return self.request.max_turns

    @property
    def payload(self) -> Mapping[str, JSON]:
        return deepcopy(self._payload)

    @property
    def phase(self) -> Phase:
        return self.request.phase

    def llm(self, role: str) -> LLM:
        # The gateway adds these itself, because not every framework can send them.
        own = ("seed", "chat_template_kwargs")
        sampling = {name: value for name, value in self.request.sampling.items() if name not in own}
        return LLM(self.url(role), self.key, self.model, sampling, self.request.timeout_s)

    def part(
        self,
        tools: Sequence[Tool],
        own: Mapping[str, Carrier] | None = None,
        *,
        at_once: bool = False,
    ) -> Toolbox:
        return _Part(self, "", tools, own or {}).branched(at_once)

    async def execute(self, text: str) -> str:
        return await _execute(self, text)

    async def call_all(self, calls: Sequence[tuple[str, Arguments]]) -> list[str]:
        # One after the other: a call may depend on what the call before it changed.
        return [await self.call(tool, arguments) for tool, arguments in calls]

    async def call(self, tool: str, arguments: Arguments) -> str:
        return await self.called(tool, arguments, self.tools)

    async def called(
        self,
        tool: str,
        arguments: Arguments,
        tools: Sequence[Tool],
        own: Mapping[str, Carrier] = MappingProxyType({}),
        branch: str = "",
    ) -> str:
        """Carry out and record a call of one of `tools`; `own` implements the program's tools."""
        began, started_s = time.monotonic(), clock.now()
        tool = storable(tool)
        given, seen, fault = await self._called(tool, arguments, tools, own)
        elapsed_s = time.monotonic() - began
        ok = seen.ok and not fault
        self.tool_calls.append(
            ToolCall(tool, given, seen.text, ok, started_s, elapsed_s, fault, branch)
        )
        return seen.text

    async def _called(
        self, tool: str, arguments: Arguments, tools: Sequence[Tool], own: Mapping[str, Carrier]
    ) -> tuple[Mapping[str, JSON], Observation, ToolFault]:
        given, wrong = parsed(arguments)
        wanted = _named(tools, tool)
        if wanted is None:
            names = ", ".join(offered.name for offered in tools) or "none"
            return (
                given,
                Observation(f"There is no tool {tool!r}. Tools: {names}.", False),
                "unknown_tool",
            )
        wrong = wrong or misfit(given, wanted)
        if wrong:
            return given, Observation(f"The arguments of {tool} {wrong}.", False), "bad_arguments"
        if tool in own:
            # A copy, since the record must stay as the call was.
            return given, Observation(storable(await own[tool](deepcopy(given)))), ""
        if self.fault or self._session is None:
            raise EnvironmentFault(self.fault or "no session is open")
        limit_s = self.request.tool_timeout_s
        try:
            async with asyncio.timeout(limit_s + TOOL_GRACE_S):
                seen = await self._session.call(tool, given)
            return given, Observation(storable(seen.text), seen.ok), ""
        except EnvironmentFault as error:
            self._note(error, "")
            if self.broken is not None and not self.broken.done():
                self.broken.set_result(None)
            raise
        except TimeoutError:
            return (
                given,
                Observation(f"{tool} gave no result within {limit_s:g} s.", False),
                "timeout",
            )
        except Exception as error:
            return (
                given,
                Observation(storable(f"{tool} failed: {type(error).__name__}: {error}"), False),
                "failed",
            )


@dataclass
class _Part:
    """The toolbox of a team member, which uses the attempt's own."""

    whole: HostToolbox
    branch: str
    tools: Sequence[Tool]
    own: Mapping[str, Carrier]

    def __getattr__(self, name: str) -> Any:  # prompts, max_turns, http_client
        return getattr(self.whole, name)

    def branched(self, at_once: bool) -> _Part:
        """Return itself, after moving to a new branch of its branch if `at_once`."""
        if at_once:
            self.whole.begun[self.branch] += 1
            number = str(self.whole.begun[self.branch])
            self.branch = f"{self.branch}.{number}" if self.branch else number
        return self

    def llm(self, role: str) -> LLM:
        return self.whole.llm(caller(role, self.branch))

    def part(
        self,
        tools: Sequence[Tool],
        own: Mapping[str, Carrier] | None = None,
        *,
        at_once: bool = False,
    ) -> Toolbox:
        return _Part(self.whole, self.branch, tools, own or {}).branched(at_once)

    async def call(self, tool: str, arguments: Arguments) -> str:
        return await self.whole.called(tool, arguments, self.tools, self.own, self.branch)

    async def call_all(self, calls: Sequence[tuple[str, Arguments]]) -> list[str]:
        texts: list[str] = []
        for own, neighbours in groupby(calls, key=lambda call: call[0] in self.own):
            if own:
                texts += await _together([self.call(*call) for call in neighbours])
            else:
                texts += [await self.call(*call) for call in neighbours]
        return texts

    async def execute(self, text: str) -> str:
        return await _execute(self, text)


def _named(tools: Sequence[Tool], name: str) -> Tool | None:
    """Return the first tool of a name, or None."""
    for tool in tools:
        if tool.name == name:
            return tool
    return None


async def _together(calls: Sequence[Coroutine[None, None, str]]) -> list[str]:
    """Return all results; the first call that raises cancels the others."""
    try:
        async with asyncio.TaskGroup() as group:
            begun = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as raised:
        # The host distinguishes causes by type, which a group would hide.
        raise raised.exceptions[0] from None
    return [task.result() for task in begun]


async def _execute(toolbox: Toolbox, text: str) -> str:
    tool = toolbox.tools[0]
    (name,) = tool.parameters["properties"]
    return await toolbox.call(tool.name, {name: text})
