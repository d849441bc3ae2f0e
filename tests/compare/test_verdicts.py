"""What a comparison says follows from its verdicts, and a verdict from what there was to learn."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import polars as pl
import pytest

from harness.api.summaries import summary
from harness.compare.comparison import compare
from harness.compare.formats import render
from harness.compare.keys import Comparison, Decision
from harness.compare.layout import tables
from harness.compare.selection import Selection, select
from harness.compare.sentences import sentences
from harness.compare.verdicts import CLAIMS, conclusions, verdict_text
from harness.errors import UserError
from harness_report.page import write_report

Write = Callable[..., Any]
ALIKE = re.compile(
    r"\b(?:equal to|equivalent|identical|the same|as good|as much|no difference|alike|does not (?:matter|differ))\b",
    re.IGNORECASE,
)
"""Words that claim that two arms are alike."""


def twin(run: Any, agent: str = "langgraph_sql") -> Path:
    """The same run once more, as another agent's."""
    path: Path = run.path.with_name(f"{agent}-as-{run.id}")
    shutil.copytree(run.path, path)
    record = json.loads((path / "run.json").read_text())
    record |= {"id": path.name, "agent": agent}
    record["config"]["agent"] = agent
    (path / "run.json").write_text(json.dumps(record))
    return path


def cells(comparison: Comparison, key: str) -> list[dict[str, str]]:
    (table,) = (table for table in tables(comparison) if table.key == key)
    return [dict(zip(table.heads, row, strict=True)) for row in table.rows]


def test_every_verdict_has_its_words_and_only_one_of_them_claims_similarity_beyond_the_seeds() -> (
    None
):
    assert set(CLAIMS) == set(get_args(Decision))
    assert not ALIKE.search(CLAIMS["cannot tell"]) and not ALIKE.search(CLAIMS["different"])
    assert "in these seeds" in CLAIMS["identical"] and "margin" in CLAIMS["equivalent"]


@pytest.mark.slow
def test_cannot_tell_is_never_told_as_similarity(write_run: Write, tmp_path: Path) -> None:
    small = {"steps": 2, "val_limit": 30}
    runs = [
        write_run(name, seed, **small).path
        for name in ("reference_sql", "langgraph_sql")
        for seed in (0, 1)
    ]
    for margin in (None, 0.05):
        chosen = select(runs)
        found = compare(chosen, "reference_sql", margin=margin)
        (pair,) = found["pairs"]
        assert pair["verdict"] == "cannot tell" and abs(pair["difference"]["mean"]) < 0.4
        texts = conclusions(found)
        assert texts[0].startswith("Cannot tell if different from reference_sql: langgraph_sql (")
        assert f"{100 * pair['difference']['mean']:+.1f} [" in texts[0]
        assert not any(ALIKE.search(sentence) for sentence in texts)
        assert set(texts) <= set(sentences(found))
        cell = verdict_text(pair).partition("(")
        assert cell[0] == "cannot tell " and not ALIKE.search(cell[2].replace("needs", ""))
    page = write_report(
        chosen, tmp_path / "report.html", baseline="reference_sql", margin=0.05
    ).read_text()
    assert texts[0] in page


@pytest.mark.slow
def test_a_difference_is_told_with_its_interval_and_the_way_apart_from_the_end(
    three_arms: Path,
) -> None:
    found = compare(select([three_arms]), "reference_sql", margin=0.15)
    texts = conclusions(found)
    assert re.match(
        r"Different from reference_sql: crewai_sql \(-5\d\.\d \[-\d+\.\d, -\d+\.\d\] points\)\.$",
        texts[0],
    )
    assert any(
        one.startswith("Secondary, area under curve. Different from reference_sql: crewai_sql (")
        for one in texts
    )
    assert not any(ALIKE.search(sentence) for sentence in texts)


@pytest.mark.slow
def test_identical_is_one_verdict_with_what_it_takes_to_generalise(
    write_run: Write, tmp_path: Path
) -> None:
    runs = [write_run(seed=seed, steps=2, val_limit=20) for seed in (0, 1)]
    chosen = select([*(run.path for run in runs), *map(twin, runs)])
    for margin in (None, 0.05):
        found = compare(chosen, margin=margin)
        (row,) = (row for row in cells(found, "accuracy") if row["arm"] == "langgraph_sql")
        assert row["verdict"] == "identical in 2 of 2 seeds; 8 are needed to generalise"
        assert row["difference (points)"] == "identical"
        text = render(found, "md")
        assert "annot tell" not in text and "cannot tell" not in render(found, "html")
        assert (
            "Identical to reference_sql in these seeds, in every answer of every step: langgraph_sql (2 seeds)."
            in text
        )
        assert {row["difference (points)"] for row in cells(found, "views")} == {
            "baseline",
            "identical",
        }
    page = write_report(chosen, tmp_path / "report.html").read_text()
    assert (
        page.count("identical in 2 of 2 seeds; 8 are needed to generalise") == 2
        and "cannot tell" not in page
    )
    single = compare(select([runs[0].path, twin(runs[0], "crewai_sql")]))
    assert (
        verdict_text(single["pairs"][0]) == "identical in 1 of 1 seeds; 8 are needed to generalise"
    )


@pytest.mark.parametrize(
    ("level", "why"),
    [
        (0.0, "All 16 training rollouts have reward 0, the lowest. Most often: rows differ."),
        (1.0, "All 16 training rollouts have reward 1, the highest."),
    ],
)
def test_trainings_without_signal_are_not_called_alike(
    write_run: Write, level: float, why: str
) -> None:
    runs = [write_run(seed=seed, steps=2, val_limit=20, accuracy=(level, level)) for seed in (0, 1)]
    found = compare(select([*(run.path for run in runs), *map(twin, runs)]), margin=0.05)
    (pair,) = found["pairs"]
    assert found["agreement"]["langgraph_sql"]["identical"]  # which says nothing here
    assert not pair["learned"] and not pair["identical"] and pair["verdict"] == "cannot tell"
    assert verdict_text(pair) == "cannot tell (nothing could be learned)"
    notes = sentences(found)
    for name in ("reference_sql", "langgraph_sql"):
        assert f"Nothing could be learned in {name}: no task gave a gradient. {why}" in notes
    assert not any(
        re.search("identical|equivalent to", one, re.IGNORECASE) for one in conclusions(found)
    )
    assert {row["groups with signal %"] for row in cells(found, "behaviour")} == {"0.0"}
    result = runs[0].read()["result"]
    assert (result["signal"], result["no_signal"]) == (0.0, why)


@pytest.mark.slow
def test_seeds_without_signal_are_named_and_the_share_of_groups_is_known_by_step(
    write_run: Write, tmp_path: Path
) -> None:
    runs = [
        write_run(seed=seed, steps=2, val_limit=20, accuracy=(0.5, 0.5) if seed else (0.0, 0.0))
        for seed in (0, 1)
    ]
    others = [
        write_run("langgraph_sql", seed, steps=2, val_limit=20, accuracy=(0.5, 0.5))
        for seed in (0, 1)
    ]
    chosen = select([run.path for run in (*runs, *others)])
    found = compare(chosen)
    assert found["pairs"][0]["learned"]
    texts = sentences(found)
    assert any(
        one.startswith("Nothing could be learned in reference_sql, seed 0: ") for one in texts
    )
    _, learned = found["arms"][0]["per_seed"]
    rows = pl.read_parquet(runs[1].path / "episodes.parquet").filter(phase="train")
    groups = rows.group_by("step", "task_id").agg(mixed=pl.n_unique("used_reward") > 1)
    by_step = dict(groups.group_by("step").agg(pl.mean("mixed")).rows())
    assert learned["signal_by_step"] == by_step and 0 < learned["signal"] < 1
    assert learned["signal"] == pytest.approx(groups["mixed"].mean()) and learned["no_signal"] == ""
    steps = pl.read_parquet(runs[1].path / "steps.parquet").filter(pl.col("step") > 0)
    assert (
        dict(
            zip(steps["step"], steps["rollout/mixed_groups"] / steps["rollout/groups"], strict=True)
        )
        == by_step
    )
    assert runs[1].read()["result"]["signal"] == learned["signal"]
    page = write_report(chosen, tmp_path / "report.html").read_text()
    assert 'id="figure-signal"' in page and "Groups with signal" in page


def test_what_calls_are_paid_apart_is_not_called_without_signal(write_run: Write) -> None:
    run = write_run(steps=2, val_limit=20, accuracy=(0.0, 0.0), overrides=["train.credit=turn"])
    (found,) = compare(select([run.path]))["arms"]
    assert (
        found["signal"] is None
        and found["per_seed"][0]["no_signal"] == run.read()["result"]["no_signal"] == ""
    )


def test_the_end_of_a_training_says_that_nothing_could_be_learned(
    write_run: Write,
) -> None:
    flat, mixed = (
        write_run(steps=2, val_limit=20, accuracy=(level, level)) for level in (0.0, 0.5)
    )
    flat_summary = summary(flat, flat.read())
    assert "nothing could be learned: All 16 training rollouts have reward 0" in flat_summary
    assert "harness policy fetch qwen2.5-coder-0.5b" in flat_summary
    assert "--set rollout.group_size=" in flat_summary and "easier questions" in flat_summary
    solved = write_run(steps=2, val_limit=20, accuracy=(1.0, 1.0))
    assert "to try: harder questions" in summary(solved, solved.read())
    mixed_summary = summary(mixed, mixed.read())
    assert "nothing could be learned" not in mixed_summary and re.search(
        r"\d+ % of groups had mixed rewards \(only these teach\)", mixed_summary
    )


def in_clusters(run: Any, large: int) -> Path:
    """A run whose questions, but for some, are all in one cluster."""
    file = run.path / "episodes.parquet"
    rows = pl.read_parquet(file)
    tasks = sorted(rows.filter(phase="val")["task_id"].unique())
    names = {
        task: "large" if place < large else f"small{place % 10}" for place, task in enumerate(tasks)
    }
    rows.with_columns(
        cluster=pl.col("task_id").replace_strict(names, default="large")
    ).write_parquet(file)
    return Path(run.path)


@pytest.mark.slow
def test_one_large_cluster_is_named_as_what_leaves_no_power(write_run: Write) -> None:
    options = {"steps": 2, "val_limit": 60}
    arms = (("reference_sql", (0.3, 0.6)), ("langgraph_sql", (0.3, 0.7)))
    runs = [
        in_clusters(write_run(name, seed, accuracy=reached, **options), 40)
        for name, reached in arms
        for seed in range(3)
    ]
    found = compare(select(runs), "reference_sql")
    (pair,) = found["pairs"]
    assert pair["difference"]["clusters"] > 5 and pair["difference"]["equal_clusters"] < 2.5
    assert pair["verdict"] == "cannot tell"
    assert "effective number of clusters: 2." in verdict_text(pair)
    assert any(
        "carry the information of about 2." in one and "however many" in one
        for one in sentences(found)
    )


def test_views_have_differences_and_times_of_unlike_machines_are_said_not_to_compare(
    write_run: Write, three_arms: Path
) -> None:
    found = compare(select([three_arms]), "reference_sql")
    (view,) = (view for view in found["views"] if view["key"] == "equal_trained_tokens")
    difference = view["arms"]["langgraph_sql"]["difference"]
    accuracy = {name: one["accuracy"] for name, one in view["arms"].items()}
    assert (
        view["arms"]["reference_sql"]["difference"] is None
        and difference["low"] < difference["high"]
    )
    assert difference["mean"] == pytest.approx(
        accuracy["langgraph_sql"] - accuracy["reference_sql"]
    )
    note = "Times of different arms do not compare"
    assert found["times_compare"] and note not in render(found, "md")
    one, other = write_run(), write_run("langgraph_sql")
    record = other.read()
    record["launches"][0] |= {"runs_at_once": 4, "cores": 8}
    other.write(record)
    found = compare(select([one.path, other.path]))
    assert not found["times_compare"] and note in render(found, "md")


def of_study(runs: list[Path], baseline: str, arms: list[str] | None = None) -> Selection:
    chosen = select(runs)
    chosen.study = {"baseline": baseline}
    chosen.arms = arms or []
    return chosen


@pytest.mark.slow
def test_a_stated_baseline_is_never_replaced(three_arms: Path, tmp_path: Path) -> None:
    runs = [three_arms]
    assert compare(of_study(runs, "reference_sql"))["baseline"] == "reference_sql"
    with pytest.raises(
        UserError, match=r"no arm called 'refrence_sql'; did you mean 'reference_sql'\? Arms: "
    ):
        compare(of_study(runs, "refrence_sql"))
    with pytest.raises(UserError, match="no arm called 'refrence_sql'"):
        write_report(of_study(runs, "refrence_sql"), tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
    with pytest.raises(
        UserError,
        match=r"baseline, 'autogen_sql', has no finished and validated run yet\. .*--baseline",
    ):
        compare(of_study(runs, "autogen_sql"))  # it failed
    with pytest.raises(UserError, match="baseline, 'later', has no finished"):
        compare(of_study(runs, "later", ["later"]))  # it has not run
    assert compare(of_study(runs, "later", ["later"]), "crewai_sql")["baseline"] == "crewai_sql"


def test_a_baseline_that_several_arms_fit_is_refused_and_power_refuses_as_well(
    write_run: Write,
) -> None:
    from harness_power_analysis.command import power

    runs = [
        write_run(agent_match=match, seed=seed, steps=2)
        for match in ("write", "check")
        for seed in (0, 1)
    ]
    paths = [run.path for run in runs]
    with pytest.raises(
        UserError, match=r"'reference_sql' is in 2 arms\. Name one of them as the baseline: "
    ):
        compare(of_study(paths, "reference_sql"))
    with pytest.raises(UserError, match=r"no arm called 'nobody'\. Arms: "):
        power(paths, baseline="nobody")


def test_one_arm_explains_no_p_values(write_run: Write) -> None:
    several = ["eval.samples=2", "eval.temperature=1.0"]
    for run in (write_run(seed=0), write_run(kind="eval", val_limit=20, overrides=several)):
        text = render(compare(select([run.path])), "md")
        assert "Only one arm, so nothing is compared. " in text
        found = re.search(r".*(\bp values?\b|verdict|corrected).*", text)
        assert not found, found.group()


@pytest.mark.slow
def test_labels_of_latex_tables_are_of_what_was_compared(
    three_arms: Path, write_run: Write
) -> None:
    found = {}
    for baseline in ("reference_sql", "crewai_sql"):
        text = render(compare(select([three_arms]), baseline), "latex")
        found[baseline] = re.findall(r"\\label\{(.*?)\}", text)
    other = [write_run(seed=seed, steps=2).path for seed in (0, 1)]
    found["two"] = re.findall(r"\\label\{(.*?)\}", render(compare(select(other)), "latex"))
    labels = [label for some in found.values() for label in some]
    assert len(labels) > 9 and len(set(labels)) == len(labels)
    assert all(re.fullmatch(r"tab:[a-z0-9-]+", label) for label in labels)
    assert (
        f"tab:{three_arms.name.replace('_', '-')}-reference-sql-accuracy" in found["reference_sql"]
    )
    again = re.findall(r"\\label\{(.*?)\}", render(compare(select(other)), "latex"))
    assert again == found["two"]


@pytest.mark.slow
def test_power_with_one_cluster_plans_with_no_other_and_keeps_its_promise(
    write_run: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    from harness.compare.estimates import crossed_mean
    from harness.compare.power import Variances
    from harness_power_analysis.command import power

    runs = [
        in_clusters(
            write_run(name, seed, steps=2, val_limit=40, accuracy=(0.3, 0.5 + 0.1 * seed)), 10_000
        )
        for name in ("reference_sql", "langgraph_sql")
        for seed in (0, 1, 2)
    ]
    power(runs, effect=20.0, json_=True)
    plans = json.loads(capsys.readouterr().out)["plans"]
    assert [(one["clusters"], one["questions"]) for one in plans] == [(1, 40), (1, 80), (1, 160)]
    power(runs, effect=20.0)
    assert "One cluster: the variance between clusters is unknown" in " ".join(
        capsys.readouterr().out.split()
    )

    import numpy as np

    variances, generator, repeats = (
        Variances(0.03**2, 0, 0, 0, 0.5**2, (100,), 3, "known"),
        np.random.default_rng(8),
        200,
    )
    for seeds, arms in ((2, 1), (3, 4)):
        effect, hits = variances.detectable(seeds, [100], 0.8, 0.05 / arms), 0
        seed, task = np.indices((seeds, 100)).reshape(2, -1)
        rows = pl.DataFrame({"seed": seed, "cluster": 0 * task, "task_id": task})
        for _ in range(repeats):
            values = (
                effect
                + generator.normal(0, 0.03, (seeds, 1))
                + generator.normal(0, 0.5, (seeds, 100))
            )
            found = crossed_mean(rows.with_columns(value=values.ravel()))
            hits += found is not None and found.p_difference() < 0.05 / arms
        assert hits / repeats == pytest.approx(0.8, abs=2.6 * (0.8 * 0.2 / repeats) ** 0.5)


def test_each_seed_has_its_own_reason_why_nothing_could_be_learned(write_run: Write) -> None:
    for seed, level in enumerate((0.0, 1.0)):
        write_run(seed=seed, steps=2, val_limit=20, accuracy=(level, level))
    runs_dir = write_run(seed=2, steps=2, val_limit=20, accuracy=(1.0, 1.0)).path.parent
    (reason,) = [
        text
        for text in sentences(compare(select([runs_dir])))
        if text.startswith("Nothing could be learned")
    ]
    assert "Seed 0: All 16 training rollouts have reward 0, the lowest." in reason
    assert "Seeds 1, 2: All 16 training rollouts have reward 1, the highest." in reason
