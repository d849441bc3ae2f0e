"""What `harness plugins new` writes: a package that passes the contract suite as it stands."""

from __future__ import annotations

import re
from pathlib import Path

from harness.errors import ConfigError

PYPROJECT = """\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "harness-@DASHED@"
version = "0.1.0"
description = "harness plugin: the self-correcting SQL agent in ..."
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["agent-rl-harness"]  # and your framework, with the versions that you have tested

[project.entry-points.harness]
@NAME@ = "harness_@NAME@"

[tool.hatch.build.targets.wheel]
packages = ["src/harness_@NAME@"]
"""

README = """\
# harness-@DASHED@

The self-correcting SQL agent of harness in ...

    uv pip install --python .venv -e THIS_FOLDER      # in harness's checkout
    pytest
    harness parity @NAME@
    harness train --plugin @NAME@
"""

INIT = '''\
"""harness plugin @NAME@. This module must not import the framework: it is read to list plugins."""

from __future__ import annotations

from harness.hookspecs import AgentSpec, hookimpl
from harness.programs.self_correcting_sql.prompts import ROLES

HARNESS_API = 1


@hookimpl
def harness_agents() -> list[AgentSpec]:
    return [
        AgentSpec(
            "@NAME@",
            "harness_@NAME@.agent:@CLASS@",
            "one line for `harness plugins`",
            roles=ROLES,
            frameworks=(),  # distributions whose versions belong in a run record
        )
    ]
'''

AGENT = '''\
"""The self-correcting SQL agent in ..."""

from __future__ import annotations

from openai import AsyncOpenAI

from harness.programs.self_correcting_sql.prompts import ROLES, Prompt
from harness.records import Problem
from harness.toolbox import Toolbox


class @CLASS@:
    """write -> execute -> check -> (end | rewrite -> execute -> check ...), the last query unchecked."""

    roles = ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        prompts = toolbox.prompts
        sql: str = prompts.parse_sql(await self.ask(prompts.write(problem), toolbox))
        for _ in range(1, toolbox.max_turns):
            result = await toolbox.execute(sql)
            remarks = await self.ask(prompts.check(problem, sql, result), toolbox)
            if prompts.approves(remarks):
                break
            sql = prompts.parse_sql(await self.ask(prompts.rewrite(problem, sql, result, remarks), toolbox))
        return sql

    async def ask(self, prompt: Prompt, toolbox: Toolbox) -> str:
        """One call of one role. Put your framework here, or around the whole of `solve`."""
        llm = toolbox.llm(prompt.role)
        client = AsyncOpenAI(
            base_url=llm.base_url,
            api_key=llm.api_key,
            http_client=toolbox.http_client,
            timeout=llm.timeout_s,
            max_retries=0,  # retries are the host's
        )
        reply = await client.chat.completions.create(
            model=llm.model, messages=prompt.messages, **llm.sampling
        )
        return reply.choices[0].message.content or ""
'''

TEST = """\
from harness.testing.contract import AgentContract


class TestContract(AgentContract):
    agent = "@NAME@"
"""


def write_package(name: str, folder: Path) -> Path:
    """Write the package `name` below `folder` and return its folder.

    Raises:
        ConfigError: The name cannot be a package's, or the folder exists.
    """
    from harness.plugins import registry

    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        raise ConfigError(f"plugin name {name!r}: use lower-case letters, digits and single underscores, as in my_sql")
    if any(spec.name == name for spec in registry().specs("agent")):
        raise ConfigError(f"plugin name {name!r} is taken by an installed agent; choose another")
    target = folder / name
    if target.exists():
        raise ConfigError(f"{target} exists already; choose another name or --dir")
    source = target / "src" / f"harness_{name}"
    texts = {
        target / "pyproject.toml": PYPROJECT,
        target / "README.md": README,
        source / "__init__.py": INIT,
        source / "agent.py": AGENT,
        source / "py.typed": "",
        target / "tests" / f"test_{name}.py": TEST,
    }
    words = {
        "@NAME@": name,
        "@DASHED@": name.replace("_", "-"),
        "@CLASS@": "".join(part.capitalize() for part in name.split("_")),
    }
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        for word, value in words.items():
            text = text.replace(word, value)
        path.write_text(text, encoding="utf-8")
    return target
