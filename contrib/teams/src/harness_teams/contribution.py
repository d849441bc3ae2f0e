"""The worth of training, role by role: evaluate a trained policy with some roles untrained."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from harness import UserError
from harness.api.evaluating import Wanted
from harness.compare.columns import Table
from harness.compare.comparison import compare
from harness.compare.keys import Comparison, EstimateData
from harness.compare.numbers import with_interval
from harness.compare.selection import select
from harness.compare.states import STUDY_FILE, Entry, StudyState, config_hash, read_state
from harness.errors import nearest
from harness.plugins import roles_of
from harness.policies.export import checkpoint_dir
from harness.runs.folder import RunFolder, replace_text
from harness.runs.locks import held
from harness.training.record import role_models
from harness.util.formatting import measured

if TYPE_CHECKING:
    from rich.console import Console

    from harness.api.evaluating import Evaluation

TRAINED, STARTED = "all trained", "all at their start"


class Worth(TypedDict):
    """The worth of training some roles, in hundredths of accuracy or mean reward.

    All figures are over the same questions.

    Attributes:
        roles: These roles.
        without: All roles trained, minus all but these trained.
        alone: Only these roles trained, minus none trained.
    """

    roles: list[str]
    without: EstimateData
    alone: EstimateData


@dataclass(frozen=True)
class Contribution:
    """The result of the evaluations.

    Attributes:
        folder: Folder of the evaluations, a study for `harness compare` and `harness report`.
        start: Description of the policy that replaced the trained one.
        against_trained: Comparison of all arms with the fully trained one.
        worth: Worth of each role or group, and of all together.
    """

    run: str
    step: int
    start: str
    folder: Path
    against_trained: Comparison
    worth: Mapping[str, Worth]

    def data(self) -> dict[str, object]:
        """Return the result as plain data."""
        accuracy = {arm["name"]: arm["accuracy_final"] for arm in self.against_trained["arms"]}
        return {
            "run": self.run,
            "step": self.step,
            "start": self.start,
            "folder": str(self.folder),
            "accuracy": accuracy,
            "worth": dict(self.worth),
        }

    def table(self) -> Table:
        """Return a table with one row per role or group."""
        name = measured(self.against_trained.get("graded", False))
        rows = []
        for role, worth in self.worth.items():
            without = with_interval(worth["without"], signed=True)
            rows.append([role, without, with_interval(worth["alone"], signed=True)])
        heads = [
            "role",
            "lost without its training (points)",
            "gained by its training alone (points)",
        ]
        note = (
            f"Differences of {name} on the same questions; intervals: 95 %, "
            "of these checkpoints, not corrected."
        )
        return Table(
            "contribution",
            f"Contribution, step {self.step} against {self.start}",
            heads,
            rows,
            note,
        )


def groups_of(run: RunFolder, patterns: Sequence[str] = ()) -> dict[str, list[str]]:
    """Return the roles that the trained policy answered, by group name.

    Args:
        patterns: Regular expressions, searched in role names like `agent_match`. A role that none
            matches is a group of its own.

    Raises:
        UserError: A pattern is invalid, matches no role or a role of another pattern; or there is
            no role.
    """
    config = run.config()
    called = {role for row in run.rows("episodes") for role in row["call_roles"]}
    policy_roles = [role for role in roles_of(config.agent) if role not in config.roles]
    # A run without recorded episodes may have called every role.
    trained_roles = [role for role in policy_roles if role in called or not called]
    if not trained_roles:
        raise UserError(
            f"{run.path}: the trained policy answered no role of {config.agent}, "
            "so none can be untrained"
        )
    groups = {role: [role] for role in trained_roles}
    if patterns:
        groups = {}
        try:
            for pattern in patterns:
                groups[pattern] = [role for role in trained_roles if re.search(pattern, role)]
        except re.error as error:
            raise UserError(
                f"--role: {error.pattern!r} is no regular expression: {error}"
            ) from error
    seen: dict[str, str] = {}
    for name, roles in groups.items():
        if not roles:
            close = nearest(name, trained_roles, ".")
            raise UserError(
                f"--role {name}: no role of that name called the policy{close} "
                f"Roles: {', '.join(trained_roles)}"
            )
        for role in roles:
            if role in seen:
                raise UserError(
                    f"--role {name} and --role {seen[role]} both find {role}: "
                    "each role may be in one group only"
                )
            seen[role] = name
    for role in trained_roles:
        if role not in seen:
            groups[role] = [role]
    return groups


def arms_of(groups: Mapping[str, Sequence[str]]) -> dict[str, frozenset[str]]:
    """Return the untrained roles by arm.

    Arms with the same roles are combined under a joint name.
    """
    all_roles = frozenset(chain.from_iterable(groups.values()))
    arms = [(TRAINED, frozenset[str]())]
    if len(groups) > 1:
        for name, roles in groups.items():
            arms.append((f"{name} at its start", frozenset(roles)))
        for name, roles in groups.items():
            arms.append((f"only {name} trained", all_roles - {*roles}))
    arms.append((STARTED, all_roles))
    names_by_roles: dict[frozenset[str], list[str]] = {}
    for name, untrained in arms:
        names_by_roles.setdefault(untrained, []).append(name)
    return {", ".join(names): untrained for untrained, names in names_by_roles.items()}


@dataclass(frozen=True)
class Questions:
    """Options of every evaluation, as in `harness.evaluate`.

    Attributes:
        settings: Texts `key=value`, as for `--set`.
    """

    split: str | None = None
    limit: int | None = None
    read_reserved: bool = False
    settings: Sequence[str] = ()


def contribution(
    run: Path,
    console: Console,
    runs_dir: Path,
    *,
    patterns: Sequence[str] = (),
    start: Mapping[str, str] | None = None,
    step: int | None = None,
    questions: Questions = Questions(),
) -> Contribution:
    """Evaluate a run's checkpoint greedily with its roles untrained in turn, on the same questions.

    Existing evaluations of the same configuration are not repeated.

    Args:
        console: Console for the progress.
        runs_dir: Parent of the folder of the evaluations.
        patterns: As in `groups_of`.
        start: Policy of untrained roles, as a section `roles.NAME`; by default the training's
            first.
        step: Use this checkpoint instead of the newest.

    Raises:
        UserError: The request cannot be fulfilled; nothing was started.
        RunFailed: Too many rollouts of an evaluation brought no result. Another call resumes there.
    """
    trained = RunFolder.open(run)
    step, _ = checkpoint_dir(trained, step)
    groups = groups_of(trained, patterns)
    arms = arms_of(groups)
    start_policy = dict(start) if start else _first_policy(trained)
    evaluations = {}
    for name, untrained in arms.items():
        roles = dict.fromkeys(sorted(untrained), start_policy)
        evaluations[name] = _evaluation(trained, step, questions, roles)
    # In the arm without trained roles, the same policy answers every role.
    start_answers = evaluations[_arm(arms, groups)].answers
    first_role = next(chain.from_iterable(groups.values()))
    answers = start_answers[first_role]
    model = trained.read()["identity"]["model"]
    start_model = role_models({"": answers})[""]
    if start is None and start_model != model:
        raise UserError(
            f"{answers.name} ({start_model}) "
            f"is not the policy that {trained.id} began with ({model}): restore it, or name "
            "it with --start or --endpoint"
        )
    folder = runs_dir.absolute() / f"contribution-{trained.id}-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    with held(folder, f"another `harness contribution` is running in {folder}"):
        _evaluate_all(folder, f"{trained.id}, step {step}", evaluations, console)
    return Contribution(trained.id, step, answers.name, folder, *_compare(folder, groups, arms))


def _evaluation(
    trained: RunFolder, step: int, questions: Questions, roles: Mapping[str, object]
) -> Evaluation:
    """Return a greedy evaluation of a checkpoint with some roles answered by other policies."""
    own = [f"roles.{role}={json.dumps(answer)}" for role, answer in roles.items()]
    return Wanted(
        run=trained.path,
        step=step,
        temperature=0.0,
        split=questions.split,
        limit=questions.limit,
        read_reserved=questions.read_reserved,
        settings=[*questions.settings, *own],
        runs_dir=trained.path.parent,
    ).asked()


def _arm(
    arms: Mapping[str, frozenset[str]], groups: Mapping[str, Sequence[str]], *trained: str
) -> str:
    """Return the arm in which only these groups are trained."""
    untrained: set[str] = set()
    for name, roles in groups.items():
        if name not in trained:
            untrained.update(roles)
    return next(arm for arm, roles in arms.items() if roles == untrained)


def _first_policy(trained: RunFolder) -> dict[str, str]:
    path = trained.config().policy.path
    _, _, commit = trained.read()["identity"]["model"].partition("@")
    if commit and not Path(path).is_dir():
        return {"policy": path, "revision": commit}
    return {"policy": path}


def _evaluate_all(
    folder: Path, name: str, evaluations: Mapping[str, Evaluation], console: Console
) -> None:
    # An evaluation counts as done by its configuration: its arm may have had another name.
    earlier = read_state(folder)["jobs"] if (folder / STUDY_FILE).is_file() else []
    done = {}
    for job in earlier:
        if job.get("state") == "finished":
            done[job.get("config_hash", "")] = job["run"]
    jobs: list[Entry] = []
    for arm, evaluation in evaluations.items():
        own_hash = config_hash(evaluation.config.dump())
        run = done.get(own_hash)
        finished = bool(run) and (folder / str(run) / "run.json").is_file()
        jobs.append(
            {
                "key": re.sub(r"\W+", "-", arm),
                "arm": arm,
                "seed": evaluation.config.seed,
                "kind": "eval",
                "config_hash": own_hash,
                "run": run if finished else None,
                "state": "finished" if finished else "planned",
            }
        )
    _write(folder, name, evaluations, jobs)
    for job, evaluation in zip(jobs, evaluations.values(), strict=True):
        if job["state"] == "finished":
            continue
        console.print(f"{job['arm']}:")
        evaluation.runs_dir = folder
        job["run"] = evaluation.carry_out(console).id
        job["state"] = "finished"
        _write(folder, name, evaluations, jobs)


def _write(
    folder: Path, name: str, evaluations: Mapping[str, Evaluation], jobs: list[Entry]
) -> None:
    roles = sorted(
        {role for evaluation in evaluations.values() for role in evaluation.config.roles}
    )
    state: StudyState = {
        "schema_version": 1,
        "name": name,
        "question": "What is the training of each role worth?",
        "baseline": TRAINED,
        "margin": None,
        "varied": [f"roles.{role}" for role in roles],
        "jobs": jobs,
    }
    replace_text(folder / STUDY_FILE, json.dumps(state, indent=2, ensure_ascii=False) + "\n")


def _compare(
    folder: Path, groups: Mapping[str, list[str]], arms: Mapping[str, frozenset[str]]
) -> tuple[Comparison, dict[str, Worth]]:
    """Compare all arms in a folder with the fully trained one, and return the worth of training."""
    trained, untrained = _arm(arms, groups, *groups), _arm(arms, groups)
    to_trained = compare(select([folder]), trained)
    to_untrained = compare(select([folder]), untrained)

    def difference(comparison: Comparison, arm: str) -> EstimateData:
        return next(pair["difference"] for pair in comparison["pairs"] if pair["arm"] == arm)

    worth: dict[str, Worth] = {}
    # With one group its training is all of the training.
    for name, roles in groups.items() if len(groups) > 1 else ():
        others = [other for other in groups if other != name]
        without = _negated(difference(to_trained, _arm(arms, groups, *others)))
        alone = difference(to_untrained, _arm(arms, groups, name))
        worth[name] = {"roles": roles, "without": without, "alone": alone}
    whole = difference(to_untrained, trained)
    all_roles = list(chain.from_iterable(groups.values()))
    worth["all"] = {"roles": all_roles, "without": whole, "alone": whole}
    return to_trained, worth


def _negated(estimate: EstimateData) -> EstimateData:
    """Return the difference with the opposite sign."""
    means = tuple(0.0 - mean for mean in estimate["by_seed"])
    return {
        **estimate,
        "mean": 0.0 - estimate["mean"],
        "low": 0.0 - estimate["high"],
        "high": 0.0 - estimate["low"],
        "by_seed": means,
    }
