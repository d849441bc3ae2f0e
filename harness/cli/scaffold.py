"""What `harness plugins new` writes: a package that passes the contract suite as it stands."""

from __future__ import annotations

import keyword
import re
from dataclasses import dataclass
from pathlib import Path

from harness.errors import ConfigError

PYPROJECT = """\
[build-system]
requires = ["hatchling>=1.27"]
build-backend = "hatchling.build"

[project]
name = "harness-@DASHED@"
version = "0.1.0"
description = "harness plugin: @WHAT@"
readme = "README.md"
requires-python = ">=3.11"
dependencies = ["agent-rl-harness"@NEEDS@]  # and what yours needs, with the versions that you have tested

[project.entry-points.harness]
@NAME@ = "harness_@NAME@"

[tool.hatch.build.targets.wheel]
packages = ["src/harness_@NAME@"]

[tool.pytest.ini_options]
asyncio_default_fixture_loop_scope = "function"
"""

README = """\
# harness-@DASHED@

A plugin of harness: @WHAT@.

    python -m pip install uv pytest
    python -m uv pip install --overrides "$(python -c 'import harness; print(*harness.__path__)')/overrides.txt" -e .
    python -m pytest
    @USE@
"""

INIT = '''\
"""harness plugin @NAME@. @WHEN_READ@"""

from __future__ import annotations

@IMPORTS@from harness import @SPEC@, hookimpl

HARNESS_API = 1


@hookimpl
def @HOOK@() -> list[@SPEC@]:
    return [
        @SPEC@(
            "@NAME@",
            "harness_@NAME@.@MODULE@:@CLASS@",
            "one line for `harness plugins`",
@SAYS@        )
    ]
'''

AGENT_CLASS = '''\
"""The self-correcting SQL agent in ..."""

from __future__ import annotations

from openai import AsyncOpenAI

import harness_sql as sql
from harness import Problem, Toolbox


class @CLASS@:
    """write -> execute -> check -> (end | rewrite -> execute -> check ...), the last query unchecked."""

    roles = sql.ROLES

    async def solve(self, problem: Problem, toolbox: Toolbox) -> str:
        prompts = toolbox.prompts
        query: str = prompts.parse_sql(await self.ask(prompts.write(problem), toolbox))
        for _ in range(1, toolbox.max_turns):
            result = await toolbox.execute(query)
            remarks = await self.ask(prompts.check(problem, query, result), toolbox)
            if prompts.approves(remarks):
                break
            query = prompts.parse_sql(await self.ask(prompts.rewrite(problem, query, result, remarks), toolbox))
        return query

    async def ask(self, prompt: sql.Prompt, toolbox: Toolbox) -> str:
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

AGENT_TEST = """\
from harness import AgentContract


class TestContract(AgentContract):
    agent = "@NAME@"
"""


TASK_CLASS = '''\
"""The task set `@NAME@`: put your questions in the place of these files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import harness_sql as sql
from harness import Task, TaskSetError


class @CLASS@:
    """Questions in `<split>.json`, each with the name of its database, a SQLite file beside it."""

    def __init__(self, folder: str = "~/@NAME@", schema_chars: int = 4000) -> None:
        self.folder = Path(folder).expanduser().resolve()
        self.schema_chars = schema_chars

    def load(self, split: str) -> Sequence[Task]:
        file = self.folder / f"{split}.json"
        try:
            rows = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise TaskSetError(f"task set '@NAME@' cannot read {file}: {error}. Set task.options.folder") from error
        return [
            Task(
                id=f"{split}/{number}",
                task_set="@NAME@",
                split=split,
                question=row["question"],
                gold=row["gold"],
                cluster=row["database"],
                data={sql.DATABASE: str(self.folder / f"{row['database']}.sqlite")},
            )
            for number, row in enumerate(rows)
        ]

    def context(self, task: Task) -> Mapping[str, str]:
        return {"schema": sql.schema_text(sql.database_of(task), limit_chars=self.schema_chars)}

    def describe(self) -> Mapping[str, Any]:
        files = sorted([*self.folder.glob("*.json"), *self.folder.glob("*.sqlite")])
        return {
            "name": "@NAME@",
            "licence": "?",
            "options": {"schema_chars": self.schema_chars},
            "sha256": {file.name: sql.content_hash(str(file)) for file in files},
        }
'''

TASK_TEST = """\
import json
import sqlite3

import pytest

from harness import TaskSetContract


class TestContract(TaskSetContract):
    task_set = "@NAME@"

    @pytest.fixture(scope="class")
    @classmethod
    def options(cls, tmp_path_factory):
        folder = tmp_path_factory.mktemp("@NAME@")
        connection = sqlite3.connect(folder / "books.sqlite")
        connection.executescript("CREATE TABLE book (title TEXT, year INT); INSERT INTO book VALUES ('Emma', 1815);")
        connection.close()
        rows = [{"question": "How many books are there?", "database": "books", "gold": "SELECT count(*) FROM book"}]
        for split in ("train", "val"):
            (folder / f"{split}.json").write_text(json.dumps(rows))
        return {"folder": str(folder)}
"""

REWARD_CLASS = '''\
"""The reward `@NAME@`: put your judgement in the place of this one."""

from __future__ import annotations

from harness import Attempt, Task, Verdict


class @CLASS@:
    """1 where the answer is the gold to the letter, `otherwise` where it only has its words."""

    version = "@NAME@/1"

    def __init__(self, otherwise: float = 0.1) -> None:
        if not 0 <= otherwise < 1:
            raise ValueError(f"otherwise={otherwise} must be at least 0 and below 1")
        self._otherwise = otherwise

    async def score(self, task: Task, attempt: Attempt) -> Verdict:
        if attempt.outcome != "ok":
            return Verdict(None, f"the attempt ended with {attempt.outcome}")
        answer = (attempt.answer or "").strip()
        if answer == task.gold.strip():
            return Verdict(1.0, "the gold")
        if set(task.gold.lower().split()) == set(answer.lower().split()):
            return Verdict(self._otherwise, "the words of the gold")
        return Verdict(0.0, "not the gold")
'''

REWARD_TEST = """\
import pytest

from harness import RewardContract, Task


class TestContract(RewardContract):
    reward = "@NAME@"

    @pytest.fixture(scope="class")
    @classmethod
    def tasks(cls):
        return [Task("t", "@NAME@", "val", "What is the capital of France?", "Paris")]

    @pytest.fixture(scope="class")
    @classmethod
    def unscorable(cls):
        return []  # tasks whose gold or data are broken
"""

ENVIRONMENT_CLASS = '''\
"""The environment `@NAME@`: put your tools in the place of this one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness import Observation, RolloutError, Task, Tool


class @CLASS@:
    """Words and their meanings, in a JSON file that a task names."""

    tools = (
        Tool(
            "look_up",
            "What a word means.",
            {
                "type": "object",
                "properties": {"word": {"type": "string"}},
                "required": ["word"],
                "additionalProperties": False,
            },
        ),
    )

    def payload(self, task: Task, limits: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"file": task.data["file"], "max_chars": limits["max_chars"]}

    def check(self, payload: Mapping[str, Any]) -> None:
        if not Path(payload["file"]).is_file():
            raise RolloutError(f"no words at {payload['file']}: a runner on another machine needs them at that path")

    async def call(self, payload: Mapping[str, Any], tool: str, arguments: Mapping[str, Any]) -> Observation:
        meanings = json.loads(Path(payload["file"]).read_text(encoding="utf-8"))
        word = arguments["word"]
        if word not in meanings:
            return Observation(f"There is no entry {word!r}.", ok=False)
        return Observation(meanings[word][: payload["max_chars"]])
'''

ENVIRONMENT_TEST = """\
import json

import pytest

from harness import EnvironmentContract, Task


class TestContract(EnvironmentContract):
    environment = "@NAME@"
    calls = (("look_up", {"word": "epoch"}),)

    @pytest.fixture(scope="class")
    @classmethod
    def tasks(cls, tmp_path_factory):
        file = tmp_path_factory.mktemp("@NAME@") / "words.json"
        file.write_text(json.dumps({"epoch": "one pass over all tasks"}))
        gold = "one pass over all tasks of the training split"
        return [Task("t", "words", "val", "What is an epoch?", gold, data={"file": str(file)})]
"""


@dataclass(frozen=True, slots=True)
class Scaffold:
    """The package of one kind of part.

    Attributes:
        kind: As the registry names it.
        what: In the package's description.
        use: A command for what was written, once it is installed.
        module: Where its class is.
        parts: Texts of the class and of the test.
        says: Lines of its spec after those that every spec has.
        imports: Lines that these need besides.
        needs: Distributions that the package needs besides.
        when_read: What its module does not import, and why.
    """

    kind: str
    what: str
    use: str
    module: str
    parts: tuple[str, str]
    says: str = ""
    imports: str = ""
    when_read: str = "This module is read to list plugins, so it imports nothing heavy."
    needs: str = ""


SQL = "import harness_sql as sql\n"
SCAFFOLDS = {
    "agent": Scaffold(
        "agent",
        "the self-correcting SQL agent in ...",
        "harness parity @NAME@",
        "agent",
        (AGENT_CLASS, AGENT_TEST),
        """\
            roles=sql.ROLES,
            program="self_correcting_sql",
            frameworks=(),  # distributions whose versions belong in a run record
""",
        SQL,
        "This module must not import the framework: it is read to list plugins.",
        ', "harness-sql"',
    ),
    "task": Scaffold(
        "task set",
        "the task set @NAME@",
        "harness eval --task @NAME@ --set task.options.folder=FOLDER --endpoint URL --model NAME",
        "tasks",
        (TASK_CLASS, TASK_TEST),
        '            splits=("train", "val"),\n            environment="sql",\n',
        needs=', "harness-sql"',
    ),
    "reward": Scaffold(
        "reward",
        "the reward @NAME@",
        "harness train --set reward.name=@NAME@",
        "reward",
        (REWARD_CLASS, REWARD_TEST),
        "            graded=True,\n",
    ),
    "environment": Scaffold(
        "environment",
        "the environment @NAME@",
        "harness plugins",
        "environment",
        (ENVIRONMENT_CLASS, ENVIRONMENT_TEST),
    ),
}
"""By what `--kind` takes."""
MAX_NAME = 60


def write_package(name: str, folder: Path, kind: str = "agent") -> Path:
    """Write the package `name` below `folder` and return its folder.

    Args:
        kind: One of `SCAFFOLDS`.

    Raises:
        ConfigError: The kind is unknown, the name cannot be a package's or is taken, or the folder exists.
    """
    from harness.plugins import registry

    if kind not in SCAFFOLDS:
        raise ConfigError(f"--kind {kind!r} is none of {', '.join(SCAFFOLDS)}")
    scaffold = SCAFFOLDS[kind]
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        raise ConfigError(f"plugin name {name!r}: use lower-case letters, digits and single underscores, as in my_sql")
    if len(name) > MAX_NAME:
        raise ConfigError(f"plugin name {name[:20]!r}...: {len(name)} characters; use {MAX_NAME} at most")
    of_class, test = scaffold.parts
    class_name = "".join(part.capitalize() for part in name.split("_"))
    if keyword.iskeyword(class_name) or re.search(rf"\b{class_name}\b", of_class):
        raise ConfigError(
            f"plugin name {name!r}: its class would be {class_name}, which means something else there; choose another"
        )
    if any(spec.name == name for spec in registry().specs(scaffold.kind)):
        raise ConfigError(f"plugin name {name!r} is taken by an installed {scaffold.kind}; choose another")
    target = folder / name
    if target.exists():
        raise ConfigError(f"{target} exists already; choose another name or --dir")
    source = target / "src" / f"harness_{name}"
    texts = {
        target / "pyproject.toml": PYPROJECT,
        target / "README.md": README,
        source / "__init__.py": INIT,
        source / f"{scaffold.module}.py": of_class,
        source / "py.typed": "",
        target / "tests" / f"test_{name}.py": test,
    }
    words = {
        "@WHEN_READ@": scaffold.when_read,
        "@IMPORTS@": scaffold.imports,
        "@NEEDS@": scaffold.needs,
        "@SPEC@": f"{scaffold.kind.title().replace(' ', '')}Spec",
        "@HOOK@": f"harness_{kind}s",
        "@MODULE@": scaffold.module,
        "@SAYS@": scaffold.says,
        "@WHAT@": scaffold.what,
        "@USE@": scaffold.use,
        "@NAME@": name,
        "@DASHED@": name.replace("_", "-"),
        "@CLASS@": class_name,
    }
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        for word, value in words.items():
            text = text.replace(word, value)
        path.write_text(text, encoding="utf-8")
    return target
