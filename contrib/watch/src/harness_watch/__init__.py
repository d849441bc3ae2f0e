"""`harness watch`: the report of a run, a study or a folder of runs, live."""

from __future__ import annotations

HARNESS_API = 1
COMMANDS: dict[str, tuple[str, str]] = {
    "watch": ("harness_watch.command", "Show a run or a study live, in a browser or as text.")
}
"""Commands by name: module and summary, as in `harness.cli`."""
