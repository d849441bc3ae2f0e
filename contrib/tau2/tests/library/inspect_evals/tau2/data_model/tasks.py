from enum import StrEnum
from typing import Any

from pydantic import BaseModel


class RewardType(StrEnum):
    DB = "DB"
    NL_ASSERTION = "NL_ASSERTION"
    COMMUNICATE = "COMMUNICATE"


class Action(BaseModel):
    name: str
    arguments: dict[str, Any]
    requestor: str = "assistant"


class EvaluationCriteria(BaseModel):
    actions: list[Action] | None = None
    communicate_info: list[str] | None = None
    nl_assertions: list[str] | None = None
    reward_basis: list[RewardType] = [RewardType.DB, RewardType.COMMUNICATE]


class Task(BaseModel):
    id: str
    user_scenario: str
    initial_state: dict[str, Any] | None = None
    evaluation_criteria: EvaluationCriteria | None = None
