"""Commands for SQL, which `harness` lists together with its own."""

from __future__ import annotations

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("harness_sql.cli.ask", "Ask one question, every turn shown."),
    "data": ("harness_sql.cli.data", "Prepare and verify data sets."),
    "reward": ("harness_sql.cli.reward", "Audit the reward."),
    "score": ("harness_sql.cli.score", "Score one query against its gold."),
}
"""Commands by name: module and summary, as in `harness.cli`."""
