"""Roles of calls from LangChain's callbacks. Imported only if an agent requests the handler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.outputs import ChatGeneration, LLMResult

from harness.contracts.toolbox import Report


class RoleHandler(BaseCallbackHandler):
    """Assign each call the role of the innermost run that is named like a role."""

    run_inline = True  # in the order of the calls, also where they are asynchronous

    def __init__(self, report: Report, roles: Sequence[str]) -> None:
        self._report = report
        self._roles = roles
        self._role_of: dict[UUID, str] = {}

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        name: str | None = None,
        **more: Any,
    ) -> None:
        self._begin(run_id, parent_run_id, name, more)

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        name: str | None = None,
        **more: Any,
    ) -> None:
        self._begin(run_id, parent_run_id, name, more)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **more: Any) -> None:
        role = self._role_of.get(run_id)
        if role is None:
            return
        for generations in response.generations:
            for generation in generations:
                if isinstance(generation, ChatGeneration):
                    self._name(generation, response, role)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **more: Any) -> None:
        """Assign the role to a call that the gateway refused, by the id in its answer."""
        role, refused = self._role_of.get(run_id), getattr(error, "request_id", None)
        if role is not None and refused is not None:
            self._report.roles[str(refused)] = role

    def _begin(
        self, run_id: UUID, parent: UUID | None, name: str | None, more: dict[str, Any]
    ) -> None:
        node = (more.get("metadata") or {}).get("langgraph_node")
        known = [one for one in (name, node) if one in self._roles]
        if known:
            self._role_of[run_id] = str(known[0])
        elif parent in self._role_of:
            self._role_of[run_id] = self._role_of[parent]

    def _name(self, generation: ChatGeneration, response: LLMResult, role: str) -> None:
        message = generation.message
        ids = (
            (response.llm_output or {}).get("id"),
            message.response_metadata.get("id"),
            message.id,
        )
        for one in ids:
            if one:
                self._report.roles[str(one)] = role
