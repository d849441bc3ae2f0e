"""The environment `no_tools`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness import Environment, Task


class NoTools(Environment):
    """An environment without tools: the answer is the model's text."""

    def payload(self, task: Task, limits: Mapping[str, object]) -> Mapping[str, Any]:
        return {}
