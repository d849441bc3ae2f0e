"""Plugin discovery: broken, clashing and misspelt plugins never break the others."""

from __future__ import annotations

import re
import sys
import types
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from harness.config import load_config
from harness.contracts.hookspecs import (
    AdapterSpec,
    AgentSpec,
    CommandSpec,
    EnvironmentSpec,
    HarnessHooks,
    LauncherSpec,
    PolicyCatalogueSpec,
    PolicyServerSpec,
    PreparedDataSpec,
    ProgramSpec,
    ProtocolSpec,
    QueueSpec,
    RewardSpec,
    StoreSpec,
    TaskSetSpec,
    TrackerSpec,
    TrainerSpec,
    hookimpl,
)
from harness.errors import ConfigError, PluginError
from harness.plugins import KINDS, Registry, check_fit, is_reference, load, make_reward, registry
from harness.training.checks import check

OWN = EntryPoint("_own", "harness_sql.plugin", "harness")
"""A plugin that is always there, and comes first."""


def _registry(found: list[EntryPoint]) -> Registry:
    return Registry([OWN, *found])


def _plugin(
    monkeypatch: pytest.MonkeyPatch, name: str, api: int = 1, **members: object
) -> EntryPoint:
    module = types.ModuleType(name)
    module.HARNESS_API = api  # type: ignore[attr-defined]
    for key, value in members.items():
        setattr(module, key, value)
    monkeypatch.setitem(sys.modules, name, module)
    return EntryPoint(name, name, "harness")


def _agents(name: str) -> object:
    @hookimpl
    def harness_agents() -> list[AgentSpec]:
        return [
            AgentSpec(name, f"{name}_module:Agent", "an agent", roles=("write_query",), program="p")
        ]

    return harness_agents


def test_a_broken_plugin_is_listed_and_the_others_work(monkeypatch: pytest.MonkeyPatch) -> None:
    good = _plugin(monkeypatch, "good", harness_agents=_agents("good_sql"))
    registry = _registry([EntryPoint("broken", "no_such_module_at_all", "harness"), good])
    problems = {state.name: state.problem for state in registry.states}
    assert problems["good"] is None
    assert "No module named 'no_such_module_at_all'" in str(problems["broken"])
    assert registry.spec("agent", "good_sql", AgentSpec).roles == ("write_query",)
    assert registry.spec("agent", "reference_sql", AgentSpec)
    with pytest.raises(PluginError, match=r"plugin 'broken' failed to import"):
        registry.spec("agent", "broken", AgentSpec)


def test_a_name_clash_is_refused_not_renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = _registry([_plugin(monkeypatch, "thief", harness_agents=_agents("reference_sql"))])
    assert "already offers" in str(registry.states[-1].problem)
    assert registry.owner("agent", "reference_sql") == "_own"


def test_a_misspelt_hook_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = _registry([_plugin(monkeypatch, "typo", harness_agent=_agents("x"))])
    assert "meant harness_agents?" in str(registry.states[-1].problem)


def test_another_api_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = _registry([_plugin(monkeypatch, "old", api=0, harness_agents=_agents("x"))])
    assert "API 0" in str(registry.states[-1].problem)


def test_an_unknown_name_suggests_a_close_one() -> None:
    with pytest.raises(PluginError, match="did you mean 'reference_sql'"):
        _registry([]).spec("agent", "reference_sq", AgentSpec)


def test_a_missing_framework_says_what_to_install() -> None:
    with pytest.raises(PluginError, match="pip install no_such_framework"):
        load(AgentSpec("x_sql", "no_such_framework:Agent", ""))


AGENT = AgentSpec("a_sql", "a.b:C", "", roles=("write",), program="p")
TASKS = TaskSetSpec("t", "t:T", "", environment="e")


def _hook(returns: Callable[[], object]) -> object:
    return hookimpl(lambda: returns())


def _problem(monkeypatch: pytest.MonkeyPatch, api: int = 1, **members: object) -> str | None:
    """What becomes of a plugin, beside one that works."""
    good = _plugin(monkeypatch, "zz_good", harness_agents=_agents("good_sql"))
    found = _registry([_plugin(monkeypatch, "bad", api=api, **members), good])
    problem = found.states[1].problem
    assert found.states[2].problem is None and found.owner("agent", "good_sql") == "zz_good"
    if problem is not None:
        assert "\n" not in problem
        assert not found._manager.has_plugin("bad")
        offered = [(kind, spec.name) for kind in KINDS for spec in found.specs(kind)]
        assert "bad" not in [found.owner(*part) for part in offered]
    return problem


def test_every_hook_has_a_kind_of_part_and_every_kind_of_part_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hooks = {name for name in vars(HarnessHooks) if name.startswith("harness_")}
    assert {hook for hook, _ in KINDS.values()} == hooks
    specs = {
        "harness_environments": EnvironmentSpec("e", "e:E", ""),
        "harness_programs": ProgramSpec("p", "p:P", ""),
        "harness_agents": AGENT,
        "harness_tasks": TASKS,
        "harness_rewards": RewardSpec("r", "r:R", ""),
        "harness_trainers": TrainerSpec("n", "n:N", "", devices=("cpu",)),
        "harness_commands": CommandSpec("runs own-export", "c:app", ""),
        "harness_policy_servers": PolicyServerSpec("served", "s:serve", "", devices=("npu",)),
        "harness_policies": PolicyCatalogueSpec("ours", "p.q:catalogue.yaml", ""),
        "harness_protocols": ProtocolSpec("some-protocol.v2", "o:O", ""),
        "harness_adapters": AdapterSpec("d", "d:adapt", ""),
        "harness_queues": QueueSpec("q", "q:Q", ""),
        "harness_stores": StoreSpec("kept", "k:K", ""),
        "harness_launchers": LauncherSpec("l", "l:L", ""),
        "harness_trackers": TrackerSpec("tracked", "t:export", ""),
        "harness_prepared_data": PreparedDataSpec("t", "t:Data", ""),
    }
    members = {hook: _hook(lambda hook=hook: iter((specs[hook],))) for hook in hooks}
    found = _registry([_plugin(monkeypatch, "all", **members)])
    assert found.states[-1].problem is None
    for kind, (hook, of) in KINDS.items():
        assert found.owner(kind, specs[hook].name) == "all"
        assert found.spec(kind, specs[hook].name, of) is specs[hook]


def test_an_undecorated_hook_is_an_error_and_anything_else_of_that_prefix_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = _problem(monkeypatch, harness_agents=lambda: [AGENT])
    assert plain is not None and "has harness_agents without @hookimpl" in plain
    assert "harness_tasks without @hookimpl" in str(_problem(monkeypatch, harness_tasks=[TASKS]))
    own = {
        "harness_version": "1.2",
        "harness_agent_of": lambda name: name,
        "harness_agents": _agents("x"),
    }
    assert _problem(monkeypatch, **own) is None


def test_a_hook_under_another_name_counts_and_a_misspelt_one_of_that_name_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert (
        _problem(monkeypatch, offers=hookimpl(lambda: [AGENT], specname="harness_agents")) is None
    )
    wrong = _problem(monkeypatch, offers=hookimpl(lambda: [AGENT], specname="harness_rewardz"))
    assert "no hook of that name: harness_rewardz; meant harness_rewards?" in str(wrong)
    assert "declared in the hookimpl" in str(
        _problem(monkeypatch, harness_agents=hookimpl(lambda config: [AGENT]))
    )


def _raises() -> Iterator[AgentSpec]:
    yield AGENT
    raise RuntimeError("half\nway")


def _exits() -> None:
    raise SystemExit(3)


@pytest.mark.parametrize(
    ("hook", "returns", "message"),
    [
        (
            "harness_tasks",
            lambda: [AGENT],
            "harness_tasks must return a list of TaskSetSpec, .*AgentSpec",
        ),
        (
            "harness_agents",
            lambda: "a_sql",
            "harness_agents must return a list of AgentSpec, but .*str 'a_sql'",
        ),
        (
            "harness_agents",
            lambda: ["a_sql"],
            "list of AgentSpec, but returned one with str 'a_sql'",
        ),
        ("harness_agents", lambda: None, "list of AgentSpec, but returned NoneType None"),
        ("harness_agents", lambda: AGENT, "list of AgentSpec, but returned AgentSpec "),
        (
            "harness_agents",
            lambda: {"a_sql": AGENT},
            "list of AgentSpec, but returned one with str",
        ),
        (
            "harness_agents",
            lambda: [AGENT, None],
            "list of AgentSpec, but returned one with NoneType",
        ),
        ("harness_agents", _raises, "list of AgentSpec, but raised RuntimeError: half way"),
        ("harness_trainers", lambda: 1 / 0, "list of TrainerSpec, but raised ZeroDivisionError"),
        ("harness_rewards", _exits, "list of RewardSpec, but raised SystemExit: 3"),
        ("harness_agents", lambda: [AGENT, AGENT], "offers agent 'a_sql' twice in harness_agents"),
    ],
)
def test_what_a_hook_returns_is_checked(
    hook: str, returns: Callable[[], object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = _problem(monkeypatch, **{hook: _hook(returns)})
    assert problem is not None and re.search(message, problem), problem


@pytest.mark.parametrize(
    ("hook", "spec", "message"),
    [
        ("harness_agents", AgentSpec("a sql", "a:B", "", roles=("r",)), "the name 'a sql'"),
        ("harness_agents", AgentSpec("../a", "a:B", "", roles=("r",)), "the name '../a'"),
        ("harness_agents", AgentSpec("", "a:B", "", roles=("r",)), "the name ''"),
        ("harness_agents", AgentSpec(7, "a:B", "", roles=("r",)), "the name 7"),  # type: ignore[arg-type]
        (
            "harness_agents",
            AgentSpec("a", "a.B", "", roles=("r",)),
            "'a.B', not package.module:Name",
        ),
        ("harness_agents", AgentSpec("a", "a:B.c()", "", roles=("r",)), "not package.module:Name"),
        (
            "harness_agents",
            AgentSpec("a", "a:B", "two\nlines", roles=("r",)),
            "not one line of text",
        ),
        (
            "harness_agents",
            AgentSpec("a", "a:B", ""),
            r"roles of 'a' is \(\), not a tuple of different names",
        ),
        ("harness_agents", AgentSpec("a", "a:B", "", roles="write"), "roles of 'a' is 'write'"),  # type: ignore[arg-type]
        ("harness_agents", AgentSpec("a", "a:B", "", roles=("r", "r")), "roles of 'a'"),
        ("harness_agents", AgentSpec("a", "a:B", "", roles=("a/b",)), "roles of 'a'"),
        ("harness_agents", AgentSpec("a", "a:B", "", ("r",), frameworks="x"), "frameworks"),  # type: ignore[arg-type]
        ("harness_tasks", TaskSetSpec("t", "a:B", "", splits=()), "splits of 't'"),
        ("harness_tasks", TaskSetSpec("t", "a:B", "", splits=("dev", "")), "splits of 't'"),
        ("harness_trainers", TrainerSpec("n", "a:B", "", devices=["cpu"]), "devices of 'n'"),  # type: ignore[arg-type]
        ("harness_trainers", TrainerSpec("n", "a:B", "", options="a.B"), "options of 'n' is 'a.B'"),
        (
            "harness_trainers",
            TrainerSpec("n", "a:B", "", devices=("gpu",)),
            "devices of 'n' has 'gpu'. Use some of: cpu",
        ),
        (
            "harness_tasks",
            TaskSetSpec("t", "a:B", "", eval_split="tset"),
            "eval_split of 't' is 'tset'",
        ),
        (
            "harness_tasks",
            TaskSetSpec("t", "a:B", "", reserved=("last",)),
            r"reserved of 't' is \('last',\)",
        ),
        ("harness_tasks", TaskSetSpec("t", "a:B", "", presets={"cpu": "p"}), "presets"),  # type: ignore[arg-type]
        ("harness_tasks", TaskSetSpec("t", "a:B", "", presets=(("gpu", "p"),)), "presets of 't'"),
    ],
)
def test_what_a_spec_says_is_checked(
    hook: str, spec: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = _problem(monkeypatch, **{hook: _hook(lambda: [spec])})
    assert (
        problem is not None and f"{hook} must return" in problem and re.search(message, problem)
    ), problem


def test_a_plugin_that_ends_the_process_while_imported_is_listed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "quitter.py").write_text("raise SystemExit('no licence')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "SystemExit: no licence" in str(
        _registry([EntryPoint("q", "quitter", "harness")]).states[-1].problem
    )


def test_the_same_module_or_name_twice_is_one_plugin(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = (
        _plugin(monkeypatch, name, harness_agents=_agents(f"{name}_sql"))
        for name in ("one", "other")
    )
    found = _registry(
        [one, EntryPoint("two", "one", "harness"), EntryPoint("one", other.value, "harness")]
    )
    assert [state.name for state in found.states if state.problem] == ["one", "two"]
    assert all(
        "is the same as plugin 'one'" in str(state.problem)
        for state in found.states
        if state.problem
    )
    assert found.owner("agent", "one_sql") == "one"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes a plugin the only one beside harness's own, for everything that asks."""

    def install(**members: object) -> None:
        found = _registry([_plugin(monkeypatch, "installed", **members)])
        assert found.states[-1].problem is None
        monkeypatch.setattr("harness.plugins.registry", lambda: found)

    return install


@pytest.mark.parametrize("key", ["train_split", "val_split"])
def test_a_split_that_the_task_set_does_not_declare_is_refused(key: str) -> None:
    config = load_config("cpu", None, [f"task.{key}=test"], agent="reference_sql")
    with pytest.raises(
        ConfigError, match=rf"^task\.{key}: 'pocket' has no split 'test'\. Use one of: train, val$"
    ):
        check(config)


@pytest.mark.parametrize("name", ["spider", "spider_syn", "spider_realistic", "spider_dk", "bird"])
def test_every_split_that_a_prepared_task_set_loads_is_declared(name: str) -> None:
    spec = registry().spec("task set", name, TaskSetSpec)
    tasks = load(spec)
    assert set(spec.splits) == set(tasks.splits) and tasks.name == tasks.layout.name == name


def test_a_device_that_the_trainer_does_not_train_on_is_refused(
    installed: Callable[..., None],
) -> None:
    installed(
        harness_trainers=_hook(
            lambda: [
                TrainerSpec("slow", "harness.contracts.trainers:Trainer", "", devices=("cpu",))
            ]
        )
    )
    settings = ["train.trainer=slow", "device=cuda"]
    config = load_config("cpu", None, settings, agent="reference_sql")
    with pytest.raises(
        ConfigError, match="^device: 'slow' does not train on 'cuda'. Use one of: cpu$"
    ):
        check(config)
    check(config, trains=False)
    config.device = "cpu"
    check(config)


def test_a_program_that_does_not_import_concerns_its_own_agents_alone(
    installed: Callable[..., None],
) -> None:
    broken = ProgramSpec("broken", "no_such_module:Program", "")
    lost = AgentSpec("lost", "lost:Agent", "", roles=("r",), program="broken")
    nowhere = TaskSetSpec("nowhere", "nowhere:Tasks", "", environment="nowhere")
    installed(
        harness_programs=_hook(lambda: [broken]),
        harness_agents=_hook(lambda: [lost]),
        harness_tasks=_hook(lambda: [nowhere]),
    )
    assert is_reference("reference_sql") and not is_reference("langgraph_sql")
    assert not is_reference("lost") and not is_reference("installed_elsewhere")
    with pytest.raises(
        ConfigError, match=r"'nowhere' is about 'nowhere'\. Agents for it: \w+_tools"
    ):
        check_fit("reference_sql", "nowhere")


class Unversioned:
    version = "7"


def test_a_reward_that_does_not_state_its_version_is_refused(
    installed: Callable[..., None],
) -> None:
    installed(harness_rewards=_hook(lambda: [RewardSpec("mine", f"{__name__}:Unversioned", "")]))
    with pytest.raises(
        PluginError, match="^reward 'mine' must state its version as 'mine/1', but has '7'$"
    ):
        make_reward(load_config("cpu", None, ["reward.name=mine"]))
