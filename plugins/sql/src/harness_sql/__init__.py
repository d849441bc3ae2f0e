"""Public names for SQL plugins: `from harness_sql import ROLES, execute`.

Each name is imported from its module on first access.
"""

from __future__ import annotations

import harness

TYPE_CHECKING = False

if TYPE_CHECKING:
    from harness_sql.rewards.execution_accuracy import ExecutionAccuracy
    from harness_sql.self_correcting.prompts import Prompt
    from harness_sql.self_correcting.roles import ROLES
    from harness_sql.self_correcting.scenarios import QUESTION, stage
    from harness_sql.sqlite.databases import content_hash
    from harness_sql.sqlite.environment import DATABASE, database_of
    from harness_sql.sqlite.evaluator import evaluate
    from harness_sql.sqlite.sandbox import execute
    from harness_sql.sqlite.schema import schema_text
    from harness_sql.testing import SQLRewardContract

__all__ = [
    "DATABASE",
    "QUESTION",
    "ROLES",
    "ExecutionAccuracy",
    "Prompt",
    "SQLRewardContract",
    "content_hash",
    "database_of",
    "evaluate",
    "execute",
    "schema_text",
    "stage",
]

_HOMES = {
    "harness_sql.sqlite.databases": "content_hash",
    "harness_sql.sqlite.environment": "DATABASE database_of",
    "harness_sql.sqlite.evaluator": "evaluate",
    "harness_sql.sqlite.sandbox": "execute",
    "harness_sql.sqlite.schema": "schema_text",
    "harness_sql.self_correcting.prompts": "Prompt",
    "harness_sql.self_correcting.roles": "ROLES",
    "harness_sql.self_correcting.scenarios": "QUESTION stage",
    "harness_sql.rewards.execution_accuracy": "ExecutionAccuracy",
    "harness_sql.testing": "SQLRewardContract",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = harness.face(__name__, _HOMES)
