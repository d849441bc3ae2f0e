"""`harness study --launcher slurm`: the runs of a study as Slurm jobs.

The launcher uses `sbatch` and `squeue`. submitit is unsuitable: it submits pickled functions, while
a run is a command that resumes by itself. It also asks `sacct` only: without Slurm accounting, a
cancelled job stays `UNKNOWN` and unfinished forever.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import time as clock
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.compare.states import Entry
from harness.errors import ConfigError, EnvironmentProblem, RunFailed, UserError, last_line
from harness_study.launchers import Launched, Launcher
from harness_study.plan import Job
from harness_study.slots import Slot

ENDED_BY = {
    "CANCELLED": "was cancelled",
    "TIMEOUT": "reached its time limit",
    "NODE_FAIL": "lost its node",
    "OUT_OF_MEMORY": "used more memory than requested",
    "PREEMPTED": "was preempted",
    "BOOT_FAIL": "got a node that did not start",
    "DEADLINE": "reached its deadline",
    "REVOKED": "was revoked for another cluster",
}
"""States of a job that was ended by something other than its run."""
OVER = {"COMPLETED", "FAILED", *ENDED_BY}
ANSWER_S = 60.0
"""Most seconds of one Slurm command; its own retries end much earlier."""


@dataclass(frozen=True)
class Listed:
    """A job in the output of `squeue`.

    Attributes:
        state: In full, for example `RUNNING`.
        reason: Why it waits, or how it ended.
        where: Nodes, or in brackets the reason to wait.
    """

    name: str
    state: str
    reason: str
    where: str


class SlurmJob(Launched):
    """One run as a Slurm job; it continues without the study."""

    by = "slurm"

    def __init__(self, launcher: Slurm, number: str, log: Path) -> None:
        self._launcher, self._number, self._log = launcher, number, log
        self._last: Listed | None = None
        self.description = f"Slurm job {number}"
        self.cancel = f"scancel {number}"

    def ended(self) -> bool:
        """Return whether it is over.

        A job that Slurm no longer lists is over, and its run's record states how.
        """
        self._last = known = self._launcher.listed().get(self._number)
        if known is not None:  # Slurm job 12, pending (Resources)
            self.description = (
                f"Slurm job {self._number}, {known.state.lower()} {known.where}".rstrip()
            )
        return self._last is None or self._last.state in OVER

    def outcome(self) -> tuple[int | None, str]:
        """Return whether a run's own end failed, according to Slurm, or what else ended it."""
        if self._last is None:
            return None, ""
        state, reason = self._last.state, self._last.reason
        if state == "COMPLETED":
            return 0, ""
        if state == "FAILED" and reason == "NonZeroExitCode":
            return 1, ""
        end = ENDED_BY.get(state, "failed")
        details = "" if reason in ("None", "") else f", {reason}"
        return None, f"Slurm job {self._number} {end} ({state}{details}); log: {_near(self._log)}"


class Slurm(Launcher):
    """`slurm`: every run is a job on one node.

    Args:
        partition: Partition of the jobs.
        time: Time limit of each job in sbatch's format, for example 12:00:00.
        gpus: GPUs of each job, by number or type (`h100:1`); by default as in the run's
            configuration, on `cuda`.
        cpus: Processors of each job.
        mem: Memory of each job, for example 120G.
        sbatch: Further options of sbatch, as on a command line.
        poll_s: Seconds between two queries of the queue.

    Raises:
        ConfigError: The time is a number, as YAML parses 12:00:00.
    """

    def __init__(
        self,
        partition: str = "",
        time: str | int = "",
        gpus: int | str | None = None,
        cpus: int | None = None,
        mem: int | str = "",
        sbatch: str = "",
        poll_s: float = 10.0,
    ) -> None:
        if isinstance(time, int):
            raise ConfigError(
                f"launcher.slurm.time is the number {time}; YAML also parses 12:00:00 "
                "without quotes as a number. Write it "
                'in quotes: time: "12:00:00" (or "60", minutes)'
            )
        self._resources = {"partition": partition, "time": time, "cpus-per-task": cpus, "mem": mem}
        self._gpus, self._further_options, self._poll_s = gpus, shlex.split(sbatch), poll_s
        self._tested: set[tuple[str, ...]] = set()
        self._list: dict[str, Listed] | None = None
        self._looked = 0.0

    def check(self, job: Job) -> None:
        """Refuse a job that Slurm would refuse, for example in an unknown partition."""
        options = self._options(job)
        if tuple(options) in self._tested:
            return
        self._tested.add(tuple(options))
        done = _run(["sbatch", "--test-only", *options], "#!/bin/sh\n")
        if done.returncode:  # submitted anyway, such a job could wait forever
            raise UserError(
                f"sbatch finds no place for {job.key} ({_error(done)}): "
                "no node fits, or all that fit are down. "
                f"Requested: {shlex.join(options)}. Change it by --launch"
            )

    def slots(self, jobs: int, gpus_per_run: int) -> list[Slot]:
        """Return room for so many jobs in the queue; Slurm chooses their nodes."""
        return [Slot(index, frozenset()) for index in range(jobs)]

    def launch(
        self, job: Job, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> SlurmJob:
        """Submit a job. Secrets travel in its environment, never on a command line.

        Raises:
            RunFailed: sbatch refused it.
        """
        output = str(log).replace("\\", "\\\\").replace("%", "%%")
        options = [
            f"--job-name={_name(log)}",
            f"--output={output}",
            "--open-mode=append",
            *self._options(job),
        ]
        done = _run(
            ["sbatch", "--parsable", *options],
            f"#!/bin/sh\nexec {shlex.join(command)}\n",
            environment,
        )
        if done.returncode:
            raise RunFailed(
                f"sbatch refused {job.key}: {_error(done)}. Submitted jobs continue; "
                "a restarted study finds them"
            )
        self._list = None
        return SlurmJob(self, done.stdout.strip().partition(";")[0], log)

    def find(self, entry: Entry, log: Path) -> SlurmJob | None:
        """Find a job by its name, which contains the study's folder.

        This also finds a job that was submitted right before a kill.
        """
        for number, job in self.listed().items():
            if job.name == _name(log) and job.state not in OVER:
                launched = SlurmJob(self, number, log)
                launched.ended()
                return launched
        return None

    def listed(self) -> dict[str, Listed]:
        """Return this user's jobs by number from the last query, including recently ended ones.

        Raises:
            EnvironmentProblem: Slurm has not answered yet.
        """
        if self._list is not None and clock.monotonic() - self._looked < self._poll_s:
            return self._list
        done = _run(["squeue", "--me", "--states=all", "--noheader", "--format=%i|%T|%r|%R|%j"])
        self._looked = clock.monotonic()
        if done.returncode == 0:
            rows = [line.split("|", 4) for line in done.stdout.splitlines()]
            self._list = {number.strip(): Listed(name, *fields) for number, *fields, name in rows}
        elif self._list is None:
            raise EnvironmentProblem(
                f"squeue does not answer, so the running jobs are unknown: {_error(done)}"
            )
        return self._list

    def _options(self, job: Job) -> list[str]:
        gpus = job.config.gpus if self._gpus is None and job.config.device == "cuda" else self._gpus
        resources = self._resources | {"gres": f"gpu:{gpus}" if gpus else ""}
        # A job that Slurm requeues by itself would restart its run; the study resumes it instead.
        always = ["--nodes=1", "--ntasks=1", "--no-requeue", "--export=ALL"]
        return [
            *always,
            *(f"--{name}={value}" for name, value in resources.items() if value),
            *self._further_options,
        ]


def _run(
    command: Sequence[str], script: str = "", environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a Slurm command and return its result.

    Raises:
        EnvironmentProblem: Slurm is not installed here.
    """
    try:
        return subprocess.run(
            command,
            input=script,
            env=environment,
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer in {ANSWER_S:g} s")
    except FileNotFoundError as error:
        raise EnvironmentProblem(
            f"{command[0]} is not installed here. "
            "Start the study on a machine that submits jobs, or without --launcher"
        ) from error


def _error(done: subprocess.CompletedProcess[str]) -> str:
    return (
        last_line(done.stderr, f"status {done.returncode}")
        .removeprefix(f"{done.args[0]}: ")
        .removeprefix("error: ")
    )


def _name(log: Path) -> str:
    """Return a job's name, which identifies the study's folder and the run in it."""
    return f"{log.stem}.{hashlib.sha256(str(log.resolve()).encode()).hexdigest()[:8]}"


def _near(path: Path) -> str:
    """Return a path in its shortest form."""
    return min(str(path), os.path.relpath(path), key=len)
