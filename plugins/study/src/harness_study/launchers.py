"""Where the runs of a study go: to processes of this machine, or to what a plugin brings."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

import psutil

from harness.compare.states import Entry
from harness.errors import ConfigError, PluginError, nearest
from harness.hookspecs import Spec
from harness.plugins import make, make_task_set
from harness.policies.roles import answerers
from harness.run.checks import check_device, check_machine
from harness.run.data import first_policy, load_tasks
from harness_study.plan import Job
from harness_study.slots import Slot, make_slots

GROUP = "harness.launchers"
"""Entry points of classes that follow `Launcher`, by the name that `--launcher` is given; `local` is here."""


class Launched(Protocol):
    """One run that was started, however it is carried out.

    Attributes:
        by: Name of its launcher.
        told: What it is, and where it waits, in a few words: `process 4711`.
        cancel: The command that ends it, where it goes on without the study; empty where the study ends it.
        process: Of one on this machine: number of its process, and when that began, seconds since 1970.
        cores: Of one on this machine: the processors that it is bound to.
    """

    by: str
    told: str
    cancel: str = ""
    process: tuple[int | None, float | None] = (None, None)
    cores: Collection[int] = ()

    def ended(self) -> bool:
        """Whether it is over; asked about twice a second."""

    def outcome(self) -> tuple[int | None, str]:
        """Of one that is over: its exit status, None where only its record says, and what ended it from outside."""

    def stop(self, force: bool = False) -> None:
        """End it as Ctrl-C would, or by force. Not called where `cancel` says how it is ended."""
        return None


class Launcher(Protocol):
    """Starts the runs of one study. The parameters of its constructor are its options (`--launch`)."""

    def check(self, job: Job) -> None:
        """Refuse a run that could not be carried out, before any is announced.

        Raises:
            UserError: It cannot; the message says why.
        """

    def slots(self, jobs: int, gpus_per_run: int) -> list[Slot]:
        """Room for so many runs at a time.

        Raises:
            UserError: There is no room for as many.
        """

    def launch(
        self, job: Job, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> Launched:
        """Start a run, whose output is appended to a file.

        Raises:
            HarnessError: It was refused.
        """

    def find(self, entry: Entry, log: Path) -> Launched | None:
        """What carries out the run that an earlier launch has started; None where nothing does any more."""


class LocalProcess(Launched):
    """A child, or what an earlier launch left (`child` is None)."""

    by = "local"

    def __init__(
        self, process: psutil.Process, child: subprocess.Popen[bytes] | None = None
    ) -> None:
        self._process, self._child = process, child
        self.process = process.pid, process.create_time()
        self.told = f"process {process.pid}"

    def ended(self) -> bool:
        """Whether it is over; a zombie is."""
        if self._child is not None:
            return self._child.poll() is not None
        with suppress(psutil.NoSuchProcess):
            return not self._process.is_running() or self._process.status() == psutil.STATUS_ZOMBIE
        return True

    def outcome(self) -> tuple[int | None, str]:
        """The status of a child."""
        return (None if self._child is None else self._child.returncode), ""

    def stop(self, force: bool = False) -> None:
        """By SIGTERM, or with all of its session by SIGKILL."""
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL) if force else self._process.terminate()


class Local(Launcher):
    """`local`: without options."""

    def __init__(self) -> None:
        self._read: set[str] = set()

    def check(self, job: Job) -> None:
        """Refuse what this machine cannot carry out: without questions or a policy every run would fail."""
        task, task_set = job.config.task, make_task_set(job.config)
        for split in (task.val_split, *[task.train_split] * (job.kind == "train")):
            if (read := repr((task, job.config.reward, split))) not in self._read:
                load_tasks(job.config, task_set, split)
                self._read.add(read)
        if job.kind == "train":
            check_machine(job.config)
            first_policy(job.config)
        else:
            check_device(job.config)
        answerers(job.config)

    def slots(self, jobs: int, gpus_per_run: int) -> list[Slot]:
        """Equal shares of this machine."""
        return make_slots(jobs, gpus_per_run)

    def launch(
        self, job: Job, command: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> LocalProcess:
        """A process in a session of its own: Ctrl-C is ours to handle."""
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
        """By the number of its process and when that began."""
        pid, started = entry.get("pid") or 0, entry.get("pid_started") or 0.0  # of no process
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            left = LocalProcess(process)
            left.cores = process.cpu_affinity() or ()
            if abs(process.create_time() - started) < 1 and not left.ended():
                return left
        return None


def launcher(name: str, options: Mapping[str, object], section: str = "--launch") -> Launcher:
    """The launcher called `name`, with its options.

    Args:
        section: Where the options stand; begins the message.

    Raises:
        PluginError: No plugin here brings it, or it does not import.
        ConfigError: An option is unknown, missing or does not fit.
    """
    found = {"local": f"{__name__}:Local"} | {
        point.name: point.value for point in entry_points(group=GROUP)
    }
    if name not in found:
        hint = nearest(name, found, ".")
        raise PluginError(
            f"no launcher called {name!r}{hint} Installed: {', '.join(sorted(found))}"
        )
    made: Launcher = make(Spec(name, found[name], ""), options, section)
    return made


def options(items: Sequence[str]) -> dict[str, object]:
    """Options as `--launch` has them: texts, which the launcher's types make numbers of.

    Raises:
        ConfigError: One is not `key=value`.
    """
    if wrong := [item for item in items if "=" not in item]:
        raise ConfigError(
            f"--launch wants key=value, got {wrong[0]!r}. Example: --launch partition=gpu"
        )
    return {key: value for key, _, value in (item.partition("=") for item in items)}
