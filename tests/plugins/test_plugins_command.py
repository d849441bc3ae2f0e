"""`harness plugins`: the list, its speed, broken and missing plugins, environments of their own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harness import plugins
from harness.cli import app
from harness.cli.plugins import sources
from harness.cli.scaffold import write_package
from harness.errors import ConfigError, EnvironmentProblem
from harness.plugins.discovery import Registry
from harness.rollout import environments
from harness.rollout.queue_plugin import queue_spec


def fake_plugin(site: Path, name: str, module: str, body: str) -> None:
    """Lay out an installed distribution by hand."""
    metadata = site / f"harness_{name}-0.0.1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: harness-{name}\nVersion: 0.0.1\n"
    )
    (metadata / "entry_points.txt").write_text(f"[harness]\n{name} = {module}\n")
    (site / f"{module}.py").write_text(body)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    fake_plugin(
        site, "broken", "broken_plugin", "import a_framework_that_is_not_there\nHARNESS_API = 1\n"
    )
    spec = "AgentSpec('absent', 'absent_plugin:Agent', 'x', roles=('r',), frameworks=('no-such-framework',), program='p')"
    body = "from harness.contracts.hookspecs import AgentSpec, hookimpl\nHARNESS_API = 1\n"
    body += f"@hookimpl\ndef harness_agents():\n    return [{spec}]\n"
    fake_plugin(site, "absent", "absent_plugin", body)
    fake_plugin(site, "old", "old_plugin", "HARNESS_API = 0\n")
    return site


def run(
    *arguments: str, site: Path | None = None, cache: Path | None = None
) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if site is not None:
        environment["PYTHONPATH"] = str(site)
    if cache is not None:
        environment["HARNESS_CACHE_DIR"] = str(cache)
    command = [sys.executable, "-m", "harness", "plugins", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_broken_missing_and_outdated_plugins_are_listed_beside_working_ones(site: Path) -> None:
    done = run("--json", site=site)
    assert done.returncode == 0, done.stderr
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert rows["sql"]["usable"]
    assert "No module named 'a_framework_that_is_not_there'" in rows["broken"]["state"]
    assert rows["absent"]["state"] == "needs no-such-framework: pip install no-such-framework"
    assert "harness API 0" in rows["old"]["state"]
    assert not any(rows[name]["usable"] for name in ("broken", "absent", "old"))
    assert "command data" in rows["sql"]["offers"] and {
        "protocol messages",
        "protocol responses",
    } <= {*rows["gateway_protocols"]["offers"]}
    assert (
        "policy server policy_server" in rows["policy_server"]["offers"]
        and "tracker mlflow" in rows["trackers"]["offers"]
    )


@pytest.mark.slow
def test_list_is_quick_and_imports_no_framework(site: Path) -> None:
    took = []
    for _ in range(3):
        began = time.perf_counter()
        assert run(site=site).returncode == 0
        took.append(time.perf_counter() - began)
    busy = os.getloadavg()[0] > (os.cpu_count() or 1)
    assert min(took) < (5.0 if busy else 1.0)
    code = "import sys; from harness.cli.plugins import list_plugins; list_plugins(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for framework in (
        "langgraph",
        "langchain_openai",
        "crewai",
        "autogen_agentchat",
        "agents",
        "agent_framework",
        "pydantic_ai",
        "smolagents",
        "deepagents",
        "torch",
        "openai",
    ):
        assert framework not in done.stdout.split()


def test_what_a_new_plugin_is_used_with_is_there(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "harness", "plugins", "new", "my_sql", "--dir", str(tmp_path)]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PATH": "/usr/bin:/bin"},
    )
    target, *lines = (line.strip() for line in done.stdout.splitlines())
    assert target == str(tmp_path / "my_sql") and len(lines) == 3
    assert lines[0].endswith(f" -e {target}") and f"--python {sys.executable} " in lines[0]
    assert lines[1:] == [
        f"{sys.executable} -m pytest {target}",
        f"{sys.executable} -m harness parity my_sql",
    ]
    for line in lines:
        assert shutil.which(line.split()[0], path="/usr/bin:/bin"), line


def test_an_environment_has_the_plugins_that_its_own_needs() -> None:
    assert sources("harness-verl") == [
        "agent-rl-harness",
        "harness-policy-server",
        "harness-trackers",
        "harness-verl",
    ]
    programs = ["harness-sql", "harness-dialogues", "harness-teams"]
    assert sources("harness-crewai-sql") == ["agent-rl-harness", *programs, "harness-crewai-sql"]
    assert sources("not-installed") == ["agent-rl-harness", "not-installed"]


def test_an_environment_has_the_queue_that_its_runners_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    built: list[str] = []

    def sync(plugin: str, requirements: list[str]) -> str:
        built.extend([plugin, *requirements])
        return "python"

    monkeypatch.setattr(environments, "sync", sync)
    done = CliRunner().invoke(app, ["plugins", "sync", "langgraph_sql", "--with", "further"])
    assert done.exit_code == 0, done.output
    names = [Path(one).name for one in built]
    assert names[0] == "langgraph_sql" and names[-1] == "further"
    assert names.count("agentlightning_queue") == 1 and names.count("sql") == 1


def test_python_for_follows_the_record_and_survives_its_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path))
    assert environments.python_for("crewai_sql") == sys.executable
    folder = tmp_path / "environments" / "crewai_sql"
    folder.mkdir(parents=True)
    python = folder / "python"
    python.touch()
    (folder / "environment.json").write_text(json.dumps({"python": str(python)}))
    assert environments.python_for("crewai_sql") == str(python)
    python.unlink()
    assert environments.python_for("crewai_sql") == sys.executable
    assert environments.drop("crewai_sql") and not environments.drop("crewai_sql")


def test_an_own_environment_without_the_queue_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(plugins, "registry", lambda: Registry([]))
    with pytest.raises(EnvironmentProblem, match="harness-agentlightning-queue. Install it: "):
        queue_spec()
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "environments" / "crewai_sql" / "venv"))
    with pytest.raises(EnvironmentProblem, match="lacks it: harness plugins sync crewai_sql"):
        queue_spec()


def test_a_failed_sync_says_why_and_leaves_no_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path))
    with pytest.raises(EnvironmentProblem, match="'crewai_sql'"):
        environments.sync("crewai_sql", [str(tmp_path / "no-such-wheel.whl")])
    assert environments.python_for("crewai_sql") == sys.executable


@pytest.mark.parametrize(
    "name", ["My_sql", "1st", "a-b", "a__b", "", "reference_sql", "none", "toolbox", "a" * 300]
)
def test_names_that_cannot_be_a_plugins_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="plugin name"):
        write_package(name, tmp_path)


@pytest.mark.parametrize(
    ("kind", "name"), [("task", "pocket"), ("reward", "judge"), ("environment", "mcp")]
)
def test_a_name_is_taken_among_parts_of_its_kind(kind: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"plugin name '{name}' is taken by an installed {kind}"):
        write_package(name, tmp_path, kind)
    assert write_package(name, tmp_path).is_dir()


def test_a_package_cannot_be_called_as_one_that_is_installed(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match="plugin name 'policy_server' is taken by an installed reward or package"
    ):
        write_package("policy_server", tmp_path, "reward")


def test_an_unknown_kind_is_refused_in_one_line(tmp_path: Path) -> None:
    done = run("new", "mine", "--kind", "rewards", "--dir", str(tmp_path))
    assert (
        done.returncode == 2
        and "--kind 'rewards' is none of agent, task, reward, environment" in done.stderr
    )


def test_an_existing_folder_is_left_alone(tmp_path: Path) -> None:
    write_package("my_sql", tmp_path)
    with pytest.raises(ConfigError, match="exists already"):
        write_package("my_sql", tmp_path)


def test_without_any_plugin_the_list_says_how_to_install_some(
    command: Callable[..., subprocess.CompletedProcess[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.cli.plugins.list_plugins", list)
    done = command("plugins")
    assert done.returncode == 0, done.stderr
    assert "none installed. To install what comes with harness: " in done.stderr
