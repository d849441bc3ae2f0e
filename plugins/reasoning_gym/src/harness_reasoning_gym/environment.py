"""The environment `no_tools`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness import Environment, Task


class NoTools(Environment):
    """Nothing to call: requests offer no tools, and an answer is what the model says."""

    def payload(self, task: Task, limits: Mapping[str, object]) -> Mapping[str, Any]:
        return {}
