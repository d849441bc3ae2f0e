"""The file `demonstrations.json` in a policy's folder: messages that are part of the policy.

    {
      "version": 1,
      "trainer": NAME,
      "demonstrations": {ROLE: [[USER MESSAGE, ASSISTANT MESSAGE], ...]}
    }

An evaluation of such a folder inserts them into the calls of each role. The folder's weights alone
are another policy.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from harness.errors import ConfigError
from harness.records import Demonstrations
from harness.runs.folder import read_json

FILE = "demonstrations.json"
VERSION = 1


def demonstrations_in(folder: str | Path) -> Demonstrations:
    """Return the demonstrations in a policy's folder by role; empty if it has none.

    Args:
        folder: A policy as runs name it; what is no local folder has no demonstrations.

    Raises:
        ConfigError: The file has another version or another form.
        UserError: It cannot be read.
    """
    file = Path(folder) / FILE
    # os.path takes any text as the name of a policy, also one that is too long for a file.
    if not folder or not os.path.isfile(file):
        return {}
    data = read_json(file, "Export the policy again")
    if data.get("version") != VERSION:
        raise ConfigError(
            f"{file} has version {data.get('version')!r}, and this harness reads {VERSION}: "
            "use the harness that wrote it"
        )
    by_role = data.get("demonstrations")
    if not isinstance(by_role, dict) or not all(_are_pairs(shown) for shown in by_role.values()):
        raise ConfigError(
            f"{file} is damaged: `demonstrations` must have a list of pairs of messages "
            "for each role. Export the policy again"
        )
    return {role: shown for role, shown in by_role.items() if shown}


def refuse_demonstrations(folder: str | Path, where: str, instead: str) -> None:
    """Refuse a policy with demonstrations where they would be left out.

    Args:
        where: What would use the bare model; begins the message.
        instead: What to do; ends the message.

    Raises:
        ConfigError: The folder has demonstrations.
    """
    if demonstrations_in(folder):
        raise ConfigError(
            f"{where}: {folder} has {FILE}, and its model alone is another policy. {instead}"
        )


def _are_pairs(shown: Any) -> bool:
    if not isinstance(shown, list):
        return False
    for pair in shown:
        if not isinstance(pair, list) or len(pair) != 2:
            return False
        for message, role in zip(pair, ("user", "assistant"), strict=True):
            if not isinstance(message, dict) or message.get("role") != role:
                return False
    return True
