"""Selection of the runs of a comparison."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from glob import escape
from pathlib import Path
from typing import Any

from harness.compare.arm_names import name_arms
from harness.compare.keys import Failed
from harness.compare.policies import policy_of
from harness.compare.states import PACKED, STUDY_FILE, Asked, Entry, conflicts, read_state
from harness.errors import NoSuchArm, NothingToCompare, UserError, nearest
from harness.runs.folder import RunFolder
from harness.runs.reading import Run, read_run, readable
from harness.util.parsing import parse_yaml

PART_OF_AN_ID = 4
"""Fewest characters that name a run by a part of its id; fewer would match by chance."""


@dataclass
class Selection:
    """The runs of one comparison.

    Attributes:
        study: The study's description, if the runs belong to one.
        arms: All arms of a study, with or without runs.
        jobs: All jobs of a study, including planned ones.
        missing: Planned jobs of a study without a run that can be compared, as text.
        varied: Configuration keys that the study varies on purpose.
        conflicts: Descriptions that differ between several studies, in words, by key.
        remarks: What names of arms leave out, in sentences.
    """

    runs: list[Run]
    name: str = ""
    study: Asked = field(default_factory=Asked)
    arms: list[str] = field(default_factory=list)
    jobs: list[Entry] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    varied: list[str] = field(default_factory=list)
    conflicts: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def select(paths: Iterable[Path], runs_dir: Path = Path("runs")) -> Selection:
    """Return the runs at these paths: runs, run ids, folders of runs, or studies.

    A study is given by its folder or its YAML file. In a folder of runs, unreadable records are
    left out, with a remark on stderr.

    Raises:
        UserError: A path is none of these, a study has no run yet, or the record of a named run or
            study cannot be read.
    """
    chosen = Selection([])
    empty = []
    for path, folder in _located(list(paths), runs_dir):
        if (folder / STUDY_FILE).is_file():
            _add_study(chosen, folder)
        elif (folder / "run.json").is_file():
            chosen.runs.append(replace(read_run(folder), name=str(path)))
        else:
            below = [record.parent for record in sorted(folder.glob("*/run.json"))]
            if not below:
                empty.append(path)
            chosen.runs += readable(below)
            chosen.name = chosen.name or folder.name
    # A run may be given by itself and with its folder. Counted twice, it would look like a seed
    # that ran twice.
    unique: dict[Path, Run] = {}
    for run in chosen.runs:
        unique[run.folder.path] = run
    chosen.runs = list(unique.values())
    if not chosen.runs and chosen.missing:
        raise NothingToCompare("; ".join(chosen.missing[:4]))
    if not chosen.runs and not empty:
        raise UserError("no run is given: name one. `harness runs list` shows existing runs")
    if empty:
        names = " and ".join(map(str, empty))
        raise UserError(f"No run.json in {names}, nor in a folder below. {_advice_on(empty)}")
    if not all(run.arm for run in chosen.runs):
        chosen.remarks += name_arms(chosen.runs)
    if not chosen.name:
        single = len(chosen.runs) == 1
        chosen.name = chosen.runs[0].id if single else f"{len(chosen.runs)} runs"
    return chosen


def _advice_on(empty: Sequence[Path]) -> str:
    """Return what to do about folders without runs."""
    for path in empty:
        if (archive := path / PACKED).is_file():
            return f"Its runs are in an archive: mkdir unpacked && tar -xf {archive} -C unpacked"
    return "Restore it, or leave it out; `harness runs list` shows what there is"


def _located(paths: Sequence[Path], runs_dir: Path) -> list[tuple[Path, Path]]:
    """Return every path with the folder to which it refers.

    Raises:
        UserError: Some refer to no folder; the message names them all.
    """
    folders: list[tuple[Path, Path]] = []
    missing: dict[Path, UserError] = {}
    for path in paths:
        try:
            folders.append((path, located(path, runs_dir)))
        except UserError as error:
            missing[path] = error
    if len(missing) > 1:
        names = " and ".join(map(str, missing))
        raise UserError(
            f"{names} are neither runs, studies nor folders of runs. "
            "`harness runs list` shows those found"
        )
    for only in missing.values():
        raise only
    return folders


def named_arm(name: str, arms: Mapping[str, Collection[str]]) -> str:
    """Return the arm with this name, or with an unambiguous other name.

    Args:
        arms: Other names of every arm: its agent, its runs.

    Raises:
        NoSuchArm: There is none, or there are several.
    """
    if name in arms:
        return name
    matching = [arm for arm, others in arms.items() if name in others]
    if len(matching) == 1:
        return matching[0]
    all_of_them = ", ".join(map(repr, matching or arms))
    if matching:
        raise NoSuchArm(
            f"{name!r} is in {len(matching)} arms. Name one of them as the baseline: {all_of_them}"
        )
    known = dict.fromkeys(arms)
    for others in arms.values():
        known |= dict.fromkeys(others)
    raise NoSuchArm(f"no arm called {name!r}{nearest(name, known, '.')} Arms: {all_of_them}")


def other_names(runs: Iterable[Run]) -> dict[str, set[str]]:
    """Return the other names of each arm."""
    names: dict[str, set[str]] = {}
    for run in runs:
        names.setdefault(run.arm, set()).update((run.record["agent"], run.id, run.name))
    return names


@dataclass(frozen=True, slots=True)
class BestRun:
    """The training of a study that validated best.

    Attributes:
        validation: Accuracy, or mean reward, of its last validation.
        of: Number of finished trainings from which it was chosen.
    """

    folder: RunFolder
    arm: str
    seed: int
    validation: float
    of: int


def best_run(folder: Path) -> BestRun:
    """Return a study's finished training with the highest last validation (the first, if equal).

    Args:
        folder: The study's folder.

    Raises:
        UserError: The study's state cannot be read, or none of its trainings has finished.
    """
    state = read_state(folder)
    finished: list[BestRun] = []
    for job in state["jobs"]:
        if job.get("kind") == "eval" or not job["run"] or job.get("stale"):
            continue
        run = RunFolder(folder / job["run"])
        if not (run.path / "run.json").is_file():
            continue
        record = run.read()
        result: Mapping[str, Any] = record["result"] or {}
        validation = result.get("val_accuracy_final")
        if record["status"] == "finished" and validation is not None:
            finished.append(BestRun(run, job["arm"], job["seed"], float(validation), 0))
    if not finished:
        raise UserError(
            f"no training of study {state['name']!r} in {folder} has finished with a validation. "
            f"Its runs: harness runs list --runs-dir {folder}"
        )
    best = max(finished, key=lambda run: run.validation)
    return replace(best, of=len(finished))


def located(path: Path, runs_dir: Path) -> Path:
    """Return the folder of a path, a run's id, or a study's file."""
    if path.is_dir():
        return path
    if path.suffix in (".yaml", ".yml") and path.is_file():
        try:
            described = parse_yaml(path.read_bytes(), as_written=True)
        except (OSError, ValueError) as error:
            raise UserError(
                f"{path} is no study that can be read: {error}. Correct it there"
            ) from error
        name = described.get("name", path.stem) if isinstance(described, dict) else path.stem
        folder: Path = runs_dir / str(name)
        if not (folder / STUDY_FILE).is_file():
            raise UserError(
                f"study {path} has no runs under {folder} yet. Start it: harness study {path}"
            )
        return folder
    if (runs_dir / path).is_dir():
        return runs_dir / path
    if close := _with_part(path.name, runs_dir):
        # With several matches, none is more likely than the others.
        if len(close) == 1:
            return close[0]
        names = [str(folder.relative_to(runs_dir)) for folder in close[:3]]
        more = f" and {len(close) - 3} more" if len(close) > 3 else ""
        raise UserError(
            f"{path} is part of the ids of {len(close)} runs in {runs_dir}: {', '.join(names)}{more}. "
            "Give more of the id, or the folder"
        )
    hint = nearest(str(path), _corrections(path, runs_dir), ".")
    raise UserError(
        f"{path} is neither a run, a study nor a folder of runs{hint} "
        "`harness runs list` shows those found"
    )


def _with_part(name: str, runs_dir: Path) -> list[Path]:
    """Return the runs with this part in their id: those in the folder, else those in its studies."""
    if len(name) < PART_OF_AN_ID:
        return []
    # The name may be a pattern that the shell found no file for.
    part = escape(name)
    for pattern in (f"*{part}*", f"*/*{part}*"):
        close = [folder for folder in runs_dir.glob(pattern) if (folder / "run.json").is_file()]
        if close:
            return sorted(close)
    return []


def _corrections(path: Path, runs_dir: Path) -> list[str]:
    """Return corrections of a mistyped path: studies or folders in its folder, and runs by id."""
    if path.suffix in (".yaml", ".yml"):
        return list(map(str, sorted(path.parent.glob(f"*{path.suffix}"))))
    folders = list(map(str, _folders_in(path.parent)))
    return folders + [run.name for run in _folders_in(runs_dir)]


def _folders_in(parent: Path) -> list[Path]:
    """Return the folders in a folder, by name; hints must not depend on the order on disk."""
    return sorted(filter(Path.is_dir, parent.glob("*")))


def _add_study(chosen: Selection, folder: Path) -> None:
    data = read_state(folder)
    chosen.conflicts |= conflicts(chosen.study, chosen.name, data)
    chosen.study, chosen.name = data, data["name"]
    chosen.jobs += data["jobs"]
    chosen.varied += [key for key in data.get("varied", []) if key not in chosen.varied]
    trainings = {job["key"]: job["run"] for job in data["jobs"]}
    for job in data["jobs"]:
        # A study with evaluations compares only these: the validation of the training would count
        # the policy twice.
        if data.get("evaluate") and job.get("kind") != "eval":
            continue
        chosen.arms.append(job["arm"])
        name = f"{job['arm']} seed {job['seed']}"
        path = folder / job["run"] if job["run"] else None
        if changed := job.get("stale"):
            # Runs of an arm differ in nothing but their seed.
            chosen.missing.append(
                f"{name}: {job['run']} has {', '.join(changed[:3])}, which the study has since "
                "changed in this arm. Start the study again with this seed"
            )
            continue
        if path is not None and (path / "run.json").is_file():
            run = replace(read_run(path), arm=job["arm"], name=name)
            evaluated = run.record.get("parent")
            training = trainings.get(job.get("parent") or "")
            # A training that ran again has another policy than the one that was evaluated.
            if evaluated and training and evaluated["run"] != training:
                chosen.missing.append(
                    f"{name}: the evaluation used the policy of {evaluated['run']}, but the "
                    f"training has since run again as {training}. Start the study again"
                )
            else:
                chosen.runs.append(run)
            continue
        # A missing run is reported: results over the others alone may look better than the study.
        state = job.get("state", "not run")
        lost = f"its folder {path} is not here" if state == "finished" else state
        chosen.missing.append(f"{name}: {lost}")


def left_out(runs: Sequence[Run], usable: Sequence[Run]) -> list[Failed]:
    """Return the runs that a comparison leaves out, and why."""
    failed: list[Failed] = []
    for run in runs:
        if run in usable:
            continue
        failed.append(
            {
                "run": run.id,
                "arm": run.arm,
                "seed": run.seed,
                "status": run.record["status"],
                "reason": why_left_out(run, usable),
            }
        )
    return failed


def why_left_out(run: Run, usable: Sequence[Run]) -> str:
    """Return why a run is in no mean of a comparison, in words.

    Args:
        usable: The runs that are.
    """
    reason = str(run.record.get("reason") or "not finished")
    if run.finished:
        rewards = run.validation()["reward"]
        newer = [other for other in usable if (other.arm, other.seed) == (run.arm, run.seed)]
        if rewards.is_empty():
            reason = "no validation is in its folder"
        elif rewards.drop_nulls().is_empty():
            reason = "nothing of its last validation was scored"
        elif newer and newer[0].id == run.id:
            reason = f"a copy of the run at {newer[0].folder.path}"
        elif newer:
            reason = f"same arm and seed as the newer run {newer[0].id}"
        elif not run.trained and (counted := _of_same_policy(run, usable)):
            reason = f"an evaluation of the same policy as {counted.id}"
    return reason


def _of_same_policy(run: Run, usable: Sequence[Run]) -> Run | None:
    """Return the compared evaluation of the same policy in the same arm, if there is one."""
    for other in usable:
        if other.arm == run.arm and policy_of(other) == policy_of(run):
            return other
    return None
