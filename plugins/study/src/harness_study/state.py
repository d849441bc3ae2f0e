"""A study on disk: `study.json` with its runs, and the next step of each.

runs/<study>/
    study.json      jobs, their runs and states; the study's varied keys and its margin
    study.yaml      the file that it was started from
    configs/        the resolved configuration of every job
    logs/           the output of every job
    <run id>/       the runs
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import SubprocessError
from typing import Any, Literal

from harness.compare.states import (
    STUDY_FILE,
    Entry,
    StudyLaunch,
    StudyState,
    config_hash,
    read_state,
)
from harness.runs.folder import now, replace_text
from harness.runs.locks import held
from harness.runs.reading import Run, read_run, readable
from harness.runs.schema import RunRecord
from harness.training.provenance import changes, commit
from harness.util.parsing import differing, flatten
from harness_study.launchers import Launched, Launcher, Local, launcher
from harness_study.moved import has_moved_agent, source_of
from harness_study.plan import Job, Study, varied_keys
from harness_study.stale import mark_stale

Action = Literal["run", "resume", "skip", "wait"]


@dataclass
class Step:
    """The next step of a job: `run`, `resume` or `wait` for the run in `folder`, or `skip` it.

    Attributes:
        left: The launched process or job to wait for.
        earlier: Names of existing runs that do not belong to the job.
    """

    job: Job
    action: Action
    folder: Path | None = None
    why: str = ""
    left: Launched | None = None
    earlier: frozenset[str] = frozenset()


class StudyFolder:
    """The folder of one study's runs."""

    def __init__(
        self, path: Path, study: Study, jobs: Sequence[Job], launcher: Launcher | None = None
    ) -> None:
        self.path = path.absolute()
        self.launcher = launcher or Local()
        self._others: dict[str, Launcher] = {}
        self.study = study
        earlier = read_state(self.path) if (self.path / STUDY_FILE).exists() else None
        self.launches: list[StudyLaunch] = _launches(earlier) if earlier else []
        recorded: dict[str, Entry] = {}
        for old_entry in earlier["jobs"] if earlier else ():
            recorded[old_entry["key"]] = old_entry
        self.entries: dict[str, Entry] = {}
        for job in jobs:
            entry: Entry = {
                "key": job.key,
                "arm": job.arm,
                "seed": job.seed,
                "kind": job.kind,
                "parent": job.parent,
                "config_hash": job.config_hash,
                "run": None,
                "state": "planned",
            }
            old = recorded.pop(job.key, None)
            if old is not None and old.get("config_hash") == job.config_hash:
                entry |= {"run": old["run"], "state": old.get("state", "planned")}
                entry |= {"pid": old.get("pid"), "pid_started": old.get("pid_started")}
                entry["launcher"] = old.get("launcher")
            self.entries[job.key] = entry
        self.entries |= recorded  # jobs of an earlier, larger launch remain part of the study
        mark_stale(self.entries, study, jobs, self.path)

    def next_steps(self, jobs: Sequence[Job], *, any_code: bool = False) -> list[Step]:
        """Return the next step of every job, in order.

        Raises:
            UserError: The record of a job's run cannot be read; the run is not repeated without
                consent.
        """
        own = {self.entries[job.key]["run"] for job in jobs}
        folder_names: set[str] = set()
        at_work: set[str] = set()
        runs: list[tuple[Run, str]] = []
        for record in sorted(self.path.glob("*/run.json")):
            path = record.parent
            folder_names.add(path.name)
            # The record of a job's run must be readable, that of any other run need not be.
            for run in [read_run(path)] if path.name in own else readable([path]):
                runs.append((run, config_hash(run.record["config"])))
                if run.record["status"] == "running":
                    at_work.add(path.name)
        steps: dict[str, Step] = {}
        for job in jobs:
            step = self._next(job, runs, any_code, steps)
            # A job of an earlier launch may not have recorded its folder yet, which is then among
            # the running ones.
            earlier = folder_names - at_work if step.left else folder_names
            steps[job.key] = replace(step, earlier=frozenset(earlier))
        return list(steps.values())

    def set(
        self, job: Job, state: str, run: Path | None = None, launched: Launched | None = None
    ) -> None:
        """Record the state of a job."""
        entry = self.entries[job.key]
        entry["state"] = state
        if run is not None:
            entry["run"] = run.name
        # Its folder was removed while the job was under way.
        elif entry["run"] and not (self.path / entry["run"]).is_dir():
            entry["run"] = None
        entry["pid"], entry["pid_started"] = launched.process if launched else (None, None)
        entry["launcher"] = launched.by if launched else None
        self.write()

    def begin_launch(self, slots: list[dict[str, Any]]) -> None:
        """Add a launch with what the study's file states, which may change before the next one."""
        self.launches.append(
            {
                "started": now(),
                "runs_at_once": len(slots),
                "slots": slots,
                "margin": self.study.margin,
                "baseline": self.study.baseline,
                "checkpoint": self.study.checkpoint,
            }
        )

    def write(self) -> None:
        """Write `study.json` atomically."""
        study = self.study
        data: StudyState = {
            "schema_version": 1,
            "name": study.name,
            "question": study.question,
            "baseline": study.baseline,
            "margin": study.margin,
            "checkpoint": study.checkpoint,
            "varied": varied_keys(study),
            "evaluate": study.evaluate,
            "launches": self.launches,
            "jobs": list(self.entries.values()),
        }
        self.path.mkdir(parents=True, exist_ok=True)
        replace_text(self.path / STUDY_FILE, json.dumps(data, indent=2, ensure_ascii=False) + "\n")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the study, so that two processes never run it at once.

        Raises:
            UserError: Another process holds the lock, or the folder cannot be written.
        """
        with held(self.path, f"study {self.study.name!r} is already running in {self.path}"):
            yield

    def _next(
        self, job: Job, runs: Sequence[tuple[Run, str]], any_code: bool, before: Mapping[str, Step]
    ) -> Step:
        entry, job_hash = self.entries[job.key], job.config_hash
        own: list[Run] = []
        usable: list[Run] = []
        finished: Run | None = None
        for run, run_hash in runs:
            if job.kind != "train" or not run.trained:
                continue
            # A resumed run reads its agent from its own configuration, so an unfinished one does
            # not continue at another path.
            moved = run.finished and has_moved_agent(run, job)
            if run_hash != job_hash and not moved:
                continue
            own.append(run)
            # A result of other code is no result of this study: arms would differ in the code as
            # well.
            if any_code or same_code(run.record, job.config.agent):
                usable.append(run)
                # Of several the newest: folders are in the order of their starts.
                finished = run if run.finished else finished
        if finished is not None:
            return Step(job, "skip", finished.folder.path, "finished")
        if left := self._left(job, entry):
            why = f"still running as {left.description}"
            return Step(job, "wait", self._folder(entry), why, left)
        if job.kind == "eval":
            return self._next_evaluation(job, runs, any_code, before)
        if usable:
            newest = usable[-1]
            why = f"{newest.record['status']} before its end"
            return Step(job, "resume", newest.folder.path, why)
        if own:
            return Step(job, "run", None, "its earlier run has other code (--any-code keeps it)")
        return Step(job, "run", None, self._set_otherwise(job, runs))

    def _next_evaluation(
        self, job: Job, runs: Sequence[tuple[Run, str]], any_code: bool, before: Mapping[str, Step]
    ) -> Step:
        """Return the next step of an evaluation, which depends on that of its training."""
        entry, trained = self.entries[job.key], self._trained(job, before)
        own: list[Run] = []
        for run, run_hash in runs:
            alike = run_hash == job.config_hash or has_moved_agent(run, job)
            if run.finished and _made_by(run, job, entry, alike):
                own.append(run)
        # Only an evaluation of exactly the policy that the training has now: a repeated training
        # has another one.
        for run in reversed(own):
            parent = run.record.get("parent")
            evaluated = parent["run"] if parent else trained
            same_policy = trained is not None and evaluated == trained
            if same_policy and (any_code or same_code(run.record, job.config.agent)):
                return Step(job, "skip", run.folder.path, "finished")
        why = "its earlier run has another training or code" if own else "not yet run"
        return Step(job, "run", None, why)

    def _set_otherwise(self, job: Job, runs: Sequence[tuple[Run, str]]) -> str:
        """Return why none of the runs is the job's.

        Names one that differs only in settings that the study does not vary.
        """
        own = flatten(job.config.dump())
        varied = {"agent", "agent_match", "seed", *varied_keys(self.study)}
        for run, _ in runs:
            if not run.trained or not run.finished or run.record["seed"] != job.seed:
                continue
            other = flatten(run.record["config"])
            # A setting that the older run did not know cannot be the one that was changed by hand.
            keys = [key for key in differing([own, other]) if key in other]
            if keys and varied.isdisjoint(keys):
                # Three settings suffice to recognize the run; a line has no room for all.
                settings = [f"{key}={other[key]}" for key in keys[:3]]
                return f"{run.id} has {', '.join(settings)}"
        return "not yet run"

    def _trained(self, job: Job, before: Mapping[str, Step]) -> str | None:
        """Return the run with the policy of an evaluation, or None if it is not trained yet."""
        if step := before.get(job.parent or ""):
            return step.folder.name if step.action == "skip" and step.folder is not None else None
        entry = self.entries.get(job.parent or "")
        return entry["run"] if entry and entry["state"] == "finished" else None

    def _left(self, job: Job, entry: Entry) -> Launched | None:
        """Return the launched process or job of an earlier launch, possibly of another launcher."""
        log, by = self.log(job), entry.get("launcher")
        launched = self.launcher.find(entry, log)
        if launched or not by:
            return launched
        # One launcher for all jobs reads its queue once.
        if by not in self._others:
            self._others[by] = launcher(by, {})
        return self._others[by].find(entry, log)

    def log(self, job: Job) -> Path:
        """Return the log file of a job."""
        return self.path / "logs" / f"{job.key}.log"

    def _folder(self, entry: Entry) -> Path | None:
        return self.path / entry["run"] if entry["run"] else None


def _launches(state: StudyState) -> list[StudyLaunch]:
    """Return the launches of a study, the last one with what the study's file stated then."""
    launches = state.get("launches", [])
    # An older version did not record it by launch. Its `study.json` has it of the last one.
    if launches:
        launches[-1].setdefault("margin", state.get("margin"))
        launches[-1].setdefault("baseline", state.get("baseline"))
        launches[-1].setdefault("checkpoint", state.get("checkpoint"))
    return launches


def same_code(record: RunRecord, agent: str) -> bool:
    """Return whether the code of the agent and of this checkout is unchanged since a run.

    Unknown code counts as the same: the commit of an installed wheel, an older run's uncommitted
    changes, and an agent that is no longer installed.

    Args:
        agent: The run's agent by the name that it has now.
    """
    # The source of an agent counts apart from the commit, since agents come from any package.
    recorded, current, source = record["commit"], commit(), record.get("agent_source")
    if source and source_of(agent) not in (source, None):
        return False
    if recorded is None or current is None:
        return True
    if recorded["hash"] == current["hash"]:
        unknown = recorded["dirty"] and "changes" not in recorded
        return unknown or recorded.get("changes", "") == current.get("changes", "")
    try:
        return not recorded.get("changes") and not changes(recorded["hash"])
    except (OSError, SubprocessError):  # its commit is not in this repository
        return False


def _made_by(run: Run, job: Job, entry: Entry, alike: bool) -> bool:
    """Return whether an evaluation belongs to this job.

    Evaluations of several policies may share a configuration.
    """
    study = run.record.get("study")
    return run.folder.id == entry.get("run") or (
        study is not None and study["job"] == job.key and alike
    )
