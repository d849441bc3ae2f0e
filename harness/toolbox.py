"""What an agent is given: model access by role, SQL execution, the prompts, and the number of turns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from harness.prompts import Prompts
from harness.records import Problem

if TYPE_CHECKING:
    import httpx


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


class Toolbox(Protocol):
    """All that an agent gets beside its problem."""

    @property
    def prompts(self) -> Prompts:
        """The shared prompt texts and the way replies are read."""

    @property
    def max_turns(self) -> int:
        """How many queries may be written in all; the last one is not checked."""

    @property
    def http_client(self) -> httpx.AsyncClient:
        """The runner's one connection pool; hand it to the framework's OpenAI client and never close it."""

    def llm(self, role: str) -> LLM:
        """Where to send the calls of `role`."""

    async def execute(self, sql: str) -> str:
        """Run a query on the problem's database and return the text to show the model. Never raises for bad SQL."""


class Agent(Protocol):
    """One framework's self-correcting SQL agent. One instance serves many concurrent `solve` calls."""

    roles: tuple[str, ...]
    """Names of the LLM callers inside, as they appear in role URLs."""

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        """Answer one problem: the final query. Errors of the endpoint are left to propagate."""
