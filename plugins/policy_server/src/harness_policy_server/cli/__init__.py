"""Commands that fetch, show and write weights; `harness` lists them with its own."""

from __future__ import annotations

COMMANDS: dict[str, tuple[str, str]] = {
    "policy": ("harness_policy_server.cli.policy", "List, fetch and show policies by name."),
    "export": ("harness_policy_server.cli.export", "Write a checkpoint as a Hugging Face folder."),
}
"""Command by name: module and summary, as in `harness.cli`."""
