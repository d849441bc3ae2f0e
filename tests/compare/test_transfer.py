"""Policies in other agents than their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from harness.compare.comparison import compare
from harness.compare.keys import Comparison
from harness.compare.layout import tables
from harness.compare.selection import select
from harness.errors import NotComparable, NothingToCompare
from harness.runs.folder import RunFolder

Write = Callable[..., RunFolder]
AGENTS = ("reference_sql", "langgraph_sql")


@pytest.fixture
def evaluated(write_run: Write) -> Callable[..., list[RunFolder]]:
    """Write evaluations of a study: arms `TRAINED -> AGENT` with an accuracy and some seeds."""

    def written(cells: dict[tuple[str, str], tuple[float, int]]) -> list[RunFolder]:
        runs = []
        for (trained, agent), (accuracy, seeds) in cells.items():
            for seed in range(seeds):
                run = write_run(
                    agent, seed, kind="eval", accuracy=(accuracy, accuracy), model=trained
                )
                arm = f"{trained} -> {agent}"
                run.update(
                    study={"name": "s", "job": f"{arm}-{seed}", "runs_at_once": 1},
                    parent={"run": f"{trained}-{seed}", "step": 4},
                )
                runs.append(run)
        return runs

    return written


def compared(runs: list[RunFolder]) -> Comparison:
    chosen = select([run.path for run in runs])
    for run in chosen.runs:
        study = run.record["study"]
        assert study is not None
        run.arm = study["job"].rpartition("-")[0]
    return compare(chosen, allow=["model"])


def rows_of(comparison: Comparison, key: str) -> list[list[str]]:
    return next(table.rows for table in tables(comparison) if table.key == key)


def test_every_policy_is_set_against_the_one_trained_in_the_agent(
    evaluated: Callable[..., list[RunFolder]],
) -> None:
    cells = {
        ("mixture", "reference_sql"): (0.9, 3),
        ("mixture", "langgraph_sql"): (0.5, 3),
        ("reference_sql", "reference_sql"): (0.9, 3),
        ("reference_sql", "langgraph_sql"): (0.1, 2),
        ("langgraph_sql", "langgraph_sql"): (0.9, 3),
    }
    comparison = compared(evaluated(cells))
    used = comparison["transfer"]
    assert list(used) == ["mixture", "reference_sql", "langgraph_sql"]
    for (trained, agent), (accuracy, seeds) in cells.items():
        cell = used[trained][agent]
        assert cell["accuracy"]["mean"] == pytest.approx(accuracy, abs=0.12)
        own = used[agent][agent]["accuracy"]["mean"]
        if trained == agent:
            assert cell["difference"] is None and cell["seeds"] == 0
        else:
            difference = cell["difference"]
            assert difference is not None and cell["seeds"] == seeds
            if seeds == 2:  # the third seed is in one of both arms only
                continue
            assert difference["mean"] == pytest.approx(cell["accuracy"]["mean"] - own)
            assert difference["low"] < difference["mean"] < difference["high"]
    assert [row[0] for row in rows_of(comparison, "transfer")] == list(used)
    shown = rows_of(comparison, "transfer_differences")
    assert shown[1][1] == "baseline" and shown[2][1:] == ["-", "baseline"]


def test_differences_need_common_seeds(write_run: Write) -> None:
    runs = []
    seeds = {("m", 0): range(2), ("m", 1): range(1, 2), ("reference_sql", 0): range(5, 7)}
    seeds |= {("langgraph_sql", 1): range(1, 3)}
    for (trained, place), chosen in seeds.items():
        for seed in chosen:
            run = write_run(AGENTS[place], seed, kind="eval", model=trained)
            job = f"{trained} -> {AGENTS[place]}-{seed}"
            run.update(study={"name": "s", "job": job, "runs_at_once": 1})
            runs.append(run)
    comparison = compared(runs)
    assert comparison["transfer"]["m"]["reference_sql"]["difference"] is None
    assert comparison["transfer"]["m"]["langgraph_sql"]["seeds"] == 1
    row = rows_of(comparison, "transfer_differences")[0]
    assert row[1] == "-" and row[2].endswith(", one seed")


def test_graded_rewards_are_in_hundredths(evaluated: Callable[..., list[RunFolder]]) -> None:
    cells: dict[Any, Any] = {}
    for trained in AGENTS:
        for agent in AGENTS:
            cells[trained, agent] = (0.5, 2)
    comparison = compared(evaluated(cells))
    comparison["graded"] = True
    shown = [table for table in tables(comparison) if table.key.startswith("transfer")]
    assert [table.title for table in shown] == [
        "Policies by agent, in hundredths",
        "Policies by agent, against the agent's own, in hundredths",
    ]
    assert shown[0].note.startswith("Mean reward by the arm")


def test_a_single_policy_or_agent_needs_no_matrix(
    evaluated: Callable[..., list[RunFolder]],
) -> None:
    one_policy = evaluated({("mixture", agent): (0.5, 2) for agent in AGENTS})
    assert "transfer" not in compared(one_policy)
    one_agent = evaluated({(trained, "reference_sql"): (0.5, 2) for trained in ("a", "b")})
    assert "transfer" not in compared(one_agent)


def test_without_an_arm_of_the_agents_name_there_are_no_differences(
    evaluated: Callable[..., list[RunFolder]],
) -> None:
    cells: dict[Any, Any] = {}
    for trained in ("grpo", "rejection"):
        for agent in AGENTS:
            cells[trained, agent] = (0.5, 2)
    comparison = compared(evaluated(cells))
    assert {table.key for table in tables(comparison)}.isdisjoint({"transfer_differences"})
    for by_agent in comparison["transfer"].values():
        assert [cell["difference"] for cell in by_agent.values()] == [None, None]


def evaluation_of(run: RunFolder, training: str, step: int = 4) -> RunFolder:
    run.update(parent={"run": training, "step": step})
    return run


def test_checkpoints_of_different_steps_are_not_compared_unnoticed(write_run: Write) -> None:
    runs = [
        evaluation_of(write_run("reference_sql", kind="eval"), "a"),
        evaluation_of(write_run("langgraph_sql", kind="eval"), "a", step=2),
    ]
    paths = [run.path for run in runs]
    with pytest.raises(NotComparable, match=r"train\.checkpoint differs: 'the last' in .* 2 in"):
        compare(select(paths))
    assert compare(select(paths), allow=["train.checkpoint"])["pairs"]


def test_two_policies_in_one_agent_are_not_one_evaluation_made_twice(write_run: Write) -> None:
    runs = [write_run("reference_sql", kind="eval", model=model) for model in ("one", "two")]
    paths = [run.path for run in runs]
    with pytest.raises(NotComparable, match="model differs: 'one' in .* 'two' in"):
        compare(select(paths))
    comparison = compare(select(paths), allow=["model"])
    names = [arm["name"] for arm in comparison["arms"]]
    assert [name.rpartition(" ")[2] for name in names] == ["one", "two"]
    # Of one training, the step of the checkpoint tells them apart.
    for run, step in zip(runs, (2, 4), strict=True):
        evaluation_of(run, "training", step)
    comparison = compare(select(paths), allow=["model", "train.checkpoint"])
    names = [arm["name"] for arm in comparison["arms"]]
    assert names == [f"reference_sql trained to step {step}" for step in (2, 4)]


def test_a_training_made_again_does_not_split_its_arm(write_run: Write) -> None:
    runs = []
    for seed in range(3):
        for agent in AGENTS:
            runs.append(evaluation_of(write_run(agent, seed, kind="eval"), f"{agent}-{seed}"))
    again = evaluation_of(write_run("reference_sql", kind="eval"), "again")
    comparison = compare(select([run.path for run in (*runs, again)]))
    assert [(arm["name"], arm["seeds"]) for arm in comparison["arms"]] == [
        (agent, [0, 1, 2]) for agent in AGENTS
    ]
    assert any("ran twice" in remark for remark in comparison["remarks"])


def test_a_model_next_to_its_trained_policies_is_an_arm(write_run: Write) -> None:
    runs = [write_run("reference_sql", kind="eval", model="base")]
    for seed in range(3):
        trained = write_run("reference_sql", seed, kind="eval", model=f"trained-{seed}")
        runs.append(evaluation_of(trained, f"training-{seed}"))
    comparison = compare(select([run.path for run in runs]), allow=["model"])
    assert [(arm["name"], arm["seeds"]) for arm in comparison["arms"]] == [
        ("reference_sql model base", [0]),
        ("reference_sql trained to step 4", [0, 1, 2]),
    ]


def test_policies_of_roles_count_each(write_run: Write) -> None:
    paths = []
    for seed in range(3):
        for agent in AGENTS:
            run = write_run(agent, seed, kind="eval")
            record = run.read()
            identity = {**record["identity"], "role_models": {"check_query": f"check-{seed}"}}
            run.update(identity=identity)
            paths.append(run.path)
    (pair,) = compare(select(paths), allow=["role_models"])["pairs"]
    assert pair["difference"]["seeds"] == 3


def test_one_policy_is_paired_by_the_seed_that_both_arms_have(write_run: Write) -> None:
    paths = [write_run("reference_sql", seed, kind="eval").path for seed in (0, 1)]
    paths.append(write_run("langgraph_sql", 1, kind="eval").path)
    comparison = compare(select(paths))
    assert [arm["seeds"] for arm in comparison["arms"]] == [[1], [1]]
    assert comparison["pairs"][0]["paired_by"] == "seed"


def test_the_last_steps_of_trainings_of_different_lengths_compare(write_run: Write) -> None:
    paths = []
    for agent, steps in (("reference_sql", 2), ("langgraph_sql", 4)):
        run = write_run(agent, kind="eval", overrides=[f"train.steps={steps}"])
        paths.append(evaluation_of(run, agent, step=steps).path)
    comparison = compare(select(paths), allow=["train.steps"])
    assert len(comparison["pairs"]) == 1


def test_evaluations_of_one_policy_are_one_training(write_run: Write) -> None:
    paths = []
    for seed in range(8):
        for agent in AGENTS:
            paths.append(write_run(agent, seed, kind="eval", accuracy=(0.5, 0.5)).path)
    comparison = compare(select(paths), margin=0.1)
    (pair,) = comparison["pairs"]
    assert pair["difference"]["seeds"] == 1 and pair["verdict"] == "cannot tell"
    seeds = "1, 2, 3, 4, 5, 6, 7"
    remarks = [text for text in comparison["remarks"] if f"seed {seeds} are left out" in text]
    assert len(remarks) == len(AGENTS)
    reasons = {failed["reason"] for failed in comparison["failed"]}
    assert len(comparison["failed"]) == 14
    assert all(reason.startswith("an evaluation of the same policy as ") for reason in reasons)


def test_policies_of_different_trainings_are_not_compared_unnoticed(write_run: Write) -> None:
    slow = ["train.learning_rate=0.02"]
    runs = [
        evaluation_of(write_run("reference_sql", kind="eval"), "a"),
        evaluation_of(write_run("langgraph_sql", kind="eval", overrides=slow), "b"),
    ]
    paths = [run.path for run in runs]
    with pytest.raises(NotComparable, match=r"train\.learning_rate differs: .* 0\.02 in"):
        compare(select(paths))
    assert compare(select(paths), allow=["train.learning_rate"])["pairs"]
    # What trained the policy of an endpoint is unknown, and permits nothing between the others.
    endpoint = write_run("crewai_sql", kind="eval").path
    with pytest.raises(NotComparable, match=r"train\.learning_rate differs"):
        compare(select([*paths, endpoint]))
    assert compare(select([paths[0], endpoint]))["pairs"]


def test_how_often_a_training_was_validated_does_not_matter(write_run: Write) -> None:
    runs = [
        evaluation_of(write_run("reference_sql", kind="eval"), "a"),
        evaluation_of(
            write_run("langgraph_sql", kind="eval", overrides=["train.val_every=4"]), "b"
        ),
    ]
    assert compare(select([run.path for run in runs]))["pairs"]


def test_an_evaluation_of_an_older_policy_is_left_out(write_run: Write) -> None:
    runs = {}
    jobs: list[Any] = []
    for agent in AGENTS:
        training = write_run(agent)
        runs[agent] = evaluation_of(write_run(agent, kind="eval"), training.id)
        entry = {"arm": agent, "seed": 0, "state": "finished"}
        jobs.append({**entry, "key": agent, "kind": "train", "run": training.id})
        entry["arm"] = f"{agent} -> {agent}"
        evaluation = runs[agent].id
        jobs.append(
            {**entry, "key": f"e-{agent}", "kind": "eval", "parent": agent, "run": evaluation}
        )
    folder = runs["reference_sql"].path.parent
    state = {"name": "s", "evaluate": list(AGENTS), "jobs": jobs}
    (folder / "study.json").write_text(json.dumps(state))
    assert len(compare(select([folder]))["arms"]) == 2
    evaluation_of(runs["langgraph_sql"], "another")
    comparison = compare(select([folder]))
    assert [arm["name"] for arm in comparison["arms"]] == ["reference_sql -> reference_sql"]
    (left_out,) = comparison["missing"]
    assert left_out.startswith("langgraph_sql -> langgraph_sql seed 0: the evaluation used the")
    assert "the policy of another, but the training has since run again as " in left_out
    with pytest.raises(NothingToCompare, match=r"validated run yet \(langgraph_sql -> .* again\)"):
        compare(select([folder]), "langgraph_sql -> langgraph_sql")
    evaluation_of(runs["reference_sql"], "another")
    with pytest.raises(NothingToCompare, match=r"^reference_sql -> .* Start the study again; "):
        select([folder])
