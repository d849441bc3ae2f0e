"""The self-correcting SQL agent as a CrewAI Flow."""

from __future__ import annotations

from typing import Any, Literal, cast

from harness_crewai_sql import quiet  # noqa: F401  isort: skip  (first, it keeps telemetry off)
from crewai.events.utils.console_formatter import set_suppress_console_output
from crewai.flow.flow import Flow, listen, or_, router, start
from crewai.llms.providers.openai.completion import OpenAICompletion
from crewai.utilities.exceptions.context_window_exceeding_exception import (
    LLMContextLengthExceededError,
)
from crewai.utilities.types import LLMMessage
from pydantic import BaseModel

from harness.contracts.toolbox import Toolbox
from harness.records import Problem
from harness_sql.self_correcting.prompts import Prompt
from harness_sql.self_correcting.roles import ROLES


class PromptTooLong(Exception):
    """A prompt does not fit. The text must not match CrewAI's patterns, or it would summarize."""

    def __init__(self) -> None:
        super().__init__("the model refused the prompt for its size")


class AsyncLLM(OpenAICompletion):
    """CrewAI's OpenAI model on the runner's connection pool, which synchronous clients can't share."""

    def _build_sync_client(self) -> None:
        return None

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model; a prompt that is too long ends the attempt, as in other frameworks.

        CrewAI's agents would summarize the messages in a second event loop, in another thread,
        using connections that belong to this loop, which it blocks. That fails or never ends.
        """
        try:
            return await super().acall(*args, **kwargs)
        except LLMContextLengthExceededError as error:
            raise PromptTooLong from error


def chat_model(
    role: str, toolbox: Toolbox, kind: type[AsyncLLM] = AsyncLLM, **more: Any
) -> AsyncLLM:
    """Return CrewAI's model of a role's endpoint."""
    llm = toolbox.llm(role)
    return kind(
        model=llm.model,
        base_url=llm.base_url,
        api_key=llm.api_key,
        custom_openai=True,
        client_params={"http_client": toolbox.http_client},
        timeout=llm.timeout_s,
        max_retries=0,
        **llm.sampling,
        **more,
    )


class Draft(BaseModel):
    """The flow's state."""

    sql: str = ""
    result: str = ""
    remarks: str = ""
    queries: int = 0
    """Queries written so far."""


class SQLFlow(Flow[Draft]):
    """write -> execute -> check -> (answer | rewrite -> execute -> check ...)."""

    problem: Any
    toolbox: Any

    @start()
    async def write(self) -> None:
        prompts = self.toolbox.prompts
        self.state.sql = prompts.parse_sql(await self.answer_to(prompts.write(self.problem)))
        self.state.queries = 1

    @router(or_("write", "rewrite"))
    def after_writing(self) -> Literal["unchecked", "final"]:
        return "unchecked" if self.state.queries < self.toolbox.max_turns else "final"

    @listen("unchecked")
    async def execute(self) -> None:
        self.state.result = await self.toolbox.execute(self.state.sql)

    @router(execute)
    async def check(self) -> Literal["rejected", "approved"]:
        prompts = self.toolbox.prompts
        self.state.remarks = await self.answer_to(
            prompts.check(self.problem, self.state.sql, self.state.result)
        )
        return "approved" if prompts.approves(self.state.remarks) else "rejected"

    @listen("rejected")
    async def rewrite(self) -> None:
        prompts, state = self.toolbox.prompts, self.state
        prompt = prompts.rewrite(self.problem, state.sql, state.result, state.remarks)
        state.sql = prompts.parse_sql(await self.answer_to(prompt))
        state.queries += 1

    async def answer_to(self, prompt: Prompt) -> str:
        """Return the model's reply to a prompt."""
        return str(
            await chat_model(prompt.role, self.toolbox).acall(
                cast("list[LLMMessage]", prompt.messages)
            )
        )


class CrewAISQL:
    """write -> execute -> check -> (end | rewrite -> ...); the last query is unchecked."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        set_suppress_console_output(True)  # of this rollout's context only
        flow = SQLFlow(
            problem=problem,
            toolbox=toolbox,
            tracing=False,
            suppress_flow_events=True,
            max_method_calls=toolbox.max_turns + 1,
        )
        await flow.kickoff_async()
        return str(flow.state.sql)
