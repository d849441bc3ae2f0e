"""Plugin discovery: broken, clashing and misspelt plugins never break the others."""

from __future__ import annotations

import sys
import types
from importlib.metadata import EntryPoint

import pytest

from harness.errors import PluginError
from harness.hookspecs import AgentSpec, hookimpl
from harness.plugins import Registry, load


def _plugin(monkeypatch: pytest.MonkeyPatch, name: str, api: int = 1, **members: object) -> EntryPoint:
    module = types.ModuleType(name)
    module.HARNESS_API = api  # type: ignore[attr-defined]
    for key, value in members.items():
        setattr(module, key, value)
    monkeypatch.setitem(sys.modules, name, module)
    return EntryPoint(name, name, "harness")


def _agents(name: str) -> object:
    @hookimpl
    def harness_agents() -> list[AgentSpec]:
        return [AgentSpec(name, f"{name}_module:Agent", "an agent", roles=("write_query",))]

    return harness_agents


def test_a_broken_plugin_is_listed_and_the_others_work(monkeypatch: pytest.MonkeyPatch) -> None:
    good = _plugin(monkeypatch, "good", harness_agents=_agents("good_sql"))
    registry = Registry([EntryPoint("broken", "no_such_module_at_all", "harness"), good])
    problems = {state.name: state.problem for state in registry.states}
    assert problems["good"] is None
    assert "No module named 'no_such_module_at_all'" in str(problems["broken"])
    assert registry.spec("agent", "good_sql", AgentSpec).roles == ("write_query",)
    assert registry.spec("agent", "reference_sql", AgentSpec)
    with pytest.raises(PluginError, match=r"plugin 'broken' failed to import"):
        registry.spec("agent", "broken", AgentSpec)


def test_a_name_clash_is_refused_not_renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry([_plugin(monkeypatch, "thief", harness_agents=_agents("reference_sql"))])
    assert "already offers" in str(registry.states[-1].problem)
    assert registry.owner("agent", "reference_sql") == "builtin"


def test_a_misspelt_hook_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry([_plugin(monkeypatch, "typo", harness_agent=_agents("x"))])
    assert "meant harness_agents?" in str(registry.states[-1].problem)


def test_another_api_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry([_plugin(monkeypatch, "old", api=0, harness_agents=_agents("x"))])
    assert "API 0" in str(registry.states[-1].problem)


def test_an_unknown_name_suggests_a_close_one() -> None:
    with pytest.raises(PluginError, match="did you mean 'reference_sql'"):
        Registry([]).spec("agent", "reference_sq", AgentSpec)


def test_a_missing_framework_says_what_to_install() -> None:
    with pytest.raises(PluginError, match="pip install no_such_framework"):
        load(AgentSpec("x_sql", "no_such_framework:Agent", ""))
