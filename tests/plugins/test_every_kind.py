"""One discovery for all kinds of parts; a broken part of any kind breaks nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path

import pytest

from harness import plugins
from harness.contracts.hookspecs import AgentSpec
from harness.errors import ConfigError, PluginError
from harness.gateway.protocols import Written, protocols
from harness.plugins import Registry
from harness.policies.servers import server
from harness.rollout.queue_plugin import queue_backend
from harness.rollout.remote_store import remote_queue_type
from harness_sql.cli.prepared import prepared
from harness_study.launchers import launcher

REPO = Path(__file__).resolve().parents[2]
MODULE = """
from harness import (
    AdapterSpec, CommandSpec, LauncherSpec, PolicyCatalogueSpec, PolicyServerSpec,
    PreparedDataSpec, ProtocolSpec, QueueSpec, StoreSpec, TrackerSpec, hookimpl,
)

HARNESS_API = 1


@hookimpl
def harness_commands():
    return [
        CommandSpec("gone", "gone_since:app", "A command that is gone."),
        CommandSpec("runs gone", "gone_since:command", "A subcommand that is gone."),
    ]


@hookimpl
def harness_policy_servers():
    return [PolicyServerSpec("gone", "gone_since:serve", "", devices=("npu",))]


@hookimpl
def harness_policies():
    return [PolicyCatalogueSpec("gone", "gone_since:catalogue.yaml", "")]


@hookimpl
def harness_protocols():
    return [ProtocolSpec("gone", "gone_since:Protocol", "")]


@hookimpl
def harness_adapters():
    return [AdapterSpec("gone", "gone_since:adapt", "")]


@hookimpl
def harness_queues():
    return [QueueSpec("gone", "gone_since:Queue", "")]


@hookimpl
def harness_stores():
    return [StoreSpec("gone", "gone_since:Store", "")]


@hookimpl
def harness_launchers():
    return [LauncherSpec("gone", "gone_since:Launcher", "")]


@hookimpl
def harness_trackers():
    return [TrackerSpec("gone", "gone_since:export", "")]


@hookimpl
def harness_prepared_data():
    return [PreparedDataSpec("gone", "gone_since:Data", "")]
"""
"""A plugin whose every target is gone."""
PROBLEM = "'gone' of harness-hollow failed to import: No module named 'gone_since'"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the plugin, and another whose module cannot be imported."""
    site = tmp_path_factory.mktemp("site")
    (site / "hollow_plugin.py").write_text(MODULE)
    (site / "closed_plugin.py").write_text("raise RuntimeError('closed')\n")
    for name in ("hollow", "closed"):
        metadata = site / f"harness_{name}-0.0.1.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: harness-{name}\nVersion: 0.0.1\n"
        )
        (metadata / "entry_points.txt").write_text(f"[harness]\n{name} = {name}_plugin\n")
    return site


@pytest.fixture
def hollow(site: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    """Make the plugin the only one of this process."""
    monkeypatch.syspath_prepend(site)
    (distribution,) = Distribution.discover(name="harness-hollow", path=[str(site)])
    found = Registry(distribution.entry_points)
    assert [state.problem for state in found.states] == [None]
    monkeypatch.setattr(plugins, "registry", lambda: found)
    return found


def run(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(site), "COLUMNS": "200"}
    command = [sys.executable, "-m", "harness", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_the_command_line_works_beside_broken_parts_of_every_kind(site: Path) -> None:
    done = run(site, "--help")
    assert done.returncode == 0, done.stderr
    assert re.search("gone +A command that is gone", done.stdout)
    assert re.search("study +Run a matrix", done.stdout)
    done = run(site, "runs", "--help")
    assert done.returncode == 0 and "A subcommand that is gone" in done.stdout, done.stderr
    done = run(site, "data", "list")
    assert done.returncode == 0 and re.search(r"gone +broken.*harness-hollow", done.stdout)
    done = run(site, "policy", "list")
    assert done.returncode == 0 and "pocket-sql" in done.stdout
    assert done.stderr == (
        "no policy of 'gone' of harness-hollow is known: there is no package 'gone_since'\n"
    )
    done = run(site, "plugins")
    assert "RuntimeError: closed. Reinstall harness-closed" in done.stdout


@pytest.mark.parametrize(
    "words",
    [
        ("gone",),
        ("gone", "--option"),
        ("runs", "gone"),
        ("runs", "gone", "--option", "x"),
        ("data", "verify", "gone"),
        ("runs", "export", "none", "--to", "gone"),
    ],
)
def test_a_broken_command_names_its_distribution_in_one_line(
    words: tuple[str, ...], site: Path
) -> None:
    done = run(site, *words)
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert "harness-hollow" in done.stderr and "No module named 'gone_since'" in done.stderr


@pytest.mark.parametrize(
    "use",
    [lambda: server("npu"), queue_backend, remote_queue_type, lambda: launcher("gone", {})],
    ids=["policy server", "queue", "store", "launcher"],
)
def test_a_broken_part_names_its_distribution(
    use: Callable[[], object], hollow: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness_study.launchers.registry", lambda: hollow)
    with pytest.raises(PluginError, match=re.escape(PROBLEM)):
        use()


def test_a_call_in_a_broken_protocol_is_refused(hollow: Registry) -> None:
    found = protocols.__wrapped__()
    with pytest.raises(ValueError, match=re.escape(PROBLEM)):
        found["gone"].asked({}, Written())
    assert found["gone"].refused({"error": {"message": "x"}}) == {"error": {"message": "x"}}


def test_a_broken_adapter_is_an_error_of_files_without_solve_only(
    hollow: Registry, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "class Whole:\n    async def solve(self, problem, toolbox): ...\nclass Other: ...\n"
    )

    def spec(name: str) -> AgentSpec:
        target = f"{tmp_path}/mine.py:{name}"
        return AgentSpec(target, target, "", roles=("assistant",), program="tool_loop")

    assert plugins.load(spec("Whole"))
    with pytest.raises(PluginError, match=re.escape(PROBLEM)):
        plugins.load(spec("Other"))


def test_broken_prepared_data_is_listed(hollow: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness_sql.cli.prepared.registry", lambda: hollow)
    state = prepared()["gone"].state()
    assert state["state"] == "broken" and PROBLEM in state["detail"]
    with pytest.raises(PluginError, match=re.escape(PROBLEM)):
        prepared()["gone"].verify()


def test_two_servers_for_one_device_and_two_queues_are_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = "from harness import PolicyServerSpec, QueueSpec, StoreSpec, hookimpl\nHARNESS_API = 1\n"
    for name in ("one", "two"):
        (tmp_path / f"serving_{name}.py").write_text(
            f"{text}\n@hookimpl\ndef harness_policy_servers():\n"
            f"    return [PolicyServerSpec('{name}', 'serving_{name}:serve', '')]\n"
            f"\n@hookimpl\ndef harness_stores():\n"
            f"    return [StoreSpec('{name}', 'serving_{name}:Store', '')]\n"
            f"\n@hookimpl\ndef harness_queues():\n"
            f"    return [QueueSpec('{name}', 'serving_{name}:Queue', '')]\n"
        )
    monkeypatch.syspath_prepend(tmp_path)
    names = ("one", "two")
    found = Registry([EntryPoint(name, f"serving_{name}", "harness") for name in names])
    monkeypatch.setattr(plugins, "registry", lambda: found)
    with pytest.raises(PluginError, match="serving_one:serve and serving_two:serve both serve"):
        server("cpu")
    with pytest.raises(PluginError, match="serving_one:Store and serving_two:Store are both"):
        remote_queue_type()
    with pytest.raises(PluginError, match="serving_one:Queue and serving_two:Queue are all"):
        queue_backend()


def test_an_unknown_launcher_lists_those_of_plugins() -> None:
    with pytest.raises(PluginError, match=r"did you mean 'slurm'\?"):
        launcher("slrum", {})
    with pytest.raises(ConfigError, match="--launch"):
        launcher("local", {"partition": "gpu"})


def test_no_package_declares_another_group_of_entry_points() -> None:
    files = [
        *REPO.glob("*/*/pyproject.toml"),
        *REPO.glob("harness/cli/templates/*/pyproject.toml.txt"),
        REPO / "pyproject.toml",
    ]
    assert len(files) > 30
    groups = {
        group
        for file in files
        for group in tomllib.loads(re.sub("@[A-Z_]+@", "x", file.read_text()))["project"].get(
            "entry-points", {}
        )
    }
    assert groups == {"harness", "verl.plugins", "vllm.general_plugins"}


def test_plugins_are_discovered_in_one_place() -> None:
    found = [
        file.relative_to(REPO).as_posix()
        for folder in ("harness", "plugins", "contrib")
        for file in sorted((REPO / folder).rglob("*.py"))
        if "tests" not in file.parts and "entry_points(" in file.read_text(encoding="utf-8")
    ]
    # The second one looks up exporters of OpenTelemetry.
    assert found == [
        "harness/plugins/__init__.py",
        "plugins/agentlightning_queue/src/harness_agentlightning_queue/otlp_export.py",
    ]


def test_hooks_import_nothing_heavy() -> None:
    code = (
        "import sys; from harness.plugins import registry; print(*[one.problem for one in "
        "registry().states if one.problem]); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    problems, modules = done.stdout.splitlines()
    heavy = {"torch", "verl", "ray", "transformers", "agentlightning", "fastapi", "polars", "typer"}
    assert not problems and not heavy & {*modules.split()}
