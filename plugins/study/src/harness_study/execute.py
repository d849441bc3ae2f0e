"""Run the jobs of a study, possibly several at a time, each in a process of its own."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.contracts.trainers import Standby
from harness.errors import UserError
from harness.plugins import make_trainer
from harness.runs.folder import RunFolder, now, undisturbed
from harness.runs.monitor import Follower
from harness.runs.progress import Progress
from harness.runs.reading import read_run
from harness.training.record import STUDY_VARIABLE
from harness.util.parsing import dump_yaml
from harness_study.launchers import Launched
from harness_study.output import job_of, last_line_of, outcome_of
from harness_study.plan import Job
from harness_study.slots import Slot, nearest
from harness_study.state import Step, StudyFolder

POLL_S = 0.5
STOP_S = 45.0
"""Seconds that interrupted trainings may take to save their state."""
TRIES = 3
RAY_WAS_SLOW = "node timed out during startup"
"""Ray gives its own agent 15 s to start, even on a busy machine; a run that fails so is started
again.
"""
START_GAP_S = 2.0
"""Seconds between two starts. Ray's agents miss their 15 s if they read libraries from a cold disk
concurrently.
"""


@dataclass
class Standing:
    """The state of one job of the matrix, for a display.

    Attributes:
        state: `waiting`, `running`, `finished`, `failed`, `interrupted` or `skipped`.
        line: The latest output line of its process, or its result.
        progress: Progress by the rows on disk; None before there is a record.
    """

    job: Job
    state: str = "waiting"
    line: str = ""
    began: float | None = None
    wall_s: float | None = None
    tries: int = 0
    progress: Progress | None = None


@dataclass(eq=False)
class _Active:
    """A running job. If its step is `wait`, an earlier launch started it.

    Attributes:
        slot: None for a job of an earlier launch beyond the number of slots.
        since: Offset of its first line in the log, in bytes.
        run: Its folder, once the run has a record.
        launches: The run's earlier launches.
        follower: Reads the rows of the run from this launch on.
    """

    step: Step
    standing: Standing
    slot: Slot | None
    launched: Launched
    log: Path
    since: int = 0
    run: Path | None = None
    launches: int = 0
    follower: Follower | None = None


class StudyRun:
    """One launch of a study.

    Args:
        on_change: Called with all standings about twice a second.
        slots: Places for runs, one at a time in each; by default one with all resources.
        any_code: Keep finished runs of other code, as in `next_steps`.
        command: The command that starts `harness`.
    """

    def __init__(
        self,
        folder: StudyFolder,
        steps: Sequence[Step],
        on_change: Callable[[list[Standing]], None],
        slots: Sequence[Slot] | None = None,
        any_code: bool = False,
        command: Sequence[str] = (sys.executable, "-m", "harness"),
    ) -> None:
        self._folder = folder
        self._steps = steps
        self._slots = list(slots or folder.launcher.slots(1, 1))
        self._free = list(self._slots)
        self._active: list[_Active] = []
        self._standbys: dict[int, Standby] = {}
        self._any_code = any_code
        self._command = list(command)
        self._started = -START_GAP_S
        self._on_change = on_change
        self.standings = [Standing(step.job) for step in steps]

    def execute(self) -> list[Standing]:
        """Run the missing jobs in order; a failed job does not stop the others.

        Raises:
            KeyboardInterrupt: After all running jobs were ended and their states written.
        """
        folder = self._folder
        slots = [{"cores": sorted(slot.cores), "gpus": slot.gpus} for slot in self._slots]
        folder.begin_launch(slots)
        waiting = self._to_do()
        folder.write()
        try:
            while waiting or self._active:
                ended = [active for active in self._active if active.launched.ended()]
                for active in ended:
                    again = self._end(active)
                    if again is not None:
                        waiting.insert(0, again)
                self._fill(waiting)
                for active in self._active:
                    line = last_line_of(active.log, active.since)
                    active.standing.line = line or active.launched.description
                    if active.run is None and self._find_run(active) is not None:
                        folder.set(active.step.job, "running", active.run, active.launched)
                    _follow(active)
                self._on_change(self.standings)
                if self._active:
                    time.sleep(POLL_S)
        except BaseException:
            self._stop_all()
            raise
        finally:
            for standby in self._standbys.values():
                standby.close()
        folder.launches[-1]["ended"] = now()
        folder.write()
        return self.standings

    def _to_do(self) -> list[tuple[Step, Standing]]:
        """Return the jobs to start, in order. Adopt running jobs and skip finished ones."""
        waiting: list[tuple[Step, Standing]] = []
        for step, standing in zip(self._steps, self.standings, strict=True):
            if step.left is not None:
                slot = nearest(step.left.cores, self._free)
                self._free = [free for free in self._free if free is not slot]
                standing.state, standing.line = "running", step.why
                standing.began = time.monotonic()
                log = self._folder.log(step.job)
                self._active.append(_Active(step, standing, slot, step.left, log, 0, step.folder))
                self._folder.set(step.job, "running", step.folder, step.left)
            elif step.action == "skip":
                standing.state = "skipped"
                if step.folder is not None:
                    skipped = read_run(step.folder)
                    standing.progress, standing.line = skipped.progress, outcome_of(skipped.record)
                self._folder.set(step.job, "finished", step.folder)
            else:
                waiting.append((step, standing))
        return waiting

    def _fill(self, waiting: list[tuple[Step, Standing]]) -> None:
        """Start jobs in order while there is room."""
        # Unfinished jobs, among which an evaluation may wait for its training.
        busy = {active.step.job.key for active in self._active}
        busy |= {step.job.key for step, _ in waiting}
        for step, standing in list(waiting):
            job = step.job
            if not self._free or len(self._active) >= len(self._slots):
                return
            if self._active and time.monotonic() - self._started < START_GAP_S:
                return
            # Its policy is not trained yet. Later jobs may start: they need not wait for it.
            if job.parent in busy:
                continue
            waiting.remove((step, standing))
            parent = self._parent(job)
            if job.kind == "eval" and parent is None:
                standing.state = "failed"
                standing.line = "the training that it evaluates did not finish"
                self._folder.set(job, "failed")
            else:
                self._start(step, standing, parent)

    def _start(self, step: Step, standing: Standing, parent: Path | None) -> None:
        job, log = step.job, self._folder.log(step.job)
        log.parent.mkdir(exist_ok=True)
        slot = self._free.pop(0)
        # The log of a job also has the output of earlier attempts, which must not be read as this
        # one's.
        since = log.stat().st_size if log.exists() else 0
        with _bound_to(slot.cores):
            environment = self._environment(job, slot)
            command = [*self._command, *self._arguments(step, parent)]
            launched = self._folder.launcher.launch(
                job, command, environment | self._held(job, slot, environment), log
            )
        launches = len(RunFolder(step.folder).read()["launches"]) if step.folder is not None else 0
        self._active.append(
            _Active(step, standing, slot, launched, log, since, step.folder, launches)
        )
        self._started = standing.began = time.monotonic()
        standing.tries += 1
        standing.state = "running"
        self._folder.set(job, "running", step.folder, launched)

    def _held(self, job: Job, slot: Slot, environment: Mapping[str, str]) -> dict[str, str]:
        """Return environment variables for a slot's preloaded modules, if several runs use it."""
        trainings = 0
        for step in self._steps:
            trainings += step.job.kind == "train" and step.action != "skip"
        # Preloading pays for the second run of a slot. Without one it would only take memory.
        if job.kind != "train" or trainings <= len(self._slots) or not slot.cores:
            return {}
        # A standby that has ended, or that read code which has changed since, is of no use.
        standby = self._standbys.pop(slot.index, None)
        if standby is not None and not standby.fresh():
            standby.close()
            standby = None
        if standby is None:
            standby = make_trainer(job.config).standby(job.config, environment)
        if standby is None:
            return {}
        self._standbys[slot.index] = standby
        return dict(standby.variables)

    def _end(self, active: _Active) -> tuple[Step, Standing] | None:
        """Record the result of a job.

        Return it if it must continue: an earlier launch left it, or Ray did not start.
        """
        self._active.remove(active)
        if active.slot is not None:
            self._free.append(active.slot)
        job, standing = active.step.job, active.standing
        standing.wall_s = None if standing.began is None else time.monotonic() - standing.began
        code, why = active.launched.outcome()
        again = self._look_again(active.step) if active.step.left is not None else active.step
        if again.action == "skip":
            standing.state, standing.line = "finished", "by an earlier launch"
            if again.folder is not None:
                standing.line = (
                    f"{outcome_of(RunFolder(again.folder).read())}, by an earlier launch"
                )
            self._folder.set(job, "finished", again.folder)
            return None
        if active.step.left is not None and not why:
            standing.state, standing.began, standing.wall_s = "waiting", None, None
            return again, standing
        run = self._find_run(active)
        _follow(active)
        record: Mapping[str, Any] = RunFolder(run).read() if run is not None else {}
        status, line = record.get("status", "failed"), last_line_of(active.log, active.since)
        done = status == "finished" and not code
        # A record that still says "running" after its process has ended: it was killed.
        if not done and status == "running":
            status = "interrupted"
        standing.state = "finished" if done else "failed"
        reason = why or record.get("reason") or line or f"ended with status {code} without output"
        standing.line = outcome_of(record) if done else reason
        self._folder.set(job, status if status != "finished" or done else "failed", run)
        if not done and RAY_WAS_SLOW in reason and standing.tries < TRIES:
            standing.state = "waiting"
            return self._look_again(active.step), standing
        return None

    def _find_run(self, active: _Active) -> Path | None:
        """Return this job's run, once it has a record that names the job, or None."""
        if active.run is not None and not (active.run / "run.json").is_file():
            active.run = None
        if active.run is None:
            for path in self._folder.path.glob("*/run.json"):
                name = path.parent.name
                if name not in active.step.earlier and job_of(path.parent) == active.step.job.key:
                    active.run = path.parent
        return active.run

    def _look_again(self, step: Step) -> Step:
        return self._folder.next_steps([step.job], any_code=self._any_code)[0]

    def _environment(self, job: Job, slot: Slot) -> dict[str, str]:
        study = {"name": self._folder.study.name, "job": job.key, "runs_at_once": len(self._slots)}
        environment = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "160",
            STUDY_VARIABLE: json.dumps(study),
        }
        if slot.gpus is not None:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(slot.gpus)
        return environment

    def _arguments(self, step: Step, parent: Path | None) -> list[str]:
        job, folder = step.job, self._folder.path
        # The study itself has made the certificates that its comparison needs.
        placed = ["--runs-dir", str(folder), "--without-parity"]
        if job.kind == "eval":
            asked = ["eval", str(parent), "--agent", job.config.agent]
            if split := self._folder.study.evaluate_split:
                asked += ["--split", split]
            if self._folder.study.read_reserved:
                asked.append("--read-reserved")
            return [*asked, *placed]
        if step.action == "resume":
            kept = f"train.keep_checkpoints={job.config.train.keep_checkpoints}"
            return ["train", "--resume", str(step.folder), "--set", kept]
        file = folder / "configs" / f"{job.key}.yaml"
        file.parent.mkdir(exist_ok=True)
        text = dump_yaml(job.config.dump())
        file.write_text(text, encoding="utf-8")
        return ["train", "--config", str(file), *placed]

    def _parent(self, job: Job) -> Path | None:
        if job.parent is None:
            return None
        entry = self._folder.entries.get(job.parent)
        done = entry["run"] if entry and entry.get("state") == "finished" else None
        return self._folder.path / done if done else None

    def _stop_all(self) -> None:
        """End all local jobs as Ctrl-C would, so that they can be resumed; then by force."""
        with undisturbed():  # a second signal must not orphan them
            local = [active for active in self._active if not active.launched.cancel]
            for active in local:
                active.launched.stop()
            # Saving takes a while, but a hanging job must not block the terminal forever.
            ends = time.monotonic() + STOP_S
            running = _not_ended(local)
            while running and time.monotonic() < ends:
                time.sleep(0.1)
                running = _not_ended(running)
            for active in running:
                active.launched.stop(force=True)
            for active in local:
                active.standing.state = "interrupted"
                self._folder.set(active.step.job, "interrupted", self._find_run(active))
            self._folder.launches[-1]["ended"] = now()
            self._folder.write()

    def left(self) -> str:
        """Return which jobs continue after an interruption, and how to end them.

        Empty if none does.
        """
        jobs: list[str] = []
        commands: list[str] = []
        for active in self._active:
            # Jobs of a queue have a command that ends them; local ones were ended with the study.
            if active.launched.cancel:
                jobs.append(active.launched.description)
                commands.append(active.launched.cancel)
        if not jobs:
            return ""
        verb = "continues (end it" if len(jobs) == 1 else "continue (end them"
        return f"; {' and '.join(jobs)} {verb}: {'; '.join(commands)})"


def _not_ended(active_jobs: Iterable[_Active]) -> list[_Active]:
    return [active for active in active_jobs if not active.launched.ended()]


@contextmanager
def _bound_to(cores: frozenset[int]) -> Iterator[None]:
    """Bind children of this thread to these cores, if there are any."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _follow(active: _Active) -> None:
    """Read a job's progress. Errors are ignored here; the run's end reports them."""
    try:
        if active.follower is None and active.run is not None:
            folder = RunFolder(active.run)
            record = folder.read()
            # A resumed run discards the rows that it repeats before it records this launch.
            if len(record["launches"]) > active.launches:
                active.follower = Follower.of(folder, record)
        if active.follower is not None:
            active.standing.progress = active.follower.look()
    except (UserError, OSError, ValueError, LookupError):
        active.standing.progress = None
