"""The toolbox of an agent: models by role, tools, its program's prompts and the number of turns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from harness.records import JSON, Problem

if TYPE_CHECKING:
    import httpx

    from harness.contracts.environments import Tool


Arguments = Mapping[str, JSON] | str
"""Arguments of a call: by name, or as the model's text."""
Carrier = Callable[[Mapping[str, JSON]], Awaitable[str]]
"""Carry out a call of a program's own tool with valid arguments, and return the text for the
model.
"""


@dataclass(frozen=True, slots=True)
class LLM:
    """One role's endpoint: OpenAI-compatible, with rollout, attempt and role in its URL."""

    base_url: str
    """Ends in `/v1`. The role is part of the path, so that no framework can lose it."""
    api_key: str
    model: str
    sampling: Mapping[str, Any]
    """Chat completion parameters to send: `temperature`, `top_p`, `max_tokens`."""
    timeout_s: float

    async def complete(
        self, http_client: httpx.AsyncClient, messages: Sequence[Any], **more: Any
    ) -> dict[str, Any]:
        """Request one chat completion over plain HTTP, for agents without a framework.

        Args:
            more: Further parameters, such as `tools`.

        Returns:
            The message of the reply: `content`, and `tool_calls` if it has any.

        Raises:
            httpx.HTTPError: The endpoint returned an error or no answer.
        """
        answer = await http_client.post(
            f"{self.base_url}/chat/completions",
            json={"model": self.model, "messages": messages, **more, **self.sampling},
            headers={"authorization": f"Bearer {self.api_key}"},
            timeout=self.timeout_s,
        )
        message: dict[str, Any] = answer.raise_for_status().json()["choices"][0]["message"]
        return message


class LastReply(str):
    """The type of `LAST_REPLY`."""


LAST_REPLY: Final = LastReply("")
"""Return value of `solve` for an agent without an answer of its own.

The host then reads it from the last recorded reply, as the program reads replies.
"""


@dataclass
class Report:
    """Facts on its attempt that an agent reports in addition to the answer.

    Attributes:
        reward: Its own reward, for the reward `from_agent`.
        roles: Roles by reply id, if one URL serves several callers; of a call without an answer, by
            the `x-request-id` of its refusal.
    """

    reward: float | None = None
    roles: dict[str, str] = field(default_factory=dict)


class Toolbox(Protocol):
    """Everything that an agent gets in addition to its problem."""

    @property
    def phase(self) -> Literal["train", "val"]:
        """Whether the rollout trains the policy or measures it. Most agents do the same in both."""

    @property
    def payload(self) -> Mapping[str, JSON]:
        """The environment's data of the task, without gold, for agents that access it directly.

        A copy: changes of it do not change the tools.
        """

    @property
    def report(self) -> Report:
        """What the agent may add to its answer."""

    @property
    def prompts(self) -> Any:
        """The program's texts and reply parsers, the same for every framework."""

    @property
    def tools(self) -> Sequence[Tool]:
        """The environment's tools: names, descriptions, JSON schemas of their arguments."""

    @property
    def max_turns(self) -> int:
        """Most answers to write, or most calls of tools, as the program defines it."""

    @property
    def http_client(self) -> httpx.AsyncClient:
        """The runner's shared connection pool.

        Pass it to the framework's OpenAI client and never close it.
        """

    def llm(self, role: str) -> LLM:
        """Return the access of `role` to its model."""

    def part(
        self,
        tools: Sequence[Tool],
        own: Mapping[str, Carrier] | None = None,
        *,
        at_once: bool = False,
    ) -> Toolbox:
        """Return the toolbox of a team member, with these tools only.

        Args:
            tools: Tools of the environment and of the program.
            own: The program's own tools by name. An exception of such a tool ends the attempt,
                which is its only time limit.
            at_once: Whether the member works concurrently with others. It becomes a branch,
                numbered in the order of these calls. Its model calls have their own seeds and are
                recorded in that order, whichever branch is faster.
        """

    async def call(self, tool: str, arguments: Arguments) -> str:
        """Call a tool and return the text to show the model, whatever the result.

        Never raises for an error of the model: an unknown tool, arguments that are no JSON (text is
        parsed) or do not fit, a tool that fails or takes too long. Each is recorded with its kind.
        """

    async def call_all(self, calls: Sequence[tuple[str, Arguments]]) -> list[str]:
        """Carry out the calls of one reply, given by name and arguments.

        Tools of the environment run in order.

        Adjacent calls of the program's own tools run concurrently.
        """

    async def execute(self, text: str) -> str:
        """Call the environment's first tool with its only argument."""


class Agent(Protocol):
    """One framework's version of a program. One instance serves many concurrent `solve` calls."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the agent's LLM callers, as they appear in role URLs."""

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        """Answer one problem. Let errors of the endpoint propagate."""
