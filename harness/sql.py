"""What plugins for the environment `sql` import: `from harness import sql`."""

from __future__ import annotations

import harness

TYPE_CHECKING = False

if TYPE_CHECKING:
    from harness.environments.sql.databases import content_hash
    from harness.environments.sql.environment import DATABASE, database_of
    from harness.environments.sql.evaluator import evaluate
    from harness.environments.sql.sandbox import execute
    from harness.environments.sql.schema import schema_text
    from harness.programs.self_correcting_sql.prompts import ROLES, Prompt
    from harness.programs.self_correcting_sql.scenarios import QUESTION, stage
    from harness.rewards.execution_accuracy import ExecutionAccuracy

__all__ = [
    "DATABASE",
    "QUESTION",
    "ROLES",
    "ExecutionAccuracy",
    "Prompt",
    "content_hash",
    "database_of",
    "evaluate",
    "execute",
    "schema_text",
    "stage",
]

_HOMES = {
    "harness.environments.sql.databases": "content_hash",
    "harness.environments.sql.environment": "DATABASE database_of",
    "harness.environments.sql.evaluator": "evaluate",
    "harness.environments.sql.sandbox": "execute",
    "harness.environments.sql.schema": "schema_text",
    "harness.programs.self_correcting_sql.prompts": "ROLES Prompt",
    "harness.programs.self_correcting_sql.scenarios": "QUESTION stage",
    "harness.rewards.execution_accuracy": "ExecutionAccuracy",
}

if not TYPE_CHECKING:
    __getattr__, __dir__ = harness.face(__name__, _HOMES)
