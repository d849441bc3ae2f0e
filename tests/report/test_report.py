"""The report in a real browser: charts drawn, nothing on the console, filters that filter, no network."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from harness.compare.comparison import compare
from harness.compare.layout import tables
from harness.compare.measures import measure
from harness.compare.selection import Selection, select
from harness.errors import UserError
from harness_report.charts import (
    by_group,
    failures,
    logged,
    signal,
    training_curve,
    validation_curve,
)
from harness_report.page import write_report


def selection(runs: Path) -> Selection:
    return select([runs])


@pytest.fixture(scope="module")
def report(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "report.html"
    return write_report(
        selection(runs), out, margin=0.1, baseline="reference_sql", episodes=40, references=True
    )


def embedded(path: Path) -> dict[str, Any]:
    found = re.search(r'id="data">(.*?)</script>', path.read_text(), re.DOTALL)
    assert found is not None
    return json.loads(zlib.decompress(base64.b85decode(found.group(1).replace("/", "<"))))


@pytest.mark.slow
def test_charts_are_drawn_and_the_console_is_quiet(
    report: Path, browse: Callable[..., Any]
) -> None:
    page = browse(report)
    assert page.console == []
    charts = page.count('class="plot js-plotly-plot"')
    assert charts == len(embedded(report)["charts"]) >= 9
    assert int(page.attribute("data-charts")) >= charts
    assert page.count('<details class="episode"') == 20


@pytest.mark.slow
def test_a_phone_in_the_dark_gets_all_charts_without_scrolling_sideways(
    report: Path, browse: Callable[..., Any]
) -> None:
    page = browse(report, dark=True, width=500)
    assert page.console == [] and int(page.attribute("data-charts")) >= 9
    assert page.attribute("data-overflow") == "0"
    assert page.count('class="scroll"[^>]* data-wide') >= 1


def test_groups_are_bars_few_and_dots_many_and_none_is_no_chart(runs: Path) -> None:
    run = next(run for run in select([runs]).runs if run.finished)
    table = run.episodes
    for databases, kind, axis in ((3, "bar", "x"), (30, "scatter", "y")):
        clusters = [f"db_{int(task.rsplit('/', 1)[1]) % databases:02}" for task in table["task_id"]]
        run.episodes = table.with_columns(cluster=pl.Series(clusters))
        vars(run).pop("_validated", None)  # what was made of the table before
        (trace,) = by_group({run.id: [run]}, "cluster", "")["data"]
        assert (
            trace["type"] == kind
            and len(trace[axis]) == run.validation()["cluster"].n_unique() > databases / 2
        )
    run.episodes = table.with_columns(difficulty=pl.lit(""))
    vars(run).pop("_validated")
    assert not by_group({run.id: [run]}, "difficulty", "")["data"]


@pytest.mark.slow
def test_filters_come_from_the_address_and_narrow_the_episodes(
    report: Path, browse: Callable[..., Any]
) -> None:
    episodes = embedded(report)["browser"]["episodes"]
    wanted = [
        one for one in episodes if one["verdict"] == "wrong" and one["arm"] == "langgraph_sql"
    ]
    page = browse(report, "verdict=wrong&arm=langgraph_sql&open=1")
    assert page.console == []
    assert int(page.attribute("data-found")) == len(wanted) > 0
    assert page.count('class="verdict wrong"') >= min(len(wanted), 20) and not page.count(
        'class="verdict right"'
    )
    assert 'class="call' in page.dom and "SELECT 1" in page.dom


def test_parts_of_the_reward_are_in_a_table_and_with_their_rollout(
    report: Path, runs: Path, tmp_path: Path
) -> None:
    assert report.read_text().count("Parts of the reward") == 1
    for one in embedded(report)["browser"]["episodes"]:
        graded = one["arm"] == "langgraph_sql" and one["reward"] is not None
        assert one["parts"] == ({"right": one["reward"], "style": 0.25} if graded else {})
        assert one["by_role"] == ({"write_query": 0.5} if graded else {})
    plain = [run.folder.path for run in selection(runs).runs if run.arm == "reference_sql"]
    assert (
        "Parts of the reward"
        not in write_report(select(plain), tmp_path / "report.html").read_text()
    )


@pytest.mark.slow
def test_parts_of_the_reward_are_shown_beside_it(report: Path, browse: Callable[..., Any]) -> None:
    page = browse(report, "verdict=wrong&arm=langgraph_sql&open=1")
    assert "parts: right 0, style 0.25" in page.dom and "by role: write_query 0.5" in page.dom


def test_the_file_needs_nothing_from_outside(report: Path) -> None:
    text = report.read_text()
    assert not re.search(r'<(?:script|link|img|iframe)[^>]+(?:src|href)="(?!data:|#)', text)
    assert len(text) < 2_000_000


def test_episodes_are_capped_and_the_cap_is_told(report: Path) -> None:
    browser = embedded(report)["browser"]
    assert len(browser["episodes"]) == browser["shown"] <= 40 < browser["total"]
    assert f"{browser['shown']} of {browser['total']} episodes" in report.read_text()
    by_arm: dict[str, set[str]] = {}
    for one in browser["episodes"]:
        if one["phase"] == "val":
            by_arm.setdefault(one["arm"], set()).add(one["task"])
    assert by_arm["reference_sql"] == by_arm["langgraph_sql"]


@pytest.mark.slow
def test_a_wrong_answer_has_the_gold_beside_it(tmp_path: Path, browse: Callable[..., Any]) -> None:
    from harness_sql.tasks.pocket import PocketTasks

    published = Path(__file__).parents[2] / "results" / "cpu" / "shuffled"
    out = write_report(select([published]), tmp_path / "report.html", episodes=40)
    golds = {task.id: task.gold for split in ("train", "val") for task in PocketTasks().load(split)}
    shown = [(one["gold"], golds[one["task"]]) for one in embedded(out)["browser"]["episodes"]]
    assert shown and all(gold == known for gold, known in shown if gold)
    assert sum(bool(gold) for gold, _ in shown) > len(shown) / 2
    assert ">gold, which no agent sees<" in browse(out, "verdict=wrong&open=1").dom
    assert ">gold, which no agent sees<" not in browse(out, "verdict=right&open=1").dom


def test_a_report_does_without_golds_where_the_task_set_is_gone(runs: Path, tmp_path: Path) -> None:
    chosen = selection(runs)
    for run in chosen.runs:
        run.record["config"]["task"]["name"] = "of_another_machine"
    browser = embedded(write_report(chosen, tmp_path / "report.html", episodes=10))["browser"]
    assert {one["gold"] for one in browser["episodes"]} == {""}


def test_trained_calls_are_marked_and_prompts_kept_once(report: Path) -> None:
    browser = embedded(report)["browser"]
    trained = {
        (one["phase"], call["role"])
        for one in browser["episodes"]
        for call in one["steps"]
        if call.get("trained")
    }
    assert ("train", "write_query") in trained and not any(
        phase == "val" or role == "check_query" for phase, role in trained
    )
    assert len(set(browser["texts"])) == len(browser["texts"])


def test_tools_are_shown_with_arguments_results_and_faults(runs: Path, tmp_path: Path) -> None:
    chosen = selection(runs)
    made = (
        ("add", {"a": 1, "b": "ü"}, "3", True, ""),
        ("add", {"": "{"}, "The arguments of add are no JSON.", False, "bad_arguments"),
        ("look_up", {"name": "Ana"}, "There is no tool 'look_up'.", False, "unknown_tool"),
        ("add", {"a": 1}, "the adder is out of order", False, ""),
    )
    names = ("tool", "arguments", "text", "ok", "fault")
    called = [
        {**dict(zip(names, one, strict=True)), "started_s": 1.0, "elapsed_s": 0.1} for one in made
    ]
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "function": {"name": "add"}}],
    }
    for run in chosen.runs:
        run.episodes = run.episodes.with_columns(tool_calls=pl.lit(json.dumps(called)))
        if run.transitions is not None:
            messages = json.dumps([message, {"role": "tool", "content": "3"}])
            run.transitions = run.transitions.with_columns(
                messages=pl.lit(messages), finish_reason=pl.lit("tool_calls")
            )
    out = write_report(chosen, tmp_path / "report.html", episodes=10)
    browser = embedded(out)["browser"]
    steps = browser["episodes"][0]["steps"]
    shown = [
        (one["tool"], one["arguments"], one["result"], one["failed"])
        for one in steps
        if "tool" in one
    ]
    assert shown == [
        ("add", '{"a": 1, "b": "ü"}', "result", False),
        ("add", "{", "bad arguments", True),
        ("look_up", "Ana", "unknown tool", True),
        ("add", '{"a": 1}', "error", True),
    ]
    assert [one["text"] for one in steps if "tool" in one] == [one[2] for one in made]
    assert browser["texts"] == [json.dumps(message["tool_calls"]), "3"]


def test_manifest_failures_and_foreign_figures_are_there_and_marked(report: Path) -> None:
    text = report.read_text()
    assert "Published by others" in text and "Not measured with this project" in text
    assert "the policy" in text and "server went away" in text  # the failed run and why
    assert "same agent, certified" in text and "data_order" in text and "by seed" in text


def test_text_from_a_model_cannot_break_out_of_the_page(runs: Path, tmp_path: Path) -> None:
    chosen = selection(runs)
    chosen.name = "</script><script>alert(1)</script>"
    run = chosen.runs[0]
    run.episodes = run.episodes.with_columns(
        question=pl.lit("</script><img src=x onerror=alert(1)>")
    )
    text = write_report(chosen, tmp_path / "report.html", margin=0.1, episodes=30).read_text()
    assert "</script><script>alert(1)" not in text and "<img src=x" not in text


def test_one_unfinished_run_has_a_report_too(runs: Path, tmp_path: Path) -> None:
    failed = next(run for run in selection(runs).runs if not run.finished)
    out = write_report(select([failed.folder.path]), tmp_path / "report.html")
    assert "No comparison" in out.read_text()
    assert embedded(out)["charts"]


def test_the_title_says_what_was_done_with_what(report: Path) -> None:
    (title,) = re.findall("<title>(.*?)</title>", report.read_text())
    assert all(
        part in title
        for part in ("reference_sql", "langgraph_sql", "pocket", "execution_accuracy/")
    )


def test_a_run_of_one_step_is_seen(runs: Path) -> None:
    run = next(run for run in select([runs]).runs if run.finished)
    run.steps = run.steps.filter(pl.col("step") <= 1)
    *_, line = training_curve({run.id: [run]})["data"]
    assert len(line["x"]) == 1 and "markers" in line["mode"]


def test_captions_speak_of_seeds_only_where_there_are_several(runs: Path) -> None:
    finished = [run for run in select([runs]).runs if run.finished]
    alike = [run for run in finished if run.arm == finished[0].arm]
    for chosen, several in ((alike[:1], False), (alike, True)):
        arms, figures = {"a": chosen}, {"a": [measure(run) for run in chosen]}
        made = [
            validation_curve(arms),
            training_curve(arms),
            signal(figures),
            by_group(arms, "difficulty", "By difficulty"),
        ]
        assert [("seed" in chart["caption"]) for chart in made] == [several] * 4


def test_a_place_that_cannot_be_written_is_told(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        write_report(selection(runs), tmp_path / "file" / "report.html", margin=0.1)


@pytest.mark.slow
def test_an_evaluation_speaks_of_no_training_and_has_no_empty_part(
    tmp_path: Path, write_run: Callable[..., Any], browse: Callable[..., Any]
) -> None:
    run = write_run(tmp_path, "reference_sql", kind="eval")
    out = write_report(select([run.path]), tmp_path / "report.html", episodes=10, references=False)
    assert {one["id"] for one in embedded(out)["charts"]}.isdisjoint(
        {"validation", "training", "rewrites", "cost"}
    )
    text = out.read_text().partition('id="manifest"')[0]
    visible = re.sub(r"<(style|script).*?</\1>", "", text, flags=re.DOTALL)
    for word in (
        "alidation",
        "raining",
        "heckpoint",
        "step",
        'id="evidence"',
        "GPU-hours",
        "final",
    ):
        assert word not in visible, word
    page = browse(out)
    assert page.console == [] and "step 0" not in page.dom.partition('id="manifest"')[0]


def test_axes_of_accuracy_and_reward_go_from_end_to_end(runs: Path, tmp_path: Path) -> None:
    chosen = select([run.folder.path for run in selection(runs).runs if run.arm == "reference_sql"])
    for low, high in ((0.0, 1.0), (-1.0, 4.0)):
        for run in chosen.runs:
            run.record["identity"]["reward_range"] = [low, high]
        charts = {
            one["id"]: one
            for one in embedded(write_report(chosen, tmp_path / "r.html", episodes=4))["charts"]
        }
        for name in ("validation", "training", "by-difficulty", "by-cluster"):
            bottom, top = charts[name]["layout"]["yaxis"]["range"]
            assert bottom == low and high < top < high + 0.1 * (high - low), name


def test_what_stands_between_backticks_is_code(report: Path) -> None:
    page = report.read_text().partition('<script type="text/plain"')[0]
    assert "<code>--format json</code>" in page and "`" not in page


def test_columns_come_in_the_order_of_the_terminal_and_intervals_do_not_break(
    runs: Path, report: Path
) -> None:
    table = report.read_text().partition('id="table-accuracy"')[2].partition("</table>")[0]
    heads = re.findall("<th [^>]*>(.*?)</th>", table)
    comparison = compare(selection(runs), "reference_sql", margin=0.1)
    assert heads == tables(comparison)[0].heads
    assert heads[:4] == ["arm", "seeds", "initial %", "final %"]
    assert "[" in table and not re.search(r"\[[-+.\d]+, ", table)


def test_four_charts_and_the_results_are_open_and_the_rest_is_folded(report: Path) -> None:
    body = report.read_text().partition('<script type="text/plain"')[0]
    opened, _, folded = body.partition('id="more-charts"')
    charts = [chart["id"] for chart in embedded(report)["charts"]]
    assert re.findall(r'id="figure-([^"]+)"', opened) == charts[:4]
    assert charts[:4] == ["validation", "differences", "training", "cost"]
    assert re.findall(r'id="figure-([^"]+)"', folded) == charts[4:]
    assert folded.index('id="all-runs"') < folded.index('id="table-identity"')


def test_bars_of_failures_lie_and_dotted_lines_are_in_the_legend(runs: Path) -> None:
    run = next(run for run in select([runs]).runs if run.finished)
    figures = measure(run) | {"failures": {"answer_fails": 7}}
    one_type = failures({"only": [figures]})
    (bar,) = one_type["data"]
    assert bar["orientation"] == "h" and bar["x"] == [7] and bar["y"] == ["answer fails"]
    assert one_type["layout"]["height"] < 200
    series = {"clipped": {1: 0.0, 2: 0.0002}, "cut": {1: 0.5, 2: 0.25}}
    run.logged = lambda name: series.get(name, {})
    clipped = next(figure for figure in logged({"only": [run]}) if figure["id"] == "clipped")
    shown = [trace for trace in clipped["data"] if trace.get("showlegend", True)]
    assert [(trace["name"], trace["line"]["dash"]) for trace in shown] == [
        ("only", "solid"),
        ("dotted: replies cut", "dot"),
    ]


def test_graded_rewards_are_called_mean_reward(runs: Path, tmp_path: Path) -> None:
    chosen = select([run.folder.path for run in selection(runs).runs if run.arm == "reference_sql"])
    for run in chosen.runs:
        run.episodes = run.episodes.with_columns(pl.col("reward") * 0.5)
    out = write_report(chosen, tmp_path / "report.html", episodes=10)
    charts = {one["id"]: one for one in embedded(out)["charts"]}
    assert charts["validation"]["title"] == "Validation mean reward"
    assert charts["validation"]["layout"]["yaxis"]["tickformat"] == ".2f"
    assert (
        "Mean reward on validation" in out.read_text()
        and "Accuracy on validation" not in out.read_text()
    )


def test_a_margin_that_is_none_is_refused_with_or_without_other_results(
    runs: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="a margin lies between 0 and 1"):
        write_report(selection(runs), tmp_path / "report.html", margin=5.0)
    assert not (tmp_path / "report.html").exists()


def test_the_page_has_a_place_for_every_table_of_a_comparison() -> None:
    from harness.compare import layout
    from harness_report.page import SECTIONS

    source = Path(layout.__file__).read_text()
    keys = set(re.findall(r'Table\(\s*"(\w+)"', source))
    assert {"starts", "sides"} <= keys <= {*SECTIONS}


def test_of_a_large_study_only_runs_without_a_result_are_listed(
    tmp_path: Path, write_run: Callable[..., Any]
) -> None:
    study = tmp_path / "study"
    jobs: list[dict[str, Any]] = []
    for agent in ("reference_sql", "langgraph_sql"):
        run = write_run(study, agent, kind="eval").id
        training = {"key": agent, "arm": agent, "seed": 0, "run": f"{agent}-training"}
        evaluation = {"key": f"e-{agent}", "arm": f"{agent} -> x", "seed": 0, "run": run}
        jobs.append({**training, "kind": "train", "state": "finished"})
        jobs.append({**evaluation, "kind": "eval", "state": "finished"})
    jobs.append({**jobs[-1], "key": "lost", "seed": 1, "run": None, "state": "interrupted"})
    (study / "study.json").write_text(
        json.dumps({"name": "study", "question": "", "jobs": jobs, "evaluate": ["x"]})
    )
    page = write_report(select([study]), tmp_path / "page.html").read_text(encoding="utf-8")
    (listed,) = re.findall(
        r'<section class="table" id="table-matrix">.*?</section>', page, re.DOTALL
    )
    assert "Runs without a result" in listed
    assert re.findall(r'<span class="state \w+">(\w+)</span>', listed) == ["interrupted"]
