"""Selection of the runs of a comparison, and the names of its arms."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from glob import escape
from pathlib import Path
from typing import Any

from harness.compare.runs import Run, read_run, readable
from harness.compare.states import STUDY_FILE, Asked, Entry, read_state
from harness.errors import NoSuchArm, UserError, nearest
from harness.runs.folder import RunFolder
from harness.util.formatting import agent_label
from harness.util.parsing import differing, flatten, parse_yaml

_OF_THE_DEVICE = (
    "gpus",
    "nodes",
    "rollout.runners",
    "rollout.concurrency",
    "rollout.host",
    "trusted_network",
    "rollout.store",
    "reward.concurrency",
    "train.micro_batch",
    "verl",
)

PART_OF_AN_ID = 4
"""Fewest characters that name a run by a part of its id; fewer would match by chance."""


@dataclass
class Selection:
    """The runs of one comparison.

    Attributes:
        study: The study's description, if the runs belong to one.
        arms: All arms of a study, with or without runs.
        jobs: All jobs of a study, including planned ones.
        missing: Planned jobs of a study without a run, as text.
        varied: Configuration keys that the study varies on purpose.
    """

    runs: list[Run]
    name: str = ""
    study: Asked = field(default_factory=Asked)
    arms: list[str] = field(default_factory=list)
    jobs: list[Entry] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    varied: list[str] = field(default_factory=list)


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
    for path, found in _located(list(paths), runs_dir):
        if (found / STUDY_FILE).is_file():
            _add_study(chosen, found)
        elif (found / "run.json").is_file():
            chosen.runs.append(replace(read_run(found), name=str(path)))
        else:
            below = sorted(found.glob("*/run.json"))
            empty += [] if below else [path]
            chosen.runs += readable(one.parent for one in below)
            chosen.name = chosen.name or found.name
    unique = {run.folder.path: run for run in chosen.runs}
    chosen.runs = list(unique.values())
    if not chosen.runs and not empty:
        raise UserError("no run was named. `harness runs list` shows what there is")
    if empty:
        names = " and ".join(map(str, empty))
        raise UserError(
            f"No run.json in {names}, nor in a folder below. Restore it, or leave it out; "
            "`harness runs list` shows what there is"
        )
    if not all(run.arm for run in chosen.runs):
        name_arms(chosen.runs)
    chosen.name = chosen.name or (
        chosen.runs[0].id if len(chosen.runs) == 1 else f"{len(chosen.runs)} runs"
    )
    return chosen


def _located(paths: Sequence[Path], runs_dir: Path) -> list[tuple[Path, Path]]:
    """Return every path with the folder that it means.

    Raises:
        UserError: Some mean none; the message names them all.
    """
    found: list[tuple[Path, Path]] = []
    missing: dict[Path, UserError] = {}
    for path in paths:
        try:
            found.append((path, located(path, runs_dir)))
        except UserError as error:
            missing[path] = error
    if len(missing) > 1:
        names = " and ".join(map(str, missing))
        raise UserError(
            f"{names} are neither runs, studies nor folders of runs. `harness runs list` shows those found"
        )
    for only in missing.values():
        raise only
    return found


def name_arms(runs: Sequence[Run]) -> None:
    """Name arms by their differences: the agent, and every other configuration key that differs.

    Settings that only follow the preset of another device are summarized by the device.
    """
    configs = [flatten(run.record["config"]) for run in runs]
    devices = [str(run.record.get("device")) for run in runs]

    def goes_with_device(key: str) -> bool:
        values = {
            (device, str(config.get(key))) for device, config in zip(devices, configs, strict=True)
        }
        return key.startswith(_OF_THE_DEVICE) and len(values) == len(set(devices))

    own = ("agent", "seed", "device")
    keys = [key for key in differing(configs) if key not in own and not goes_with_device(key)]
    kinds = {run.record["kind"] for run in runs}
    for run, config, device in zip(runs, configs, devices, strict=True):
        rest = [f"on {device}"] if len(set(devices)) > 1 else []
        rest += [f"{key.rpartition('.')[2]}={config.get(key)}" for key in keys]
        run.arm = run.arm or " ".join(
            [
                agent_label(str(config["agent"])),
                *rest,
                *([run.record["kind"]] if len(kinds) > 1 else []),
            ]
        )


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
    known = dict.fromkeys([*arms, *(other for others in arms.values() for other in others)])
    raise NoSuchArm(f"no arm called {name!r}{nearest(name, known, '.')} Arms: {all_of_them}")


def other_names(runs: Iterable[Run]) -> dict[str, set[str]]:
    """Return the other names of each arm."""
    found: dict[str, set[str]] = {}
    for run in runs:
        found.setdefault(run.arm, set()).update((run.record["agent"], run.id, run.name))
    return found


@dataclass(frozen=True, slots=True)
class BestRun:
    """The training of a study that validated best.

    Attributes:
        validation: Accuracy, or mean reward, of its last validation.
        of: How many finished trainings it was chosen from.
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
        if job.get("kind") == "eval" or not job["run"]:
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
            f"Its runs: harness runs list {folder}"
        )
    best = max(finished, key=lambda one: one.validation)
    return replace(best, of=len(finished))


def located(path: Path, runs_dir: Path) -> Path:
    """Return the folder of a path, a run's id, or a study's file."""
    if path.is_dir():
        return path
    if path.suffix in (".yaml", ".yml") and path.is_file():
        try:
            described = parse_yaml(path.read_bytes())
        except (OSError, ValueError) as error:
            raise UserError(
                f"{path} is no study that can be read: {error}. Correct it there"
            ) from error
        folder: Path = runs_dir / str(
            described.get("name", path.stem) if isinstance(described, dict) else path.stem
        )
        if not (folder / STUDY_FILE).is_file():
            raise UserError(
                f"study {path} has no runs under {folder} yet. Start it: harness study {path}"
            )
        return folder
    if (runs_dir / path).is_dir():
        return runs_dir / path
    if len(path.name) >= PART_OF_AN_ID:
        # The name may be a pattern that the shell found no file for.
        found = runs_dir.glob(f"*{escape(path.name)}*")
        close = [run for run in found if (run / "run.json").is_file()]
        if len(close) == 1:
            return close[0]
    hint = nearest(str(path), _beside(path, runs_dir), ".")
    raise UserError(
        f"{path} is neither a run, a study nor a folder of runs{hint} `harness runs list` shows those found"
    )


def _beside(path: Path, runs_dir: Path) -> list[str]:
    """Return corrections of a mistyped path: studies or folders in its folder, and runs by id."""
    if path.suffix in (".yaml", ".yml"):
        return [str(one) for one in sorted(path.parent.glob(f"*{path.suffix}"))]
    folders = [one for one in sorted(path.parent.glob("*")) if one.is_dir()]
    runs = [one for one in sorted(runs_dir.glob("*")) if one.is_dir()]
    return [*map(str, folders), *(one.name for one in runs)]


def _add_study(chosen: Selection, folder: Path) -> None:
    data = read_state(folder)
    chosen.study, chosen.name = data, data["name"]
    chosen.jobs += data["jobs"]
    chosen.varied += [key for key in data.get("varied", []) if key not in chosen.varied]
    for job in data["jobs"]:
        if data.get("evaluate") and job.get("kind") != "eval":
            continue  # this measures the policy elsewhere; its training is only a means
        chosen.arms.append(job["arm"])
        path = folder / job["run"] if job["run"] else None
        if path is None or not (path / "run.json").is_file():
            lost = (
                f"its folder {path} is not here"
                if job.get("state") == "finished"
                else job.get("state", "not run")
            )
            chosen.missing.append(f"{job['arm']} seed {job['seed']}: {lost}")
            continue
        chosen.runs.append(
            replace(read_run(path), arm=job["arm"], name=f"{job['arm']} seed {job['seed']}")
        )
