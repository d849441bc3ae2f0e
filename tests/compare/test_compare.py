"""`harness compare`, `runs` and `power` on real run folders of known accuracy."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import polars as pl
import pytest
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner

from harness.api import evaluating
from harness.api.summaries import facts
from harness.cli import app as command_line
from harness.compare.columns import Table
from harness.compare.comparison import compare
from harness.compare.estimates import seeds_for_equivalence
from harness.compare.formats import render, show, show_table
from harness.compare.keys import Arm, Comparison, Pair
from harness.compare.layout import tables
from harness.compare.measures import framework_s
from harness.compare.numbers import known_digits
from harness.compare.references import reference_rows
from harness.compare.selection import select
from harness.errors import NotComparable, UserError
from harness.runs.folder import RunFolder
from harness.runs.reading import read_run
from harness.runs.record_types import COSTS_ONLY
from harness.runs.schema import Shadow

from .synthetic import SHADOW, certificate

Write = Callable[..., Any]


def arm(comparison: Comparison, name: str) -> Arm:
    return next(one for one in comparison["arms"] if one["name"] == name)


def pair(comparison: Comparison, name: str) -> Pair:
    return next(one for one in comparison["pairs"] if one["arm"] == name)


@pytest.fixture(scope="module")
def compared(three_arms: Path) -> Comparison:
    return compare(select([three_arms]), "reference_sql", margin=0.15)


@pytest.mark.slow
def test_another_plugin_is_accepted_and_the_verdict_follows_the_truth(compared: Comparison) -> None:
    assert pair(compared, "crewai_sql")["verdict"] == "different"
    assert pair(compared, "crewai_sql")["difference"]["mean"] == pytest.approx(-0.55, abs=0.08)
    assert pair(compared, "langgraph_sql")["verdict"] != "different"
    assert all(one["p_holm"] >= one["p"] for one in compared["pairs"])
    assert compared["checkpoint_rule"] == "last" and not compared["one_seed"]


def test_members_at_once_take_time_once_and_a_handoff_is_no_tool() -> None:
    """A planner, two workers nearly at once inside a handoff, a tool of 0.2 s, and the planner again."""
    calls = [("one", 10.0, 1.0), ("one", 11.1, 1.0), ("one", 11.2, 1.0), ("one", 12.5, 0.5)]
    tools = [{"started_s": 11.05, "elapsed_s": 1.4}, {"started_s": 12.25, "elapsed_s": 0.2}]
    rows = {
        "attempt_id": ["one", "unasked"],
        "elapsed_s": [3.1, 1.0],
        "tool_calls": [json.dumps(tools), None],
    }
    run: Any = SimpleNamespace(
        episodes=pl.DataFrame(rows),
        transitions=pl.DataFrame(
            calls, schema=["attempt_id", "started_s", "latency_s"], orient="row"
        ),
    )
    found = framework_s(run)
    assert found is not None and found.to_list() == [
        pytest.approx(3.1 - 1.0 - 1.1 - 0.2 - 0.5),
        None,
    ]


def test_figures_of_an_arm_are_those_of_its_rollouts(compared: Comparison) -> None:
    reference, langgraph = arm(compared, "reference_sql"), arm(compared, "langgraph_sql")
    assert reference["transitions_per_rollout"] == 3 and langgraph["transitions_per_rollout"] == 2
    assert reference["prompt_tokens_per_rollout"] == 80 + 100 + 120
    assert reference["response_tokens_per_rollout"] == 10 + 11 + 12
    assert reference["step_s"] == 2.0 and reference["gpu_hours"] is None
    shares = {"rollout": 0.5, "update": 0.35, "weights": 0.05, "other": 0.1}
    assert reference["shares"] == pytest.approx(shares)
    assert reference["overhead_ms_per_call"] == pytest.approx(6.0, abs=0.01)
    assert reference["gateway_ms_per_call"] == pytest.approx(0.5)
    assert reference["steps"] == 4 and reference["seeds"] == [0, 1, 2]
    # 4 steps of 4 tasks in groups of 2; `write` is searched, so it also trains rewrite_query.
    assert reference["trained_by_role"] == {
        "rewrite_query": {"transitions": 32, "tokens": 32 * 12},
        "write_query": {"transitions": 32, "tokens": 32 * 10},
    }
    assert langgraph["trained_by_role"] == {"write_query": {"transitions": 32, "tokens": 320}}


def test_unscored_is_never_zero_and_failed_runs_are_told(compared: Comparison) -> None:
    crewai = arm(compared, "crewai_sql")
    assert crewai["unscored"] == 9 and crewai["failures"]["endpoint_error"] == 9
    assert (
        crewai["accuracy_final"]["tasks"] <= 120 and crewai["accuracy_final"]["scores"] == 3 * 117
    )
    assert any(
        "9 of 1080 validation rollouts could not be scored" in remark
        for remark in compared["remarks"]
    )
    (failed,) = compared["failed"]
    assert failed["arm"] == "autogen_sql" and "server went away" in failed["reason"]


def test_a_named_folder_without_a_run_is_refused(three_arms: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"No run.json in {tmp_path}, nor"):
        select([three_arms, tmp_path])


def test_parts_of_the_reward_are_means_of_those_that_have_them(
    write_run: Write, compared: Comparison
) -> None:
    assert "reward_parts" not in {table.key for table in tables(compared)}
    run = write_run("langgraph_sql", parts=True, unscored=3)
    plain = write_run("reference_sql")
    found = compare(select([run.path, plain.path]))
    graded, bare = found["arms"]
    right = graded["accuracy_final"]["mean"]
    assert (
        graded["reward_parts"] == {"right": pytest.approx(right), "style": 0.25}
        and bare["reward_parts"] == {}
    )
    (table,) = (table for table in tables(found) if table.key == "reward_parts")
    assert (table.title, table.heads) == ("Parts of the reward", ["arm", "right", "style"])
    assert table.rows == [["langgraph_sql", f"{right:.3f}", "0.250"], ["reference_sql", "-", "-"]]


def test_equal_optimizer_steps_and_tokens_look_at_earlier_checkpoints(compared: Comparison) -> None:
    views = {view["key"]: view for view in compared["views"]}
    assert views["stock"]["budget"] is None
    # 16 calls a step in mini-batches of 4 x 2 = 8 sequences: two optimizer steps; langgraph trains half of it.
    assert views["equal_optimizer_steps"]["budget"] == 4
    assert views["equal_optimizer_steps"]["arms"]["reference_sql"]["steps"] == [2, 2, 2]
    assert views["equal_optimizer_steps"]["arms"]["langgraph_sql"]["steps"] == [4, 4, 4]
    # 176 tokens a step against 80: at 320 tokens the reference has done one step, validated at 0.
    assert views["equal_trained_tokens"]["budget"] == 320
    assert views["equal_trained_tokens"]["arms"]["reference_sql"]["steps"] == [0, 0, 0]


def test_dealt_out_by_rollout_more_calls_are_no_more_optimizer_steps(write_run: Write) -> None:
    from harness.compare.amounts import optimizer_steps

    one, other = write_run(), write_run("langgraph_sql", calls=2)
    few, many = (optimizer_steps(run) for run in select([one.path, other.path]).runs)
    assert [steps for _, steps, _ in few] == [steps for _, steps, _ in many]
    assert few[-1][2] != many[-1][2]  # though they train on other numbers of tokens


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("max_turns=3", "max_turns"),
        ("sampling.temperature=0.7", "sampling_train.temperature"),
        ("sampling.max_response_tokens=32", "sampling_train.max_tokens"),
        ("train.learning_rate=1e-5", "train.learning_rate"),
        ("task.train_limit=20", "data_order"),
        ("sandbox.max_rows=9", "sandbox.max_rows"),
    ],
)
def test_runs_that_differ_in_what_must_be_identical_are_refused(
    write_run: Write, override: str, key: str
) -> None:
    one, other = write_run(), write_run("langgraph_sql", overrides=[override])
    chosen = select([one.path, other.path])
    with pytest.raises(NotComparable) as caught:
        compare(chosen)
    *lines, advice = str(caught.value).splitlines()
    text = "\n".join(lines or [advice])
    assert f"{key} differs: " in text and str(one.path) in text and str(other.path) in text
    assert f"--allow {key.partition('.')[0]}" in advice and compare(
        chosen, allow=re.findall(r"--allow (\S+)", advice)
    )


def test_options_that_change_time_and_memory_only_may_differ(write_run: Write) -> None:
    one, other = write_run(), write_run("langgraph_sql")
    # As in records from before these options were left out of the identity.
    record = json.loads((other.path / "run.json").read_text())
    for option in COSTS_ONLY:
        record["identity"]["verl"][option] = "set"
    (other.path / "run.json").write_text(json.dumps(record))
    assert compare(select([one.path, other.path]))["pairs"]

    record["identity"]["verl"]["actor_rollout_ref.rollout.top_k"] = 3
    (other.path / "run.json").write_text(json.dumps(record))
    with pytest.raises(NotComparable, match=r"^verl\.actor_rollout_ref\.rollout\.top_k differs"):
        compare(select([one.path, other.path]))


@pytest.mark.parametrize(
    ("key", "overrides"),
    [("train.learning_rate", ["train.learning_rate=1e-5"]), ("agent_match", [])],
)
def test_trainings_of_one_arm_may_not_differ_in_what_its_study_varies(
    write_run: Write, key: str, overrides: list[str]
) -> None:
    base = [write_run(seed=seed) for seed in range(3)]
    before = [write_run(seed=seed, overrides=["train.learning_rate=1e-3"]) for seed in range(2)]
    after = write_run(
        seed=2,
        overrides=overrides or ["train.learning_rate=1e-3"],
        agent_match="write" if overrides else ".",
    )
    chosen = select([run.path for run in (*base, *before, after)])
    chosen.varied = ["train.learning_rate", "agent_match"]
    for at, run in enumerate(chosen.runs):
        run.arm = "first" if at < len(base) else "second"
    with pytest.raises(
        NotComparable, match=rf"^{key.replace('.', '[.]')} differs: .* --allow {key}$"
    ):
        compare(chosen)
    assert compare(chosen, allow=[key])["pairs"][0]["arm"] == "second"


@pytest.mark.parametrize("kind", ["train", "eval"])
@pytest.mark.parametrize("key", ["max_turns", "agent_match"])
def test_a_setting_that_changed_between_two_seeds_of_an_arm_is_refused(
    write_run: Write, kind: str, key: str
) -> None:
    other: dict[str, Any] = {"overrides": ["max_turns=3"]}
    if key == "agent_match":
        other = {"agent_match": "check"}
    base = [write_run(seed=seed, kind=kind, model=f"base {seed}") for seed in range(2)]
    before = write_run(seed=1, kind=kind, model="second 1")
    after = write_run(seed=0, kind=kind, model="second 0", **other)
    chosen = select([run.path for run in (*base, before, after)])
    chosen.varied = ["max_turns", "agent_match", "policy"]
    for place, run in enumerate(chosen.runs):
        run.arm = "first" if place < len(base) else "second"
    with pytest.raises(NotComparable, match=f"{key} differs: "):
        compare(chosen, allow=["model"])
    allowed = compare(chosen, allow=["model", key])
    exceptions = {exempt["key"]: exempt["why"] for exempt in allowed["exceptions"]}
    assert exceptions[key] == "allowed"


def test_policies_follow_the_seeds_of_evaluations_and_of_single_roles(write_run: Write) -> None:
    evaluated = []
    for agent in ("reference_sql", "langgraph_sql"):
        # The trainings of the first two seeds ended with equal weights.
        for seed, model in enumerate(("same", "same", f"{agent} 2")):
            run = write_run(agent, seed, kind="eval", model=model)
            run.update(parent={"run": f"{agent}-{seed}", "step": 4})
            evaluated.append(run.path)
    chosen = select(evaluated)
    chosen.varied = ["policy"]
    assert compare(chosen)["pairs"][0]["difference"]["seeds"] == 3

    trained = []
    for seed in range(2):
        trained.append(write_run("reference_sql", seed))
        folder = write_run("langgraph_sql", seed)
        record = folder.read()
        record["identity"]["role_models"] = {"check_query": f"policy of seed {seed}"}
        folder.write(record)
        trained.append(folder)
    chosen = select([run.path for run in trained])
    chosen.varied = ["roles.check_query.policy"]
    assert compare(chosen)["pairs"][0]["difference"]["seeds"] == 2


def test_trainings_of_an_arm_with_a_policy_per_seed_need_permission(write_run: Write) -> None:
    runs = []
    for seed in range(2):
        runs.append(write_run("reference_sql", seed, model="same").path)
        runs.append(write_run("langgraph_sql", seed, model=f"policy {seed}").path)
    chosen = select(runs)
    chosen.varied = ["policy.path"]
    with pytest.raises(NotComparable, match="^model differs: .* --allow model$"):
        compare(chosen)


def test_of_two_trainings_of_one_seed_the_newer_counts_whatever_is_named_first(
    write_run: Write,
) -> None:
    older, newer = sorted(
        (write_run(), write_run(accuracy=(0.3, 0.9))), key=lambda run: run.path.name
    )
    for paths in ([older.path, newer.path], [newer.path, older.path]):
        found = compare(select(paths))
        assert f"{older.path.name} is left out for the newer {newer.path.name}." in " ".join(
            found["remarks"]
        )
        assert list(found["identity"]) == [newer.path.name]
        (left_out,) = found["failed"]
        assert (left_out["run"], left_out["reason"]) == (
            older.path.name,
            f"same arm and seed as the newer run {newer.path.name}",
        )


def test_a_finished_run_of_which_nothing_was_scored_is_said_to_be_so(write_run: Write) -> None:
    good, none = write_run(), write_run("langgraph_sql", unscored=60)
    (failed,) = compare(select([good.path, none.path]))["failed"]
    assert failed["reason"] == "nothing of its last validation was scored"


def test_all_that_differs_is_told_at_once_by_what_it_is_about(
    write_run: Write, tmp_path: Path
) -> None:
    overrides = [
        "train.learning_rate=1e-5",
        "sampling.max_response_tokens=32",
        "task.val_limit=20",
        "verl.x=1",
    ]
    for seed in (0, 1):
        write_run(seed=seed)
        write_run("langgraph_sql", seed=seed, overrides=overrides)
    with pytest.raises(NotComparable) as caught:
        compare(select([tmp_path / "runs"]))
    head, *lines, advice = str(caught.value).splitlines()
    assert head == "the runs differ in 5 keys that must be the same"
    assert [line for line in lines if line.endswith(":")] == ["task set:", "sampling:", "training:"]
    runs = select([tmp_path / "runs"]).runs
    first, second = (
        " and ".join(run.name for run in runs if run.record["agent"] == name)
        for name in ("reference_sql", "langgraph_sql")
    )
    (line,) = (line for line in lines if line.startswith("  train.learning_rate differs: "))
    assert f"1e-05 in {second}" in line and f" in {first}" in line
    allowed = "val_tasks sampling_train.max_tokens sampling_val.max_tokens train.learning_rate verl.x".split()
    assert re.findall(r"--allow (\S+)", advice) == allowed


def test_other_questions_are_named_by_task_set_split_and_number(write_run: Write) -> None:
    one, fewer, others, order = (
        write_run(name, kind="eval") for name in ("reference_sql", *3 * ["langgraph_sql"])
    )
    record = fewer.read()
    record["identity"]["val_tasks"], record["tasks"]["val"] = "00c0ffee00c0ffee", 20
    fewer.write(record)
    with pytest.raises(
        NotComparable,
        match=r"60 questions of pocket/val \(\w{8}\) in .*, 20 .*/val \(00c0ffee\) in \S+\.",
    ):
        compare(select([one.path, fewer.path]))
    assert "20 questions of pocket/val (00c0ffee)" in render(
        compare(select([one.path, fewer.path]), allow=["val_tasks"]), "md"
    )
    record = others.read()
    record["identity"]["val_tasks"] = "ab" * 8
    others.write(record)
    with pytest.raises(
        NotComparable,
        match=r"60 .* 60 questions of pocket/val \(abababab\) in \S+: as many, but others\.",
    ):
        compare(select([one.path, others.path]))
    record = order.read()
    record["identity"]["task_set"] = {"name": "medical", "sha256": {"val.parquet": "cd" * 32}}
    order.write(record)
    with pytest.raises(
        NotComparable, match=r"^task_set\.name differs: 'pocket' .* --allow task_set$"
    ):
        compare(select([one.path, order.path]))


@pytest.mark.slow
@pytest.mark.parametrize("credit", ["shared", "turn", "role"])
def test_arms_of_trained_roles_compare_whatever_the_credit(write_run: Write, credit: str) -> None:
    runs = [
        write_run("reference_sql", agent_match=match, overrides=[f"train.credit={credit}"])
        for match in ("write", "check|rewrite", "")
    ]
    found = compare(select([run.path for run in runs]))
    assert len(found["arms"]) == 3 and not found["exceptions"]
    other = write_run(
        "reference_sql",
        agent_match=".",
        overrides=[f"train.credit={'role' if credit == 'turn' else 'turn'}"],
    )
    with pytest.raises(
        NotComparable, match=r"^train\.credit differs: .* say --allow train\.credit$"
    ):
        compare(select([runs[0].path, other.path]))
    assert (
        compare(select([runs[0].path, other.path]), allow=["train.credit"])["exceptions"][0]["key"]
        == "train.credit"
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("program", "tool_loop"),
        ("prompts", "another"),
        ("reward", "execution_accuracy/0"),
        ("model", "b"),
    ],
)
def test_another_prompt_evaluator_or_model_is_refused_and_allow_is_recorded(
    write_run: Write, key: str, value: str
) -> None:
    one, other = write_run(), write_run("langgraph_sql")
    record = other.read()
    old = record["identity"][key]
    record["identity"][key] = value
    other.write(record)
    with pytest.raises(NotComparable, match=f"^{key} differs: {old!r} in .*, {value!r} in "):
        compare(select([one.path, other.path]))
    found = compare(select([one.path, other.path]), allow=[key])
    assert found["exceptions"] == [
        {"key": key, "why": "allowed", "values": {one.id: old, other.id: value}}
    ]
    assert "allowed by --allow" in render(found, "md")


def test_a_cpu_and_a_gpu_run_are_refused_by_the_options_of_their_presets_and_then_named_by_device(
    write_run: Write,
) -> None:
    verl = "verl.actor_rollout_ref.rollout"
    one = write_run()
    other = write_run(
        overrides=[f"{verl}.enforce_eager=true", f"{verl}.max_num_seqs=256", "rollout.runners=8"]
    )
    other.update(device="cuda")
    with pytest.raises(
        NotComparable,
        match=r"(?s)  verl\.\S+ differs: not set in .* say --allow verl --allow device$",
    ):
        compare(select([one.path, other.path]))
    found = compare(select([one.path, other.path]), allow=["verl", "device"])
    assert [arm["name"] for arm in found["arms"]] == [
        "reference_sql on cpu",
        "reference_sql on cuda",
    ]
    assert {exception["key"] for exception in found["exceptions"]} == {
        f"{verl}.enforce_eager",
        f"{verl}.max_num_seqs",
        "device",
    }
    note = "two runs of one agent may also give less than 100"
    assert note in render(found, "md") and note not in render(
        compare(select([one.path, write_run().path])), "md"
    )
    slower = write_run("langgraph_sql", overrides=["rollout.runners=4"])  # not by the device alone
    names = [
        arm["name"]
        for arm in compare(select([one.path, other.path, slower.path]), allow=["verl", "device"])[
            "arms"
        ]
    ]
    assert names == [
        "reference_sql on cpu runners=1",
        "reference_sql on cuda runners=8",
        "langgraph_sql on cpu runners=4",
    ]


def test_arms_of_many_settings_have_short_names_and_a_remark_on_the_others(
    write_run: Write,
) -> None:
    many = [
        "max_turns=3",
        "train.learning_rate=0.0003",
        "sampling.temperature=0.7",
        "reward.concurrency=3",
        "rollout.runners=2",
    ]
    # A third and a fourth arm: with only two, no value would be the usual one.
    arms = ([], ["train.learning_rate=0.0001"], many, ["rollout.retries=3", "rollout.runners=2"])
    runs = [write_run(overrides=overrides, val_limit=20).path for overrides in arms]
    chosen = select(runs)
    assert [run.arm for run in chosen.runs] == [
        "reference_sql usual settings",
        "reference_sql learning_rate=0.0001",
        "reference_sql max_turns=3 temperature=0.7 learning_rate=0.0003",
        "reference_sql retries=3",
    ]
    allow = ["train", "max_turns", "sampling_train", "rollout_retries"]
    found = compare(chosen, allow=allow, baseline="reference_sql usual settings")
    usual, left_out = [text for text in found["remarks"] if "ames" in text]
    assert usual.endswith(
        "most arms have: max_turns=2, temperature=1.0, retries=1, learning_rate=0.0002."
    )
    assert "names: reward.concurrency (None, 3); rollout.runners (1, 2). `harness" in left_out
    with pytest.raises(UserError, match=r"'reference_sql' is in 4 arms\. Name one of them"):
        compare(chosen, allow=allow, baseline="reference_sql")
    # Two arms that differ in as much keep settings enough to tell them apart.
    assert [run.arm for run in select(runs[::2]).runs] == [
        "reference_sql max_turns=2 temperature=1.0 learning_rate=0.0002",
        "reference_sql max_turns=3 temperature=0.7 learning_rate=0.0003",
    ]


def test_settings_with_one_last_word_are_told_apart_and_long_values_cut(write_run: Write) -> None:
    same = ["rollout.concurrency=3", "reward.concurrency=2"]
    paths = [f"policy.path=models/{'a' * 40}-{end}" for end in "xy"]
    arms = ([*same, paths[0]], [paths[1]])
    runs = [write_run(overrides=overrides, val_limit=20).path for overrides in arms]
    names = [run.arm for run in select(runs).runs]
    assert "rollout.concurrency=3" in names[0] and "reward.concurrency=2" in names[0]
    assert [name.count("path=models/aaaaaaa...") for name in names] == [1, 1], names
    # Short forms that are equal name nothing.
    paths = [f"policy.path=models/{'a' * 20}{end}{'a' * 20}" for end in "xy"]
    alike = [write_run(overrides=[path], val_limit=20).path for path in paths]
    assert [run.arm for run in select(alike).runs] == [
        f"reference_sql {path[7:]}" for path in paths
    ]


def test_seeds_may_have_their_own_data_order(write_run: Write) -> None:
    found = compare(select([write_run(seed=0).path, write_run(seed=1).path]))
    assert [one["seeds"] for one in found["arms"]] == [[0, 1]] and found["pairs"] == []


@pytest.mark.slow
def test_agents_without_certificate_are_refused_and_idiomatic_ones_marked(write_run: Write) -> None:
    reference, bare = write_run(), write_run("langgraph_sql", parity=None)
    with pytest.raises(NotComparable, match="langgraph_sql ran without a parity certificate"):
        compare(select([reference.path, bare.path]))
    found = compare(select([reference.path, bare.path]), allow=["parity"])
    assert any("Not certified" in remark for remark in found["remarks"])
    third = write_run("crewai_sql", parity=certificate(scenarios="other"))
    with pytest.raises(
        NotComparable, match=r"parity\.scenarios differs: s for langgraph_sql, other for crewai_sql"
    ):
        compare(select([write_run("langgraph_sql").path, third.path]))
    record = third.read()
    record["identity"]["program"] = "team"  # whose scenarios are others
    third.write(record)
    compare(select([write_run("langgraph_sql").path, third.path]), allow=["program"])
    loose = write_run("crewai_sql_idiomatic", parity=None)
    found = compare(select([reference.path, loose.path]))
    assert any(
        "crewai_sql_idiomatic" in remark and "Idiomatic" in remark for remark in found["remarks"]
    )


def test_a_refusal_of_measured_agents_names_the_command_that_can_permit_it(
    write_run: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Any = {"kind": "eval", "val_limit": 20}
    runs = [write_run(**kind), write_run("langgraph_sql", parity=None, **kind)]
    monkeypatch.setattr(
        evaluating,
        "measure_agents",
        lambda *names, **given: [SimpleNamespace(path=run.path) for run in runs],
    )
    done = CliRunner().invoke(command_line, ["eval", "--agents", "reference_sql,langgraph_sql"])
    assert isinstance(done.exception, NotComparable)
    refusal, _, advice = str(done.exception).partition("\n")
    assert "langgraph_sql ran without a parity certificate" in refusal
    assert "`harness eval` has no --allow: add it to `harness compare " in advice
    assert all(run.path.name in advice for run in runs)


def test_a_reference_that_is_not_installed_is_known_by_what_others_were_held_against(
    write_run: Write,
) -> None:
    gone, other = write_run("crewai_sql", parity=None), write_run("langgraph_sql")
    gone.update(agent="reference_gone", agent_source="")
    assert compare(select([gone.path, other.path]))["arms"]  # records of old have no source
    gone.update(agent_source="r")
    assert compare(select([gone.path, other.path]))["arms"]
    for agent, source in (("reference_gone", "another"), ("stranger", "")):
        gone.update(agent=agent, agent_source=source)
        with pytest.raises(NotComparable, match=f"{agent} ran without a parity certificate"):
            compare(select([gone.path, other.path]))


def test_a_pattern_without_a_match_is_no_run(write_run: Write) -> None:
    run = write_run("langgraph_sql")
    with pytest.raises(UserError, match="is neither a run"):
        select([run.path, run.path.parent / "*another*"], run.path.parent)


def test_an_agent_whose_source_changed_between_runs_is_refused_unless_each_is_certified(
    write_run: Write,
) -> None:
    one, other = (write_run("langgraph_sql", seed=seed) for seed in (0, 1))
    other.update(agent_source="0123456789abcdef")
    assert compare(select([one.path, other.path]))["arms"][0]["seeds"] == [
        0,
        1,
    ]  # both are the same agent, proven
    other.update(parity=None, frameworks={"langgraph": "99.0"})
    with pytest.raises(
        NotComparable, match=r"source of langgraph_sql changed between runs \(.*0123456789abcdef"
    ):
        compare(select([one.path, other.path]))
    remarks = compare(select([one.path, other.path]), allow=["parity"])["remarks"]
    assert any("source of langgraph_sql changed" in remark for remark in remarks)
    assert any("Versions of langgraph differ" in remark and "99.0" in remark for remark in remarks)


def test_a_certificate_may_be_made_after_the_run(
    write_run: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "cache"))
    reference, bare = write_run(), write_run("langgraph_sql", parity=None)
    made = certificate()
    bare.write(bare.read() | {"agent_fingerprint": made["hash"]})
    with pytest.raises(NotComparable, match="ran without a parity certificate"):
        compare(select([reference.path, bare.path]))
    file = tmp_path / "cache" / "parity" / f"langgraph_sql-{made['hash']}.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(made))
    found = compare(select([reference.path, bare.path]))
    assert sorted(arm["parity"].split()[0] for arm in found["arms"]) == ["reference", "strict"]
    of_another = certificate(prompts="other")
    damaged = {name: value for name, value in made.items() if name != "accepted"}
    for useless in (of_another, damaged, [], None):
        file.write_text(json.dumps(useless))
        with pytest.raises(NotComparable, match="ran without a parity certificate"):
            compare(select([reference.path, bare.path]))


def test_one_seed_is_called_one_seed(write_run: Write) -> None:
    found = compare(select([write_run().path, write_run("langgraph_sql").path]))
    assert (
        found["one_seed"] and found["pairs"][0]["one_seed"] and found["pairs"][0]["training"] == {}
    )
    text = render(found, "md")
    assert (
        "1 (one seed)" in text
        and ", one seed |" in text
        and "says nothing about what another training" in text
    )


def test_arms_without_a_common_seed_are_paired_by_question(write_run: Write) -> None:
    found = compare(select([write_run(seed=0).path, write_run("langgraph_sql", seed=1).path]))
    assert found["pairs"][0]["paired_by"] == "task" and found["pairs"][0]["one_seed"]
    more = [write_run(seed=seed) for seed in (1, 2, 3)]
    several = compare(
        select(
            [
                *(run.path for run in more),
                *(write_run("langgraph_sql", seed=seed).path for seed in (2, 3)),
            ]
        )
    )
    assert "Differences are those of the seeds that both arms have: langgraph_sql 2." in render(
        several, "md"
    )
    assert ", no seed in common |" in render(found, "md") and ", one seed |" not in render(
        found, "md"
    )


def test_nothing_is_equivalent_without_a_margin(write_run: Write) -> None:
    found = compare(select([write_run().path, write_run("langgraph_sql").path]))
    assert found["pairs"][0]["verdict"] in ("different", "cannot tell")
    assert "No margin was stated" in render(found, "md")


@pytest.mark.slow
def test_the_same_trainings_are_equivalent_from_eight_seeds_on(write_run: Write) -> None:
    import shutil

    paths: list[Path] = []
    for seed in range(8):
        one = write_run(seed=seed, steps=2)
        twin = one.path.with_name(f"twin{seed}")
        shutil.copytree(one.path, twin)
        record = json.loads((twin / "run.json").read_text())
        record |= {"id": twin.name, "agent": "langgraph_sql"}
        record["config"]["agent"] = "langgraph_sql"
        (twin / "run.json").write_text(json.dumps(record))
        paths += [one.path, twin]
    found = compare(select(paths), margin=0.05)
    (same,) = found["pairs"]
    assert same["verdict"] == "equivalent" and same["identical"] and same["difference"]["mean"] == 0
    assert same["collapses"]["share"] == pytest.approx(1 - 0.05 ** (1 / 8))
    text = render(found, "md")
    assert "| identical | - | - | equivalent (identical in 8 of 8 seeds) |" in text
    assert "Up to 31.2 % of trainings with other seeds" in text
    assert (
        "| never |" in text
        and len(json.loads(render(found, "json"))["agreement"]["langgraph_sql"]["steps"]) == 16
    )
    fewer = compare(select(paths[:-2]), margin=0.05)
    assert fewer["pairs"][0]["verdict"] == "identical"
    text = render(fewer, "md")
    assert (
        "| identical in 7 of 7 seeds; 8 are needed to generalise |" in text
        and "annot tell" not in text
    )
    assert "a margin is needed to generalise" in render(compare(select(paths)), "md")


def test_what_the_agent_fails_is_wrong_and_what_the_machine_loses_is_bounded(
    write_run: Write,
) -> None:
    whole = write_run(accuracy=(0.3, 1.0), unscored=3)
    failing = write_run(
        "langgraph_sql", accuracy=(0.3, 1.0), failing=6
    )  # left unscored, as older records have it
    found = compare(select([whole.path, failing.path]), margin=0.05)
    mine, base = arm(found, "langgraph_sql"), arm(found, "reference_sql")
    assert (
        mine["accuracy_final"]["mean"] == 0.9
        and mine["agent_failed"] == 0.1
        and mine["unscored"] == 0
    )
    assert mine["accuracy_bounds"] is None and base["accuracy_bounds"] == pytest.approx(
        (57 / 60, 1.0)
    )
    assert found["pairs"][0]["difference_bounds"] == pytest.approx((-0.1, 0.9 - 57 / 60))
    text = render(found, "md")
    assert "failed by agent %" in text and "[95.0, 100.0]" in text and "[-10.0, -5.0]" in text
    assert "3 of 120 validation rollouts could not be scored" in text
    plain = render(compare(select([write_run("crewai_sql").path])), "md")
    assert "failed by agent" not in plain and "unscored wrong" not in plain


def test_a_run_whose_task_set_changed_under_it_is_refused_in_a_line(write_run: Write) -> None:
    one, other = write_run(), write_run("langgraph_sql")
    record = other.read()
    record["result"]["data_changed"] = ["zoo_keeping"]
    other.write(record)
    with pytest.raises(
        NotComparable, match=r"its task set changed while it ran \(zoo_keeping\)"
    ) as caught:
        compare(select([one.path, other.path]))
    assert "\n" not in str(caught.value)


def test_statistics_of_checkpoints_are_shown_for_checkpoints_only(
    write_run: Write, compared: Comparison
) -> None:
    assert "McNemar" not in render(compared, "md") and "bootstrap over clusters" not in render(
        compared, "md"
    )
    assert pair(compared, "crewai_sql")["item"]["mcnemar"][0]["p"] < 0.05
    text = render(compare(select([write_run().path, write_run("langgraph_sql").path])), "md")
    assert "These checkpoints alone" in text and "Of other trainings it says nothing" in text


def test_consecutive_seeds_are_one_range(write_run: Write) -> None:
    cells = {}
    for seeds in ((0, 1, 2, 3), (0, 1), (0, 1, 3), (5,)):
        runs = [write_run(seed=seed, steps=2, val_limit=20).path for seed in seeds]
        cells[seeds] = tables(compare(select(runs)))[0].rows[0][1]
    assert list(cells.values()) == ["4 (0 to 3)", "2 (0, 1)", "3 (0, 1, 3)", "1 (one seed)"]


def test_evaluations_compare_with_evaluations_only(write_run: Write) -> None:
    one, other = (
        write_run(kind="eval"),
        write_run("langgraph_sql", kind="eval", accuracy=(0.3, 0.2)),
    )
    found = compare(select([one.path, other.path]))
    assert (
        found["kind"] == "eval"
        and found["views"] == []
        and found["arms"][0]["accuracy_initial"] is None
    )
    training = write_run()
    with pytest.raises(NotComparable) as refused:
        compare(select([one.path, training.path]))
    text = str(refused.value)
    assert f"{one.path} is an evaluation and {training.path} is a training: " in text
    assert f"`harness eval {training.path}`" in text and "--allow" not in text


def test_paths_that_mean_nothing_are_all_named_with_what_is_near(
    write_run: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "roles.yaml").write_text("name: roles")
    with pytest.raises(UserError, match="runs/a and runs/b are neither runs, studies nor"):
        select([Path("runs/a"), Path("runs/b")])
    with pytest.raises(UserError, match=r"rolse.yaml is neither .*; did you mean 'roles.yaml'\?"):
        select([Path("rolse.yaml")])
    mistyped = run.path.with_name(run.path.name[:-2] + "xx")
    with pytest.raises(UserError, match=f"did you mean '.*{run.path.name}'"):
        select([mistyped])
    (tmp_path / "old").mkdir()
    with pytest.raises(UserError, match="^No run.json in old, nor in a folder below"):
        select([Path("old")])


def test_runs_without_transitions_leave_dashes(write_run: Write) -> None:
    found = compare(select([write_run(keep_transitions=False).path]))
    assert (
        found["arms"][0]["overhead_ms_per_call"] is None
        and found["arms"][0]["trained_by_role"] == {}
    )
    assert "framework ms/call" not in render(found, "md")


@pytest.mark.parametrize("width", [50, 80, 160])
def test_tables_fit_the_terminal(compared: Comparison, width: int) -> None:
    out = io.StringIO()
    show(Console(file=out, width=width, soft_wrap=True), compared)
    shown, _, _ = out.getvalue().partition("Baseline: ")
    assert all(cell_len(line) <= width for line in shown.splitlines())
    words = " ".join(shown.split())
    for table in tables(compared):
        assert table.title[:20] in words
        assert len(table.heads[-1].split()) > 1 or table.heads[-1] in words  # the last column too


def test_a_table_that_is_too_wide_says_again_what_its_rows_are_of() -> None:
    heads, cells = ["arm", "role", "calls", "tokens"], ["plain", "write_query", "1" * 30, "2" * 30]
    out = io.StringIO()
    show_table(Console(file=out, width=60), Table("roles", "By role", heads, [cells], named=2))
    parts = out.getvalue().split("arm")[1:]
    assert len(parts) == 2 and all("role" in part and "write_query" in part for part in parts)


@pytest.mark.parametrize("form", ["md", "csv", "json", "latex", "html"])
def test_every_format_holds_every_arm(compared: Comparison, form: Any) -> None:
    text = render(compared, form, reference_rows("spider"))
    for name in ("reference_sql", "langgraph_sql", "crewai_sql"):
        assert name.replace("_", r"\_") in text if form == "latex" else name in text
    if form == "csv":
        rows = list(csv.DictReader(io.StringIO(text)))
        assert (
            len(rows) == 3
            and float(rows[0]["accuracy_final"]) == compared["arms"][0]["accuracy_final"]["mean"]
        )
    elif form == "json":
        assert json.loads(text)["references"][0]["accuracy_final"] == 0.722
    else:
        assert "ublished by others" in text


def test_foreign_figures_are_shown_by_default_only_for_their_task_set() -> None:
    assert (
        reference_rows("pocket") == []
        and len(reference_rows("spider")) == len(reference_rows()) > 5
    )
    assert all("http" in row["source"] for row in reference_rows())


def test_foreign_figures_say_which_questions_and_what_was_cut(compared: Comparison) -> None:
    rows = reference_rows("spider")
    for row in rows:
        assert "500 questions of the test set" in row["remark"]
        assert "development set" not in row["remark"] and "context" not in row["remark"]
        if "medium.com" in row["source"]:
            assert re.search(r"schema and results cut at (2,048|4,096) characters", row["remark"])
    text = render(compared, "md", rows)
    assert "The questions differ from ours" in text and "test_database" in text


def test_curves_of_the_literature_begin_and_end_at_their_rows_figures() -> None:
    curves = [row for row in reference_rows("spider") if "curve" in row]
    assert [row["label"].rpartition(", ")[2] for row in curves] == ["write", "all roles"]
    for row in curves:
        steps, accuracies = row["curve"]["steps"], row["curve"]["accuracies"]
        assert len(steps) == len(accuracies) == 15
        assert steps == [*range(0, 417, 32), 436]
        assert accuracies[0] == row["accuracy_initial"]
        assert accuracies[-1] == row["accuracy_final"]
        assert max(accuracies) == row["accuracy_best"]


def test_foreign_figures_that_nobody_checked_are_marked(compared: Comparison) -> None:
    rows = [{**row, "checked": False} for row in reference_rows("spider")[:1]]
    assert "(not checked with its source)" in render(compared, "md", rows)
    assert "(not checked" not in render(compared, "md", reference_rows("spider"))
    assert all(row["checked"] for row in reference_rows())


def test_learning_on_the_way_is_compared_at_the_stated_checkpoint_and_by_area(
    three_arms: Path,
) -> None:
    chosen = select([three_arms])
    chosen.study = {"checkpoint": 2}
    found = compare(chosen, "reference_sql")
    learning = found["learning"]
    assert learning["measures"] == ["checkpoint", "area"]
    # reference: 0.3 -> 0.45 -> 0.6 at steps 0, 2, 4; crewai: 0.3 -> 0.175 -> 0.05.
    reference, crewai = learning["arms"]["reference_sql"], learning["arms"]["crewai_sql"]
    assert reference["checkpoint"]["estimate"]["mean"] == pytest.approx(0.45, abs=0.06)
    assert reference["area"]["estimate"]["mean"] == pytest.approx(0.45, abs=0.06)
    assert reference["area"]["difference"] is None
    assert crewai["area"]["difference"]["mean"] == pytest.approx(-0.275, abs=0.06)
    assert crewai["area"]["p"] < 0.05 and crewai["area"]["p"] <= crewai["area"]["p_holm"]
    # The area's mean over questions is that under the curve of means (trapezoids over the range of steps), where
    # every question was scored.
    (run,) = [run for run in chosen.runs if run.arm == "reference_sql" and run.seed == 0]
    from harness.compare.scores import areas

    curve = run.val_curve()
    assert sorted(curve) == [0, 2, 4]
    assert areas([run], sorted(curve))["value"].mean() == pytest.approx(
        (curve[0] + 2 * curve[2] + curve[4]) / 4
    )
    text = render(found, "md")
    assert "at step 2 %" in text and "no verdict rests on it" in text


def test_a_checkpoint_that_was_not_validated_is_told(three_arms: Path) -> None:
    chosen = select([three_arms])
    chosen.study = {"checkpoint": 3}
    found = compare(chosen, "reference_sql")
    assert found["learning"]["measures"] == ["area"]
    assert any("not every run was validated at step 3" in one.lower() for one in found["remarks"])


def test_a_saturated_task_set_is_said_to_separate_nothing(
    write_run: Write, compared: Comparison
) -> None:
    runs = [
        write_run(name, accuracy=(0.3, 1.0)).path for name in ("reference_sql", "langgraph_sql")
    ]
    found = compare(select(runs), margin=0.05)
    assert found["ceiling"] and "The task set is saturated" in render(found, "md")
    assert "almost certain" in render(found, "md")
    assert not compared["ceiling"] and "saturated" not in render(compared, "md")


def test_a_margin_that_covers_a_loss_of_everything_is_named(write_run: Write) -> None:
    runs = [
        write_run(name, accuracy=(0.3, 0.1)).path for name in ("reference_sql", "langgraph_sql")
    ]
    wide = render(compare(select(runs), margin=0.15), "md")
    assert "The margin of ±15.0 points is too wide: reference_sql ends within it of 0 %" in wide
    assert "too wide" not in render(compare(select(runs), margin=0.05), "md")
    assert "too wide" not in render(compare(select(runs)), "md")


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1589.48], "1,590"),
        ([44.81, 44.9, 44.7], "44.8"),
        ([6000.0, 8417.31, 10000.0], "8,000"),
        ([100.0, 20.0, 1.0], "40"),
        ([0.1612, 0.1634], "0.16"),
        ([0.0, 0.0], "0.00"),
        ([None, 12.0], "12.0"),
        ([None], "-"),
    ],
)
def test_a_measured_time_has_no_more_digits_than_its_seeds_agree_on(
    values: list[float | None], text: str
) -> None:
    assert known_digits(values) == text


def test_runs_of_a_busy_machine_are_named(write_run: Write) -> None:
    quiet, busy = write_run(), write_run("langgraph_sql")
    for run, load in ((quiet, 1.4), (busy, 6.24)):
        record = run.read()
        record["launches"][0]["load"] = load
        run.write(record)
    remarks = compare(select([quiet.path, busy.path]))["remarks"]
    named = [one for one in remarks if "busy" in one]
    assert len(named) == 1 and "1 of 2 runs, with a load of up to 6.2 per processor" in named[0]
    assert not any("busy" in one for one in compare(select([quiet.path]))["remarks"])
    assert "(" not in facts(read_run(quiet.path))["framework per call"]
    record = busy.read()
    record["launches"][0]["runs_at_once"] = 3
    busy.write(record)
    assert facts(read_run(busy.path))["framework per call"].endswith(
        " ms, waiting for the processor included (the machine was busy at the start, with a load of "
        "6.2 per processor; 3 runs shared the machine)"
    )


def test_what_is_not_known_of_the_code_and_unequal_sharing_are_told(write_run: Write) -> None:
    one, other = write_run(), write_run("langgraph_sql")
    for run, at_once in ((one, 8), (other, 4)):
        record = run.read()
        record["commit"] = None
        record["launches"][0] |= {"runs_at_once": at_once, "cores": 8, "commit": None}
        run.write(record)
    remarks = " ".join(compare(select([one.path, other.path]))["remarks"])
    assert "The commit of the code is not known: harness" in remarks
    assert (
        "shared unequally, so times are not comparable: 4 runs at a time with 8 cores each; 8 runs"
        in remarks
    )


def test_runs_that_share_a_gpu_in_different_ways_have_times_that_do_not_compare(
    write_run: Write,
) -> None:
    sliced, together = write_run(), write_run("langgraph_sql")
    for run, service in ((sliced, {}), (together, {"gpu_service": "mps"})):
        record = run.read()
        record["launches"][0] |= {"runs_at_once": 5, "cores": 3, **service}
        run.write(record)
    remarks = " ".join(compare(select([sliced.path, together.path]))["remarks"])
    assert (
        "shared unequally, so times are not comparable: 5 runs at a time with 3 cores each; "
        "5 runs at a time with 3 cores each through MPS" in remarks
    )


def test_mistakes_are_one_line(three_arms: Path, tmp_path: Path) -> None:
    for call in (
        lambda: compare(select([three_arms]), "nobody"),
        lambda: compare(select([three_arms]), allow=["colour"]),
        lambda: compare(select([three_arms]), margin=5),
        lambda: select([tmp_path / "nothing"]),
        lambda: select([tmp_path]),
    ):
        with pytest.raises(UserError) as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_the_command_prints_results_on_stdout_and_refuses_in_a_line(three_arms: Path) -> None:
    def harness(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "harness", *arguments]
        wide = {**os.environ, "COLUMNS": "100"}
        return subprocess.run(
            command, capture_output=True, text=True, timeout=90, check=False, env=wide
        )

    shown = harness("compare", str(three_arms), "--baseline", "reference_sql", "--margin", "0.15")
    assert shown.returncode == 0 and "different" in shown.stdout and shown.stderr == ""
    assert all(len(line) <= 100 for line in shown.stdout.partition("Baseline: ")[0].splitlines())
    refused = harness("compare", str(three_arms), "--allow", "colour")
    assert refused.returncode == 2 and refused.stdout == "" and refused.stderr.count("\n") == 1


def test_runs_are_listed_and_two_proved_comparable(
    three_arms: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from harness.cli.runs import diff, list_

    list_(three_arms, json_=True)
    listed = json.loads(capsys.readouterr().out)
    assert len(listed) == 10 and sum(one["status"] == "failed" for one in listed) == 1
    same = [
        Path(one["path"]) for one in listed if one["seed"] == 0 and one["status"] == "finished"
    ][:2]
    diff(*same, json_=True)
    found = json.loads(capsys.readouterr().out)
    assert found["comparable"] and list(found["differs"]["config"]) == ["agent"]


def test_a_status_that_there_is_not_is_refused_and_an_empty_list_says_what_was_asked(
    three_arms: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from harness.cli.runs import list_

    with pytest.raises(
        UserError, match=r"--status runing: .*; did you mean 'running'\? One of: finished, failed"
    ):
        list_(three_arms, status="runing")
    list_(three_arms, agent="crewai_sq", status="running")
    output = capsys.readouterr()
    assert output.out == "" and "no runs of agent crewai_sq with status running under" in output.err
    assert (
        "; did you mean 'crewai_sql'? There are 10 other runs" in output.err
        and "Start one" not in output.err
    )
    list_(three_arms, status="failed", json_=True)
    assert {one["agent"] for one in json.loads(capsys.readouterr().out)} == {"autogen_sql"}


@pytest.mark.parametrize("width", [80, 160])
def test_a_list_shows_whole_ids_and_says_which_runs_nobody_holds(
    write_run: Write,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    width: int,
) -> None:
    from harness.cli.common import results
    from harness.cli.runs import list_

    monkeypatch.setenv("COLUMNS", str(width))
    results.cache_clear()
    killed, held = write_run(status="running"), write_run(status="running")
    with killed.locked():
        pass
    with held.locked():
        list_(killed.path.parent)
    columns = {
        words[0]: words[1:]
        for line in capsys.readouterr().out.splitlines()
        if (words := line.split())
    }
    assert "killed?" in columns[killed.path.name] and "running" in columns[held.path.name]
    assert ("reference_sql" in columns[held.path.name]) == (width == 160)
    results.cache_clear()


def test_show_and_power_learn_from_runs(
    three_arms: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from harness.cli.runs import show
    from harness_power_analysis.command import power

    chosen = select([three_arms]).runs[0]
    show(chosen.folder.path, json_=True)
    assert json.loads(capsys.readouterr().out)["figures"]["steps"] == 4
    power([three_arms], effect=20.0, margin=0.05, baseline="reference_sql", json_=True)
    found = json.loads(capsys.readouterr().out)
    assert found["family"] == 2 and not found["ceiling"]
    bound = seeds_for_equivalence(0.05, 2)
    assert bound == 17 < found["seeds_for_equivalence"]
    power([three_arms], effect=20.0, power=0.3, margin=0.05, baseline="reference_sql", json_=True)
    fewer = json.loads(capsys.readouterr().out)["seeds_for_equivalence"]
    assert bound <= fewer < found["seeds_for_equivalence"]
    assert found["variances"]["score"] > 0.1 and found["run_s"] == pytest.approx(38.0)
    assert found["plans"][0]["seeds"] >= 2
    assert found["plans"][0]["machine_s"] == 2 * found["plans"][0]["seeds"] * found["run_s"]


def test_power_counts_the_runs_that_a_comparison_counts(
    write_run: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    from harness_power_analysis.command import power

    def planned_from(runs: list[RunFolder]) -> dict[str, Any]:
        power([run.path for run in runs], effect=20.0, json_=True)
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    repeated = write_run(seed=0, accuracy=(0.3, 0.9))
    counted = [write_run(seed=seed) for seed in range(3)]
    # Two runs that were created within a second have names in any order.
    repeated.path.rename(repeated.path.with_name("20200101-000000-older"))
    older = RunFolder(repeated.path.with_name("20200101-000000-older"))
    older.update(id=older.path.name)
    unscored = write_run(seed=3, unscored=60)

    expected = planned_from(counted)
    assert expected["remarks"] == []
    found = planned_from([older, *counted, unscored])
    remarks = found.pop("remarks")
    assert found == {key: value for key, value in expected.items() if key != "remarks"}
    assert len(remarks) == 2 and f"{older.path.name} is left out for the newer" in remarks[0]
    assert remarks[1].endswith(" is left out: nothing of its last validation was scored.")
    power([run.path for run in (*counted, unscored)], effect=20.0)
    assert "nothing of its last validation was scored" in capsys.readouterr().out
    with pytest.raises(UserError, match="nothing of its last validation was scored"):
        power([unscored.path], effect=20.0)


@pytest.mark.slow
def test_power_recovers_known_variances_from_databases_of_unequal_size() -> None:
    import numpy as np
    import polars as pl

    from harness.compare.power import Variances
    from harness_power_analysis.planning import _components, needed

    generator = np.random.default_rng(0)
    sizes = generator.integers(1, 30, 120)
    database = np.repeat(np.arange(120), sizes)
    shape = (60, len(database))
    values = generator.normal(0, 0.1, (60, 1)) + generator.normal(0, 0.05, 120)[database]
    values = (
        values
        + generator.normal(0, 0.2, len(database))
        + generator.normal(0, 0.08, (60, 120))[:, database]
    )
    values = values + generator.normal(0, 0.5, shape)
    seed, task = np.indices(shape).reshape(2, -1)
    rows = pl.DataFrame(
        {"seed": seed, "cluster": database[task], "task_id": task, "value": values.ravel()}
    )
    found = _components(rows)
    assert list(found**0.5) == pytest.approx([0.1, 0.05, 0.2, 0.08, 0.5], rel=0.25)
    truth = Variances(0.1**2, 0.05**2, 0.0, 0.0, 0.5**2, (10,) * 20, 3, "truth")
    counts = [needed(truth, effect, 0.8, 0.05, truth.sizes) for effect in (0.2, 0.1, 0.06)]
    assert counts == sorted(counts, key=lambda count: count or 0) and counts[0] is not None
    assert needed(truth, 0.001, 0.8, 0.05, truth.sizes) is None
    assert truth.detectable(3, truth.sizes, 0.8, 0.05 / 4) > truth.detectable(
        3, truth.sizes, 0.8, 0.05
    )  # Holm


def test_the_planned_power_is_that_of_the_verdict_s_own_test() -> None:
    """On databases of unequal size, with the seeds that were planned for: 80 % of such studies find the effect."""
    import numpy as np
    import polars as pl

    from harness.compare.estimates import crossed_mean
    from harness.compare.power import Variances

    sizes = [1] * 8 + [4] * 8 + [10] * 10 + [24] * 6
    planned = Variances(0.01**2, 0.02**2, 0.0, 0.0, 0.2**2, tuple(sizes), 4, "planned")
    effect, generator, repeats, hits = (
        planned.detectable(4, sizes, 0.8, 0.05),
        np.random.default_rng(5),
        300,
        0,
    )
    database = np.repeat(np.arange(len(sizes)), sizes)
    seed, task = np.indices((4, len(database))).reshape(2, -1)
    rows = pl.DataFrame({"seed": seed, "cluster": database[task], "task_id": task})
    for _ in range(repeats):
        shift = (
            effect
            + generator.normal(0, 0.01, (4, 1))
            + generator.normal(0, 0.02, len(sizes))[database]
        )
        found = crossed_mean(
            rows.with_columns(value=(shift + generator.normal(0, 0.2, shift.shape)).ravel())
        )
        hits += found is not None and found.p_difference() < 0.05
    assert hits / repeats == pytest.approx(0.8, abs=2.6 * (0.8 * 0.2 / repeats) ** 0.5)


def test_power_planned_from_skewed_graded_pilots_is_that_of_the_test() -> None:
    """Differences of rewards that are mostly 0 or 1: four seeds find in 80 % of studies what a pilot says they do."""
    import numpy as np
    import polars as pl

    from harness.compare.estimates import crossed_mean
    from harness.compare.power import Variances
    from harness_power_analysis.planning import _components

    sizes = [1] * 8 + [4] * 8 + [10] * 10 + [24] * 6
    cluster, generator, repeats = (
        np.repeat(np.arange(len(sizes)), sizes),
        np.random.default_rng(11),
        300,
    )

    def differences(seeds: int) -> pl.DataFrame:
        seed, task = np.indices((seeds, len(cluster))).reshape(2, -1)
        level = generator.normal(1, 0.8, len(sizes))[cluster] + generator.normal(
            0, 0.2, (2, seeds, 1)
        )
        level = level + generator.normal(0, 0.4, (2, 1, len(sizes)))[:, :, cluster]
        share = 1 / (1 + np.exp(-level))
        graded = np.where(
            generator.random(share.shape) < 0.25, generator.beta(1 + share, 2 - share), 0.0
        )
        rewards = np.where(graded > 0, graded, generator.random(share.shape) < share)
        value = (rewards[0] - rewards[1]).ravel()
        return pl.DataFrame(
            {"seed": seed, "cluster": cluster[task], "task_id": task, "value": value}
        )

    parts = np.mean([_components(differences(4)) for _ in range(40)], axis=0)
    planned = Variances(*map(float, parts), tuple(sizes), 4, "pilots")
    effect, hits = planned.detectable(4, sizes, 0.8, 0.05), 0
    for _ in range(repeats):
        rows = differences(4)
        found = crossed_mean(rows.with_columns(pl.col("value") + effect))
        hits += found is not None and found.p_difference() < 0.05
    assert hits / repeats == pytest.approx(0.8, abs=0.08)


def regraded(folder: Any, scale: float, low: float) -> Path:
    """A run whose rewards are graded, from `low` to `low + scale`: a third of them between."""
    import polars as pl

    file = folder.path / "episodes.parquet"
    rows = pl.read_parquet(file)
    between = pl.Series([crc32(task.encode()) % 3 == 0 for task in rows["task_id"]])
    value = pl.when(between).then(0.25 + 0.5 * pl.col("reward")).otherwise("reward")
    rows.with_columns(reward=low + scale * value).write_parquet(file)
    folder.update(identity=folder.read()["identity"] | {"reward_range": [low, low + scale]})
    return Path(folder.path)


def test_graded_rewards_are_compared_in_their_own_range(write_run: Write) -> None:
    arms = ((name, seed) for name in ("reference_sql", "langgraph_sql") for seed in range(3))
    runs = [regraded(write_run(name, seed, unscored=seed), 10, -2) for name, seed in arms]
    found = compare(select(runs), margin=3.0)
    assert (
        found["graded"]
        and found["span"] == (-2, 8)
        and not found["ceiling"]
        and found["collapse"] == 2.5
    )
    for one in found["arms"]:
        level, bounds = one["accuracy_final"], one["accuracy_bounds"]
        assert -2 <= level["low"] <= level["mean"] <= level["high"] <= 8 and level["mean"] > 1
        assert bounds is not None and bounds[0] < level["mean"] < bounds[1]
    (only,) = found["pairs"]
    assert only["item"]["mcnemar"] == [] and only["collapses"]["seeds_needed"] == 8
    heads = {
        table.key: " ".join([table.title, *table.heads, table.note]) for table in tables(found)
    }
    for key in ("accuracy", "learning", "views"):
        assert (
            "ccuracy" not in heads[key] and "%" not in heads[key] and "hundredths" in heads[key]
        ), heads[key]
    assert "from -2 to 8; a point is a hundredth of mean reward" in render(found, "md")
    with pytest.raises(UserError, match="between 0 and 10"):
        compare(select(runs), margin=12.0)
    single = compare(select([runs[0], runs[3]]))
    assert [table.heads for table in tables(single) if table.key == "checkpoints"] == [
        ["arm against baseline", "bootstrap over clusters"]
    ]


def test_a_graded_reward_is_no_accuracy_whatever_its_values(write_run: Write) -> None:
    runs = select(
        [
            write_run(name, overrides=["reward.name=soft_f1"]).path
            for name in ("reference_sql", "crewai_sql")
        ]
    )
    for run in runs.runs:
        assert (
            set(run.episodes["reward"]) == {0.0, 1.0}
            and run.graded
            and run.record["result"]["graded"]
        )
    found = compare(runs)
    assert found["graded"] and found["pairs"][0]["item"]["mcnemar"] == []
    assert "Mean reward on validation" in render(found, "md") and "ccuracy" not in render(
        found, "md"
    )


@pytest.mark.slow
def test_power_takes_graded_pilots(write_run: Write, capsys: pytest.CaptureFixture[str]) -> None:
    from harness_power_analysis.command import power

    arms = [(name, seed) for name in ("reference_sql", "langgraph_sql") for seed in range(3)]
    shown = []
    for scale, low in ((1, 0), (10, -2)):
        paths = [
            regraded(write_run(name, seed, accuracy=(0.3, 0.6 - 0.1 * (seed == 1))), scale, low)
            for name, seed in arms
        ]
        power(paths, effect=10.0 * scale, margin=0.1 * scale, json_=True)
        shown.append(json.loads(capsys.readouterr().out))
        power(paths, effect=10.0 * scale)
        assert f"Rewards are graded, from {low} to {low + scale}" in capsys.readouterr().out
        with pytest.raises(UserError, match=f"between 0 and {100 * scale}"):
            power(paths, effect=100.0 * scale)
    narrow, wide = shown
    assert [one["seeds"] for one in narrow["plans"]] == [one["seeds"] for one in wide["plans"]]
    assert wide["detectable_now"] == pytest.approx(10 * narrow["detectable_now"])
    assert narrow["seeds_for_equivalence"] == wide["seeds_for_equivalence"] and not wide["ceiling"]


@pytest.mark.slow
def test_power_warns_at_a_ceiling(write_run: Write, capsys: pytest.CaptureFixture[str]) -> None:
    from harness_power_analysis.command import power

    names = ("reference_sql", "langgraph_sql")
    same = [write_run(name, seed, accuracy=(0.3, 1.0)).path for name in names for seed in (0, 1)]
    with pytest.raises(UserError, match="no variance to plan with"):
        power(same, margin=0.05)
    runs = [
        write_run(name, seed, steps=2, val_limit=200, accuracy=(0.3, 0.985)).path
        for name in names
        for seed in (0, 1)
    ]
    power(runs, margin=0.05)
    shown = " ".join(capsys.readouterr().out.split())
    assert "Ceiling: every run ends at" in shown
    needed = re.search(r"with power 0\.8 needs (\d+) seeds", shown)
    assert needed is not None and int(needed[1]) >= 14


class Scored:
    """As much of a run as variances are learned from: answers of one seed."""

    def __init__(self, seed: int, values: Any) -> None:
        import numpy as np
        import polars as pl

        database, task = np.indices(values.shape).reshape(2, -1)
        self.seed = seed
        self._rows = pl.DataFrame(
            {"seed": seed, "cluster": database, "task_id": database * 1000 + task}
        )
        self._rows = self._rows.with_columns(difficulty=pl.lit("easy"), value=values.ravel())

    def scores(self, step: int | None = None) -> Any:
        return self._rows


@pytest.mark.parametrize("databases", [1, 4])
@pytest.mark.parametrize("seeds", [3, 5, 10])
def test_seeds_of_one_arm_tell_the_variance_of_a_difference(seeds: int, databases: int) -> None:
    """Two arms that train alike differ by twice the variance of a seed, however many seeds were looked at."""
    import numpy as np

    from harness_power_analysis.planning import variances

    generator = np.random.default_rng(seeds)
    by_seed, by_score, questions = 0.1, 0.1, 24 // databases
    shares, found = [], None
    for _ in range(120 // seeds):
        level = generator.normal(0, 0.3, (databases, questions))
        shift = generator.normal(0, by_seed, seeds)
        shift *= by_seed / shift.std(ddof=1)  # less noise, the same expectation
        runs: list[Any] = [
            Scored(seed, level + shift[seed] + generator.normal(0, by_score, level.shape))
            for seed in range(seeds)
        ]
        found = variances({"arm": runs})
        shares.append(found.seed / (2 * by_seed**2))
    assert found is not None and found.source == "differences between seeds of one arm"
    assert np.mean(shares) == pytest.approx(1, abs=0.12)


def test_noise_of_questions_is_not_counted_twice_with_one_database() -> None:
    import numpy as np

    from harness.compare.estimates import detectable_effect
    from harness_power_analysis.planning import variances

    generator = np.random.default_rng(2)
    by_seed, by_score, shape = 0.05, 0.5, (1, 50)
    gain = generator.normal(0, 0.4, shape)  # the same for every seed: no chance between them
    arms: dict[str, list[Any]] = {"base": [], "arm": []}
    for seed in range(100):
        arms["base"].append(Scored(seed, np.zeros(shape)))
        shift = generator.normal(0, by_seed)
        arms["arm"].append(Scored(seed, gain + shift + generator.normal(0, by_score, shape)))
    found = variances(arms)
    assert (found.seed, found.cluster) == (pytest.approx(by_seed**2, rel=0.3), 0.0)
    assert found.cell + found.score == pytest.approx(by_score**2, rel=0.1)
    truth = detectable_effect(((by_seed**2 + by_score**2 / 50) / 3) ** 0.5, 2)
    assert found.detectable(3, [50], 0.8, 0.05) == pytest.approx(truth, rel=0.1)


def test_tracking_services_are_verl_s_own_and_off_by_default() -> None:
    from harness.config import load_config
    from harness.errors import ConfigError
    from harness_verl.compose import verl_settings

    def loggers(*overrides: str) -> list[str]:
        config = load_config("cpu", None, overrides)
        settings = verl_settings(
            config, device="cpu", model_path="m", run_dir=Path("/tmp/run"), steps=1
        )
        return list(settings["trainer"]["logger"])

    assert loggers() == ["console", "file"]
    assert loggers("train.loggers=[tensorboard, mlflow]") == [
        "console",
        "file",
        "tensorboard",
        "mlflow",
    ]
    with pytest.raises(ConfigError, match=r"train\.loggers"):
        load_config("cpu", None, ["train.loggers=[wanbd]"])


def test_runs_of_two_judges_or_rubrics_are_refused_and_of_two_endpoints_are_not(
    write_run: Write,
) -> None:
    def judged(agent: str, **options: str) -> Path:
        given = {"endpoint": "http://one/v1", "model": "m", **options}
        return write_run(
            agent,
            overrides=[
                "reward.name=judge",
                *(f"reward.options.{key}={value}" for key, value in given.items()),
            ],
        ).path

    one = judged("reference_sql")
    assert compare(
        select([one, judged("langgraph_sql", endpoint="http://two/v1", concurrency="2")])
    )
    for key, value in (("model", "n"), ("rubric", "Be strict.")):
        with pytest.raises(
            NotComparable, match=rf"^reward_options\.{key} differs: '\w+' in .*, '\w+' in "
        ):
            compare(select([one, judged("langgraph_sql", **{key: value})]))


def test_a_rollout_that_differs_from_the_reference_is_not_compared(
    write_run: Write,
) -> None:
    reference = write_run()
    differing: Shadow = {
        **SHADOW,
        "identical": 99,
        "first_difference": {
            "rollout_id": "ro-1",
            "task_id": "t",
            "phase": "val",
            "step": 2,
            "place": "call 2 (rewrite_query)",
            "expected": "no further call",
            "got": "2 further calls",
        },
    }
    cases: list[tuple[Shadow, str]] = [
        (differing, r"1 of 100 rollouts differ, first rollout ro-1: call 2 \(rewrite_query\)"),
        ({**SHADOW, "unchecked": 3, "reason": "TimeoutError"}, "3 rollouts were not checked"),
        ({**SHADOW, "checked": 0, "identical": 0}, "no rollout was checked"),
    ]
    for shadow, why in cases:
        other = write_run("langgraph_sql", shadow=shadow)
        with pytest.raises(NotComparable, match=why):
            compare(select([reference.path, other.path]))
        remarks = compare(select([reference.path, other.path]), allow=["parity"])["remarks"]
        assert any("The shadow check of" in one and "allowed" in one for one in remarks)
    other.update(shadow=None)
    with pytest.raises(NotComparable, match="it has no result"):
        compare(select([reference.path, other.path]))


def test_runs_older_than_the_shadow_check_compare_with_a_note(
    write_run: Write,
) -> None:
    reference, older = write_run(), write_run("langgraph_sql", shadow=None)
    remarks = compare(select([reference.path, older.path]))["remarks"]
    assert any("not checked in 1 of 2 runs" in one for one in remarks)
    newer = write_run("langgraph_sql")
    remarks = compare(select([reference.path, newer.path]))["remarks"]
    assert any("200 rollouts of 2 runs" in one and "byte-identical" in one for one in remarks)


def test_areas_are_of_the_validations_that_all_runs_have(write_run: Write) -> None:
    import shutil

    one = write_run(steps=4)
    twin = one.path.with_name("twin")
    shutil.copytree(one.path, twin)
    record = json.loads((twin / "run.json").read_text())
    record |= {"id": twin.name, "agent": "langgraph_sql"}
    record["config"]["agent"] = "langgraph_sql"
    (twin / "run.json").write_text(json.dumps(record))
    rows = pl.read_parquet(twin / "episodes.parquet")
    untrained = (pl.col("phase") == "val") & (pl.col("step") == 0)
    rows.filter(~untrained).write_parquet(twin / "episodes.parquet")
    chosen = select([one.path, twin])
    curves = [run.val_curve() for run in chosen.runs]
    assert [len(curve) for curve in curves] == [3, 2]
    arms = compare(chosen)["learning"]["arms"]
    # The same answers at the same steps; over all its steps, the first run's area is another.
    assert arms["langgraph_sql"]["area"]["difference"]["mean"] == 0
