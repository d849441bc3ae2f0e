"""Launchers of a study's runs: local processes, or a plugin's."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import psutil

from harness.compare.states import Entry
from harness.contracts.hookspecs import LauncherSpec
from harness.errors import ConfigError
from harness.plugins import make, make_task_set, registry
from harness.policies.roles import answerers
from harness.training.checks import check_device, check_machine
from harness.training.data import first_policy, load_tasks
from harness_study.plan import Job
from harness_study.slots import Slot, make_slots


class Launched(Protocol):
    """One started run.

    Attributes:
        by: Name of its launcher.
        description: Short description with its location: `process 4711`.
        cancel: The command that ends it, if it continues without the study; empty if the study ends
            it.
        process: For a local one: process id and start time, seconds since 1970.
        cores: For a local one: the processors that it is bound to.
    """

    by: str
    description: str
    cancel: str = ""
    process: tuple[int | None, float | None] = (None, None)
    cores: Collection[int] = ()

    def ended(self) -> bool:
        """Return whether it is over; called about twice a second."""

    def outcome(self) -> tuple[int | None, str]:
        """Return a finished run's exit status, None if only its record has it, and the cause."""

    def stop(self, force: bool = False) -> None:
        """End it as Ctrl-C would, or by force. Not called if `cancel` is set."""
        return None


class Launcher(Protocol):
    """Start the runs of one study.

    The parameters of its constructor are its options (`--launch`).
    """

    def check(self, job: Job) -> None:
        """Refuse a run that cannot be carried out, before any is announced.

        Raises:
            UserError: It cannot; the message states why.
        """

    def slots(self, jobs: int, gpus_per_run: int) -> list[Slot]:
        """Return room for so many concurrent runs.

        Raises:
            UserError: There is not enough room.
        """

    def launch(
        self, job: Job, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> Launched:
        """Start a run that appends its output to a file.

        Raises:
            HarnessError: It was refused.
        """

    def find(self, entry: Entry, log: Path) -> Launched | None:
        """Return the run that an earlier launch started, or None if it no longer runs."""


class LocalProcess(Launched):
    """A child process, or one of an earlier launch (`child` is None)."""

    by = "local"

    def __init__(
        self, process: psutil.Process, child: subprocess.Popen[bytes] | None = None
    ) -> None:
        self._process, self._child = process, child
        self.process = process.pid, process.create_time()
        self.description = f"process {process.pid}"

    def ended(self) -> bool:
        """Return whether it is over; a zombie is."""
        if self._child is not None:
            return self._child.poll() is not None
        with suppress(psutil.NoSuchProcess):
            return not self._process.is_running() or self._process.status() == psutil.STATUS_ZOMBIE
        return True

    def outcome(self) -> tuple[int | None, str]:
        """Return the status of a child."""
        return (None if self._child is None else self._child.returncode), ""

    def stop(self, force: bool = False) -> None:
        """End it by SIGTERM, or with its whole session by SIGKILL."""
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL) if force else self._process.terminate()


class Local(Launcher):
    """`local`: without options."""

    def __init__(self) -> None:
        self._read: set[str] = set()

    def check(self, job: Job) -> None:
        """Refuse what this machine cannot carry out, such as a run with a missing policy."""
        task, task_set = job.config.task, make_task_set(job.config)
        splits = [task.val_split]
        if job.kind == "train":
            splits.append(task.train_split)
        # Most jobs of a study have the same tasks, and reading them takes seconds.
        for split in splits:
            read = repr((task, job.config.reward, split))
            if read not in self._read:
                load_tasks(job.config, task_set, split)
                self._read.add(read)
        if job.kind == "train":
            check_machine(job.config)
            first_policy(job.config)
        else:
            check_device(job.config)
        answerers(job.config)

    def slots(self, jobs: int, gpus_per_run: int) -> list[Slot]:
        """Return equal shares of this machine."""
        return make_slots(jobs, gpus_per_run)

    def launch(
        self, job: Job, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> LocalProcess:
        """Start a process in its own session, because this process handles Ctrl-C."""
        with log.open("ab") as out:
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=environment,
                start_new_session=True,
            )
        return LocalProcess(psutil.Process(child.pid), child)

    def find(self, entry: Entry, log: Path) -> LocalProcess | None:
        """Find a process by its id and start time."""
        # Ids of processes are used again, so the start time must agree too. No process has id 0.
        pid, started = entry.get("pid") or 0, entry.get("pid_started") or 0.0
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            left = LocalProcess(process)
            left.cores = process.cpu_affinity() or ()
            if abs(process.create_time() - started) < 1 and not left.ended():
                return left
        return None


def launcher(name: str, options: Mapping[str, object], section: str = "--launch") -> Launcher:
    """Return the launcher called `name`, with its options.

    Args:
        section: Source of the options; begins the message.

    Raises:
        PluginError: No installed plugin provides it, or it does not import.
        ConfigError: An option is unknown, missing or does not fit.
    """
    spec = registry().spec("launcher", name, LauncherSpec)
    built: Launcher = make(spec, options, section)
    return built


def options(items: Sequence[str]) -> dict[str, object]:
    """Return options from the texts of `--launch`; the launcher's types convert them.

    Raises:
        ConfigError: One is not `key=value`.
    """
    if wrong := [item for item in items if "=" not in item]:
        raise ConfigError(
            f"--launch takes key=value, got {wrong[0]!r}. Example: --launch partition=gpu"
        )
    chosen: dict[str, object] = {}
    for item in items:
        name, _, text = item.partition("=")
        chosen[name] = text
    return chosen
