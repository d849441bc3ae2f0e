"""Agents in one file: no package, no entry point."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.cli.scaffold import write_file
from harness.config import load_config
from harness.errors import ConfigError, PluginError
from harness.parity.certificate import fingerprint
from harness.plugins import agent_spec, load, registry
from harness.runs.folder import RunFolder
from harness.testing.contract import AgentContract
from harness.util.formatting import agent_label

PLAIN = """\
import helper


class Mine:
    program = "self_correcting_sql"

    async def solve(self, problem, toolbox):
        return helper.ANSWER
"""


def written(folder: Path, text: str = PLAIN, name: str = "mine.py") -> Path:
    file = folder / name
    file.write_text(text, encoding="utf-8")
    (folder / "helper.py").write_text('ANSWER = "SELECT 1"\n', encoding="utf-8")
    return file


def test_a_written_file_states_its_agent_in_at_most_25_lines(tmp_path: Path) -> None:
    file = write_file("my_agent", tmp_path)
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 25
    spec = agent_spec(f"{file}:MyAgent")
    assert spec.program == "self_correcting_sql"
    assert spec.roles == ("write_query", "check_query", "rewrite_query")
    assert spec.strict
    assert spec.frameworks == ("openai",)
    with pytest.raises(ConfigError, match="exists already"):
        write_file("my_agent", tmp_path)


def test_the_command_names_what_comes_next(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harness", "plugins", "new", "my_agent", "--one-file"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "my_agent.py").is_file()
    assert "parity my_agent.py:MyAgent" in done.stdout
    assert "train --agent my_agent.py:MyAgent" in done.stdout


def test_a_specification_is_read_without_importing_the_file(tmp_path: Path) -> None:
    text = PLAIN.replace("import helper", "import a_framework_that_is_not_there")
    file = written(tmp_path, text)
    spec = agent_spec(f"{file}:Mine")
    assert spec.program == "self_correcting_sql"
    with pytest.raises(PluginError, match="a_framework_that_is_not_there"):
        load(spec)


def test_the_loaded_class_has_its_program_s_roles_and_its_folder_s_modules(tmp_path: Path) -> None:
    spec = agent_spec(f"{written(tmp_path)}:Mine")
    agent = load(spec)()
    assert agent.roles == ("write_query", "check_query", "rewrite_query")


def test_a_relative_file_is_the_same_agent_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tmp_path)
    monkeypatch.chdir(tmp_path)
    config = load_config(agent="./mine.py:Mine")
    assert config.agent == f"{file}:Mine"
    monkeypatch.chdir("/")
    assert agent_spec(config.agent).target == f"{file}:Mine"


def test_tables_and_folders_show_the_file_s_name_alone(tmp_path: Path) -> None:
    label = agent_label(f"{tmp_path}/mine.py:Mine")
    assert label == "mine.py:Mine"
    assert agent_label("langgraph_sql") == "langgraph_sql"
    assert "mine.py-Mine" in RunFolder.create(tmp_path, label).path.name


def test_the_identity_changes_with_the_file_and_with_what_it_imports(tmp_path: Path) -> None:
    file = written(tmp_path)
    name = f"{file}:Mine"
    first = fingerprint(name)
    assert first["agent"] == "mine.py:Mine"
    (tmp_path / "unrelated.py").write_text("x = 1\n", encoding="utf-8")
    assert fingerprint(name)["agent_source"] == first["agent_source"]
    (tmp_path / "helper.py").write_text('ANSWER = "SELECT 2"\n', encoding="utf-8")
    second = fingerprint(name)["agent_source"]
    file.write_text(PLAIN + "\n# changed\n", encoding="utf-8")
    third = fingerprint(name)["agent_source"]
    assert len({first["agent_source"], second, third}) == 3


@pytest.mark.parametrize("package", [True, False])
def test_the_identity_has_what_python_imports_where_a_module_and_a_folder_share_a_name(
    package: bool, tmp_path: Path
) -> None:
    name = f"{written(tmp_path)}:Mine"
    folder = tmp_path / "helper"
    folder.mkdir()
    (folder / "notes.txt").write_text("", encoding="utf-8")
    imported = folder / "__init__.py" if package else tmp_path / "helper.py"
    sources = set()
    for number in (1, 2):
        imported.write_text(f'ANSWER = "SELECT {number}"\n', encoding="utf-8")
        sources.add(fingerprint(name)["agent_source"])
    assert len(sources) == 2


def test_a_copy_elsewhere_is_the_same_agent(tmp_path: Path) -> None:
    here, there = tmp_path / "a", tmp_path / "b"
    here.mkdir()
    there.mkdir()
    found = [fingerprint(f"{written(folder)}:Mine") for folder in (here, there)]
    assert found[0] == found[1]
    owners = {registry().owner("agent", f"{folder}/mine.py:Mine") for folder in (here, there)}
    assert len(owners) == 2  # environments of their own


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        (PLAIN, "Other", "defines no 'Other'. Classes there: Mine"),
        ("class Mine(:\n", "Mine", "is not Python"),
        (PLAIN.replace('program = "self_correcting_sql"', "pass"), "Mine", "states no program"),
        (PLAIN.replace('"self_correcting_sql"', '"no_such"'), "Mine", "no_such"),
        (PLAIN.replace("program =", 'roles = "one"\n    program ='), "Mine", "roles is 'one'"),
    ],
)
def test_what_is_wrong_with_a_file_is_one_line(
    tmp_path: Path, text: str, name: str, message: str
) -> None:
    file = written(tmp_path, text)
    with pytest.raises(PluginError, match=message) as raised:
        agent_spec(f"{file}:{name}")
    assert "\n" not in str(raised.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match=r"cannot read the agent's file .*absent\.py"):
        agent_spec(f"{tmp_path}/absent.py:Mine")


def test_a_class_that_no_plugin_runs_says_what_is_missing(tmp_path: Path) -> None:
    file = written(tmp_path, "class Mine:\n    program = 'tool_loop'\n")
    with pytest.raises(PluginError, match="has no `async def solve"):
        load(agent_spec(f"{file}:Mine"))


def test_the_program_may_stand_behind_the_name(tmp_path: Path) -> None:
    file = written(tmp_path, "def mine(task, llm):\n    return 1.0\n")
    spec = agent_spec(f"{file}:mine@tool_loop")
    assert (spec.program, spec.roles, spec.strict) == ("tool_loop", ("assistant",), False)


class TestContract(AgentContract):
    """The file that the command writes passes the contract unchanged."""

    agent = ""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def in_a_file(cls, tmp_path_factory: pytest.TempPathFactory) -> None:
        file = write_file("my_agent", tmp_path_factory.mktemp("one_file"))
        cls.agent = f"{file}:MyAgent"
