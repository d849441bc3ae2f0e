"""Keep tables and numbers in Markdown equal to the run records.

    python tools/table.py --check|--write|--numbers [FILE...]

A table is between `<!-- table: KIND FOLDER [KEY...] -->` and `<!-- /table -->`, with FOLDER
relative to the root:

    runs results/cpu                               one row a run
    passes results/gpu-spider/seeds                one row a run: reward by pass over the training
                                                   questions
    phases results/gpu-speed                       one row a run: seconds by phase in the steps that
                                                   all runs have
    steps results/gpu-speed/whole-steps            one column a run of `h200.csv`: median seconds by
                                                   phase of steps 2 to 6, `runs.yaml` names the runs
    steps results/gpu-speed/whole-steps rollout    only these rows, and single figures
    checks FOLDER-OF-A-STUDY                       one row an arm: results of the check on first
                                                   queries
    compare results/studies/frameworks             the output of `harness compare --format md`
    compare results/studies/frameworks accuracy    only the tables of these keys (accuracy,
                                                   gains, learning, behaviour, cost, evidence,
                                                   views, ...; `notes` are the sentences below them)
    compare FOLDER "baseline=ARM" ...              the same against another arm than the first
    compare FOLDER allow=KEY ...                   the same for runs that differ in a key of their
                                                   identity
    compare results/studies/pocket-probe/STUDY     the same for a study in an archive, `runs.tar.xz`
    verdicts results/verdicts.yaml                 one row a question, one column a model size,
                                                   verdicts in the cells
    choices results/choices.yaml                   one row an arm: accuracy, verdict and cost

A claim is between `<!-- claim: FOLDER "ARM"... [OPTION...] -->` and `<!-- /claim -->`: a sentence
an arm with words that follow from its verdict (`harness/compare/verdicts.py`), and with difference,
interval, seeds, policy and held-out set. Options: "baseline=ARM" and allow=KEY as above,
"policy=NAME" where a record has no more than a local path, and "gain=ARM" for a sentence on an
arm's own accuracy before and after training.

A number in a sentence is between `<!-- value: KIND FOLDER "ARM" [KEY] [OPTION...] -->` and
`<!-- /value -->`:

    arm FOLDER "ARM" trained_tokens            a figure of an arm, as `Arm` in docs/comparisons.md
                                               has it
    arm FOLDER "ARM" accuracy_final            its mean with the 95 % interval
    seeds FOLDER "ARM"                         the lowest and the highest seed's final accuracy
    pair FOLDER "ARM"                          the difference to the baseline, with its interval
    gain FOLDER "ARM" by_format                its own gain, or a part of it, with its interval
    view FOLDER "ARM" equal_trained_tokens     the difference at a budget, with its interval
    learning FOLDER "ARM" checkpoint           the difference of a measure on the way, with its
                                               interval
    run FOLDER RUN val_accuracy_final          a figure of one run, as `Result` in docs/records.md
                                               has it; shares in percent
    printed FOLDER "ARM" "trained tokens"      a cell of FOLDER.md, which a comparison printed from
                                               rows that are not published; "HEAD after OTHER" is
                                               the column right of another

`--numbers` lists the lines of prose with numbers that no marker derives, and counts them.

Without files: README.md, the pages below results/ and docs/*.md.
"""

from __future__ import annotations

import re
import shlex
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import polars as pl
import yaml

from harness.compare.comparison import compare
from harness.compare.formats import markdown_tables
from harness.compare.keys import Arm, Comparison, EstimateData, Pair
from harness.compare.layout import tables
from harness.compare.numbers import number, points, with_interval
from harness.compare.selection import Selection, select
from harness.compare.sentences import sentences
from harness.compare.states import PACKED
from harness.compare.statistics import cluster_bootstrap
from harness.compare.verdicts import CLAIMS
from harness.errors import HarnessError
from harness.policies.catalogue import known
from harness.runs.folder import RunFolder
from harness.runs.schema import Result, RunRecord
from harness.util.formatting import mean, percent

ROOT = Path(__file__).resolve().parent.parent
_WHAT = r"(?P<what>(?:(?!-->).)*?)"
"""The words of a marker, which may hold `->` but not the end of a comment."""
MARKED = re.compile(
    rf"(?P<head><!-- table: {_WHAT} -->\n)(?P<body>.*?)(?P<end><!-- /table -->)", re.DOTALL
)
CLAIMED = re.compile(
    rf"(?P<head><!-- claim: {_WHAT} -->\n)(?P<body>.*?)(?P<end><!-- /claim -->)", re.DOTALL
)
VALUED = re.compile(
    rf"(?P<head><!-- value: {_WHAT} -->)(?P<body>.*?)(?P<end><!-- /value -->)", re.DOTALL
)
NUMBER = re.compile(r"(?<![\w.,/-])[-+]?\d[\d,]*\.\d+(?![\w/]|\.\d)|\d+(?= %)|\d{1,3}(?:,\d{3})+")
"""A number that a record could have: with decimals, thousands, or percent; no version or date."""
CODE = re.compile(r"```.*?```|`[^`]*`|\]\([^)]*\)|^    .*?$", re.DOTALL | re.MULTILINE)
OPTIONS = ("baseline=", "allow=", "policy=", "gain=")
PHASES = ("rollout_s", "timing_s/old_log_prob", "timing_s/update_actor", "weights_s")


def result_of(record: RunRecord) -> Result:
    """Return a run's result; fail if it has not ended."""
    if (result := record["result"]) is None:
        raise HarnessError(f"run {record['id']} has not ended: publish it when it has")
    return result


def runs_table(folder: Path) -> str:
    """Return a table with one row a run, by name."""
    lines = [
        "| run | agent | trains | seed | validation before | after "
        "| steps | s/step | rollout | update | minutes |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for path in sorted(folder.glob("*/run.json")):
        record = RunFolder.open(path.parent).read()
        result = result_of(record)
        steps = pl.read_parquet(path.parent / "steps.parquet").drop_nulls("step_s")
        whole = cast(float, steps["step_s"].sum())
        share = {phase: cast(float, steps[phase].sum()) / whole for phase in PHASES}
        trains = f"`{record['agent_match']}`".replace("|", "\\|") + (
            ", shuffled rewards" if record["identity"]["reward_shuffled"] else ""
        )
        graded = result.get("graded", False)
        before, after = (
            mean(result["val_accuracy_initial"], graded),
            mean(result["val_accuracy_final"], graded),
        )
        updating = share["timing_s/update_actor"] + share["timing_s/old_log_prob"]
        lines.append(
            f"| {path.parent.name} | {record['agent']} | {trains} | {record['seed']} "
            f"| {before} | {after} | {result['steps']} "
            f"| {result['step_s_median']:.1f} | {percent(share['rollout_s'])} "
            f"| {percent(updating)} | {result['wall_s'] / 60:.1f} |"
        )
    return "\n".join(lines) + "\n"


def phases_table(folder: Path) -> str:
    """Return mean seconds by phase and a step's speed against the first run's, one row a run.

    Counts the steps in which all runs trained on the same number of tokens, without the first.
    Fails without any such step.
    """
    runs = {
        path.parent.name: pl.read_parquet(path.parent / "steps.parquet").drop_nulls("step_s")
        for path in sorted(folder.glob("*/run.json"))
    }
    tokens = {
        name: dict(steps.select("step", "perf/total_num_tokens").rows())
        for name, steps in runs.items()
    }
    common = sorted(set.intersection(*map(set, tokens.values())))[1:]
    common = [step for step in common if len({counts[step] for counts in tokens.values()}) == 1]
    if not common:
        raise SystemExit(f"{folder}: the runs' steps hold different tokens: {tokens}")
    means = {
        name: steps.filter(pl.col("step").is_in(common)).mean().row(0, named=True)
        for name, steps in runs.items()
    }
    first = next(iter(means.values()))["step_s"]
    lines = [
        "| run | GPUs | s/step | rollout | memory released | old log-probabilities "
        "| update | weights | speed |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, seconds in means.items():
        record = RunFolder.open(folder / name).read()
        whole, rollout = seconds["step_s"], seconds["timing_s/sample"]
        rest = [rollout, seconds["rollout_s"] - rollout, *(seconds[phase] for phase in PHASES[1:])]
        lines.append(
            f"| {name} | {len(record['hardware']['gpus'])} | {whole:.1f} "
            f"| {' | '.join(f'{value:.2f}' for value in rest)} | {first / whole:.2f} |"
        )
    return "\n".join(lines) + "\n"


STEP_ROWS = {
    "step, without checkpoints": ("step_s", 1),
    "rollout": ("rollout_s", 1),
    "update": ("update_s", 1),
    "weights": ("weights_s", 2),
    "advantage": ("advantage_s", 2),
    "rollout per 1,000 reply tokens": ("rollout_per_1000", 3),
    "update per 100,000 row tokens": ("update_per_100000", 2),
}
"""Rows of the table of whole steps: the column of the records, and decimals."""


def steps_table(folder: Path, titles: Sequence[str]) -> str:
    """Return median seconds by phase of steps 2 to 6, one column a run, and single figures.

    Args:
        titles: First words of the rows to return; all if there are none.

    `runs.yaml` has a run's head, and figures of its start and its checkpoints. These are no
    medians.
    """
    runs = yaml.safe_load((folder / "runs.yaml").read_text(encoding="utf-8"))
    steps = pl.read_csv(folder / "h200.csv").filter(pl.col("step").is_between(2, 6))
    steps = steps.with_columns(
        step_s=pl.col("step_s") - pl.col("checkpoint_s").fill_null(0.0),
        rollout_per_1000=pl.col("rollout_s") / pl.col("reply_tokens") * 1e3,
        update_per_100000=pl.col("update_s") / pl.col("row_tokens") * 1e5,
    )
    lines = [
        f"| seconds | {' | '.join(run['head'] for run in runs.values())} |",
        f"|---|{'---:|' * len(runs)}",
    ]
    for title, (column, decimals) in STEP_ROWS.items():
        if titles and title.split(",")[0] not in titles:
            continue
        cells = []
        for name in runs:
            median = cast(float, steps.filter(run=name)[column].median())
            cells.append(f"{median:.{decimals}f}")
        lines.append(f"| {title} | {' | '.join(cells)} |")
    for key, title in (("start", "first rollout after"), ("checkpoint", "checkpoint stops for")):
        lines.append(f"| {title} | {' | '.join(run[key] for run in runs.values())} |")
    return "\n".join(lines) + "\n"


def rewards(folder: Path) -> pl.DataFrame:
    """Return one row a rollout of a run."""
    rows = pl.read_parquet(folder / "episodes.parquet")
    return rows.select("step", "phase", "task_id", "cluster", pl.col("reward").fill_nan(None))


def by_pass(rows: pl.DataFrame, record: RunRecord) -> pl.DataFrame:
    """Return the training rollouts of `rewards` with `at`, the pass from 1, if complete."""
    length = record["tasks"]["train"] // record["config"]["train"]["batch_size"]
    rows = rows.filter(phase="train").with_columns(at=(pl.col("step") - 1) // length + 1)
    return rows.filter(pl.col("at") <= result_of(record)["steps"] // length)


def by_at(rows: pl.DataFrame) -> dict[int, float]:
    """Return the mean reward at every `at`."""
    return dict(rows.group_by("at").agg(pl.mean("reward")).sort("at").rows())


def passes_table(folder: Path) -> str:
    """Return mean sampled reward by pass over the training questions, and validation, by run.

    Changes are paired by question, with 95 % intervals over whole databases.
    """
    means: dict[str, dict[int, float]] = {}
    changes: dict[str, tuple[str, str]] = {}
    for path in sorted(folder.glob("*/run.json")):
        record = RunFolder.open(path.parent).read()
        rows = rewards(path.parent)
        trained = by_pass(rows, record)
        means[path.parent.name] = by_at(trained)
        whole = [int(step) for step in result_of(record)["val_curve"]]
        validated = rows.filter(pl.col("step").is_in(whole), phase="val").with_columns(at="step")
        changes[path.parent.name] = _change(trained), _change(validated)
    last = max(max(passes) for passes in means.values())
    shown = [number for number in range(1, last + 1) if number < 5 or number % 2 == 0]
    head = [
        "run",
        *(f"pass {number}" for number in shown),
        "trained on: change",
        "validation: change",
    ]
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    for name, passes in means.items():
        cells = [percent(passes[number]) if number in passes else "" for number in shown]
        lines.append("| " + " | ".join([name, *cells, *changes[name]]) + " |")
    return "\n".join(lines) + "\n"


def checks_table(study: Path) -> str:
    """Return the check's rejections in the first and last validation of each arm, seeds' means.

    Recall is the share of the wrong first queries that the check rejected, precision the share of
    the rejected ones that were wrong; in brackets the lowest and the highest seed.
    """
    lines = [
        "| arm | recall before | recall after | precision after | rejected after |",
        "|---|---:|---:|---:|---:|",
    ]
    by_arm: dict[str, list[Path]] = {}
    for run in selected(study).runs:
        by_arm.setdefault(run.arm, []).append(run.folder.path)
    for arm, folders in by_arm.items():
        rows = [
            pl.read_parquet(folder / "episodes.parquet").filter(phase="val", outcome="ok")
            for folder in folders
        ]
        before = [_checked(one.filter(pl.col("step") == pl.col("step").min())) for one in rows]
        after = [_checked(one.filter(pl.col("step") == pl.col("step").max())) for one in rows]
        cells = [
            _spread([recall for recall, _, _ in before]),
            *map(_spread, zip(*after, strict=True)),
        ]
        lines.append(f"| {arm} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _checked(rows: pl.DataFrame) -> tuple[float | None, float | None, float | None]:
    """Return recall, precision and share of the check's rejections; None where undefined."""
    judged = rows.select(wrong=pl.col("first_reward") < 1, rejected=pl.col("rewrites") > 0)
    recall = judged.filter("wrong")["rejected"].mean()
    precision = judged.filter("rejected")["wrong"].mean()
    return (
        cast("float | None", recall),
        cast("float | None", precision),
        cast("float | None", judged["rejected"].mean()),
    )


def _spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    return f"{percent(fmean(known))} ({100 * min(known):.0f} to {100 * max(known):.0f})"


def _change(rows: pl.DataFrame) -> str:
    """Return means in % at the first and last `at`, their difference in points, its interval."""
    scored = rows.drop_nulls("reward").group_by("cluster", "task_id", "at").agg(pl.mean("reward"))
    ends = [scored.filter(at=end) for end in (rows["at"].min(), rows["at"].max())]
    both = ends[0].join(ends[1], on=["cluster", "task_id"]).sort("cluster", "task_id")
    gain = both.with_columns(value=pl.col("reward_right") - pl.col("reward"))
    low, high = cluster_bootstrap(gain) or (float("nan"), float("nan"))
    before, after = (100 * cast(float, both[name].mean()) for name in ("reward", "reward_right"))
    return (
        f"{before:.1f} to {after:.1f}: {after - before:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"
    )


@cache
def compared(folder: Path, baseline: str | None, allow: tuple[str, ...]) -> Comparison:
    """Return a comparison, cached because several documents show its tables."""
    return compare(selected(folder), baseline, allow)


@cache
def selected(folder: Path) -> Selection:
    """Return the runs of a folder, cached because several comparisons measure the same runs."""
    return select([folder])


def option(words: Sequence[str], name: str) -> str | None:
    """Return the value of the first `name=value` among words; None where there is none."""
    return next((word.partition("=")[2] for word in words if word.startswith(f"{name}=")), None)


def compared_as(folder: Path, words: Sequence[str]) -> Comparison:
    """Return the comparison of a folder with the baseline and exceptions that words name."""
    allow = tuple(word.removeprefix("allow=") for word in words if word.startswith("allow="))
    return compared(folder, option(words, "baseline"), allow)


def claim(folder: Path, words: Sequence[str]) -> str:
    """Return a list of sentences on arms, each in the words of its verdict.

    Args:
        folder: A study or a folder of runs.
        words: Arms and options.
    """
    options = [word for word in words if word.startswith(OPTIONS)]
    arms = [word for word in words if not word.startswith(OPTIONS)]
    found = compared_as(folder, options)
    pairs = {pair["arm"]: pair for pair in found["pairs"]}
    unknown = [arm for arm in arms if arm not in pairs]
    if unknown or not arms:
        wrong = f"no arm {unknown[0]!r} next to the baseline" if unknown else "no arm is named"
        raise SystemExit(f"claim: {folder.name}: {wrong}; there are {', '.join(map(repr, pairs))}")
    tasks = {pairs[arm]["difference"]["tasks"] for arm in arms}
    if len(tasks) != 1:
        raise SystemExit(f"claim: {folder.name}: arms were compared on several sets of questions")
    head = f"{policy_of(folder, options)}, {tasks.pop()} questions of {held_out(folder)}:"
    gains = [word.removeprefix("gain=") for word in words if word.startswith("gain=")]
    lines = [f"- {gain_sentence(arm, found)}." for arm in gains]
    lines += [f"- {verdict_sentence(pairs[arm], found)}." for arm in arms]
    return "\n".join([f"{head[0].upper()}{head[1:]}", "", *lines]) + "\n"


def verdict_sentence(pair: Pair, comparison: Comparison) -> str:
    """Return the sentence that a pair's verdict allows, with difference and 95 % interval."""
    words = CLAIMS[pair["verdict"]].format(
        baseline=f"*{pair['baseline']}*", margin=points(comparison["margin"] or 0.0)
    )
    seeds = pair["difference"]["seeds"]
    text = f"*{pair['arm']}*: {words[0].lower()}{words[1:]}"
    if pair["identical"]:
        return f"{text}, and the same training in {seeds} of {seeds} seeds"
    counted = f"{seeds} seed{'s' * (seeds > 1)}"
    return f"{text}: {with_interval(pair['difference'], signed=True)} points ({counted})"


def gain_sentence(name: str, comparison: Comparison) -> str:
    """Return an arm's accuracy before and after training in percent, with 95 % intervals."""
    arm = next((arm for arm in comparison["arms"] if arm["name"] == name), None)
    if arm is None or arm["accuracy_initial"] is None:
        raise SystemExit(f"claim: no arm {name!r} with a validation before training")
    before, after = with_interval(arm["accuracy_initial"]), with_interval(arm["accuracy_final"])
    return f"*{name}*: from {before} to {after} % ({len(arm['seeds'])} seeds)"


def verdicts_table(file: Path) -> str:
    """Return a table with a row per question, a column per model size, and verdicts in the cells.

    Args:
        file: YAML with `columns` and `rows`; a row has a `question`, a `page` and `cells`, the
            names of comparisons.
    """
    described = yaml.safe_load(file.read_text(encoding="utf-8"))
    columns: list[str] = described["columns"]
    lines = [f"| study | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for row in described["rows"]:
        unknown = sorted(row["cells"].keys() - set(columns))
        if unknown:
            raise SystemExit(f"{file.name}: {row['question']}: no column {unknown[0]!r}")
        cells = [f"[{row['question']}]({row['page']})"]
        for column in columns:
            entries = row["cells"].get(column, [])
            cells.append("<br>".join(verdict_cell(entry) for entry in entries))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def verdict_cell(entry: dict[str, Any]) -> str:
    """Return verdict, difference in points with its 95 % interval, and seeds of one comparison."""
    allowed = tuple(entry.get("allow", ()))
    comparison = compared(folder_of(entry["study"]), entry.get("baseline"), allowed)
    pair = next((pair for pair in comparison["pairs"] if pair["arm"] == entry["arm"]), None)
    if pair is None:
        raise SystemExit(f"{entry['study']}: no arm {entry['arm']!r} is compared")
    seeds = pair["difference"]["seeds"]
    if pair["identical"]:
        return f"**{pair['verdict']}**, identical ({seeds})"
    difference = with_interval(pair["difference"], signed=True)
    return f"**{pair['verdict']}** {difference} ({seeds})"


def choices_table(file: Path) -> str:
    """Return a table with a row per arm: accuracy, verdict against its baseline, and cost.

    Args:
        file: YAML with `groups`; a group has a `study`, its `policy` and `page`, `arms` and, where
            needed, a `baseline` other than the study's and `labels` of arms.
    """
    lines = [
        "| policy, steps | agent or trained roles | before % | after % | against the baseline "
        "(seeds) | calls per question | trained tokens | GPU hours |",
        "|---|---|---:|---:|---|---:|---:|---:|",
    ]
    asked = set()
    for group in yaml.safe_load(file.read_text(encoding="utf-8"))["groups"]:
        comparison = compared(folder_of(group["study"]), group.get("baseline"), ())
        arms = {arm["name"]: arm for arm in comparison["arms"]}
        first = arms[comparison["baseline"]]
        title = f"[{group['policy']}]({group['page']}), {number(first['steps'], 0)}"
        for name in (first["name"], *group["arms"]):
            if name not in arms:
                raise SystemExit(f"{group['study']}: no arm {name!r}")
            lines.append(f"| {title} | {choice_cells(group, arms[name], first['name'])} |")
            title = ""
            asked.add(
                f"{arms[name]['accuracy_final']['tasks']} of {held_out(folder_of(group['study']))}"
            )
    return "\n".join(lines) + f"\n\nHeld-out questions: {'; '.join(sorted(asked))}.\n"


def choice_cells(group: dict[str, Any], arm: Arm, baseline: str) -> str:
    """Return the cells of one arm in `choices_table`, without the first."""
    if arm["name"] == baseline:
        verdict = f"baseline ({len(arm['seeds'])})"
    else:
        verdict = verdict_cell({**group, "arm": arm["name"]})
    initial = arm["accuracy_initial"]
    trained = arm["trained_tokens"]
    if trained is None:  # an archive has no rows of calls
        tokens = printed_cell(ROOT / f"{group['study']}.md", arm["name"], "trained tokens") or "-"
    else:
        tokens = as_number(trained)
    cells = [
        group.get("labels", {}).get(arm["name"], arm["name"]),
        with_interval(initial) if initial else "",
        with_interval(arm["accuracy_final"]),
        verdict,
        f"{arm['transitions_per_rollout']:.1f}",
        tokens,
        number(arm["gpu_hours"], 2),
    ]
    return " | ".join(cells)


def policy_of(folder: Path, options: Sequence[str]) -> str:
    """Return the policy that a study's runs began with, with its size if the catalogue has it."""
    if (name := option(options, "policy")) is None:
        paths = {run.record["config"]["policy"]["path"] for run in selected(folder).runs}
        if len(paths) != 1:
            raise SystemExit(f"claim: {folder.name} has several policies, name them: policy=NAME")
        name = Path(str(paths.pop())).name
    listed = known().get(name)
    if listed is None or listed.parameters is None:
        return f"policy `{name}`"
    bundled = "bundled " if listed.bundled else ""
    return f"{bundled}policy `{name}` of {listed.parameters / 1e6:.1f} M parameters"


def value(what: str) -> str:
    """Return the text of one number's marker.

    Args:
        what: Kind, folder, arm, key and options of the marker.
    """
    kind, folder, *words = [*shlex.split(what), "", ""]
    if kind == "printed":
        return printed(ROOT / f"{folder}.md", *words[:2])
    path = folder_of(folder)
    options = [word for word in words if word.startswith(OPTIONS)]
    arm, key, *_ = [word for word in words if not word.startswith(OPTIONS)]
    if not folder or not path.is_dir() or not arm:
        raise SystemExit(f'<!-- value: {what} -->: wanted: KIND FOLDER "ARM" [KEY] [OPTION...]')
    if kind == "run":
        return result_figure(path / arm, key, what)
    found = compared_as(path, options)
    arms = {one["name"]: one for one in found["arms"]}
    if arm not in arms:
        raise SystemExit(f"value: {folder}: no arm {arm!r}; there are {', '.join(map(repr, arms))}")
    if kind == "arm":
        return figure_of(arms[arm], key, what)
    if kind == "seeds":
        finals = [run["accuracy_final"] for run in arms[arm]["per_seed"]]
        known_finals = [final for final in finals if final is not None]
        return f"{points(min(known_finals))} to {points(max(known_finals))}"
    differences: dict[str, EstimateData | None] = {}
    if kind == "pair":
        differences = {pair["arm"]: pair["difference"] for pair in found["pairs"]}
    elif kind == "gain":
        gain = cast(dict[str, Any], found["gains"][arm])
        return with_interval(gain[key], signed=True)
    elif kind == "view":
        views = {view["key"]: view for view in found["views"] if view["key"] == key}
        differences = {
            name: one["difference"] for view in views.values() for name, one in view["arms"].items()
        }
    elif kind == "learning":
        learned = found["learning"]["arms"].items()
        differences = {
            name: measures[measure]["difference"]
            for name, measures in learned
            for measure in measures
            if measure == key
        }
    else:
        raise SystemExit(
            f"<!-- value: {what} -->: no kind {kind!r}; "
            "there are arm, seeds, pair, gain, view, learning, run and printed"
        )
    difference = differences.get(arm)
    if difference is None:
        raise SystemExit(f"<!-- value: {what} -->: {arm!r} has no such difference")
    return with_interval(difference, signed=True)


def printed(file: Path, arm: str, column: str) -> str:
    """Return the cell of an arm in the first table of a printed comparison that has such a column.

    Args:
        column: Its head; `HEAD after OTHER` is the first one with that head right of another.
    """
    cell = printed_cell(file, arm, column)
    if cell is None:
        raise SystemExit(f"value: {file.name} has no table with {column!r} for {arm!r}")
    return cell


def printed_cell(file: Path, arm: str, column: str) -> str | None:
    """Return the same cell as `printed`; None where no table has it."""
    head, _, other = column.partition(" after ")
    heads: list[str] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
        if not line.startswith("|"):
            heads = []
        elif not heads:
            heads = cells
        elif cells[0] == arm and (not other or other in heads):
            start = heads.index(other) if other else 0
            if head in heads[start:]:
                return cells[heads.index(head, start)]
    return None


def result_figure(folder: Path, key: str, what: str) -> str:
    """Return a figure of one run's result: accuracies in percent, other numbers as `figure_of`.

    Args:
        what: The marker, for messages.
    """
    result = dict(result_of(RunFolder.open(folder).read()))
    figure = result.get(key)
    if not isinstance(figure, int | float) or isinstance(figure, bool):
        numbers = [
            name
            for name, one in result.items()
            if isinstance(one, int | float) and not isinstance(one, bool)
        ]
        raise SystemExit(
            f"<!-- value: {what} -->: {key!r} is no figure of a run; there are {', '.join(numbers)}"
        )
    return f"{100 * figure:.1f}" if "accuracy" in key else as_number(figure)


def as_number(figure: float) -> str:
    """Return a number as text: whole from 100 on or where it is, else with a decimal."""
    whole = figure >= 100 or float(figure).is_integer()
    return f"{figure:,.0f}" if whole else f"{figure:.1f}"


def figure_of(arm: Arm, key: str, what: str) -> str:
    """Return an arm's figure as text: an estimate with its interval, a count, or a decimal number.

    Args:
        what: The marker, for messages.
    """
    figure = dict(arm).get(key)
    if isinstance(figure, dict) and "mean" in figure:
        return with_interval(cast("EstimateData", figure))
    if isinstance(figure, int | float) and not isinstance(figure, bool):
        return as_number(figure)
    known_ones = [
        name
        for name, one in arm.items()
        if isinstance(one, int | float) or (isinstance(one, dict) and "mean" in one)
    ]
    raise SystemExit(
        f"<!-- value: {what} -->: {key!r} is no known figure of an arm; "
        f"there are {', '.join(known_ones)}"
    )


def underived(text: str) -> list[tuple[int, str]]:
    """Return the prose lines with numbers that no marker derives: line number and numbers."""

    def blank(found: re.Match[str]) -> str:
        return "\n" * found.group().count("\n")

    for pattern in (MARKED, CLAIMED, VALUED, CODE):
        text = pattern.sub(blank, text)
    lines = enumerate(text.splitlines(), 1)
    found = [(number, ", ".join(NUMBER.findall(line))) for number, line in lines]
    return [(number, numbers) for number, numbers in found if numbers]


def held_out(folder: Path) -> str:
    """Return task set and split that a study's runs were validated on."""
    tasks = [run.record["config"]["task"] for run in selected(folder).runs]
    found = {f"`{task['name']}`, split `{task['val_split']}`" for task in tasks}
    if len(found) != 1:
        raise SystemExit(f"claim: {folder.name} was validated on several splits: {sorted(found)}")
    return found.pop()


def comparison_tables(folder: Path, words: list[str]) -> str:
    """Return the tables of a study or of a folder of runs, all or those of some keys."""
    keys = [word for word in words if not word.startswith(OPTIONS)]
    found = compared_as(folder, words)
    chosen = [table for table in tables(found) if not keys or table.key in keys]
    text = markdown_tables(chosen, heading="" if keys else "###")
    notes = (
        "".join(f"- {sentence}\n" for sentence in sentences(found))
        if not keys or "notes" in keys
        else ""
    )
    return f"{text}\n{notes}" if text and notes else text or notes


@cache
def unpacked(archive: Path) -> tempfile.TemporaryDirectory[str]:
    """Unpack the studies of an archive for the lifetime of this process."""
    place = tempfile.TemporaryDirectory()
    with tarfile.open(archive) as packed:
        packed.extractall(place.name, filter="data")
    return place


def folder_of(name: str) -> Path:
    """Return a folder as seen from the root, unpacked where it lies in an archive."""
    path = ROOT / name
    if (archive := path.parent / PACKED).is_file():
        path = Path(unpacked(archive).name) / path.name
    return path


def claimed(what: str) -> str:
    """Return the content of one claim's marker."""
    folder, *words = shlex.split(what) or [""]
    path = folder_of(folder)
    if not folder or not path.is_dir() or not words:
        raise SystemExit(f'<!-- claim: {what} -->: wanted: FOLDER "ARM"... [OPTION...]')
    return claim(path, words)


def made(what: str) -> str:
    """Return the content of one marker."""
    kind, _, rest = what.partition(" ")
    makers = {"verdicts": verdicts_table, "choices": choices_table}
    if kind in makers and (ROOT / rest).is_file():
        return makers[kind](ROOT / rest)
    folder, *words = shlex.split(rest) or [""]
    path = folder_of(folder)
    if not folder or not path.is_dir():
        raise SystemExit(
            f"<!-- table: {what} -->: {folder or 'nothing'} is not a folder; "
            "wanted: KIND FOLDER [KEY...]"
        )
    if kind == "runs":
        return runs_table(path)
    if kind == "phases":
        return phases_table(path)
    if kind == "steps":
        return steps_table(path, words)
    if kind == "passes":
        return passes_table(path)
    if kind == "checks":
        return checks_table(path)
    if kind == "compare":
        return comparison_tables(path, words)
    raise SystemExit(
        f"<!-- table: {what} -->: no kind {kind!r}; "
        "there are runs, passes, phases, checks, compare, verdicts and choices"
    )


def list_numbers(files: Sequence[Path]) -> int:
    """Print the prose lines with numbers that no marker derives, and their number in each file."""
    for file in files:
        found = underived(file.read_text(encoding="utf-8"))
        name = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
        for line, numbers in found:
            print(f"{name}:{line}: {numbers}")
        print(f"{name}: {len(found)} lines with numbers that no marker derives")
    return 0


def pages() -> list[Path]:
    """Return README and every page of results/ and docs/ that is written by hand."""
    results = ROOT / "results"
    return [
        ROOT / "README.md",
        results / "negative.md",
        *sorted(results.rglob("README.md")),
        *sorted((ROOT / "docs").glob("*.md")),
    ]


def main(arguments: list[str]) -> int:
    if arguments[:1] not in (["--check"], ["--write"], ["--numbers"]):
        print(__doc__)
        return 2
    files = [Path(name) for name in arguments[1:]]
    files = files or pages()
    if arguments[0] == "--numbers":
        return list_numbers(files)
    drifted = 0
    for file in files:
        text = file.read_text(encoding="utf-8")
        fresh = MARKED.sub(
            lambda found: f"{found['head']}{made(found['what'])}{found['end']}", text
        )
        fresh = CLAIMED.sub(
            lambda found: f"{found['head']}{claimed(found['what'])}{found['end']}", fresh
        )
        fresh = VALUED.sub(
            lambda found: f"{found['head']}{value(found['what'])}{found['end']}", fresh
        )
        if fresh == text:
            continue
        if arguments[0] == "--write":
            file.write_text(fresh, encoding="utf-8")
            print(f"wrote {file}")
            continue
        drifted += 1
        stale = [
            old["what"]
            for pattern in (MARKED, CLAIMED, VALUED)
            for old, new in zip(pattern.finditer(text), pattern.finditer(fresh), strict=True)
            if old["body"] != new["body"]
        ]
        print(
            f"{file}: not what the records say: {'; '.join(stale)}. "
            "Bring up to date: python tools/table.py --write"
        )
    return 1 if drifted else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except HarnessError as error:
        raise SystemExit(f"table: {error}") from error
