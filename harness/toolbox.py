"""What an agent is given: model access by role, tools, the prompts of its program, and the number of turns."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

from harness.records import JSON, Problem

if TYPE_CHECKING:
    import httpx

    from harness.environments import Tool


Arguments = Mapping[str, JSON] | str
"""Of a call: by name, or as a model wrote them."""
Carrier = Callable[[Mapping[str, JSON]], Awaitable[str]]
"""Carries out a call of a program's own tool, whose arguments fit its schema; gives the text to show the model."""


@dataclass(frozen=True, slots=True)
class LLM:
    """One role's way to the policy: an OpenAI-compatible endpoint whose URL names rollout, attempt and role."""

    base_url: str
    """Ends in `/v1`; the role is in the path, so no framework can lose it."""
    api_key: str
    model: str
    sampling: Mapping[str, Any]
    """Chat completion parameters to send: `temperature`, `top_p`, `max_tokens`."""
    timeout_s: float

    async def complete(
        self, http_client: httpx.AsyncClient, messages: Sequence[Any], **more: Any
    ) -> dict[str, Any]:
        """One chat completion in plain HTTP, for agents without a framework.

        Args:
            more: Further parameters, such as `tools`.

        Returns:
            The message of the reply: `content`, and `tool_calls` where it has some.

        Raises:
            httpx.HTTPError: The endpoint answered with an error, or not at all.
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
"""What `solve` returns where the agent keeps no answer: the host reads it out of the last recorded reply, as the
program reads replies."""


@dataclass
class Report:
    """What an agent knows of its attempt beside the answer.

    Attributes:
        reward: Its own reward, for the reward `from_agent`.
        roles: By id of a reply, the role that asked for it: where one URL serves several callers.
    """

    reward: float | None = None
    roles: dict[str, str] = field(default_factory=dict)


class Toolbox(Protocol):
    """All that an agent gets beside its problem."""

    @property
    def phase(self) -> Literal["train", "val"]:
        """Whether the rollout trains the policy or measures it. Most agents do the same in both."""

    @property
    def payload(self) -> Mapping[str, JSON]:
        """What the environment was given of the task, without gold: for agents that reach its data by themselves."""

    @property
    def report(self) -> Report:
        """What the agent may add to its answer."""

    @property
    def prompts(self) -> Any:
        """The program's texts and the way replies are read, the same for every framework."""

    @property
    def tools(self) -> Sequence[Tool]:
        """The environment's tools: names, descriptions, JSON schemas of their arguments."""

    @property
    def max_turns(self) -> int:
        """How many answers may be written, or how often tools may be called; the program says which."""

    @property
    def http_client(self) -> httpx.AsyncClient:
        """The runner's one connection pool; hand it to the framework's OpenAI client and never close it."""

    def llm(self, role: str) -> LLM:
        """Where to send the calls of `role`."""

    def part(
        self,
        tools: Sequence[Tool],
        own: Mapping[str, Carrier] | None = None,
        *,
        at_once: bool = False,
    ) -> Toolbox:
        """The toolbox of a member of a team: nothing but these tools.

        Args:
            tools: Of the environment, and of the program.
            own: By name, what carries out those of the program. What it raises ends the attempt; no time limit but
                the attempt's.
            at_once: The member works beside others. It becomes a branch: numbered in the order of these calls, its
                model calls are seeded by themselves and recorded in that order, whoever is faster.
        """

    async def call(self, tool: str, arguments: Arguments) -> str:
        """Call a tool and return the text to show the model, whatever came of it.

        Never raises for what a model can do wrong: an unknown tool, arguments that are no JSON (text is parsed) or do
        not fit, a tool that fails or takes too long. Each is recorded with its kind.
        """

    async def call_all(self, calls: Sequence[tuple[str, Arguments]]) -> list[str]:
        """The calls of one reply, name and arguments: those of the environment one after another, in order.

        Neighbours that the program's own tools carry out are carried out at once.
        """

    async def execute(self, text: str) -> str:
        """Call the environment's first tool with its only argument."""


class Agent(Protocol):
    """One framework's version of a program. One instance serves many concurrent `solve` calls."""

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the LLM callers inside, as they appear in role URLs."""

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        """Answer one problem. Errors of the endpoint are left to propagate."""
